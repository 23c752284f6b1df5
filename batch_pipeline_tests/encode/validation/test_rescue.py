"""Rescue: values that do not fit the schema are moved, as JSON, to a separate column."""

import json
from typing import Any

import pyarrow as pa
import pytest

from batch_pipeline.encode.chunks import JsonRecords, Table
from batch_pipeline.model.record_rules import RESCUED, Evolution, OnNonfinite
from batch_pipeline_tests.encode.validation.validator_under_test import ValidatorUnderTest
from batch_pipeline_tests.encode.writers.part_factories import schema, table

KNOWN = schema(
    i="integer", n="number", s="string", t="timestamp", u="unknown", _rescued_data="string"
)


def rescue_validator(**options: Any) -> ValidatorUnderTest:
    """Return a validator of a stream that rescues values."""
    return ValidatorUnderTest(KNOWN, evolution=Evolution.RESCUE, **options)


def test_rescue_keeps_previously_rescued_data() -> None:
    first = b'{"i":1,"_rescued_data":"{\\"new\\":1}"}'
    second = b'{"i":true,"_rescued_data":"{\\"new\\":1}"}'

    chunk = rescue_validator().validate(first, second)

    assert isinstance(chunk, JsonRecords)
    assert (chunk.lines[0], chunk.rescued) == (first, 1)
    kept = json.loads(json.loads(chunk.lines[1])[RESCUED])
    assert kept == {"i": True, RESCUED: '{"new":1}'}


@pytest.mark.parametrize("values", [False, True])
def test_rescue_accepts_nul_in_key(values: bool) -> None:
    subject = rescue_validator(values=values)

    chunk = subject.validate(rb'{"i":1,"x\u0000y":2}')

    assert (chunk.bad, chunk.rescued, subject.profile.fits) == ((), 1, True)


def test_rescue_lets_column_of_nulls_take_its_first_type() -> None:
    subject = rescue_validator()

    subject.validate(b'{"u":5}')

    assert subject.misfits() == [("u", "integer")]


@pytest.mark.parametrize("values", [False, True])
def test_rescue_from_text_cells_keeps_their_text(values: bool) -> None:
    """New columns and cells of another type are rescued as strings."""
    subject = rescue_validator(values=values)
    batch = pa.record_batch({"i": ["1", "x", "2"], "s": ["a", "b", None], "new": ["n", None, None]})

    chunk = subject.validator.validate(table(batch, text=True))

    assert isinstance(chunk, Table)
    assert (chunk.rescued, chunk.good, subject.profile.fits) == (2, 3, True)
    rows = chunk.batch.to_pylist()
    expected = [1, None, 2] if values else ["1", None, "2"]
    assert [row["i"] for row in rows] == expected
    assert [row[RESCUED] for row in rows] == ['{"new":"n"}', '{"i":"x"}', None]
    assert "new" not in chunk.batch.schema.names
    assert RESCUED not in chunk.text


def test_rescue_from_typed_columns_keeps_values_as_json() -> None:
    subject = rescue_validator(values=True)
    objects = {"o": ["{}", '{"x": 1}'], RESCUED: [None, '{"q": 1}']}
    batch = pa.record_batch({"i": pa.array([True, None]), **objects, "s": ["a", "b"]})

    chunk = subject.validator.validate(table(batch, json=frozenset(objects)))

    assert isinstance(chunk, Table)
    rows = chunk.batch.to_pylist()
    assert [row[RESCUED] for row in rows] == [
        '{"i":true,"o":{}}',
        '{"o":{"x": 1},"_rescued_data":{"q": 1}}',
    ]
    assert [row["i"] for row in rows] == [None, None]
    assert chunk.batch.schema.field("i").type == pa.int64()
    assert (subject.profile.fits, chunk.json) == (True, frozenset())


@pytest.mark.parametrize(
    ("on_nonfinite", "from_json", "from_table"),
    [
        (OnNonfinite.QUARANTINE, None, None),
        # Null fits an integer column, so the JSON record has only its new key to rescue.
        (OnNonfinite.NULL, '{"new":null}', '{"i":null,"new":null}'),
        (OnNonfinite.STRING, '{"i":"NaN","new":"-Infinity"}', '{"i":"NaN","new":"-Infinity"}'),
    ],
)
def test_rescue_of_nan_into_columns_obeys_on_nonfinite(
    on_nonfinite: OnNonfinite, from_json: str | None, from_table: str | None
) -> None:
    """The rescued values are JSON; a known column of doubles holds an infinity itself."""
    subject = rescue_validator(values=True, on_nonfinite=on_nonfinite)
    infinity = float("inf")
    doubles = pa.record_batch({"i": [float("nan")], "n": [infinity], "new": [-infinity]})

    validated = [
        (subject.validate(b'{"i":NaN,"n":Infinity,"new":-Infinity}'), from_json),
        (subject.validator.validate(table(doubles)), from_table),
    ]

    for chunk, expected in validated:
        assert isinstance(chunk, Table)
        rows = [] if expected is None else [expected]
        assert chunk.batch.to_pydict().get(RESCUED, []) == rows
        assert chunk.batch.to_pydict().get("n", []) == [infinity] * len(rows)
        assert (len(chunk.bad), chunk.rescued) == (1 - len(rows), len(rows))
