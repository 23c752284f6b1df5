"""The container of an avro file: its header, and its blocks decompressed and checked.

What the bytes of a record mean is not known here.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pyarrow as pa

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_HEADER = 64 * 2**20
_FREE_EXPANSION = 64 * 2**20
_MAX_BLOCK = 128 * 2**20  # a block is in memory as a whole


class AvroDamageError(ValueError):
    """The file is no avro file, or no longer; the text says why."""


class ReadsBytes(Protocol):
    """Something to read forward."""

    def read(self, size_bytes: int, /) -> bytes:
        """Read at most so many bytes, none only at the end."""
        ...


@dataclass(frozen=True, slots=True)
class AvroBlock:
    """So many records, one behind the other."""

    count: int
    records: bytes


class AvroFile:
    """An avro file that is read from its start: `schema` as it stands in the header, then blocks.

    Raises:
        AvroDamageError: the header is damaged, or the compression is not known.
    """

    def __init__(self, file: ReadsBytes, *, max_expansion: int) -> None:
        self._file = file
        self._max_expansion = max_expansion
        if file.read(4) != _MAGIC:
            raise AvroDamageError("is not an avro file")
        metadata = self._metadata()
        self._sync = self._exactly(_SYNC_BYTES)
        codec = metadata.get("avro.codec", b"null").decode("ascii", "replace")
        if codec not in _CODECS:
            known = ", ".join(_CODECS)
            raise AvroDamageError(f"is compressed with {codec!r}; known are {known}")
        self._decompress = _CODECS[codec]
        try:
            self.schema: Any = msgspec.json.decode(metadata.get("avro.schema", b""))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise AvroDamageError("is damaged: the schema in its header is no JSON") from error

    def blocks(self) -> Iterator[AvroBlock]:
        """Give the blocks in order.

        Raises:
            AvroDamageError: a block is damaged, the last one is cut, or they grow too much.
        """
        number, packed_bytes, record_bytes = 1, 0, 0
        while first := self._file.read(1):
            count = self._long(first)
            size = self._long()
            if count < 0 or size < 0:
                raise AvroDamageError(f"is damaged: block {number} has a size below 0")
            packed = self._exactly(size)
            if self._exactly(_SYNC_BYTES) != self._sync:
                raise AvroDamageError(f"is damaged: the mark behind block {number} is not its mark")
            packed_bytes += len(packed)
            allowed = max(packed_bytes * self._max_expansion, _FREE_EXPANSION) - record_bytes
            limit = min(allowed, max(_MAX_BLOCK, len(packed)))
            try:
                records = self._decompress(packed, limit)
            except (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                reason = f"is damaged: block {number} cannot be decompressed"
                raise AvroDamageError(reason) from error
            if len(records) > limit and limit < allowed:
                most = _MAX_BLOCK >> 20
                raise AvroDamageError(f"block {number} becomes larger than {most} MiB, the most")
            if len(records) > limit:
                told = f"more than `read_limits.max_expansion` allows ({self._max_expansion})"
                raise AvroDamageError(f"block {number} grows too much, {told}")
            record_bytes += len(records)
            yield AvroBlock(count, records)
            number += 1

    def _metadata(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        left = _MAX_HEADER
        while count := self._long():
            if count < 0:
                count = -count
                self._long()
            for _ in range(min(count, _MAX_HEADER)):
                key = self._bytes(left)
                value = self._bytes(left)
                left -= len(key) + len(value)
                found[key.decode("utf-8", "replace")] = value
        return found

    def _bytes(self, limit: int) -> bytes:
        size = self._long()
        if not 0 <= size <= limit:
            raise AvroDamageError("is damaged: its header is too long")
        return self._exactly(size)

    def _long(self, first: bytes = b"") -> int:
        value = shift = 0
        octet = first or self._exactly(1)
        while octet[0] & 0x80:
            value |= (octet[0] & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise AvroDamageError("is damaged: a number has no end")
            octet = self._exactly(1)
        value |= octet[0] << shift
        return (value >> 1) ^ -(value & 1)

    def _exactly(self, size_bytes: int) -> bytes:
        """Read in steps, so that a wrong size takes no more memory than the file has bytes."""
        pieces: list[bytes] = []
        left = size_bytes
        while left:
            piece = self._file.read(min(left, 2**24))
            if not piece:
                raise AvroDamageError("is cut off: the last block has no end")
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)


def _inflated(packed: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    found = stream.decompress(packed, limit + 1)
    if not stream.eof and len(found) <= limit:
        raise EOFError
    return found


def _unpacked_by(new: Callable[[], Any]) -> Callable[[bytes, int], bytes]:
    def unpacked(packed: bytes, limit: int) -> bytes:
        stream = new()
        found: bytes = stream.decompress(packed, limit + 1)
        if not stream.eof and len(found) <= limit:
            raise EOFError
        return found

    return unpacked


def _unzstd(packed: bytes, limit: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        # Not `read`, which keeps the memory of each call that fails for ever.
        return bytes(stream.read_buffer(limit + 1).to_pybytes())


def _unsnappy(packed: bytes, limit: int) -> bytes:
    body, checksum = packed[:-4], packed[-4:]
    size = shift = 0
    for octet in body[:5]:
        size |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            break
    if size > limit:
        return bytes(limit + 1)
    found = bytes(pa.Codec("snappy").decompress(body, decompressed_size=size))
    if zlib.crc32(found) != int.from_bytes(checksum, "big"):
        raise ValueError("checksum")
    return found


_CODECS: dict[str, Callable[[bytes, int], bytes]] = {
    "null": lambda packed, _limit: packed,
    "deflate": _inflated,
    "snappy": _unsnappy,
    "zstandard": _unzstd,
    "bzip2": _unpacked_by(bz2.BZ2Decompressor),
    "xz": _unpacked_by(lzma.LZMADecompressor),
}
