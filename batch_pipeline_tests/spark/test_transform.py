"""A user's transform between reading and writing: values, counts, and whose fault an error is."""

import json
from importlib import import_module
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import ConfigurationError, TransformError
from batch_pipeline.model.location import to_path
from batch_pipeline.model.record_rules import (
    BadFileRules,
    BadRecordRules,
    LineageColumn,
    OnBadFile,
    SchemaRules,
)
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline_tests.docs.pages import blocks
from batch_pipeline_tests.spark.encode_fixture import EncodeRun, records

PAGE = "transform_with_pyspark.md"

MODULE = "batch_pipeline_tests.spark.transforms"
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


@pytest.fixture(scope="module")
def session(each_session: SparkSession) -> SparkSession:
    """Both kinds of sessions."""
    return each_session


def use(run: EncodeRun, function: str) -> None:
    """Configure a transform."""
    run.configure(transform=f"{MODULE}:{function}")


def land_numbers(run: EncodeRun) -> None:
    """Land records 0 to 5 in two files."""
    for start in (0, 3):
        run.land(b"".join(b'{"id":%d}\n' % number for number in range(start, start + 3)))


@pytest.mark.guarantee("G15")
def test_transform_that_filters_writes_what_it_gives(run: EncodeRun) -> None:
    """Records are counted where they are read; the part files tell what was made of them."""
    use(run, "keep_even")
    land_numbers(run)

    schema, result = run.settled()

    assert schema == RecordSchema.from_json([("id", "integer"), ("twice", "integer")])
    assert records(result.part_files) == [{"id": n, "twice": 2 * n} for n in (0, 2, 4)]
    assert [(item.read, item.written) for item in result.items] == [(3, 3), (3, 3)]
    assert sum(part.records for part in result.part_files) == 3
    assert result.transformed


@pytest.mark.guarantee("G15")
def test_transform_that_aggregates_and_looks_at_its_frame_sees_each_record_once(
    run: EncodeRun,
) -> None:
    """A plan may read the frame several times; that writes nothing twice."""
    use(run, "summed")
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))
    run.land(b"customer,amount\na,1\nb,2\n")
    run.land(b"customer,amount\na,3\nb\n")

    _, result = run.settled()

    totals = [{"customer": "a", "total": 4}, {"customer": "b", "total": 2}]
    assert records(result.part_files) == totals
    assert [(item.read, item.quarantined) for item in result.items] == [(2, 0), (2, 1)]
    assert len(records(result.quarantine_files)) == 1
    assert len(run.files()) == len(result.part_files) + 1


@pytest.mark.parametrize("encoding", [Format.JSONL, Format.PARQUET])
def test_transform_that_gives_what_came_keeps_every_value(run: EncodeRun, encoding: Format) -> None:
    """All types pass through Spark and come out as they would without a transform."""
    declared = SchemaRules(declared=RecordSchema.from_json(list(TYPES.items())))
    compression = Compression.GZIP if encoding is Format.JSONL else Compression.NONE
    run.configure(schema=declared, encoding=Encoding(format=encoding, compression=compression))
    run.land(VALUES.encode() + b'\n{"integer":null}\n')
    plain = run.encode(**TYPES)
    use(run, "unchanged")

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


def test_transform_that_computes_nested_values_writes_them_as_json(run: EncodeRun) -> None:
    """Structs, maps and arrays keep their nulls; a date is a date."""
    use(run, "computed")
    run.land(b'{"id":1}\n')

    schema, result = run.settled()

    kinds = {column.name: column.type_text for column in schema.columns}
    nested = {"s": "object", "a": "array", "m": "object"}
    assert kinds == {"id": "integer", **nested, "day": "date", "text": "string"}
    assert records(result.part_files) == [
        {
            "id": 1,
            "s": {"n": 1, "nothing": None},
            "a": [1, None],
            "m": {"k": 1},
            "day": "2026-01-31",
            "text": "X",
        }
    ]


def test_transform_that_renames_a_json_column_keeps_it_json(run: EncodeRun) -> None:
    """What is computed from its text is text."""
    use(run, "renamed")
    run.land(b'{"a.b":{"n":[1,2]}}\n')

    schema, result = run.settled()

    assert [column.type.value for column in schema.columns] == ["object", "string"]
    assert records(result.part_files) == [{"kept": {"n": [1, 2]}, "text": '{"N":[1,2]}'}]


def test_transform_that_calls_python_on_the_workers_runs_there(run: EncodeRun) -> None:
    """Pandas functions are the user's code on Spark's workers."""
    use(run, "in_pandas")
    land_numbers(run)

    _, result = run.settled()

    assert [one["id"] for one in records(result.part_files)] == [1, 2, 3, 4, 5, 6]


def test_transform_of_a_batch_with_a_bad_file_is_given_the_other_ones(run: EncodeRun) -> None:
    """What was set aside is reported and in quarantine; lineage columns are the frame's."""
    use(run, "unchanged")
    run.configure(
        on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE), lineage=(LineageColumn.ITEM_ID,)
    )
    run.land(b"a,a\n")
    run.land(b"a\n1\n")

    _, result = run.settled()

    assert records(result.part_files) == [{"_item_id": 2, "a": 1}]
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
        ("twice_named", r"column 'id' is there twice"),
        ("not_a_number", r"it returned a record that .*column 'n'"),
    ],
)
def test_transform_that_fails_is_told_with_its_own_line_and_leaves_no_file(
    run: EncodeRun, function: str, message: str
) -> None:
    """It is the data's or the function's fault, not Spark's, and the batch is named."""
    use(run, function)
    land_numbers(run)

    with pytest.raises(TransformError, match=message) as raised:
        run.settled()

    assert f"transform {MODULE}:{function} failed on batch 00000001-00000002" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert run.files() == []


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ("no.such.package:f", r"no.such.package cannot be imported: ModuleNotFoundError"),
        (f"{MODULE}:missing", "has no missing"),
        (f"{MODULE}:NUMBER", "NUMBER is of type int, not a function"),
        (f"{MODULE}.unchanged", "is not written like package.module:function"),
        (f"{MODULE}:nothing", "it returned NoneType, not a DataFrame"),
    ],
)
def test_transform_that_is_no_function_of_frames_is_refused(
    run: EncodeRun, transform: str, message: str
) -> None:
    """The operator is told what to write instead."""
    run.configure(transform=transform)
    land_numbers(run)

    with pytest.raises(ConfigurationError, match=message):
        run.encode()

    assert run.files() == []


def test_transform_of_the_page_works_as_written(
    run: EncodeRun, session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, test = (block.text for block in blocks("python") if PAGE in str(block.page))
    package = tmp_path / "shop_project"
    package.mkdir()
    (package / "transforms.py").write_text(f"{function}\n{test}")
    monkeypatch.syspath_prepend(str(tmp_path))
    run.configure(transform="shop_project.transforms:paid_orders")
    run.land(b"status,quantity,unit_price\npaid,2,1.5\nopen,1,9.5\n")

    _, result = run.settled()

    assert records(result.part_files) == [{"quantity": 2, "unit_price": 1.5, "total": 3.0}]
    import_module("shop_project.transforms").test_paid_orders_have_a_total(session)
