"""Gzip by ISA-L where it is installed, else by zlib. Streams only: no path is known here."""

import gzip
import zlib
from importlib import import_module
from importlib.util import find_spec
from typing import Any, BinaryIO, Protocol, cast

GZIP_MAGIC = b"\x1f\x8b"
FASTEST = 1
GZIP_CONTAINER = 31  # zlib's window bits: 15, plus 16 for a gzip header without time or file name

_HAS_ISAL = find_spec("isal") is not None  # there is no wheel for some platforms
_ZLIB: Any = import_module("isal.isal_zlib") if _HAS_ISAL else zlib
_GZIP_FILE: Any = import_module("isal.igzip").IGzipFile if _HAS_ISAL else gzip.GzipFile

DAMAGE: tuple[type[Exception], ...] = (EOFError, zlib.error, _ZLIB.error)


class Compressor(Protocol):
    """What zlib and ISA-L compressors have in common."""

    def compress(self, data: bytes | memoryview, /) -> bytes:
        """Take more bytes, give what is ready."""
        ...

    def flush(self) -> bytes:
        """Give the rest; the stream is complete."""
        ...


def open_gzip(raw: BinaryIO) -> BinaryIO:
    """Open a gzip stream of one or more members; reading a bad one raises `OSError` or `DAMAGE`."""
    return cast("BinaryIO", _GZIP_FILE(fileobj=raw, mode="rb"))


def new_compressor() -> Compressor:
    """Start a gzip member whose header holds no time and no file name: same input, same bytes."""
    return cast("Compressor", _ZLIB.compressobj(FASTEST, wbits=GZIP_CONTAINER))


def damage_reason(error: Exception) -> str:
    """Say in a few words what is wrong with gzip data that could not be read."""
    text = str(error)
    if isinstance(error, EOFError):
        return "gzip data ends early"
    if "CRC" in text:
        return "gzip checksum is wrong"
    if "length" in text:
        return "gzip length is wrong"
    if "Not a gzipped file" in text:
        return "bytes after the gzip data are not gzip"
    return "gzip data is damaged"
