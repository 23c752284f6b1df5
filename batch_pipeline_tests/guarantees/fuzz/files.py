"""Strategies for files of all formats, and damages that respect their structure."""

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import fastavro
import pyarrow as pa
import zstandard
from hypothesis import strategies as st

from batch_pipeline_tests.encode import json_strategies
from batch_pipeline_tests.encode import test_value_round_trips as values
from batch_pipeline_tests.guarantees.fuzz.damage import (
    BYTES,
    CORPUS,
    FAULTS,
    UNCHANGED,
    Batch,
    Damage,
    choices,
    few,
    place_in,
    rarely,
    variants,
)
from batch_pipeline_tests.guarantees.inputs.bombs import avro_file

_LARGE_BYTES = 2**18
_COMPRESSIONS: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: gzip.compress(data, 1, mtime=0),
    lambda data: gzip.compress(data[:9], 1, mtime=0) + gzip.compress(data[9:], 1, mtime=0),
    bz2.compress,
    lambda data: lzma.compress(data, preset=0),
    zstandard.ZstdCompressor(write_checksum=True).compress,
)
_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.compress(data, 1)[2:-4],
    "snappy": lambda data: (
        pa.compress(data, codec="snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")
    ),
    "zstandard": zstandard.ZstdCompressor().compress,
    "bzip2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
}


# Text


def _json(layouts: Sequence[str]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda records, layout, blank: values.JSON_LAYOUTS[layout](
            [json_strategies.text_of(record, blank=blank) for record in records]
        ).encode(),
        json_strategies.records(),
        st.sampled_from(layouts),
        st.sampled_from(("", " ")),
    )


def _csv(table: tuple[list[str], list[list[Any]]], quoted: bool, end: str) -> bytes:
    names, rows = table
    lines = [
        ",".join(values.csv_cell(cell, quoted=quoted) for cell in row) for row in (names, *rows)
    ]
    return "".join(line + end for line in lines).encode()


JSONL = _json(["lines", "lines with returns"])
DOCUMENTS = _json(["array", "documents", "documents in one line", "array", "lines"])
CSV = st.builds(_csv, values.csv_tables(), st.booleans(), st.sampled_from(("\n", "\r\n", "\r")))
TEXT = st.one_of(JSONL, DOCUMENTS, CSV)


def _in_charset(data: bytes, *, charset: str) -> bytes:
    return data.decode("utf-8", "replace").encode(charset)


def _compressed(data: bytes, *, index: int) -> bytes:
    return _COMPRESSIONS[index](data)


_COMPRESSION_INDEX = st.integers(0, len(_COMPRESSIONS) - 1)
_FORMS = choices(_compressed, index=_COMPRESSION_INDEX) | choices(
    _in_charset, charset=st.sampled_from(("utf-16", "utf-32", "utf-8-sig"))
)


def text(valid: st.SearchStrategy[bytes]) -> st.SearchStrategy[Batch]:
    """Draw damaged text, some of it compressed or in another charset."""
    writers = rarely(7, _FORMS).map(lambda form: form or bytes)
    return variants(few(valid), BYTES, writers)


def _lengthened(data: bytes, *, at: int, size: int) -> bytes:
    """Repeat a few bytes until the file is long, to expose slow code."""
    start = len(data) * at // 100
    piece = data[start : start + size] or b" "
    return data[:start] + piece * (_LARGE_BYTES // len(piece)) + data[start:]


LARGE = variants(
    few(TEXT),
    BYTES,
    choices(_lengthened, at=st.integers(0, 100), size=st.sampled_from((1, 2, 5, 20, 100, 1000))),
)


def _with_tail(data: bytes, *, tail: bytes) -> bytes:
    return data + tail


_TAILS = st.sampled_from((b"\0" * 9, b"x", *(compress(b"{}") for compress in _COMPRESSIONS)))
COMPRESSED = variants(
    st.lists(TEXT, min_size=2, max_size=2).map(
        lambda texts: [compress(text) for text in texts for compress in _COMPRESSIONS]
    ),
    FAULTS,
    choices(_with_tail, tail=rarely(10, _TAILS).map(lambda tail: tail or b"")),
)


# Columns

_COLUMNS = values.columns(avro=False)
PARQUET_FILES = st.builds(values.parquet_of, _COLUMNS, st.sampled_from(("none", "snappy", "zstd")))


def _footer_start(data: bytes) -> int:
    return max(0, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))


def _in_pages(data: bytes, others: Sequence[bytes], *, fault: Damage[bytes]) -> bytes:
    start = _footer_start(data)
    return fault(data[:start], others) + data[start:]


def _in_footer(data: bytes, others: Sequence[bytes], *, fault: Damage[bytes]) -> bytes:
    """Damage the footer, but keep its length correct."""
    start = _footer_start(data)
    footer = fault(data[start:-8], others)
    return data[:start] + footer + len(footer).to_bytes(4, "little") + data[-4:]


PARQUET_DAMAGES: st.SearchStrategy[Damage[bytes]] = st.one_of(
    BYTES, choices(_in_pages, fault=FAULTS), choices(_in_footer, fault=FAULTS), FAULTS
)
PARQUET = variants(few(PARQUET_FILES), PARQUET_DAMAGES, UNCHANGED)


def _arrow(columns: values.Columns, is_file: bool) -> bytes:
    arrays = {name: pa.array(some, kind.arrow) for name, (kind, some) in columns.items()}
    table = pa.table(arrays)
    file = io.BytesIO()
    new = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with new(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


# Arrow files and streams are no source format, so all of them are refused.
ARROW = variants(few(st.builds(_arrow, _COLUMNS, st.booleans())), BYTES, UNCHANGED)


# Avro, with damaged records, schema and blocks inside of a valid container


@dataclass(frozen=True, slots=True, kw_only=True)
class _Avro:
    schema: bytes
    count: int
    records: bytes


def _avro(columns: values.Columns) -> _Avro:
    block: Any = next(iter(fastavro.block_reader(io.BytesIO(values.avro(columns, "null")))))
    return _Avro(
        schema=json.dumps(block.writer_schema).encode(),
        count=block.num_records,
        records=block.bytes_.getvalue(),
    )


def _other_schema(parts: _Avro, others: Sequence[_Avro], *, at: int) -> _Avro:
    return replace(parts, schema=others[at % len(others)].schema)


def _other_type(parts: _Avro, _others: Sequence[_Avro], *, at: int, word: str) -> _Avro:
    """Replace a value in the schema."""
    try:
        schema = json.loads(parts.schema)
    except ValueError:
        return parts
    holder, key = place_in(schema, at)
    if holder:
        holder[key] = json.loads(word)
    return replace(parts, schema=json.dumps(schema).encode())


def _in_schema(parts: _Avro, _others: Sequence[_Avro], *, fault: Damage[bytes]) -> _Avro:
    return replace(parts, schema=fault(parts.schema, ()))


def _in_records(parts: _Avro, others: Sequence[_Avro], *, damage: Damage[bytes]) -> _Avro:
    return replace(parts, records=damage(parts.records, [other.records for other in others]))


def _other_count(parts: _Avro, _others: Sequence[_Avro], *, count: int | None) -> _Avro:
    return replace(parts, count=parts.count + 1 if count is None else count)


def _container(
    parts: _Avro,
    *,
    codec: str,
    blocks: int,
    in_block: Damage[bytes] | None,
    in_file: Damage[bytes] | None,
) -> bytes:
    compressed = _CODECS[codec](parts.records)
    if in_block:
        compressed = in_block(compressed, ())
    data = avro_file(parts.schema, codec, *[(parts.count, compressed)] * blocks)
    return in_file(data, ()) if in_file else data


_AVRO_DAMAGES = st.one_of(
    choices(_other_schema, at=st.integers(0, 2)),
    choices(_other_type, at=st.integers(0, 2**16 - 1), word=st.sampled_from(CORPUS["avro types"])),
    choices(_in_schema, fault=FAULTS),
    choices(_in_records, damage=BYTES),
    choices(_in_records, damage=FAULTS),
    choices(_other_count, count=st.sampled_from((None, 0, 1, 2**31, 2**62))),
)
_CONTAINERS = choices(
    _container,
    codec=st.sampled_from((*["null"] * 7, *_CODECS)),
    blocks=st.sampled_from((1, 1, 1, 2)),
    in_block=rarely(6, FAULTS),
    in_file=rarely(6, FAULTS),
)
AVRO = variants(few(st.builds(_avro, values.columns(avro=True))), _AVRO_DAMAGES, _CONTAINERS)
