"""Inputs of the golden files: generated parquet and avro files."""

import io
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from batch_pipeline_tests.regression.text_inputs import Input, lenient

_MOMENT = datetime(2026, 1, 31, 12, 30, 0, 123456, tzinfo=UTC)


def typed_inputs() -> Iterator[Input]:
    """Yield the inputs of typed formats."""
    yield from _parquet()
    yield from _avro()


def parquet(columns: dict[str, pa.Array], **options: Any) -> bytes:
    """Return columns as a parquet file."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def avro(fields: dict[str, Any], *records: dict[str, Any], codec: str = "null") -> bytes:
    """Return records as an avro container with a constant sync marker."""
    schema = fastavro.parse_schema(
        {
            "type": "record",
            "name": "row",
            "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
        }
    )
    sink = io.BytesIO()
    fastavro.writer(sink, schema, records, codec=codec, sync_marker=b"0123456789abcdef")
    return sink.getvalue()


def _parquet() -> Iterator[Input]:
    numbers = {
        "i8": pa.array([1, None, -128], pa.int8()),
        "i64": pa.array([2**63 - 1, 0, -(2**63)], pa.int64()),
        "u64": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "f32": pa.array([0.1, None, 2.5], pa.float32()),
        "f64": pa.array([0.1, 1e300, -0.0], pa.float64()),
        "flag": pa.array([True, None, False]),
        "d": pa.array([Decimal("1.50"), None, Decimal("-99999.99")], pa.decimal128(7, 2)),
        "wide": pa.array([Decimal(10) ** 40, None, Decimal(1)], pa.decimal256(50, 0)),
    }
    yield Input(name="parquet.numbers", files={"1.parquet": parquet(numbers)}, all_encodings=True)
    times = {
        "day": pa.array([date(2026, 1, 31), None], pa.date32()),
        "time": pa.array([time(12, 30, 0, 1), None], pa.time64("us")),
        "zoned": pa.array([_MOMENT, None], pa.timestamp("us", "Europe/Zurich")),
        "plain": pa.array([_MOMENT.replace(tzinfo=None), None], pa.timestamp("ms")),
        "nanos": pa.array([1_700_000_000_123_456_000, None], pa.timestamp("ns")),
        "span": pa.array([5_000, None], pa.duration("ms")),
    }
    yield lenient("parquet.times", parquet({k: v for k, v in times.items() if k != "span"}))
    yield lenient("parquet.duration", parquet(times))
    too_fine = {"a": pa.array([1, 1_000], pa.timestamp("ns")), "b": pa.array([1, 2])}
    yield lenient("parquet.nanoseconds", parquet(too_fine))
    texts = {
        "text": pa.array(["é", None, "🙂\n"]),
        "large": pa.array(["a", "b", None], pa.large_string()),
        "dictionary": pa.array(["x", "y", "x"]).dictionary_encode(),
        "bytes": pa.array([b"\x00\xff", None, b""], pa.binary()),
        "fixed": pa.array([b"abcd", None, b"1234"], pa.binary(4)),
        "nothing": pa.nulls(3),
    }
    yield lenient("parquet.texts_and_bytes", parquet(texts))
    nested = {
        "point": pa.array(
            [{"x": 1, "y": None}, None], pa.struct({"x": pa.int64(), "y": pa.int8()})
        ),
        "tags": pa.array([["a", None], []], pa.list_(pa.string())),
        "map": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
        "deep": pa.array([[{"d": Decimal("0.10")}], None]),
    }
    yield lenient("parquet.nested", parquet(nested))
    nonfinite = {"a": pa.array([float("nan"), 1.5, float("inf")]), "b": pa.array([1, 2, 3])}
    for rule in ("quarantine", "null", "string"):
        yield lenient(f"parquet.nonfinite_{rule}", parquet(nonfinite), on_nonfinite=rule)
    rows = {"id": pa.array(range(2_000)), "text": pa.array([f"t{n % 7}" for n in range(2_000)])}
    groups = [parquet(rows, row_group_size=300, compression=c) for c in ("zstd", "gzip", "none")]
    yield lenient("parquet.row_groups", *groups, part_files={"max_records": 1_500})
    changed = {"text": pa.array([1.5]), "more": pa.array(["x"])}
    yield lenient("parquet.drifting_layout", groups[0], parquet(changed), b"id,text\n1,y\n")
    yield lenient("parquet.damaged", groups[0][:-20], parquet({"a": pa.array([1])}))


def _avro() -> Iterator[Input]:
    primitives: dict[str, Any] = {
        "i": "int",
        "l": "long",
        "f": "float",
        "d": "double",
        "b": "boolean",
        "s": "string",
        "y": "bytes",
        "n": "null",
        "u": ["null", "long", "string"],
    }
    values = {"i": -1, "l": 2**62, "f": 0.5, "d": 0.1, "b": True, "s": "é", "y": b"\x00\xff"}
    both = ({**values, "n": None, "u": 7}, {**values, "n": None, "u": "x"})
    file = {"1.avro": avro(primitives, *both, {**values, "n": None, "u": None})}
    yield Input(name="avro.primitives", files=file, all_encodings=True)
    logical = {
        "day": {"type": "int", "logicalType": "date"},
        "time": {"type": "long", "logicalType": "time-micros"},
        "zoned": {"type": "long", "logicalType": "timestamp-micros"},
        "plain": {"type": "long", "logicalType": "local-timestamp-millis"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "key": {"type": "string", "logicalType": "uuid"},
    }
    moments = {
        "day": date(2026, 1, 31),
        "time": time(12, 30, 0, 1),
        "zoned": _MOMENT,
        "plain": datetime(2026, 1, 31, 12, 30, tzinfo=UTC).replace(tzinfo=None),
        "price": Decimal("-12.50"),
        "key": "12345678-1234-4234-8234-123456789012",
    }
    yield lenient("avro.logical_types", avro(logical, moments))
    record = {"type": "record", "name": "p", "fields": [{"name": "x", "type": "int"}]}
    nested = {
        "point": record,
        "list": {"type": "array", "items": ["null", "string"]},
        "map": {"type": "map", "values": "double"},
        "kind": {"type": "enum", "name": "k", "symbols": ["A", "B"]},
        "fixed": {"type": "fixed", "name": "f", "size": 2},
    }
    record_ = {
        "point": {"x": 1},
        "list": ["a", None],
        "map": {"k": 0.5},
        "kind": "B",
        "fixed": b"ab",
    }
    yield lenient("avro.nested", avro(nested, record_))
    rows = [{"id": n, "text": f"t{n % 5}"} for n in range(500)]
    blocks = [avro({"id": "long", "text": "string"}, *rows, codec=c) for c in ("deflate", "bzip2")]
    yield lenient("avro.codecs", *blocks)
    special = avro({"a": "double"}, {"a": float("nan")}, {"a": 1.5})
    yield lenient("avro.nonfinite", special)
    yield lenient("avro.damaged", blocks[0][:-100], avro({"id": "long"}, {"id": 1}))
