"""Reading avro: types, unions, codecs, values out of range, damaged files."""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.readers import avro as avro_module
from batch_pipeline.encode.readers.avro import read_chunks
from batch_pipeline.model.errors import BadFileError
from batch_pipeline_tests.encode.landed_files import in_memory, stream_of

SYNC = bytes(range(16))


def schema(**fields: Any) -> dict[str, Any]:
    """Return the avro schema of a record with these fields."""
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": f"r_{'_'.join(fields)}", "fields": listed}


def references(count: int, *names: str) -> dict[str, Any]:
    """Return a schema of zero-byte types, where each type refers to the previous one."""
    fields: dict[str, Any] = {"t0": schema(z="null") | {"name": "T0"}}
    for number in range(1, count):
        inner = schema(**dict.fromkeys(names, f"T{number - 1}"))
        fields[f"t{number}"] = inner | {"name": f"T{number}"}
    return schema(id="int", **fields)


def nested(levels: int) -> dict[str, Any]:
    kind: Any = "int"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return schema(a=kind)


def avro(kind: Any, records: list[dict[str, Any]], **options: Any) -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, kind, records, sync_marker=SYNC, **options)
    return file.getvalue()


def tables(data: bytes, **limits: Any) -> list[Table]:
    stream = stream_of(**limits)
    return list(read_chunks(in_memory(data, stream), stream))


def one_field(kind: Any, values: list[Any], written_as: Any = None) -> Table:
    """Write one field, as `written_as` if given, and read it as `kind`."""
    data = avro(schema(a=written_as or kind), [{"a": value} for value in values], codec="null")
    if written_as is not None:
        header = avro(schema(a=kind), [], codec="null")
        plain = avro(schema(a=written_as), [], codec="null")
        data = header + data[len(plain) :]
    (table,) = tables(data)
    return table


def rejection(data: bytes, **limits: Any) -> str:
    with pytest.raises(BadFileError) as raised:
        tables(data, **limits)
    return raised.value.reason


def logical(kind: str, meaning: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": meaning, **more}


@pytest.mark.parametrize(
    ("kind", "arrow_type", "values"),
    [
        (["long", "null"], pa.int64(), [1, None]),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, pa.string(), ["B", "A"]),
        (logical("int", "time-millis"), pa.time64("us"), [time(23, 59, 59, 999000)]),
        (
            ["null", logical("long", "timestamp-millis")],
            pa.timestamp("us", "UTC"),
            [datetime(2026, 1, 1, tzinfo=UTC), None],
        ),
        (
            logical("fixed", "decimal", precision=5, scale=0, name="f", size=4),
            pa.decimal128(5, 0),
            [Decimal(-5)],
        ),
        (logical("int", "unheard-of"), pa.int64(), [5]),
    ],
)
def test_avro_reader_keeps_values_of_typed_fields(
    kind: Any, arrow_type: pa.DataType, values: list[Any]
) -> None:
    table = one_field(kind, values)

    assert table.batch.column("a").type == arrow_type
    assert table.batch.column("a").to_pylist() == values
    assert (table.json, table.bad) == (frozenset(), ())


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (
            ["string", logical("int", "date")],
            ["2026-01-31", date(2026, 1, 31)],
            ['"2026-01-31"', '"2026-01-31"'],
        ),
        (
            schema(
                l=logical("long", "local-timestamp-millis"),
                m=logical("int", "time-millis"),
                d=logical("bytes", "decimal", precision=4, scale=2),
                u=logical("string", "uuid"),
                b=["null", "bytes"],
            ),
            [
                {
                    "l": datetime(2026, 1, 1, 0, 0, 5),  # noqa: DTZ001 - it has no zone
                    "m": time(1, 2, 3),
                    "d": Decimal("1.10"),
                    "u": UUID(int=1),
                    "b": b"ab",
                }
            ],
            [
                (
                    '{"l":"2026-01-01T00:00:05","m":"01:02:03","d":1.10,'
                    '"u":"00000000-0000-0000-0000-000000000001","b":"YWI="}'
                )
            ],
        ),
        (logical("bytes", "decimal", precision=50, scale=1), [Decimal("0.5")], ["0.5"]),
        (
            ["int", logical("long", "timestamp-micros")],
            [1, datetime(2026, 1, 1, tzinfo=UTC)],
            ["1", '"2026-01-01T00:00:00Z"'],
        ),
    ],
)
def test_avro_reader_returns_nested_fields_and_unions_as_json_text(
    kind: Any, values: list[Any], texts: list[str | None]
) -> None:
    table = one_field(kind, values)

    assert table.batch.column("a").to_pylist() == texts
    assert table.json == {"a"}


INTS = {"type": "array", "items": "int"}
PAIR = {  # has the bytes of an entry of a map
    "type": "record",
    "name": "pair",
    "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": "int"}],
}


@pytest.mark.parametrize(
    ("kind", "written_as", "values", "reason"),
    [
        (logical("long", "timestamp-nanos"), "long", [0, 1001, 0], "is not in whole microsec"),
        (logical("int", "time-millis"), "int", [0, -1, 0], "is not a time of day"),
        (
            logical("bytes", "decimal", precision=2, scale=1),
            "bytes",
            [b"\x63", b"\x64", b"\x9d"],
            "has more digits than its type",
        ),
        ("string", "bytes", [b"a", b"\xff", b"c"], "is not UTF-8"),
        (
            {"type": "array", "items": logical("int", "date")},
            INTS,
            [[0], [2**30], []],
            "is not in whole microseconds or not in the years 1 to 9999",
        ),
        ({"type": "map", "values": "float"}, None, [{}, {"a": float("nan")}, {}], "holds NaN"),
        (
            {"type": "map", "values": "int"},
            {"type": "array", "items": PAIR},
            [[], [{"key": "a", "value": 1}, {"key": "a", "value": 2}], []],
            "holds a map with a duplicate key",
        ),
        (
            {"type": "array", "items": "string"},
            {"type": "array", "items": "bytes"},
            [[], [b"\xff"], []],
            "holds text that is not UTF-8",
        ),
    ],
)
def test_avro_reader_quarantines_records_with_values_out_of_range(
    kind: Any, written_as: Any, values: list[Any], reason: str
) -> None:
    """Values are never truncated."""
    table = one_field(kind, values, written_as)

    assert (list(table.record_numbers), list(table.line_numbers), table.good) == ([1, 3], [1, 3], 2)
    (bad,) = table.bad
    assert bad.line == 2
    assert bad.reason.startswith(f"column 'a' {reason}")
    assert b"a" in bad.raw


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.compress(data)[2:-4],
    "snappy": lambda data: (
        bytes(pa.Codec("snappy").compress(data)) + zlib.crc32(data).to_bytes(4, "big")
    ),
    "zstandard": lambda data: bytes(pa.Codec("zstd").compress(data)),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
NUMBERS = schema(a="long", b="string")


def number(value: int) -> bytes:
    """Return an encoded long."""
    file = io.BytesIO()
    fastavro.schemaless_writer(file, "long", value)
    return file.getvalue()


def block(count: int, body: bytes) -> bytes:
    """Return a block that claims this number of records."""
    return number(count) + number(len(body)) + body + SYNC


def compressed_file(codec: str = "null", blocks: int = 3) -> bytes:
    """Return a file with blocks of 1000 records."""
    header = avro(NUMBERS, [], codec="null")
    name = codec.encode()
    data = header.replace(b"\x08null", number(len(name)) + name)
    for number_of_block in range(blocks):
        records = io.BytesIO()
        for row in range(1000):
            record = {"a": number_of_block * 1000 + row, "b": "text"}
            fastavro.schemaless_writer(records, NUMBERS, record)
        body = CODECS[codec](records.getvalue())
        data += block(1000, body)
    return data


@pytest.mark.parametrize("codec", CODECS)
def test_avro_reader_reads_all_blocks_of_every_codec(codec: str) -> None:
    (table,) = tables(compressed_file(codec))

    assert table.batch.column("a").to_pylist() == list(range(3000))
    assert list(table.record_numbers) == list(range(1, 3001))


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "null"])
def test_avro_reader_rejects_block_over_expansion_limit(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_module, "EXPANSION_CHECKED_FROM_BYTES", 2**20)
    data = compressed_file(codec, blocks=0) + block(1, CODECS[codec](bytes(2**21)))

    assert rejection(data, max_expansion=1) == (
        "block 1 expands too much, more than `read_limits.max_expansion` allows (1)"
    )


FILE, EMPTY = compressed_file(), compressed_file(blocks=0)
NULLS = avro(schema(a="null"), [], codec="null")
DATES = avro(schema(a=logical("int", "date")), [], codec="null")
WRONG_CHECKSUM = compressed_file("snappy", blocks=0) + block(
    1, CODECS["snappy"](b"\2\0")[:-1] + b"x"
)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not an avro file"),
        (FILE[:20], "is truncated: the last block has no end"),  # within the header
        (FILE[:-1], "is truncated: the last block has no end"),
        (FILE[:-1] + b"x", "is damaged: the sync marker after block 3 does not match"),
        (FILE + b"\0", "is truncated: the last block has no end"),
        (
            FILE.replace(b"\x08null", b"\x06lz4"),
            "is compressed with 'lz4'; known are null, deflate, snappy, zstandard, bzip2, xz",
        ),
        (FILE.replace(b'{"type"', b'["type"'), "is damaged: the schema in its header is not JSON"),
        (FILE.replace(b'"long"', b'"lang"'), "has no valid avro schema (lang)"),
        (WRONG_CHECKSUM, "is damaged: block 1 cannot be decompressed"),
        (EMPTY + block(5, bytes(2)), "is damaged: a block lacks some of its records"),
        (EMPTY + block(1, bytes(4)), "is damaged: the record count of a block is wrong"),
        # The bytes after a record of no bytes are not the record count of a next block.
        (NULLS + block(1, number(2**60)), "is damaged: the record count of a block is wrong"),
        (DATES + block(1, number(2**40)), "is damaged: an int has more than 32 bits"),
        # A block of a few bytes can claim any number of empty records.
        (NULLS + block(600_000, b"") * 2, "has more than 1000000 records without a byte"),
    ],
)
def test_avro_reader_rejects_damaged_file_with_reason(data: bytes, reason: str) -> None:
    assert rejection(data) == reason


def test_avro_reader_reads_records_without_a_byte() -> None:
    [table] = tables(NULLS + block(600_000, b""))
    assert table.good == 600_000


NODE = {"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("string", "holds values of a type other than record: string"),
        (schema(), "has no columns"),
        (
            {"type": "record", "name": "r", "fields": [{"name": 5, "type": "int"}]},
            "has a schema with a field whose name is not text (5)",
        ),
        (
            {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}] * 2},
            "has a schema with a duplicate field of r",
        ),
        (schema(a=NODE), "has a recursive schema (n), which is not supported"),
        (
            schema(a={"type": "array", "items": "null"}),
            "has a schema of arrays of nothing, which is not supported",
        ),
        (references(40, "a", "b"), "has a schema of too many types"),
        (references(300, "a"), "has a schema of too many types"),
        (nested(490), "has a schema of too many types"),
    ],
)
def test_avro_reader_rejects_unsupported_schema(kind: Any, reason: str) -> None:
    assert rejection(avro(kind, [])) == reason


def test_avro_reader_rejects_too_many_columns() -> None:
    reason = "has 2 columns, more than `read_limits.max_columns` allows (1)"

    assert rejection(FILE, max_columns=1) == reason


def test_avro_reader_without_records_returns_columns() -> None:
    (table,) = tables(avro(schema(a=logical("int", "date"), b=INTS), []))

    assert table.batch.schema == pa.schema([("a", pa.date32()), ("b", pa.string())])
    assert (table.good, table.json) == (0, frozenset({"b"}))
