"""Checking tables: the types of text cells, JSON text and typed columns, and what widens them."""

import json
import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import isfinite
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema
from batch_pipeline.spark.check.cell_sights import cells_sight
from batch_pipeline.spark.chunks import Table
from batch_pipeline_tests.unit.check_scene import Desk, reasons, schema


def cells(**columns: list[str | None]) -> Table:
    """Make a table of text cells, the first row of which is line 2."""
    batch = pa.record_batch({name: pa.array(texts, pa.string()) for name, texts in columns.items()})
    places = range(2, 2 + batch.num_rows)
    return Table(batch=batch, places=places, numbers=places, text=frozenset(columns))


def typed(json_columns: tuple[str, ...] = (), **columns: pa.Array) -> Table:
    """Make a table of typed columns."""
    batch = pa.record_batch(columns)
    places = range(1, 1 + batch.num_rows)
    return Table(batch=batch, places=places, numbers=places, json=frozenset(json_columns))


def checked(desk: Desk, table: Table) -> Table:
    """Check a table."""
    found = desk.check.checked(table)
    assert isinstance(found, Table)
    return found


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.from_regex(r"-?[0-9]{1,3}(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
        | st.text(alphabet="019.-+eE", max_size=5)
        | st.none(),
        min_size=1,
        max_size=4,
    ).filter(any)
)
@example([None, "0", "-0.0", "10"])
@example(["1.5", ".5"])
@example(["0E000", "9e400"])
def test_cells_sight_of_any_cells_agrees_with_a_pattern_per_cell(texts: list[str | None]) -> None:
    """Looking at all bytes of a column at once finds what matching cell by cell finds."""
    integer = re.compile(r"-?(0|[1-9][0-9]{0,17})")
    number = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
    present = [cell for cell in texts if cell is not None]
    if all(integer.fullmatch(cell) for cell in present):
        expected = ColumnType.INTEGER
    elif all(number.fullmatch(cell) and isfinite(float(cell)) for cell in present):
        expected = ColumnType.NUMBER
    else:
        expected = ColumnType.STRING
    padded = pa.array(["9", *texts, "9"], pa.string()).slice(1, len(texts))

    assert cells_sight("a", padded, None).column == Column(name="a", type=expected)


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(
    ("known", "texts", "needed"),
    [
        ("integer", ["1", None], []),
        ("integer", ["9223372036854775807"], []),
        ("integer", ["1", "9223372036854775808"], [("a", "decimal(19,0)")]),
        ("integer", ["1", "1.5"], [("a", "number")]),
        ("integer", ["1", "007"], [("a", "string")]),
        ("integer", ["1", ""], [("a", "string")]),
        ("number", ["0.8444218515250481", "1e300"], []),
        ("number", ["1", "0.12345678901234567890"], [("a", "string")]),
        ("number", ["1", "1e400"], [("a", "string")]),
        ("decimal(5,2)", ["123.45", "1e2", "1.500"], []),
        ("decimal(5,2)", ["1", "1234.5"], [("a", "decimal(6,2)")]),
        ("decimal(5,2)", ["1", "+1"], [("a", "string")]),
        ("boolean", ["true", "false", None], []),
        ("boolean", ["true", "True"], [("a", "string")]),
        ("date", ["2026-01-31"], []),
        ("date", ["2026-01-31", "31.1.2026"], [("a", "string")]),
        ("timestamp", ["2026-01-31T10:00:00Z", "2026-01-31 10:00:00.5+01:00"], []),
        ("timestamp", ["2026-01-31T10:00:00Z", "2026-01-31T10:00:00"], [("a", "string")]),
        ("local_timestamp", ["2026-01-31T10:00:00"], []),
        ("local_timestamp", ["2026-01-31T10:00:00", "2026-01-31"], [("a", "string")]),
        ("time", ["12:30:00"], []),
        ("time", ["12:30:00", "12:30"], [("a", "string")]),
        ("binary", ["AA=="], []),
        ("string", ["1", "x"], []),
        ("any", ["1", "x"], []),
        ("object", [None, "x"], [("a", "any")]),
        ("unknown", [None, "1"], [("a", "integer")]),
        ("integer", [None, None], []),
    ],
)
def test_check_of_text_cells_widens_what_does_not_hold_them(
    values: bool, known: str, texts: list[str | None], needed: list[tuple[str, str]]
) -> None:
    """A declared type is what cells are read as; what it does not say exactly widens it."""
    desk = Desk(RecordSchema.from_json([("a", known)]), values=values)

    done = checked(desk, cells(a=texts))

    assert desk.misfits() == needed
    assert (done.good, done.bad) == (len(texts), ())
    bad_at = len(texts) + 1
    assert [misfit.line for misfit in desk.profile.misfits()] == [bad_at] * len(needed)


def test_check_of_text_cells_for_columns_gives_the_values_that_they_say() -> None:
    """Cells of a column of any type stay text cells: only a writer knows how they are written."""
    known = schema(
        i="integer", n="number", m="decimal(5,2)", b="boolean", s="string", a="any", x="integer"
    )
    times = schema(d="date", c="time", t="timestamp", l="local_timestamp", y="binary")
    desk = Desk(RecordSchema(known.columns + times.columns), values=True)

    done = checked(
        desk,
        cells(
            i=["1", None],
            n=["1e2", None],
            m=["1.5", None],
            b=["true", None],
            s=["1", None],
            a=["1", None],
            x=[None, None],
            d=["2026-01-31", None],
            c=["12:30:00.000001", None],
            t=["2026-01-31T10:00:00+01:00", None],
            l=["2026-01-31 10:00:00", None],
            y=["AA==", None],
        ),
    )

    assert desk.profile.fits
    assert done.text == frozenset("a")
    assert done.batch.to_pylist()[0] == {
        "i": 1,
        "n": 100.0,
        "m": Decimal("1.50"),
        "b": True,
        "s": "1",
        "a": "1",
        "x": None,
        "d": date(2026, 1, 31),
        "c": time(12, 30, 0, 1),
        "t": datetime(2026, 1, 31, 9, tzinfo=UTC),
        "l": datetime(2026, 1, 31, 10),  # noqa: DTZ001 - a local time
        "y": b"\0",
    }
    assert set(done.batch.to_pylist()[1].values()) == {None}
    assert done.batch.schema.field("x").type == pa.int64()


def test_check_of_text_cells_for_lines_leaves_them() -> None:
    """JSON lines are written from the cells as they stand."""
    desk = Desk(schema(i="integer", t="timestamp"))
    table = cells(i=["1", "-0"], t=["2026-01-31 10:00:00Z", None])

    done = checked(desk, table)

    assert (done.batch, done.text) == (table.batch, table.text)


@pytest.mark.parametrize(
    ("known", "array", "needed"),
    [
        (None, pa.array([1], pa.int64()), "integer"),
        (None, pa.array([None], pa.int64()), "integer"),
        (None, pa.array([None], pa.string()), "string"),
        ("unknown", pa.array([None], pa.bool_()), "boolean"),
        ("integer", pa.array([1], pa.int64()), None),
        ("number", pa.array([2**53], pa.int64()), None),
        ("number", pa.array([2**53 + 1], pa.int64()), "any"),
        ("decimal(20,1)", pa.array([1], pa.int64()), None),
        ("decimal(5,2)", pa.array([Decimal("1.5")], pa.decimal128(4, 1)), None),
        ("decimal(5,2)", pa.array([Decimal("1.5")], pa.decimal128(6, 1)), "decimal(7,2)"),
        ("string", pa.array([1], pa.int64()), "any"),
        ("string", pa.array([date(2026, 1, 31)], pa.date32()), None),
        ("date", pa.array(["2026-01-31"]), None),
        ("date", pa.array(["x"]), "string"),
        ("integer", pa.array([None], pa.string()), None),
        ("any", pa.array([1], pa.int64()), None),
    ],
)
def test_check_of_a_typed_column_widens_by_its_type(
    known: str | None, array: pa.Array, needed: str | None
) -> None:
    """A file's type counts, not only its values; nulls alone fit what is known already."""
    desk = Desk(RecordSchema.from_json([] if known is None else [("a", known)]), values=True)

    done = checked(desk, typed(a=array))

    assert desk.misfits() == ([] if needed is None else [("a", needed)])
    assert done.good == 1


def test_check_of_typed_columns_gives_the_types_of_the_schema() -> None:
    """Integers become doubles or decimals where these hold them, times text where it was text."""
    desk = Desk(schema(n="number", m="decimal(20,1)", s="string", a="any"), values=True)
    one = pa.array([1, None], pa.int64())
    instant = pa.array([datetime(2026, 1, 31, 10, tzinfo=UTC), None], pa.timestamp("us", "UTC"))

    done = checked(desk, typed(n=one, m=one, s=instant, a=one))

    expected = {"n": 1.0, "m": Decimal("1.0"), "s": "2026-01-31T10:00:00Z", "a": 1}
    assert done.batch.to_pylist() == [expected, dict.fromkeys("nmsa")]
    assert (desk.profile.fits, done.text) == (True, frozenset())


@pytest.mark.parametrize(
    ("known", "texts", "needed"),
    [
        (None, ['{"x":1}', None], "object"),
        (None, ["[1]"], "array"),
        (None, ["[1]", "{}"], "any"),
        (None, ["1"], "any"),
        ("object", ["{}"], None),
        ("object", ["{}", "[]"], "any"),
        ("any", ["1", "{}"], None),
        ("string", ["{}"], "any"),
        (None, [None], "unknown"),
    ],
)
def test_check_of_json_text_looks_at_what_each_starts_with(
    known: str | None, texts: list[str | None], needed: str | None
) -> None:
    """Objects, arrays and all else are told apart by the first byte."""
    desk = Desk(RecordSchema.from_json([] if known is None else [("a", known)]))

    done = checked(desk, typed(("a",), a=pa.array(texts, pa.string())))

    assert desk.misfits() == ([] if needed is None else [("a", needed)])
    assert done.json == frozenset("a")


def test_check_of_nan_for_lines_sets_the_row_aside() -> None:
    """JSON cannot say NaN; a column of doubles can."""
    table = typed(n=pa.array([1.5, float("nan"), None]), s=pa.array(["x", "y", "z"]))
    known = schema(n="number", s="string")

    lines, columns = checked(Desk(known), table), checked(Desk(known, values=True), table)

    assert reasons(lines) == [(2, "column 'n' holds NaN, which JSON cannot say")]
    assert json.loads(lines.bad[0].raw) == {"n": "NaN", "s": "y"}
    assert (lines.batch.column("s").to_pylist(), list(lines.numbers)) == (["x", "z"], [1, 3])
    assert (columns.good, columns.bad) == (3, ())
    kept = checked(Desk(known, on_nonfinite=OnNonfinite.NULL), table)
    assert (kept.good, kept.bad) == (3, ())


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(), min_size=1),
    st.booleans(),
)
def test_check_of_number_cells_makes_columns_that_give_them_back(
    numbers: list[Any], values: bool
) -> None:
    """Whatever the digits, a value in a column is the value that the cell said."""
    table = cells(a=[repr(number) if values else f"{number}" for number in numbers])
    known = RecordSchema()
    for _ in range(4):
        desk = Desk(known, values=True)
        done = checked(desk, table)
        if desk.profile.fits:
            break
        known = RecordSchema(tuple(desk.profile.columns.values()))

    assert desk.profile.fits
    found = done.batch.column("a").to_pylist()
    for cell, text in zip(found, table.batch.column("a").to_pylist(), strict=True):
        if isinstance(cell, str):
            assert cell == text
        else:
            assert Decimal(repr(cell) if isinstance(cell, float) else cell) == Decimal(text)
