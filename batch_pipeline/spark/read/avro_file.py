"""The container of an avro file: its header, and its blocks decompressed and checked.

What the bytes of a record mean is not known here.
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
            {"name": "packed", "type": "bytes"},
            {"name": "sync", "type": _SYNC},
        ],
    }
)
_STEP_BYTES = 2**24
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

    fastavro reads header and blocks. It does not decompress them: its `block_reader` has no limit
    for what a block becomes, does not check the checksums of snappy, and takes a deflate stream
    that is cut off for a whole one.

    Raises:
        AvroDamageError: the header is damaged, or the compression is not known.
    """

    def __init__(self, file: ReadsBytes, *, max_expansion: int) -> None:
        self._file = _Bounded(file)
        self._max_expansion = max_expansion
        magic = self._file.read_some(len(_MAGIC))
        if magic != _MAGIC:
            raise AvroDamageError("is not an avro file")
        header = self._read(_HEADER, "its header", limit=_MAX_HEADER)
        self._sync = header["sync"]
        codec = header["meta"].get("avro.codec", b"null").decode("ascii", "replace")
        if codec not in _CODECS:
            known = ", ".join(_CODECS)
            raise AvroDamageError(f"is compressed with {codec!r}; known are {known}")
        self._decompress = _CODECS[codec]
        try:
            self.schema: Any = msgspec.json.decode(header["meta"].get("avro.schema", b""))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise AvroDamageError("is damaged: the schema in its header is no JSON") from error

    def blocks(self) -> Iterator[AvroBlock]:
        """Yield the blocks in order.

        Raises:
            AvroDamageError: a block is damaged, the last one is cut, or they grow too much.
        """
        number, packed_bytes, record_bytes = 1, 0, 0
        while not self._file.is_at_end():
            block = self._read(_BLOCK, f"block {number}")
            packed = block["packed"]
            if block["count"] < 0:
                raise AvroDamageError(f"is damaged: block {number} has a size below 0")
            if block["sync"] != self._sync:
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
            yield AvroBlock(block["count"], records)
            number += 1

    def _read(self, schema: Any, part: str, *, limit: int | None = None) -> Any:
        self._file.limit = limit
        try:
            return fastavro.schemaless_reader(self._file, schema, None)  # type: ignore[arg-type] # it only reads
        except EOFError as error:
            raise AvroDamageError("is cut off: the last block has no end") from error
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, AvroDamageError):
                raise
            raise AvroDamageError(f"is damaged: {part} cannot be read") from error


class _Bounded:
    """A file that reads as many bytes as are wanted, or fails; of a part at most `limit`."""

    def __init__(self, file: ReadsBytes) -> None:
        self._file = file
        self._ahead = b""
        self.limit: int | None = None

    def is_at_end(self) -> bool:
        """Return whether no byte is left."""
        self._ahead = self._ahead or self._file.read(1)
        return not self._ahead

    def read_some(self, size_bytes: int) -> bytes:
        """Read in steps, so that a wrong size takes no more memory than the file has bytes."""
        pieces, self._ahead = [self._ahead[:size_bytes]], self._ahead[size_bytes:]
        left = size_bytes - len(pieces[0])
        while left and (piece := self._file.read(min(left, _STEP_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def read(self, size_bytes: int, /) -> bytes:
        """Read exactly so many bytes."""
        if size_bytes < 0:
            raise AvroDamageError("is damaged: a size is below 0")
        if self.limit is not None:
            self.limit -= size_bytes
            if self.limit < 0:
                raise AvroDamageError("is damaged: its header is too long")
        found = self.read_some(size_bytes)
        if len(found) < size_bytes:
            raise EOFError
        return found


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
