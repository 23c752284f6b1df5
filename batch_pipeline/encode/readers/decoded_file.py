"""Open the file of an item, decompress it, convert its text to UTF-8 and detect its format.

Every reason why a file cannot be read becomes a `BadFileError`; no record is parsed here.
"""

import codecs
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader
from typing import BinaryIO, TypeVar

from batch_pipeline.encode.chunks import ByteRange
from batch_pipeline.encode.errors import DecodeError, format_size_limit
from batch_pipeline.encode.readers.compression import DecompressedFile, detect_compression
from batch_pipeline.encode.readers.formats import (
    SOURCE_READERS,
    SourceReader,
    detect_binary_format,
    detect_text_format,
    unsupported_format_reason,
)
from batch_pipeline.encode.source_file import (
    SourceFile,
    TakePrefetched,
    bad_file_error,
    unreadable_error,
)
from batch_pipeline.model.errors import BadFileError, SourceRefusedError, SourceUnavailableError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import FileRange
from batch_pipeline.model.record_rules import BadFileKind
from batch_pipeline.model.stream import SourceFormat, Stream
from batch_pipeline.storage.filesystem import FileFacts

BLOCK_BYTES = 2 * 2**20

_STEP_BYTES = 16 * 2**20
_START_BYTES = 256 * 2**10  # enough to detect the format
_Result = TypeVar("_Result")


class DecodedFile:
    """An open file: its uncompressed bytes, in UTF-8 without a byte order mark if they are text.

    `range` is the byte range that the item covers, None for the whole file. `part` is the range of
    it that this task reads, None for all; the reader respects it. `reader` describes the format.
    Read either with `read` or through `file`: they share one position.
    """

    def __init__(
        self, original: SourceFile, stream: Stream, file: LandedFile, part: ByteRange | None = None
    ) -> None:
        self.range = file.range
        self.part = part
        if self.range is not None and part is None:
            self.part = ByteRange(self.range.start, self.range.stop)
        self.limits = stream.read_limits
        self.text_start = 0  # the position after a byte order mark
        self._stream = stream
        self._location = file.location
        self._original = original
        self._raw = original.raw
        self._temporary: BinaryIO | None = None
        self._decoded: BufferedReader | DecompressedFile | Utf8Transcoder = self._raw
        self._start = b""  # bytes that were read to detect the format
        self._is_compressed = self._decompress()
        self._is_utf8 = True
        self.reader = self._detect_format()
        if self.range is not None:
            self._check_range(self.range)

    @property
    def format(self) -> SourceFormat:
        """Return the format of the file."""
        return self.reader.format

    @property
    def can_be_split(self) -> bool:
        """Return whether several tasks can read this file."""
        # An escaped quote in a csv file is not a quote, so that counting quotes proves nothing.
        has_escapes = self.format is SourceFormat.CSV and self._stream.source.csv.escape is not None
        return self.is_plain and self.reader.can_be_split and not has_escapes

    @property
    def can_be_cut(self) -> bool:
        """Return whether ranges of bytes of this file may be items."""
        return self.is_plain and self.reader.can_be_cut

    @property
    def is_plain(self) -> bool:
        """Return whether the bytes are read as they are: not compressed, and UTF-8 if text."""
        return not self._is_compressed and self._is_utf8

    @property
    def facts(self) -> FileFacts:
        """Return size, time and version of the file when it was opened."""
        return self._original.facts

    @property
    def file(self) -> BinaryIO:
        """Return a seekable file at its start: the landed file if it is not compressed.

        For a compressed file, return a temporary file with the bytes that `read` returns.

        Raises:
            BadFileError: the file cannot be read, or compressed data is damaged.
        """
        if not self._is_compressed:
            self._raw.seek(0)
            return self._raw
        if self._temporary is None:
            self._temporary = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the source
            while block := self.read(BLOCK_BYTES):
                self._temporary.write(block)
        self._temporary.seek(0)
        return self._temporary

    def read(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes`, fewer only at the end of the file.

        Raises:
            BadFileError: the file cannot be read to its end, or compressed data is damaged.
        """
        start, self._start = self._start[:size_bytes], self._start[size_bytes:]
        return start + self._read(size_bytes - len(start))

    def seek(self, position: int) -> None:
        """Continue `read` at a byte of the landed file; only for files that can be split."""
        self._start = b""
        self._raw.seek(position)

    def reopened(self) -> BinaryIO:
        """Open the landed file again, with its own position.

        Raises:
            BadFileError: the file can no longer be opened.
        """
        return self._translate_errors(self._original.reopened)

    def blocks_before(self, position: int, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
        """Yield the text before a byte of the landed file, without moving the position of `read`.

        Raises:
            BadFileError: the file can no longer be opened.
        """
        with self.reopened() as file:
            left = position - file.seek(self.text_start)
            while left > 0 and (block := file.read(min(block_bytes, left))):
                left -= len(block)
                yield block

    def bad_file(
        self,
        reason: str,
        *,
        line: int | None = None,
        kind: BadFileKind = BadFileKind.CORRUPT,
    ) -> BadFileError:
        """Return the error that reports this whole file as bad."""
        return bad_file_error(self._stream, self._location, reason, line=line, kind=kind)

    def too_long(self, what: str, *, line: int) -> BadFileError:
        """Return the error for a record that is longer than allowed."""
        limit = format_size_limit(self.limits.max_record_bytes)
        reason = f"{what} is longer than {limit}, more than `read_limits.max_record_bytes` allows"
        return self.bad_file(reason, line=line)

    def close(self) -> None:
        """Remove the temporary file."""
        if self._temporary is not None:
            self._temporary.close()

    def _check_range(self, part: FileRange) -> None:
        """Check that the bounds of the range are line ends or bounds of the file."""
        if not self.can_be_cut:
            raise self.bad_file(
                "a byte range was requested, but only plain csv and jsonl files in UTF-8 "
                "can be read in ranges"
            )
        with self.reopened() as file:
            for position in (part.start, part.stop):
                file.seek(max(position - 1, 0))
                around = self._translate_errors(lambda: file.read(2))
                if position and not around:
                    raise self.bad_file(f"has no byte {position - 1}, which its range includes")
                if position and len(around) > 1 and around[:1] not in {b"\n", b"\r"}:
                    raise self.bad_file(f"byte {position} is inside a line")

    def _decompress(self) -> bool:
        """Set up decompression, read the first bytes, return whether the file is compressed."""
        start = self._translate_errors(lambda: self._raw.peek(1))
        compression = detect_compression(start)
        if compression is not None:
            limit = self.limits.max_expansion
            self._decoded = DecompressedFile(self._raw, compression, max_expansion=limit)
        self._start = self._read(_START_BYTES)
        if compression is not None and (inner := detect_compression(self._start)):
            raise self.bad_file(f"is compressed twice, with {compression} and {inner}")
        if reason := unsupported_format_reason(self._start):
            raise self.bad_file(reason)
        return compression is not None

    def _detect_format(self) -> SourceReader:
        declared, detected = self._stream.source.format, detect_binary_format(self._start)
        is_auto = declared is SourceFormat.AUTO
        if detected is not None and not is_auto and declared is not detected.format:
            reason = f"has format {detected.format}, but `source.format` is {declared}"
            raise self.bad_file(reason)
        if detected is not None:
            return detected
        if not is_auto and SOURCE_READERS[declared].magic:
            reason = f"does not have format {declared}, which `source.format` declares"
            raise self.bad_file(reason)
        self._decode_text()
        return SOURCE_READERS[detect_text_format(self._start) if is_auto else declared]

    def _decode_text(self) -> None:
        """Skip a byte order mark, and set up the conversion of another charset to UTF-8."""
        start = self._start
        charset, mark = self._translate_errors(
            lambda: detect_charset(start, self._stream.source.charset)
        )
        self._start, self.text_start = start[mark:], mark
        if charset == "utf-8":
            return
        self._is_utf8 = False
        encoded, rest = self._decoded, [self._start] if self._start else []

        def read(size_bytes: int) -> bytes:
            return rest.pop() if rest else encoded.read(size_bytes)

        self._start = b""
        self._decoded = Utf8Transcoder(read, charset, offset=mark)
        self._start = self._read(_START_BYTES)

    def _read(self, size_bytes: int) -> bytes:
        pieces: list[bytes] = []
        while size_bytes > 0:
            # Read in steps: `size_bytes` may be a damaged number, which must not be allocated.
            step = min(size_bytes, _STEP_BYTES)
            piece = self._translate_errors(partial(self._decoded.read, step))
            if not piece:
                break
            pieces.append(piece)
            size_bytes -= len(piece)
        return b"".join(pieces)

    def _translate_errors(self, read: Callable[[], _Result]) -> _Result:
        try:
            return read()
        except DecodeError as error:
            raise self.bad_file(str(error)) from error
        except OSError as error:
            raise unreadable_error(self._stream, self._location, error) from error


@contextmanager
def open_source(
    file: LandedFile,
    stream: Stream,
    part: ByteRange | None = None,
    *,
    prefetched: TakePrefetched | None = None,
) -> Iterator[DecodedFile]:
    """Open a file for reading and check that all bytes read belong to the registered version.

    If size and time were not registered, check that the file does not change while it is read.
    `prefetched` returns files that were prefetched from a store.

    Raises:
        BadFileError: the file does not exist, is not the registered version, or cannot be read.
        SourceUnavailableError: the store of the file cannot be reached.
    """
    original = SourceFile(file, stream, prefetched)
    with original.raw:
        try:
            source = DecodedFile(original, stream, file, part)
            try:
                yield source
            finally:
                source.close()
        except Exception as error:
            # Bytes of two versions look like a damaged file, so report the change instead.
            if isinstance(error, BadFileError | OSError) or original.pinned.error is not None:
                original.check()
            cause = error.__cause__ if isinstance(error, BadFileError) else error
            if isinstance(cause, OSError):
                unreadable = unreadable_error(stream, file.location, cause)
                if isinstance(unreadable, SourceUnavailableError):
                    raise unreadable from error
            raise
    original.check()


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCutter:
    """Cuts the uncompressed files of a stream that are larger than `most_bytes` into ranges.

    A file is cut only where each range, read separately, has the same records as within the file:
    JSON lines at line ends, csv at record ends if every quote from the first byte to the last
    follows the rules. Every other file remains one item.
    """

    stream: Stream
    most_bytes: int

    def is_large(self, file: LandedFile) -> bool:
        """Return whether a file is too large for one item."""
        return (file.size_bytes or 0) > self.most_bytes

    def ranges(self, file: LandedFile) -> Sequence[LandedFile]:
        """Return the ranges of a file in order, each of complete records.

        Ranges have at most `most_bytes`, unless a single record is longer. Return the file itself
        if it cannot be cut, and nothing if it is missing or has changed.
        """
        cuts: Sequence[int] = ()
        try:
            with open_source(file, self.stream) as source:
                if source.can_be_cut:
                    cuts = source.reader.find_cuts(source, self.stream, self.most_bytes)
                size = source.facts.size_bytes
        except SourceRefusedError:
            return (file,)  # reported when the item is encoded, as is any other fault
        except BadFileError as error:
            return () if error.kind in {BadFileKind.CHANGED, BadFileKind.MISSING} else (file,)
        if not cuts:
            return (file,)
        pairs = zip([0, *cuts], [*cuts, size], strict=True)
        ranges = [FileRange(start, stop, size) for start, stop in pairs]
        return [replace(file, location=file.location + one.fragment) for one in ranges]


_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is a prefix
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_TRANSCODE_BYTES = 2**20


def detect_charset(start: bytes, declared: str) -> tuple[str, int]:
    """Return Python's name for a text's charset, and the size of the byte order mark to skip.

    A byte order mark takes precedence over the declared charset.

    Raises:
        DecodeError: the byte order is not known.
    """
    for mark, charset in _BYTE_ORDER_MARKS:
        if start.startswith(mark):
            return charset, len(mark)
    charset = codecs.lookup(declared).name.removesuffix("-sig")
    if charset in {"utf-16", "utf-32"} and start:
        orders = f"{charset}-le or {charset}-be"
        raise DecodeError(f"has no byte order mark: set `source.options.charset` to {orders}")
    if charset == "utf-8" and (order := _utf16_byte_order(start[:4])):
        raise DecodeError(
            "is UTF-16 text without a byte order mark: "
            f"set `source.options.charset` to utf-16-{order}"
        )
    return charset, 0


def _utf16_byte_order(start: bytes) -> str | None:
    # ASCII letters in UTF-16 have a zero in every second byte; no UTF-8 text starts like that.
    for order, zeros, letters in (("le", start[1::2], start[::2]), ("be", start[::2], start[1::2])):
        if zeros == b"\0\0" and len(letters) == 2 and min(letters) > ord(" "):
            return order
    return None


class Utf8Transcoder:
    """Text of another charset, converted to UTF-8.

    `read` returns the encoded bytes, none only at the end; `offset` is the position of the first
    byte in the file, for error messages.
    """

    def __init__(self, read: Callable[[int], bytes], charset: str, *, offset: int) -> None:
        self._read = read
        self._charset = charset
        self._decoder = codecs.getincrementaldecoder(charset)()
        self._position = offset
        self._pending = b""
        self._is_end = False

    def read(self, size_bytes: int) -> bytes:
        """Read at most `size_bytes` of UTF-8, none only at the end.

        Raises:
            DecodeError: some bytes are not valid in the charset.
        """
        while not self._pending and not self._is_end:
            self._pending = self._next_block()
        text, self._pending = self._pending[:size_bytes], self._pending[size_bytes:]
        return text

    def _next_block(self) -> bytes:
        block = self._read(_TRANSCODE_BYTES)
        self._is_end = not block
        self._position += len(block)
        try:
            return self._decoder.decode(block, final=self._is_end).encode()
        except UnicodeDecodeError as error:
            # `error.object` starts with the bytes that the decoder kept from the previous block.
            offset = self._position - len(error.object) + error.start
            raise DecodeError(f"is not {self._charset} text at byte {offset}") from error
        except UnicodeEncodeError as error:
            reason = f"holds an unpaired surrogate of {self._charset} text"
            raise DecodeError(reason) from error
