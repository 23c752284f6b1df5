"""User transforms between reading and writing: values, counts, and classification of errors."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from batch_pipeline.encode.readers.decoded_file import ItemCutter
from batch_pipeline.model.encode_request import EncodeCallbacks
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import ConfigurationError, ConflictError, TransformError
from batch_pipeline.model.item import Item
from batch_pipeline.model.location import to_path
from batch_pipeline.model.record_rules import (
    BadFileRules,
    BadRecordRules,
    LineageColumn,
    OnBadFile,
    RecordMapping,
    SchemaRules,
)
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.spark import spark_job
from batch_pipeline.spark.spark_job import task_frame
from batch_pipeline_tests.docs.pages import blocks
from batch_pipeline_tests.spark.encode_fixture import (
    LARGE_SCHEMA,
    EncodeRun,
    each_session,
)
from batch_pipeline_tests.storage_roots import records

PAGE = "transform_with_pyspark.md"

MODULE = "batch_pipeline_tests.spark.transforms"
LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
TYPES = {
    "boolean": "boolean",
    "integer": "integer",
    "decimal": "decimal(20,4)",
    "number": "number",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "local": "local_timestamp",
    "object": "object",
    "array": "array",
    "any": "any",
    "a.b": "object",
    "A.b": "string",
}
VALUES = (
    '{"boolean":true,"integer":9007199254740993,"decimal":1234567890123456.7891,"number":0.5,'
    '"string":"a\\"\\u00e9","binary":"AAE=","date":"0001-01-01","time":"12:30:00.000001",'
    '"timestamp":"2026-01-31T12:00:00.000001Z","local":"2026-03-29T02:30:00.000001",'
    '"object":{"b":null,"a":1},"array":[1,null],"any":"text","a.b":{"n":1},"A.b":"x"}'
)


pytestmark = each_session


def use_transform(run: EncodeRun, function: str) -> None:
    run.configure(transform=f"{MODULE}:{function}")


def land_numbers(run: EncodeRun) -> None:
    """Land records 0 to 5 in two files."""
    for start in (0, 3):
        run.land(b"".join(b'{"id":%d}\n' % number for number in range(start, start + 3)))


@pytest.mark.guarantee("G15")
def test_filtering_transform_writes_its_records(run: EncodeRun) -> None:
    """Items count the records that were read, part files those that the transform returned."""
    use_transform(run, "keep_even")
    land_numbers(run)

    schema, result = run.encode_with_inferred_schema()

    assert schema == RecordSchema.from_json([("id", "integer"), ("twice", "integer")])
    assert records(result.part_files) == [{"id": n, "twice": 2 * n} for n in (0, 2, 4)]
    assert [(item.read, item.written) for item in result.items] == [(3, 3), (3, 3)]
    assert sum(part.records for part in result.part_files) == 3
    assert result.transformed


@pytest.mark.guarantee("G15")
def test_aggregating_transform_reads_each_record_once(run: EncodeRun) -> None:
    """A plan may read the frame several times without duplicating records."""
    use_transform(run, "summed")
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))
    run.land(b"customer,amount\na,1\nb,2\n")
    run.land(b"customer,amount\na,3\nb\n")

    _, result = run.encode_with_inferred_schema()

    totals = [{"customer": "a", "total": 4}, {"customer": "b", "total": 2}]
    assert records(result.part_files) == totals
    assert [(item.read, item.quarantined) for item in result.items] == [(2, 0), (2, 1)]
    assert len(records(result.quarantine_files)) == 1
    assert len(run.files()) == len(result.part_files) + 1


@pytest.mark.parametrize(
    ("encoding", "large"),
    [(Format.JSONL, "false"), (Format.PARQUET, "true")],
)
def test_identity_transform_keeps_every_value(
    run: EncodeRun,
    session: SparkSession,
    request: pytest.FixtureRequest,
    encoding: Format,
    large: str,
) -> None:
    """Values of all types equal those without a transform, also with Arrow's large types."""
    session.conf.set(LARGE_TYPES, large)
    request.addfinalizer(lambda: session.conf.unset(LARGE_TYPES))
    declared = SchemaRules(declared=RecordSchema.from_json(list(TYPES.items())))
    compression = Compression.GZIP if encoding is Format.JSONL else Compression.NONE
    run.configure(schema=declared, encoding=Encoding(format=encoding, compression=compression))
    run.land(VALUES.encode() + b'\n{"integer":null}\n')
    plain = run.encode(**TYPES)
    use_transform(run, "unchanged")

    result = run.encode(**TYPES)

    assert result.misfits == ()
    (part,), (other,) = result.part_files, plain.part_files
    if encoding is Format.PARQUET:
        table = pq.read_table(to_path(part.uri))
        assert table.equals(pq.read_table(to_path(other.uri)))
        return
    first, second = records([part])
    assert first == json.loads(VALUES)
    assert set(second.values()) == {None}


def test_nested_values_of_transform_are_written_as_json(run: EncodeRun) -> None:
    """Structs, maps and arrays keep their nulls. The text of a JSON column is a string."""
    use_transform(run, "computed")
    run.land(b'{"id":1,"a.b":{"n":[1,2]}}\n')

    schema, result = run.encode_with_inferred_schema()

    kinds = {column.name: column.type_text for column in schema.columns}
    nested = {"s": "object", "a": "array", "m": "object"}
    strings = {"text": "string", "upper": "string"}
    assert kinds == {"id": "integer", **nested, "day": "date", "renamed": "object", **strings}
    assert records(result.part_files) == [
        {
            "id": 1,
            "s": {"n": 1, "nothing": None},
            "a": [1, None],
            "m": {"k": 1},
            "day": "2026-01-31",
            "renamed": {"n": [1, 2]},
            "text": "X",
            "upper": '{"N":[1,2]}',
        }
    ]


def test_transform_on_workers_reads_other_files_if_one_is_bad(run: EncodeRun) -> None:
    """The bad file is quarantined; lineage columns are in the frame."""
    use_transform(run, "in_pandas")
    run.configure(
        on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE), lineage=(LineageColumn.ITEM_ID,)
    )
    run.land(b"id,id\n")
    run.land(b"id\n1\n2\n")

    _, result = run.encode_with_inferred_schema()

    rows = records(result.part_files)
    assert sorted(rows, key=str) == [{"_item_id": 2, "id": 2}, {"_item_id": 2, "id": 3}]
    assert [item.bad_file is None for item in result.items] == [False, True]
    assert len(records(result.quarantine_files)) == 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", r"at transforms.py:\d+ in raises \(ValueError: no 7 columns in 1\)"),
        ("raises_on_workers", r"at transforms.py:\d+ in <lambda> \(ZeroDivisionError: "),
        ("wrong_attribute", r"at transforms.py:\d+ in wrong_attribute \("),
        ("wrong_column", r"UNRESOLVED_COLUMN.* `nope` cannot be resolved"),
        ("bad_cast", r"CAST_INVALID_INPUT.* 'x0' .*cannot be cast"),
        ("duplicate_names", r"column 'id' is duplicated"),
        ("not_a_number", r"it returned a record that .*column 'n'"),
    ],
)
def test_failing_transform_is_reported_with_its_line_and_leaves_no_files(
    run: EncodeRun, function: str, message: str
) -> None:
    """The error is attributed to the function or its data, not to Spark."""
    use_transform(run, function)
    land_numbers(run)

    with pytest.raises(TransformError, match=message) as raised:
        run.encode_with_inferred_schema()

    assert f"transform {MODULE}:{function} failed on batch 00000001-00000002" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert run.files() == []


def test_filter_with_other_results_each_time_is_named_as_a_cause(run: EncodeRun) -> None:
    """It is certain that a file has another number of records in the second pass."""
    use_transform(run, "unchanged")
    is_even = "datetime.datetime.now().microsecond % 2 == 0"
    run.configure(mapping=RecordMapping(stream_maps={"*": {"__filter__": is_even}}))
    for _ in range(6):
        run.land(b'{"id":1}\n' * 60)
    with pytest.raises(TransformError, match=r"records: .* or an expression of `stream_maps` has"):
        run.encode(id="integer")


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ("no.such.package:f", r"no.such.package cannot be imported: ModuleNotFoundError"),
        (f"{MODULE}:missing", "has no missing"),
        (f"{MODULE}:NUMBER", "NUMBER is of type int, not a function"),
        (f"{MODULE}:nothing", "it returned NoneType, not a DataFrame"),
    ],
)
def test_invalid_transform_is_rejected(run: EncodeRun, transform: str, message: str) -> None:
    run.configure(transform=transform)
    land_numbers(run)

    with pytest.raises(ConfigurationError, match=message):
        run.encode()

    assert run.files() == []


def test_ranges_are_transformed(run: EncodeRun) -> None:
    """Their source file is the whole file."""
    columns = (LineageColumn.ITEM_ID, LineageColumn.SOURCE_FILE)
    run.configure(lineage=columns)
    use_transform(run, "unchanged")
    run.land(b"id\n" + b"".join(b"%d\n" % number for number in range(2_000)))
    [whole] = run.items
    ranges = ItemCutter(stream=run.stream, most_bytes=2_000).ranges(whole.file)
    run.items = [Item(id=number, file=one) for number, one in enumerate(ranges, start=1)]
    _, result = run.encode_with_inferred_schema()
    rows = records(result.part_files)
    assert sorted(row["id"] for row in rows) == list(range(2_000))
    assert {row["_source_file"] for row in rows} == {whole.file.location}
    assert {row["_item_id"] for row in rows} == {1, 2, 3, 4, 5}


@pytest.mark.long
@pytest.mark.parametrize("function", ["unchanged", "shuffled"])
def test_cancelled_encode_with_transform_leaves_no_files(
    large_run: EncodeRun, function: str
) -> None:
    """Both while reading and while writing tasks run."""
    use_transform(large_run, function)
    large_run.watch = EncodeCallbacks(is_cancelled=large_run.has_started)
    with pytest.raises(ConflictError, match="the encode was cancelled while it ran"):
        large_run.encode_as(LARGE_SCHEMA)

    assert large_run.files() == []


@pytest.mark.parametrize(
    "inline_bytes", [spark_job.INLINE_PAYLOAD_BYTES, 0], ids=["inline", "as rows"]
)
def test_each_task_of_a_frame_gets_its_payload(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    def report_payload(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert batch.num_rows == 1
            yield batch.rename_columns(["number", "report"])

    monkeypatch.setattr(spark_job, "INLINE_PAYLOAD_BYTES", inline_bytes)
    payloads = [bytes([number]) * 1_000 for number in range(5)]
    frame = task_frame(session, payloads, report_payload, "number int, report binary")
    assert sorted((row.number, bytes(row.report)) for row in frame.collect()) == [
        *enumerate(payloads)
    ]


def test_documented_transform_works(
    run: EncodeRun, session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, test = (block.text for block in blocks("python") if PAGE in str(block.page))
    package = tmp_path / "shop_project"
    package.mkdir()
    (package / "transforms.py").write_text(f"{function}\n{test}")
    monkeypatch.syspath_prepend(str(tmp_path))
    run.configure(transform="shop_project.transforms:paid_orders")
    run.land(b"status,quantity,unit_price\npaid,2,1.5\nopen,1,9.5\n")

    _, result = run.encode_with_inferred_schema()

    assert records(result.part_files) == [{"quantity": 2, "unit_price": 1.5, "total": 3.0}]
    import_module("shop_project.transforms").test_paid_orders_have_a_total(session)
