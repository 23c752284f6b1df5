"""All input and output formats through one run of the real command."""

import bz2
import gzip
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import orc

from batch_pipeline_tests.acceptance.sandbox import (
    Sandbox,
    files_below,
    json_records,
    manifests,
    part_files,
    unaccounted_files,
)
from batch_pipeline_tests.encode.landed_files import parquet

RECORDS = [{"id": number, "name": f"Zoë {number}"} for number in range(1, 21)]
# One encoding of each code path. Other compressions and levels are tested with the writers.
OUTPUTS = [
    {"format": "jsonl", "compression": "gzip", "level": 9},
    {"format": "parquet", "compression": "snappy"},
    pytest.param({"format": "jsonl", "compression": "zstd"}, marks=pytest.mark.long),
    pytest.param({"format": "arrow", "compression": "none"}, marks=pytest.mark.long),
    pytest.param({"format": "orc", "compression": "zstd"}, marks=pytest.mark.long),
]
ORDER_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": ["null", "number"], "multipleOf": 0.01},
        "at": {"type": ["null", "string"], "format": "date-time"},
    },
}
ORDER = b'{"id":1,"price":12345678901234567890.12,"at":"2026-01-31T12:00:00.123456+01:00"}\n'


TRANSFORM = """
from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def totals(sales: DataFrame) -> DataFrame:
    return sales.groupBy("city").agg(f.sum("amount").alias("total")).orderBy("city")
"""


def csv(records: list[dict[str, Any]]) -> bytes:
    """Return records as csv."""
    rows = (f"{record['id']},{record['name']}\n" for record in records)
    return "".join(["id,name\n", *rows]).encode()


def jsonl(records: list[dict[str, Any]]) -> bytes:
    """Return records as JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def avro(records: list[dict[str, Any]]) -> bytes:
    """Return records as avro."""
    target = io.BytesIO()
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
    schema = {"type": "record", "name": "person", "fields": fields}
    fastavro.writer(target, schema, records, codec="deflate")
    return target.getvalue()


def input_files() -> dict[str, bytes]:
    """Return ten files of two records each, whose names do not reveal the format."""
    pairs = iter([RECORDS[first : first + 2] for first in range(0, 20, 2)])
    many = next(pairs)
    files = [
        csv(next(pairs)),
        gzip.compress(csv(next(pairs))),
        jsonl(next(pairs)),
        bz2.compress(jsonl(next(pairs))),
        zstandard.compress(jsonl(next(pairs))),
        json.dumps(next(pairs), indent=2).encode(),
        "\n".join(json.dumps(record, indent=2) for record in next(pairs)).encode(),
        parquet(pa.Table.from_pylist(next(pairs))),
        avro(next(pairs)),
        gzip.compress(jsonl(many[:1])) + gzip.compress(jsonl(many[1:])),
    ]
    return {f"export-{number:02d}": content for number, content in enumerate(files)}


@pytest.fixture(scope="module")
def sandbox(shared_sandbox: Sandbox, warm_spark: str) -> Iterator[Sandbox]:
    """The sandbox after one run over the streams of this module with one format."""
    sandbox = shared_sandbox.in_process(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    declared = sandbox.write_stream(
        "declared",
        source={"format": "jsonl", "include": ["*"]},
        encoding={"format": "parquet", "compression": "snappy"},
        schema={"file": "order.json", "evolution": "rescue"},
    )
    declared.with_name("order.json").write_text(json.dumps(ORDER_SCHEMA))
    sandbox.land("declared", {"a.jsonl": ORDER + b'{"id":"two","colour":"red"}\n'})
    sandbox.write_stream(
        "mapped",
        source={"format": "csv"},
        select=["*", "!secret"],
        stream_maps={"mapped": {"email": "md5(email)", "__filter__": "id != '2'"}},
        lineage=["_item_id", "_source_file", "_record_number", "_batch_id", "_attempt"],
    )
    people = b"id,email,secret\n1,zoe@example.org,hunter2\n2,a@example.org,hunter3\n"
    sandbox.land("mapped", {"people.csv": people})
    sandbox.write_stream("totals", transform="shop_transforms:totals")
    sandbox.land("totals", {"sales.csv": b"city,amount\nRoma,1.50\nMilano,2\nRoma,3.25\n"})
    (sandbox.folder / "shop_transforms.py").write_text(TRANSFORM)
    sandbox.write_stream("late_types", source={"include": ["*.jsonl"], "format": "jsonl"})
    records: list[dict[str, Any]] = [{"id": number, "text": "x" * 200} for number in range(39_999)]
    late = {"id": 0.5, "text": "", "note": "late"}
    sandbox.land("late_types", {"1.jsonl": jsonl([*records, late])})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(sandbox.folder))
        sandbox.output_of("run")
        yield sandbox


def records_of(sandbox: Sandbox, stream: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a stream's part files, read by independent libraries."""
    for _, path in part_files(sandbox.storage(stream)):
        match path.suffix:
            case ".parquet":
                yield from pq.read_table(path).to_pylist()
            case ".arrow":
                yield from pa.ipc.open_file(path.read_bytes()).read_all().to_pylist()
            case ".orc":
                yield from orc.read_table(path).to_pylist()
            case ".zst":
                decompress = zstandard.ZstdDecompressor().decompressobj().decompress
                yield from map(json.loads, decompress(path.read_bytes()).splitlines())
            case _:
                yield from map(json.loads, gzip.decompress(path.read_bytes()).splitlines())


@pytest.mark.parametrize(
    "encoding", OUTPUTS, ids=lambda encoding: "-".join(map(str, encoding.values()))
)
def test_all_input_formats_are_written_in_each_output_format(
    sandbox: Sandbox, encoding: dict[str, Any]
) -> None:
    stream = f"as_{encoding['format']}_{encoding['compression']}"
    source = {"format": "auto", "include": ["export-*"]}
    sandbox.write_stream(stream, source=source, encoding=encoding)
    sandbox.land(stream, input_files())
    sandbox.output_of("run", stream)
    records = list(records_of(sandbox, stream))
    assert sorted(records, key=lambda record: record["id"]) == RECORDS
    [manifest] = manifests(sandbox.storage(stream))
    assert manifest["records"] == {"read": 20, "written": 20, "filtered": 0, "quarantined": 0}
    assert manifest["encoding"]["format"] == encoding["format"]
    assert unaccounted_files(sandbox.storage(stream)) == []


def test_invalid_values_of_a_declared_schema_are_rescued(sandbox: Sandbox) -> None:
    first, second = records_of(sandbox, "declared")
    assert first["price"] == Decimal("12345678901234567890.12")
    assert first["at"].isoformat() == "2026-01-31T11:00:00.123456+00:00"
    assert first["_rescued_data"] is None
    assert second["id"] is None
    assert json.loads(second["_rescued_data"]) == {"id": "two", "colour": "red"}


def test_masked_and_deselected_values_are_in_no_file(sandbox: Sandbox) -> None:
    """Only the hash of the email address is stored. Lineage columns identify the source."""
    storage = sandbox.storage("mapped")
    [record] = json_records(storage)
    assert list(record)[:2] == ["id", "email"]
    assert record.pop("_source_file").endswith("/landing/mapped/people.csv")
    del record["id"]
    assert record == {
        "email": "710c98997fe6293238987eee67b9d7dd",  # md5 of the address
        "_item_id": 1,
        "_record_number": 1,
        "_batch_id": "00000001-00000001",
        "_attempt": 1,
    }
    [manifest] = manifests(storage)
    assert manifest["records"] == {"read": 2, "written": 1, "filtered": 1, "quarantined": 0}
    for path in (Path(path) for path in files_below(storage)):
        packed = path.read_bytes()
        content = gzip.decompress(packed) if path.suffix == ".gz" else packed
        assert b"zoe@example.org" not in content
        assert b"hunter" not in content


def test_user_transform_is_applied(sandbox: Sandbox) -> None:
    totals = [{"city": "Milano", "total": 2.0}, {"city": "Roma", "total": 4.75}]
    assert list(records_of(sandbox, "totals")) == totals
    [manifest] = manifests(sandbox.storage("totals"))
    counts = [manifest["records"][name] for name in ("read", "transformed", "written")]
    assert counts == [3, 3, 2]


def test_columns_missing_from_the_sample_are_written(sandbox: Sandbox) -> None:
    """The schema is inferred from the first 10,000 records of a task; later ones differ."""
    storage = sandbox.storage("late_types")
    written = [*json_records(storage)]
    assert [record["id"] for record in written] == [*range(39_999), 0.5]
    assert written[-1]["note"] == "late"
    [manifest] = manifests(storage)
    assert manifest["schema_version"] == 2
    assert unaccounted_files(storage) == []
