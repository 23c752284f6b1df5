"""Decompress source files: gzip, bzip2, xz and zstd, with any number of members."""

import bz2
import lzma
from collections.abc import Callable
from enum import StrEnum
from typing import Any, BinaryIO

import pyarrow as pa

from batch_pipeline.encode.errors import DecodeError
from batch_pipeline.storage.part_formats.jsonl import GZIP_CONTAINER, ZLIB

_READ_BYTES = 64 * 2**10
# Below this size the ratio is not checked: a short file of blanks compresses very well.
EXPANSION_CHECKED_FROM_BYTES = 64 * 2**20
_XZ_MEMORY_BYTES = 256 * 2**20
_MAGIC_BYTES = 10
_ZSTD_SKIPPABLE = frozenset(bytes([0x50 + kind]) + b"\x2a\x4d\x18" for kind in range(16))


class SourceCompression(StrEnum):
    """The compressions of landed files."""

    GZIP = "gzip"
    BZIP2 = "bzip2"
    XZ = "xz"
    ZSTD = "zstd"


def detect_compression(start: bytes) -> SourceCompression | None:
    """Return the compression of a file by its first bytes, None if it is not compressed."""
    if start.startswith(b"\x1f\x8b"):
        return SourceCompression.GZIP
    if start.startswith(b"BZh") and start[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return SourceCompression.BZIP2  # text may start with "BZh", but does not continue like this
    if start.startswith(b"\xfd7zXZ\0"):
        return SourceCompression.XZ
    if start.startswith(b"\x28\xb5\x2f\xfd") or start[:4] in _ZSTD_SKIPPABLE:
        return SourceCompression.ZSTD
    return None


class DecompressedFile:
    """The decompressed bytes of a file.

    From 64 MiB on, there may be at most `max_expansion` times as many as compressed bytes read.
    """

    def __init__(
        self, raw: BinaryIO, compression: SourceCompression, *, max_expansion: int
    ) -> None:
        self._raw = raw
        self._compression = compression
        self._max_expansion = max_expansion
        is_zstd = compression is SourceCompression.ZSTD
        self._decompressor = _Zstd(raw) if is_zstd else _Members(raw, compression)
        self._size_bytes = 0

    def read(self, size_bytes: int) -> bytes:
        """Read at most `size_bytes`, none only at the end; memory never holds more than that.

        Raises:
            DecodeError: the data is damaged, ends early, or expands too much.
            OSError: the file cannot be read.
        """
        try:
            piece = self._decompressor.read(size_bytes)
        except (lzma.LZMAError, ZLIB.error) as error:
            raise DecodeError(_reason(self._compression, str(error))) from error
        except OSError as error:
            if error.errno is not None:  # the file cannot be read; bz2 sets no errno for damage
                raise
            raise DecodeError(_reason(self._compression, str(error))) from error
        self._size_bytes += len(piece)
        if self._size_bytes >= EXPANSION_CHECKED_FROM_BYTES:
            self._check_expansion()
        return piece

    def _check_expansion(self) -> None:
        read = self._raw.tell()
        if self._size_bytes > self._max_expansion * read:
            raise DecodeError(
                f"its first {read} bytes expand more than {self._max_expansion}-fold when they "
                f"are decompressed, which `read_limits.max_expansion` does not allow"
            )


class _Zstd:
    """Arrow's zstd reader. Its `read` leaks memory when it fails, `read_buffer` does not."""

    def __init__(self, raw: BinaryIO) -> None:
        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")

    def read(self, size_bytes: int) -> bytes:
        return bytes(self._stream.read_buffer(size_bytes).to_pybytes())


_NEW_MEMBER: dict[SourceCompression, Callable[[], Any]] = {
    SourceCompression.GZIP: lambda: ZLIB.decompressobj(wbits=GZIP_CONTAINER),
    SourceCompression.BZIP2: bz2.BZ2Decompressor,
    SourceCompression.XZ: lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES),
}


class _Members:
    """The members of a gzip, bzip2 or xz file, one after the other."""

    def __init__(self, raw: BinaryIO, compression: SourceCompression) -> None:
        self._raw = raw
        self._compression = compression
        self._padding = b"" if compression is SourceCompression.BZIP2 else b"\0"
        self._member = _NEW_MEMBER[compression]()
        self._pending = b""

    def read(self, size_bytes: int) -> bytes:
        """Read at most `size_bytes`, none only at the end."""
        # zlib returns unconsumed input; bz2 and lzma keep it, and may not need further input.
        while not self._member.eof or self._start_another():
            is_end = False
            if not self._pending and getattr(self._member, "needs_input", True):
                self._pending = self._raw.read(_READ_BYTES)
                is_end = not self._pending
            data: bytes = self._member.decompress(self._pending, size_bytes)
            self._pending = getattr(self._member, "unconsumed_tail", b"")
            if data:
                return data
            if is_end and not self._member.eof:
                raise DecodeError(_reason(self._compression, "truncated"))
        return b""

    def _start_another(self) -> bool:
        rest = self._member.unused_data.lstrip(self._padding)
        while len(rest) < _MAGIC_BYTES and (more := self._raw.read(_READ_BYTES)):
            rest = (rest + more).lstrip(self._padding)
        if not rest:
            return False
        if detect_compression(rest) is not self._compression:
            raise DecodeError(_reason(self._compression, "descriptor"))
        self._member = _NEW_MEMBER[self._compression]()
        self._pending = rest
        return True


def _reason(compression: SourceCompression, message: str) -> str:
    """Return a short description of a library's error message."""
    message = message.lower()
    if "truncated" in message:
        return f"{compression} data ends early"
    if "crc" in message or "check" in message:
        return f"{compression} checksum is wrong"
    if "descriptor" in message:
        return f"trailing bytes after the {compression} data are not {compression}"
    if "memory" in message:
        return f"{compression} data takes too much memory to decompress"
    return f"{compression} data is damaged"
