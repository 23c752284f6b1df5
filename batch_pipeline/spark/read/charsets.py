"""Turns text of any charset into UTF-8 while it is read; what cannot be decoded is refused."""

import codecs
from collections.abc import Callable

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # starts like the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
MARK_BYTES = 4
_BLOCK_BYTES = 2**20


class UndecodableError(Exception):
    """Bytes are no text of the charset that they should have; the text says where."""


def charset_of(start: bytes, declared: str) -> tuple[str, int]:
    """Give Python's name of a text's charset, and the size of the byte order mark to skip.

    The mark decides; the declared charset is that of text without one.

    Raises:
        UndecodableError: the order of the bytes is not known.
    """
    for mark, charset in _MARKS:
        if start.startswith(mark):
            return charset, len(mark)
    charset = codecs.lookup(declared).name.removesuffix("-sig")
    if charset in {"utf-16", "utf-32"} and start:
        orders = f"{charset}-le or {charset}-be"
        raise UndecodableError(f"has no byte order mark: let `source.options.charset` be {orders}")
    if charset == "utf-8" and (order := _order_of_utf16(start[:4])):
        raise UndecodableError(
            "is UTF-16 text without a byte order mark: "
            f"set `source.options.charset` to utf-16-{order}"
        )
    return charset, 0


def _order_of_utf16(start: bytes) -> str | None:
    # Zeros around letters: no UTF-8 text starts like that.
    for order, zeros, letters in (("le", start[1::2], start[::2]), ("be", start[::2], start[1::2])):
        if zeros == b"\0\0" and len(letters) == 2 and min(letters) > ord(" "):
            return order
    return None


class Utf8Text:
    """Text of another charset as UTF-8.

    `read` gives the bytes as they stand, fewer than asked only at their end; the first one is at
    `offset` in the file.
    """

    def __init__(self, read: Callable[[int], bytes], charset: str, *, offset: int) -> None:
        self._read = read
        self._charset = charset
        self._decoder = codecs.getincrementaldecoder(charset)()
        self._taken = offset
        self._ready = b""
        self._is_end = False

    def read(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes` of UTF-8, fewer only at the end.

        Raises:
            UndecodableError: some bytes are no text.
        """
        ready = [self._ready]
        left = size_bytes - len(self._ready)
        while left > 0 and not self._is_end:
            ready.append(self._decoded())
            left -= len(ready[-1])
        text = b"".join(ready)
        self._ready = text[size_bytes:]
        return text[:size_bytes]

    def _decoded(self) -> bytes:
        block = self._read(_BLOCK_BYTES)
        self._is_end = len(block) < _BLOCK_BYTES
        self._taken += len(block)
        try:
            return self._decoder.decode(block, final=self._is_end).encode()
        except UnicodeDecodeError as error:  # its object starts with bytes left from before
            offset = self._taken - len(error.object) + error.start
            raise UndecodableError(f"is not {self._charset} text at byte {offset}") from error
        except UnicodeEncodeError as error:
            reason = f"holds half of a surrogate pair, of {self._charset} text"
            raise UndecodableError(reason) from error
