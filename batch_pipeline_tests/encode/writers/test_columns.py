"""Checked records as the columns of an output, whatever they came as, and what these take."""

import math
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.writers.columns import TableRows, batch_of_table, output_schema
from batch_pipeline.model.encoding import Format
from batch_pipeline.model.errors import InvariantError
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline_tests.encode.writers.part_factories import (
    ALL_TYPES,
    TYPED_VALUES,
    cells,
    schema,
    table,
    typed,
)

TEXT: dict[str, list[str | None]] = {
    "empty": [None, None],
    "flag": ["true", None],
    "count": ["-9223372036854775808", None],
    "price": ["1234567890.1", None],
    "ratio": ["0.1", None],
    "name": ['"Zoë"', None],
    "octets": ["AP8=", None],
    "day": ["2026-01-31", None],
    "clock": ["12:30:00.000001", None],
    "instant": ["2026-01-31T13:00:00+01:00", None],
    "local": ["1970-01-01T00:00:00.000005", None],
}


def columns(records: Table, known: RecordSchema) -> dict[str, list[Any]]:
    """Bring a table into the columns of a parquet file and give their values."""
    arrow_schema = output_schema(known, Format.PARQUET)
    batch = batch_of_table(records, known, arrow_schema, OnNonfinite.NULL)
    assert batch.schema == arrow_schema
    batch.validate(full=True)
    return dict(batch.to_pydict())


def test_columns_of_text_cells_hold_the_values_that_they_say() -> None:
    """Cells become values of the schema's types; a mixture is JSON text."""
    known = schema(**{name: ALL_TYPES[name] for name in TEXT}, mixed="any", late="date")

    assert columns(cells(**TEXT, mixed=["1", None]), known) == {
        **{name: TYPED_VALUES[name] for name in TEXT},
        "mixed": ['"1"', None],
        "late": [None, None],
    }


def test_columns_of_typed_values_are_those_of_the_schema() -> None:
    """Values of the schema's types stay, in the schema's order."""
    types = dict(reversed(ALL_TYPES.items()))

    assert columns(typed(), schema(**types)) == {name: TYPED_VALUES[name] for name in types}


@pytest.mark.parametrize(
    ("array", "kind", "expected"),
    [
        (pa.array([1, None]), "number", [1.0, None]),
        (pa.array([1, None]), "decimal(21,2)", [Decimal("1.00"), None]),
        (pa.array([Decimal("1.5"), None]), "decimal(21,2)", [Decimal("1.50"), None]),
        (pa.array([date(2026, 1, 31), None]), "string", ["2026-01-31", None]),
        (
            pa.array([0, None], pa.timestamp("us", "UTC")),
            "string",
            ["1970-01-01T00:00:00.000000Z", None],
        ),
        (pa.array([b"\x00\xff", None]), "string", ["AP8=", None]),
        (pa.array(['"', None]), "string", ['"', None]),
        (pa.array(['"', None]), "any", ['"\\""', None]),
        (pa.array([True, None]), "any", ["true", None]),
        (pa.array([date(2026, 1, 31), None]), "any", ['"2026-01-31"', None]),
        (pa.array([math.nan, 1.0]), "any", [None, "1.0"]),
        (pa.array([math.inf, 1.0]), "number", [math.inf, 1.0]),
    ],
)
def test_columns_of_a_wider_type_hold_the_same_values(
    array: pa.Array, kind: str, expected: list[Any]
) -> None:
    """A file whose column is narrower than the stream's loses nothing."""
    assert columns(table(pa.record_batch({"a": array})), schema(a=kind)) == {"a": expected}


def test_columns_of_text_that_the_check_let_through_by_mistake_are_refused() -> None:
    """Expect our own mistake to be named rather than a value to vanish."""
    with pytest.raises(InvariantError, match="'a' holds '25:00:00', which is not of type time"):
        columns(cells(a=[None, "25:00:00"]), schema(a="time"))


def test_table_rows_take_the_bytes_of_their_values() -> None:
    """A text counts its bytes and 4 more, also in a slice of a batch; null counts no bytes."""
    batch = pa.record_batch(
        {
            "s": ["left out", "ö", None, "x"],
            "b": pa.array([b"", b"12", b"", None], pa.binary()),
            "i": pa.array([1, 2, 3, None], pa.int64()),
            "f": [True, True, None, False],
        }
    )

    rows = TableRows.of(batch.slice(1))

    fixed = 4 + 4 + 8 + 1
    assert list(rows.ends) == [fixed + 2 + 2, 2 * fixed + 4, 3 * fixed + 5]
    assert list(rows.between(1, 3).ends) == [fixed, 2 * fixed + 1]
    assert rows.between(1, 3).batch.equals(batch.slice(2))
