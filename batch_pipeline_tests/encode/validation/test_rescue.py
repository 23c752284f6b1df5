"""Rescue: values that the schema does not hold move, as JSON, to a column of their own."""

import json

import pyarrow as pa
import pytest

from batch_pipeline.encode.chunks import JsonRecords, Table
from batch_pipeline.model.record_rules import RESCUED, Evolution
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline_tests.encode.validation.validator_under_test import ValidatorUnderTest
from batch_pipeline_tests.encode.writers.part_factories import schema, table

KNOWN = RecordSchema(
    (
        *schema(i="integer", s="string", t="timestamp", u="unknown").columns,
        Column(name=RESCUED, type=ColumnType.STRING),
    )
)
FITTING = b'{"s":"x","i":1,"t":"2026-01-31T10:00:00Z"}'
UNFIT = b'{"i": 1.5,"new":{"x": 1.0},"s":"x","t":"yesterday"}'


def rescuing(*, values: bool = False) -> ValidatorUnderTest:
    """Build a validator of a stream that rescues."""
    return ValidatorUnderTest(KNOWN, values=values, evolution=Evolution.RESCUE)


def test_rescue_from_lines_keeps_the_records() -> None:
    """A valid line stays; in the other one the known column is null and the value is rescued."""
    done = rescuing().validate(FITTING, UNFIT)

    assert isinstance(done, JsonRecords)
    assert (done.bad, done.rescued) == ((), 1)
    assert done.lines[0] == FITTING
    record = json.loads(done.lines[1])
    assert json.loads(record.pop(RESCUED)) == {"i": 1.5, "new": {"x": 1.0}, "t": "yesterday"}
    assert record == {"i": None, "s": "x", "t": None}


def test_rescue_from_lines_for_columns_keeps_the_text_of_the_values() -> None:
    """Other records of the chunk have null in the column of rescued values."""
    subject = rescuing(values=True)

    done = subject.validate(FITTING, UNFIT, b'{"i":9223372036854775808}')

    assert isinstance(done, Table)
    assert (done.rescued, subject.profile.fits) == (2, True)
    rows = done.batch.to_pylist()
    assert [row["i"] for row in rows] == [1, None, None]
    assert [row[RESCUED] for row in rows] == [
        None,
        '{"i":1.5,"new":{"x": 1.0},"t":"yesterday"}',
        '{"i":9223372036854775808}',
    ]


def test_rescue_of_records_that_were_rescued_before_keeps_that_too() -> None:
    first = b'{"i":1,"_rescued_data":"{\\"new\\":1}"}'
    second = b'{"i":true,"_rescued_data":"{\\"new\\":1}"}'

    done = rescuing().validate(first, second)

    assert isinstance(done, JsonRecords)
    assert (done.lines[0], done.rescued) == (first, 1)
    kept = json.loads(json.loads(done.lines[1])[RESCUED])
    assert kept == {"i": True, RESCUED: '{"new":1}'}


@pytest.mark.parametrize("values", [False, True])
def test_rescue_of_a_key_with_a_nul_keeps_it_as_text(values: bool) -> None:
    subject = rescuing(values=values)

    done = subject.validate(rb'{"i":1,"x\u0000y":2}')

    assert (done.bad, done.rescued, subject.profile.fits) == ((), 1, True)


def test_rescue_with_a_column_of_nulls_lets_it_take_its_first_type() -> None:
    subject = rescuing()

    subject.validate(b'{"u":5}')

    assert subject.misfits() == [("u", "integer")]


@pytest.mark.parametrize("values", [False, True])
def test_rescue_from_text_cells_keeps_their_text(values: bool) -> None:
    """New columns and cells that are not of their column's type are rescued as strings."""
    subject = rescuing(values=values)
    batch = pa.record_batch({"i": ["1", "x", "2"], "s": ["a", "b", None], "new": ["n", None, None]})

    done = subject.validator.validate(table(batch, text=True))

    assert isinstance(done, Table)
    assert (done.rescued, done.good, subject.profile.fits) == (2, 3, True)
    rows = done.batch.to_pylist()
    expected = [1, None, 2] if values else ["1", None, "2"]
    assert [row["i"] for row in rows] == expected
    assert [row[RESCUED] for row in rows] == ['{"new":"n"}', '{"i":"x"}', None]
    assert "new" not in done.batch.schema.names
    assert RESCUED not in done.text


def test_rescue_from_typed_columns_keeps_their_values_as_json() -> None:
    subject = rescuing(values=True)
    batch = pa.record_batch({"i": pa.array([True, None]), "o": ["{}", '{"x": 1}'], "s": ["a", "b"]})

    done = subject.validator.validate(table(batch, json=frozenset("o")))

    assert isinstance(done, Table)
    rows = done.batch.to_pylist()
    assert [row[RESCUED] for row in rows] == ['{"i":true,"o":{}}', '{"o":{"x": 1}}']
    assert [row["i"] for row in rows] == [None, None]
    assert done.batch.schema.field("i").type == pa.int64()
    assert (subject.profile.fits, done.json) == (True, frozenset())
