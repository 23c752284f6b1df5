"""Rescuing what a schema does not hold: kept as JSON in a column of its own, the record goes on."""

import json

import pyarrow as pa
import pytest

from batch_pipeline.domain.record_rules import RESCUED, Evolution
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema
from batch_pipeline.spark.chunks import JsonRecords, Table
from batch_pipeline_tests.unit.check_scene import Desk, schema

KNOWN = RecordSchema(
    (
        *schema(i="integer", s="string", t="timestamp", u="unknown").columns,
        Column(name=RESCUED, type=ColumnType.STRING),
    )
)
FITTING = b'{"s":"x","i":1,"t":"2026-01-31T10:00:00Z"}'
UNFIT = b'{"i": 1.5,"new":{"x": 1.0},"s":"x","t":"yesterday"}'


def desk(*, values: bool = False) -> Desk:
    """Make a desk that rescues."""
    return Desk(KNOWN, values=values, evolution=Evolution.RESCUE)


def test_rescue_from_lines_keeps_the_records() -> None:
    """What fits stays as it stands; elsewhere the known column is null and the rest is kept."""
    done = desk().checked(FITTING, UNFIT)

    assert isinstance(done, JsonRecords)
    assert (done.bad, done.rescued) == ((), 1)
    assert done.lines[0] == FITTING
    record = json.loads(done.lines[1])
    assert json.loads(record.pop(RESCUED)) == {"i": 1.5, "new": {"x": 1.0}, "t": "yesterday"}
    assert record == {"i": None, "s": "x", "t": None}


def test_rescue_from_lines_for_columns_keeps_the_text_of_the_values() -> None:
    """Other records of the chunk have null in the column of rescued values."""
    found = desk(values=True)

    done = found.checked(FITTING, UNFIT, b'{"i":9223372036854775808}')

    assert isinstance(done, Table)
    assert (done.rescued, found.profile.fits) == (2, True)
    rows = done.batch.to_pylist()
    assert [row["i"] for row in rows] == [1, None, None]
    assert [row[RESCUED] for row in rows] == [
        None,
        '{"i":1.5,"new":{"x": 1.0},"t":"yesterday"}',
        '{"i":9223372036854775808}',
    ]


def test_rescue_of_records_that_were_rescued_before_keeps_that_too() -> None:
    """A record that comes with the column keeps it, inside of what is rescued now if need be."""
    first = b'{"i":1,"_rescued_data":"{\\"new\\":1}"}'
    second = b'{"i":true,"_rescued_data":"{\\"new\\":1}"}'

    done = desk().checked(first, second)

    assert isinstance(done, JsonRecords)
    assert (done.lines[0], done.rescued) == (first, 1)
    kept = json.loads(json.loads(done.lines[1])[RESCUED])
    assert kept == {"i": True, RESCUED: '{"new":1}'}


@pytest.mark.parametrize("values", [False, True])
def test_rescue_of_a_key_with_a_nul_keeps_it_as_text(values: bool) -> None:
    found = desk(values=values)

    done = found.checked(rb'{"i":1,"x\u0000y":2}')

    assert (done.bad, done.rescued, found.profile.fits) == ((), 1, True)


def test_rescue_with_a_column_of_nulls_lets_it_take_its_first_type() -> None:
    """Nothing is known of such a column that a value could contradict."""
    found = desk()

    found.checked(b'{"u":5}')

    assert found.misfits() == [("u", "integer")]


@pytest.mark.parametrize("values", [False, True])
def test_rescue_from_text_cells_keeps_their_text(values: bool) -> None:
    """New columns and cells that do not say a value of their column are kept as strings."""
    found = desk(values=values)
    batch = pa.record_batch({"i": ["1", "x", "2"], "s": ["a", "b", None], "new": ["n", None, None]})
    table = Table(
        batch=batch, places=range(2, 5), numbers=range(1, 4), text=frozenset(batch.schema.names)
    )

    done = found.check.checked(table)

    assert isinstance(done, Table)
    assert (done.rescued, done.good, found.profile.fits) == (2, 3, True)
    rows = done.batch.to_pylist()
    expected = [1, None, 2] if values else ["1", None, "2"]
    assert [row["i"] for row in rows] == expected
    assert [row[RESCUED] for row in rows] == ['{"new":"n"}', '{"i":"x"}', None]
    assert "new" not in done.batch.schema.names
    assert RESCUED not in done.text


def test_rescue_from_typed_columns_keeps_their_values_as_json() -> None:
    """A column of another type is rescued as a whole, JSON text as the JSON that it is."""
    found = desk(values=True)
    batch = pa.record_batch({"i": pa.array([True, None]), "o": ["{}", '{"x": 1}'], "s": ["a", "b"]})
    table = Table(batch=batch, places=[1, 2], numbers=[1, 2], json=frozenset("o"))

    done = found.check.checked(table)

    assert isinstance(done, Table)
    rows = done.batch.to_pylist()
    assert [row[RESCUED] for row in rows] == ['{"i":true,"o":{}}', '{"o":{"x": 1}}']
    assert [row["i"] for row in rows] == [None, None]
    assert done.batch.schema.field("i").type == pa.int64()
    assert (found.profile.fits, done.json) == (True, frozenset())
