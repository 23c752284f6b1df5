"""Decompresses files as they landed: gzip, bzip2, xz and zstd, however many members they have.

Bytes only: how a file is opened and what is in it is the business of others.
"""

import bz2
import lzma
import zlib
from enum import StrEnum
from typing import Any, BinaryIO, Protocol, assert_never

import pyarrow as pa

from batch_pipeline.spark.gzip_codec import GZIP_CONTAINER, ZLIB

_PIECE_BYTES = 64 * 2**10
RATIO_FROM = 64 * 2**20  # short files may well be blank
_XZ_MEMORY = 256 * 2**20
_MAGIC_BYTES = 10
_ZSTD_SKIPPED = frozenset(bytes([0x50 + kind]) + b"\x2a\x4d\x18" for kind in range(16))


class Packing(StrEnum):
    """The compressions of landed files."""

    GZIP = "gzip"
    BZIP2 = "bzip2"
    XZ = "xz"
    ZSTD = "zstd"


class UnpackError(Exception):
    """Compressed data cannot be taken for what it should be; the text says why."""


class _Member(Protocol):
    """One gzip member, bzip2 stream or xz stream; Python's own classes have this shape."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Pieces(Protocol):
    def read(self, size_bytes: int) -> bytes: ...


def packing_of(start: bytes) -> Packing | None:
    """Tell by the first bytes of a file how it is compressed, None if it is not."""
    if start.startswith(b"\x1f\x8b"):
        return Packing.GZIP
    if start.startswith(b"BZh") and start[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return Packing.BZIP2  # text may well start with "BZh", but not go on like this
    if start.startswith(b"\xfd7zXZ\0"):
        return Packing.XZ
    if start.startswith(b"\x28\xb5\x2f\xfd") or start[:4] in _ZSTD_SKIPPED:
        return Packing.ZSTD
    return None


class Unpacked:
    """The bytes of a compressed file as they were before.

    From 64 MiB on they must not be more than `max_expansion` times as many as those of the file
    that they came from.
    """

    def __init__(self, raw: BinaryIO, packing: Packing, *, max_expansion: int) -> None:
        self._raw = raw
        self._packing = packing
        self._max_expansion = max_expansion
        self._pieces: _Pieces
        if packing is Packing.ZSTD:
            self._pieces = _Zstd(raw)
        else:
            self._pieces = _Members(raw, packing)
        self._size_bytes = 0

    def read(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes`, fewer only at the end; no more are ever held in memory.

        Raises:
            UnpackError: the data is damaged, ends early, or grows too much.
            OSError: the file cannot be read.
        """
        found: list[bytes] = []
        left = size_bytes
        while left > 0 and (piece := self._piece(left)):
            found.append(piece)
            left -= len(piece)
        return b"".join(found)

    def _piece(self, size_bytes: int) -> bytes:
        try:
            piece = self._pieces.read(size_bytes)
        except (zlib.error, lzma.LZMAError, ZLIB.error) as error:
            raise UnpackError(_reason(self._packing, str(error))) from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise UnpackError(_reason(self._packing, str(error))) from error
        self._size_bytes += len(piece)
        if self._size_bytes >= RATIO_FROM:
            self._check_expansion()
        return piece

    def _check_expansion(self) -> None:
        read = self._raw.tell()
        if self._size_bytes > self._max_expansion * read:
            raise UnpackError(
                f"its first {read} bytes become more than {self._max_expansion} times as many when "
                f"they are decompressed, which `read_limits.max_expansion` does not allow"
            )


class _Zstd:
    """Arrow's reader, by buffers: its `read` keeps the memory of each call that fails for ever."""

    def __init__(self, raw: BinaryIO) -> None:
        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")

    def read(self, size_bytes: int) -> bytes:
        return bytes(self._stream.read_buffer(size_bytes).to_pybytes())


class _Members:
    """The members of a file, one behind the other."""

    def __init__(self, raw: BinaryIO, packing: Packing) -> None:
        self._raw = raw
        self._packing = packing
        self._member = _new_member(packing)
        self._pending = b""

    def read(self, size_bytes: int) -> bytes:
        """Read at most `size_bytes`, none only at the end."""
        while not self._member.eof or self._start_another():
            is_end = False
            if not self._pending and self._member.needs_input:
                self._pending = self._raw.read(_PIECE_BYTES)
                is_end = not self._pending
            data = self._member.decompress(self._pending, size_bytes)
            self._pending = b""
            if data:
                return data
            if is_end and not self._member.eof:
                raise UnpackError(_reason(self._packing, "truncated"))
        return b""

    def _start_another(self) -> bool:
        rest = self._member.unused_data
        while len(rest) < _MAGIC_BYTES:
            if self._packing is not Packing.BZIP2:  # the others may be padded
                rest = rest.lstrip(b"\0")
            more = self._raw.read(_PIECE_BYTES)
            if not more:
                break
            rest += more
        if self._packing is not Packing.BZIP2:
            rest = rest.lstrip(b"\0")
        if not rest:
            return False
        if packing_of(rest) is not self._packing:
            raise UnpackError(_reason(self._packing, "descriptor"))
        self._member = _new_member(self._packing)
        self._pending = rest
        return True


class _GzipMember:
    """One gzip member."""

    def __init__(self) -> None:
        self._inflate: Any = ZLIB.decompressobj(wbits=GZIP_CONTAINER)

    @property
    def eof(self) -> bool:
        return bool(self._inflate.eof)

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inflate.unused_data)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return bytes(self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length))


def _new_member(packing: Packing) -> _Member:
    match packing:
        case Packing.GZIP:
            return _GzipMember()
        case Packing.BZIP2:
            return bz2.BZ2Decompressor()
        case Packing.XZ:
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        case Packing.ZSTD:
            raise AssertionError("Arrow reads the frames itself")
        case _:
            assert_never(packing)


def _reason(packing: Packing, told: str) -> str:
    """Say in a few words what a library found wrong."""
    told = told.lower()
    if "truncated" in told:
        return f"{packing} data ends early"
    if "crc" in told or "check" in told:
        return f"{packing} checksum is wrong"
    if "descriptor" in told:
        return f"bytes behind the {packing} data are not {packing}"
    if "memory" in told:
        return f"{packing} data takes too much memory to decompress"
    return f"{packing} data is damaged"
