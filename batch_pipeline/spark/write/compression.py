"""Compressors of whole part files: same input, same level, same bytes. No path is known here."""

import zlib
from typing import Protocol, assert_never, cast

import zstandard

from batch_pipeline.domain.encoding import Compression
from batch_pipeline.spark.gzip_codec import GZIP_CONTAINER, HAS_ISAL, ZLIB

FASTEST = 1  # of both gzip and zstd, hardly bigger than the next levels

_ISAL_HARDEST = 3
_ZLIB_EASIEST = 5  # its lower levels are slower than ISA-L's hardest, and bigger


class Compressor(Protocol):
    """What compressors of all kinds have in common."""

    def compress(self, data: bytes | memoryview, /) -> bytes:
        """Take more bytes, give what is ready."""
        ...

    def flush(self) -> bytes:
        """Give the rest; the stream is complete."""
        ...


def new_compressor(compression: Compression, level: int | None = None) -> Compressor | None:
    """Start a gzip member or a zstd frame; None where bytes stay as they are.

    Gzip levels 0 to 3 are ISA-L's, where it is installed: 0 is the fastest and the biggest, 1 the
    default. Levels 4 to 9 are zlib's, 4 being its 5. Without ISA-L all are zlib's, 0 stores the
    bytes as they are, and the output differs. The header holds no time and no file name.

    Zstd levels are zstd's, 1 is the default; the frame carries a checksum of its content.
    """
    chosen = FASTEST if level is None else level
    match compression:
        case Compression.NONE:
            return None
        case Compression.GZIP:
            return _new_gzip(chosen)
        case Compression.ZSTD:
            frame = zstandard.ZstdCompressor(level=chosen, write_checksum=True)
            return cast("Compressor", frame.compressobj())
        case Compression.SNAPPY:
            raise ValueError("no part file is compressed by snappy as a whole")
        case _:
            assert_never(compression)


def _new_gzip(level: int) -> Compressor:
    if HAS_ISAL and level <= _ISAL_HARDEST:
        return cast("Compressor", ZLIB.compressobj(level, wbits=GZIP_CONTAINER))
    if HAS_ISAL:
        level = max(level, _ZLIB_EASIEST)
    return zlib.compressobj(level, wbits=GZIP_CONTAINER)
