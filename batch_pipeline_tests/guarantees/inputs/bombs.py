"""Decompression bombs: files of a MiB that become a thousand times as large.

`python -m ….bombs FILE …` reads files as a task does, and prints the outcome and the peak memory of
each as JSON. No bomb is ever held decompressed.
"""

import bz2
import gzip
import io
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import to_uri
from batch_pipeline_tests.factories import stream

MIB = 2**20
_LINES = (b"0" * (MIB - 1) + b"\n") * 16
_SYNC = b"s" * 16


def _zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def _zigzag(value: int) -> bytes:
    value <<= 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def avro_file(schema: bytes, codec: str, *blocks: tuple[int, bytes]) -> bytes:
    """Return an avro file. A block is a record count and the stored bytes."""
    facts = {b"avro.codec": codec.encode(), b"avro.schema": schema}
    metadata = b"".join(
        _zigzag(len(key)) + key + _zigzag(len(value)) + value for key, value in facts.items()
    )
    head = b"Obj\x01" + _zigzag(len(facts)) + metadata + b"\0" + _SYNC
    return head + b"".join(
        _zigzag(count) + _zigzag(len(packed)) + packed + _SYNC for count, packed in blocks
    )


def avro(*blocks: tuple[int, bytes], kind: str = "long", codec: str = "deflate") -> bytes:
    """Return an avro file of one column."""
    fields = [{"name": "a", "type": kind}]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields}).encode()
    return avro_file(schema, codec, *blocks)


def _deflated(piece: bytes, times: int) -> bytes:
    packer = zlib.compressobj(6, wbits=-15)
    independent = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    return independent * times + packer.flush()


def _avro_of_texts() -> bytes:
    packed = _deflated(_zigzag(MIB) + b"x" * MIB, 64)
    return avro(*[(64, packed)] * 16, kind="string")


def _parquet(table: pa.Table, rows: int, **options: object) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        for _ in range(rows // len(table)):
            writer.write_table(table)
    return sink.getvalue()


def _parquet_of_pages() -> bytes:
    table = pa.table({"a": ["x" * MIB] * 16})
    return _parquet(table, 1024, compression="zstd", use_dictionary=False)


def _parquet_of_a_dictionary() -> bytes:
    index = pa.array([0] * 4096, pa.int32())
    texts = pa.DictionaryArray.from_arrays(index, ["x" * MIB])
    return _parquet(pa.table({"a": texts}), 4096, compression="none")


def _parquet_of_repeated_texts() -> bytes:
    index = pa.array([0] * 400 + [1] * 400, pa.int32())  # the first rows are short
    texts = pa.DictionaryArray.from_arrays(index, ["x", "x" * MIB])
    options = {"store_schema": False, "dictionary_pagesize_limit": 16 * MIB}
    return _parquet(pa.table({"a": texts}), 800, compression="zstd", **options)


def _parquet_of_repeated_items() -> bytes:
    index = pa.array([0] * 4096, pa.int32())
    texts = pa.DictionaryArray.from_arrays(index, ["x" * MIB])
    values = pa.ListArray.from_arrays([0, 4096], texts)
    options = {"store_schema": False, "dictionary_pagesize_limit": 16 * MIB}
    return _parquet(pa.table({"a": values}), 1, compression="zstd", **options)


def _parquet_of_fixed_size() -> bytes:
    values = pa.array([b"x" * MIB], pa.binary(MIB)).take(pa.array([0] * 64))
    return _parquet(pa.table({"a": values}), 1024, compression="zstd")


def _parquet_of_nulls() -> bytes:
    values = pa.ListArray.from_arrays([0, 64 * MIB], pa.nulls(64 * MIB, pa.int8()))
    return _parquet(pa.table({"a": values}), 1, compression="zstd")


# The short form has one bomb for each code path.
SHORT_FORM = (
    *("gzip", "nested", "avro blocks", "avro count"),
    *("parquet dictionary", "parquet texts", "parquet items", "parquet fixed", "parquet nulls"),
)
# Each has at most about a MiB and expands to a GiB or more.
BOMBS: Mapping[str, Callable[[], bytes]] = {
    "gzip": lambda: gzip.compress(_LINES, 9, mtime=0) * 64,
    "bzip2": lambda: bz2.compress(_LINES[: 2 * MIB]) * 512,
    "xz": lambda: lzma.compress(_LINES) * 64,
    "zstd": lambda: _zstd(_LINES) * 64,
    "line": lambda: gzip.compress(b"x" * (16 * MIB), mtime=0) * 64,
    "record": lambda: gzip.compress(b'{"a":"', mtime=0) + gzip.compress(b"x" * (16 * MIB)) * 64,
    "array": lambda: gzip.compress(b'[{"a":[', mtime=0) + gzip.compress(b"0," * (8 * MIB)) * 64,
    "nested": lambda: gzip.compress(b"[" * (16 * MIB), mtime=0) * 64,
    "columns": lambda: gzip.compress(b"a," * (8 * MIB), mtime=0) * 64,
    "avro block": lambda: avro((2**30, _deflated(bytes(MIB), 1024))),
    "avro blocks": _avro_of_texts,
    "avro count": lambda: avro((2**60, b"\0" * 64), codec="null"),
    "parquet pages": _parquet_of_pages,
    "parquet dictionary": _parquet_of_a_dictionary,
    "parquet texts": _parquet_of_repeated_texts,
    "parquet items": _parquet_of_repeated_items,
    "parquet fixed": _parquet_of_fixed_size,
    "parquet nulls": _parquet_of_nulls,
    "cell": lambda: gzip.compress(b'a\n"', mtime=0) + gzip.compress(_LINES, mtime=0) * 64,
}


def _read(path: Path) -> str:
    """Read a file and return why it is bad, or the number of its records."""
    orders, records = stream(), 0
    try:
        with open_source(LandedFile(location=to_uri(path)), orders) as source:
            for chunk in source.reader.chunks(source, orders):
                records += len(chunk.record_numbers)
    except BadFileError as error:
        return error.reason
    return f"{records} records"


def _peak_mib() -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None  # `getrusage` begins with the peak of the parent
    return int(match[1]) >> 10


if __name__ == "__main__":
    before = _peak_mib()
    paths = map(Path, sys.argv[1:])
    outcomes = {path.name: [_read(path), _peak_mib() - before] for path in paths}
    print(json.dumps(outcomes))  # noqa: T201 - the parent reads it
