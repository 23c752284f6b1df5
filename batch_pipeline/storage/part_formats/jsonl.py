"""Part files of JSON lines, compressed as a whole: equal input and level yield the same bytes."""

import gzip
import zlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO, Protocol, cast

import zstandard

from batch_pipeline.model.encoding import FASTEST_LEVEL, Compression

# ISA-L. Not by `import`, because the types that the package declares are wrong.
ZLIB: Any = import_module("isal.isal_zlib")
GZIP: Any = import_module("isal.igzip")
GZIP_CONTAINER = 31  # zlib's window bits: 15, plus 16 for a gzip header without time or file name
DECOMPRESSION_ERRORS: tuple[type[Exception], ...] = (
    gzip.BadGzipFile,
    EOFError,
    zlib.error,
    ZLIB.error,
    zstandard.ZstdError,
)

_BLOCK_BYTES = 2**20
_ISAL_HARDEST = 3
_ZLIB_EASIEST = 5  # its lower levels are slower than ISA-L's highest, with larger output


class Compressor(Protocol):
    """A compressor of any kind."""

    def compress(self, data: bytes | memoryview, /) -> bytes:
        """Accept more bytes and return the output that is ready."""

    def flush(self) -> bytes:
        """Return the rest of the output; the stream is complete."""


def new_compressor(compression: Compression, level: int | None = None) -> Compressor | None:
    """Return the compressor of a gzip member or a zstd frame; None if bytes are not compressed.

    Gzip levels 0 to 3 are ISA-L's: 0 is the fastest with the largest output, 1 is the default.
    Levels 4 to 9 are zlib's, with 4 mapped to 5. The header holds no time and no file name.

    Zstd levels are zstd's, 1 is the default; the frame carries a checksum of its content.
    """
    chosen = FASTEST_LEVEL if level is None else level
    match compression:
        case Compression.NONE:
            return None
        case Compression.GZIP:
            if chosen <= _ISAL_HARDEST:
                return cast("Compressor", ZLIB.compressobj(chosen, wbits=GZIP_CONTAINER))
            return zlib.compressobj(max(chosen, _ZLIB_EASIEST), wbits=GZIP_CONTAINER)
        case Compression.ZSTD:
            frame = zstandard.ZstdCompressor(level=chosen, write_checksum=True)
            return cast("Compressor", frame.compressobj())
        case Compression.SNAPPY:
            raise ValueError("no part file is compressed by snappy as a whole")


def decompressed(file: BinaryIO, compression: Compression) -> BinaryIO:
    """Return a stream of a file's text; reading damage raises one of `DECOMPRESSION_ERRORS`.

    Truncated zstd ends without an error: compare the SHA-256 or the number of records.
    """
    match compression:
        case Compression.NONE:
            return file
        case Compression.GZIP:
            opened: BinaryIO = GZIP.open(file, "rb")
            return opened
        case Compression.ZSTD:
            # pyarrow's reader kept 16 MiB for each damaged file that it had read.
            frames = zstandard.ZstdDecompressor()
            return frames.stream_reader(file, read_across_frames=True, closefd=False)
        case Compression.SNAPPY:
            raise ValueError("no part file is compressed by snappy as a whole")


def read_lines(
    file: BinaryIO, compression: Compression, block_bytes: int = _BLOCK_BYTES
) -> Iterator[bytes]:
    """Yield the text of a file in blocks of complete lines; the last line gets its line end."""
    text = decompressed(file, compression)
    remainder: list[bytes] = []
    while piece := text.read(block_bytes):
        end = piece.rfind(b"\n") + 1
        if not end:
            remainder.append(piece)
            continue
        yield b"".join((*remainder, memoryview(piece)[:end]))
        remainder = [piece[end:]] if end < len(piece) else []
    if remainder:
        yield b"".join((*remainder, b"\n"))
