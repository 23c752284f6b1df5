"""Read the container of an avro file: its header, and its blocks, decompressed and checked.

Records are not decoded here.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import fastavro
import msgspec
import pyarrow as pa

_MAGIC = b"Obj\x01"
_SYNC = {"type": "fixed", "name": "sync_mark", "size": 16}
_HEADER = fastavro.parse_schema(
    {
        "type": "record",
        "name": "header",
        "fields": [
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": _SYNC},
        ],
    }
)
_BLOCK = fastavro.parse_schema(
    {
        "type": "record",
        "name": "block",
        "fields": [
            {"name": "count", "type": "long"},
            {"name": "compressed", "type": "bytes"},
            {"name": "sync", "type": _SYNC},
        ],
    }
)
_READ_BYTES = 2**24
_MAX_HEADER_BYTES = 64 * 2**20
_EXPANSION_CHECKED_FROM_BYTES = 64 * 2**20
_MAX_BLOCK_BYTES = 128 * 2**20  # a block is in memory as a whole


class InvalidAvroError(ValueError):
    """The file is damaged, unsupported, or not an avro file; the message says why."""


class ByteStream(Protocol):
    """Bytes that are read forward."""

    def read(self, size_bytes: int, /) -> bytes:
        """Read at most so many bytes, none only at the end."""
        ...


@dataclass(frozen=True, slots=True)
class AvroBlock:
    """The encoded records of a block, and how many the block claims to have."""

    count: int
    records: bytes


class AvroFile:
    """An avro file that is read from its start: `schema` from its header, then its blocks.

    fastavro reads the header and the frame of each block, but does not decompress: its
    `block_reader` has no limit for the decompressed size, does not compare the checksums of
    snappy, and accepts a truncated deflate stream (decision record 32).

    Raises:
        InvalidAvroError: the header is damaged, or the compression is not known.
    """

    def __init__(self, file: ByteStream, *, max_expansion: int) -> None:
        self._file = _ExactReader(file)
        self._max_expansion = max_expansion
        magic = self._file.read_some(len(_MAGIC))
        if magic != _MAGIC:
            raise InvalidAvroError("is not an avro file")
        header = self._read(_HEADER, "its header", limit=_MAX_HEADER_BYTES)
        self._sync = header["sync"]
        codec = header["meta"].get("avro.codec", b"null").decode("ascii", "replace")
        if codec not in _CODECS:
            known = ", ".join(_CODECS)
            raise InvalidAvroError(f"is compressed with {codec!r}; known are {known}")
        self._decompress = _CODECS[codec]
        try:
            self.schema: Any = msgspec.json.decode(header["meta"].get("avro.schema", b""))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidAvroError("is damaged: the schema in its header is not JSON") from error

    def blocks(self) -> Iterator[AvroBlock]:
        """Yield the blocks in order.

        Raises:
            InvalidAvroError: a block is damaged, the last one is cut, or they grow too much.
        """
        number, compressed_bytes, record_bytes = 1, 0, 0
        while not self._file.is_at_end():
            block = self._read(_BLOCK, f"block {number}")
            compressed = block["compressed"]
            if block["count"] < 0:
                raise InvalidAvroError(f"is damaged: block {number} has a size below 0")
            if block["sync"] != self._sync:
                raise InvalidAvroError(
                    f"is damaged: the mark behind block {number} is not its mark"
                )
            compressed_bytes += len(compressed)
            allowed = (
                max(compressed_bytes * self._max_expansion, _EXPANSION_CHECKED_FROM_BYTES)
                - record_bytes
            )
            limit = min(allowed, max(_MAX_BLOCK_BYTES, len(compressed)))
            try:
                records = self._decompress(compressed, limit)
            except (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                reason = f"is damaged: block {number} cannot be decompressed"
                raise InvalidAvroError(reason) from error
            if len(records) > limit and limit < allowed:
                most = _MAX_BLOCK_BYTES >> 20
                raise InvalidAvroError(f"block {number} becomes larger than {most} MiB, the most")
            if len(records) > limit:
                advice = f"more than `read_limits.max_expansion` allows ({self._max_expansion})"
                raise InvalidAvroError(f"block {number} grows too much, {advice}")
            record_bytes += len(records)
            yield AvroBlock(block["count"], records)
            number += 1

    def _read(self, schema: Any, part: str, *, limit: int | None = None) -> Any:
        self._file.limit = limit
        try:
            return fastavro.schemaless_reader(self._file, schema, None)  # type: ignore[arg-type] # it only reads
        except EOFError as error:
            raise InvalidAvroError("is cut off: the last block has no end") from error
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, InvalidAvroError):
                raise
            raise InvalidAvroError(f"is damaged: {part} cannot be read") from error


class _ExactReader:
    """A file that reads exactly as many bytes as are wanted, or raises; at most `limit` if set."""

    def __init__(self, file: ByteStream) -> None:
        self._file = file
        self._peeked = b""
        self.limit: int | None = None

    def is_at_end(self) -> bool:
        """Return whether no byte is left."""
        self._peeked = self._peeked or self._file.read(1)
        return not self._peeked

    def read_some(self, size_bytes: int) -> bytes:
        """Read in steps, so that a wrong size takes no more memory than the file has bytes."""
        pieces, self._peeked = [self._peeked[:size_bytes]], self._peeked[size_bytes:]
        left = size_bytes - len(pieces[0])
        while left and (piece := self._file.read(min(left, _READ_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def read(self, size_bytes: int, /) -> bytes:
        """Read exactly so many bytes."""
        if size_bytes < 0:
            raise InvalidAvroError("is damaged: a size is below 0")
        if self.limit is not None:
            self.limit -= size_bytes
            if self.limit < 0:
                raise InvalidAvroError("is damaged: its header is too long")
        data = self.read_some(size_bytes)
        if len(data) < size_bytes:
            raise EOFError
        return data


def _decompress_deflate(compressed: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    data = stream.decompress(compressed, limit + 1)
    if not stream.eof and len(data) <= limit:
        raise EOFError
    return data


def _decompress_by(new: Callable[[], Any]) -> Callable[[bytes, int], bytes]:
    def decompress(compressed: bytes, limit: int) -> bytes:
        stream = new()
        data: bytes = stream.decompress(compressed, limit + 1)
        if not stream.eof and len(data) <= limit:
            raise EOFError
        return data

    return decompress


def _decompress_zstd(compressed: bytes, limit: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(compressed), "zstd") as stream:
        # Not `read`, which leaks memory with every failed call.
        return bytes(stream.read_buffer(limit + 1).to_pybytes())


def _decompress_snappy(compressed: bytes, limit: int) -> bytes:
    body, checksum = compressed[:-4], compressed[-4:]
    size = shift = 0
    for octet in body[:5]:
        size |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            break
    if size > limit:
        return bytes(limit + 1)
    data = bytes(pa.Codec("snappy").decompress(body, decompressed_size=size))
    if zlib.crc32(data) != int.from_bytes(checksum, "big"):
        raise ValueError("checksum")
    return data


_CODECS: dict[str, Callable[[bytes, int], bytes]] = {
    "null": lambda compressed, _limit: compressed,
    "deflate": _decompress_deflate,
    "snappy": _decompress_snappy,
    "zstandard": _decompress_zstd,
    "bzip2": _decompress_by(bz2.BZ2Decompressor),
    "xz": _decompress_by(lzma.LZMADecompressor),
}
