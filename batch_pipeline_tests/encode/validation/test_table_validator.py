"""Validation of tables: text cells, JSON text, typed columns, and schema widening."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.validation.table_validator import parse_cells
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline_tests.encode.validation.validator_under_test import ValidatorUnderTest
from batch_pipeline_tests.encode.writers.part_factories import (
    ALL_TYPES,
    TYPED_VALUES,
    cells,
    schema,
    table,
)


def typed(**columns: pa.Array) -> Table:
    return table(pa.record_batch(columns))


PRICE = pa.array([Decimal("1.50")], pa.decimal128(5, 2))
WHOLE, BIG, HALF = pa.array([7]), pa.array([2**60 + 1]), pa.array([0.5])


def validate(subject: ValidatorUnderTest, given: Table) -> Table:
    validated = subject.validator.validate(given)
    assert isinstance(validated, Table)
    return validated


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(
    ("known", "texts", "needed"),
    [
        ("integer", ["1", "9223372036854775807"], []),
        ("integer", ["1", "9223372036854775808"], [("a", "decimal(19,0)")]),
        ("integer", ["1", "1.5"], [("a", "number")]),
        ("integer", ["1", "007"], [("a", "string")]),
        ("integer", ["1", ""], [("a", "string")]),
        ("number", ["1", "0.12345678901234567890"], [("a", "string")]),
        ("number", ["1", "1e400"], [("a", "string")]),
        ("decimal(5,2)", ["123.45", "1e2", "1.500"], []),
        ("decimal(5,2)", ["1", "1234.5"], [("a", "decimal(6,2)")]),
        ("decimal(5,2)", ["1", "+1"], [("a", "string")]),
        ("boolean", ["true", "True"], [("a", "string")]),
        ("date", ["2026-01-31", "31.1.2026"], [("a", "string")]),
        ("timestamp", ["2026-01-31T10:00:00Z", "2026-01-31 10:00:00.5+01:00"], []),
        ("timestamp", ["2026-01-31T10:00:00Z", "2026-01-31T10:00:00"], [("a", "string")]),
        ("local_timestamp", ["2026-01-31T10:00:00", "2026-01-31"], [("a", "string")]),
        ("time", ["12:30:00", "12:30"], [("a", "string")]),
        ("object", [None, "x"], [("a", "any")]),
        ("unknown", [None, "1"], [("a", "integer")]),
    ],
)
def test_text_cells_that_do_not_fit_widen_column(
    values: bool, known: str, texts: list[str | None], needed: list[tuple[str, str]]
) -> None:
    """Columns of one type are parsed together. Cells are kept for lines."""
    types = RecordSchema.from_json([("b", known), ("a", known)])
    subject = ValidatorUnderTest(types, values=values)

    validated = validate(subject, cells(b=[texts[0]] * len(texts), a=texts))

    assert subject.misfits() == needed
    assert (validated.good, validated.bad) == (len(texts), ())
    assert [misfit.line for misfit in subject.profile.misfits()] == [len(texts)] * len(needed)
    assert values or validated.batch.column("a").to_pylist() == texts


def test_misfit_of_each_column_has_its_line() -> None:
    subject = ValidatorUnderTest(RecordSchema.from_json([("a", "integer"), ("b", "integer")]))
    validate(subject, cells(a=["1", "x", "y"], b=["2", "3", "z"]))
    assert [misfit.line for misfit in subject.profile.misfits()] == [2, 3]


TEXT: dict[str, list[str | None]] = {
    "empty": [None, None],
    "flag": ["true", None],
    "count": ["-9223372036854775808", None],
    "price": ["1234567890.1", None],
    "ratio": ["1e-1", None],
    "name": ['"Zoë"', None],
    "octets": ["AP8=", None],
    "day": ["2026-01-31", None],
    "clock": ["12:30:00.000001", None],
    "instant": ["2026-01-31 13:00:00+01:00", None],
    "local": ["1970-01-01T00:00:00.000005", None],
}


def test_text_cells_become_values_for_columns() -> None:
    """Cells of a column of type `any` remain text."""
    known = schema(**{name: ALL_TYPES[name] for name in TEXT}, any="any", number="integer")
    subject = ValidatorUnderTest(known, values=True)

    validated = validate(subject, cells(**TEXT, any=["1", None], number=[None, None]))

    assert (subject.profile.fits, validated.text) == (True, frozenset({"any"}))
    assert validated.batch.schema.field("number").type == pa.int64()
    expected = {name: TYPED_VALUES[name] for name in TEXT}
    expected |= {"any": ["1", None], "number": [None, None]}
    assert validated.batch.to_pydict() == expected


@pytest.mark.parametrize(
    ("known", "array", "needed"),
    [
        (None, pa.array([None], pa.int64()), "integer"),
        (None, pa.array([None], pa.string()), "string"),
        ("unknown", pa.array([None], pa.bool_()), "boolean"),
        ("number", pa.array([2**53], pa.int64()), None),
        ("number", pa.array([2**53 + 1], pa.int64()), "any"),
        ("decimal(5,2)", pa.array([Decimal("1.5")], pa.decimal128(4, 1)), None),
        ("decimal(5,2)", pa.array([Decimal("1.5")], pa.decimal128(6, 1)), "decimal(7,2)"),
        ("string", pa.array([1], pa.int64()), "any"),
        ("string", pa.array([date(2026, 1, 31)], pa.date32()), None),
        ("date", pa.array(["2026-01-31"]), None),
        ("date", pa.array(["x"]), "string"),
        ("integer", pa.array([None], pa.string()), None),
    ],
)
def test_typed_column_widens_by_its_type(
    known: str | None, array: pa.Array, needed: str | None
) -> None:
    """The type in the file counts even without values; nulls fit any known type."""
    subject = ValidatorUnderTest(
        RecordSchema.from_json([] if known is None else [("a", known)]), values=True
    )

    validated = validate(subject, typed(a=array))

    assert subject.misfits() == ([] if needed is None else [("a", needed)])
    assert validated.good == 1


@pytest.mark.parametrize(
    ("files", "passes"),
    [
        ([typed(a=PRICE), typed(a=WHOLE)], ["decimal(5,2)", "decimal(21,2)"]),
        ([typed(a=PRICE), typed(a=HALF)], ["decimal(5,2)", "any"]),
        ([typed(a=BIG), typed(a=HALF), typed(a=HALF)], ["decimal(19,0)", "any"]),
        (
            [cells(a=["0.1234567890123456789"]), typed(a=WHOLE)],
            ["decimal(19,19)", "decimal(38,19)"],
        ),
    ],
)
def test_numbers_after_a_decimal_widen_it_in_the_next_pass(
    files: list[Table], passes: list[str]
) -> None:
    known = RecordSchema()
    for needed in passes:
        subject = ValidatorUnderTest(known, values=True)
        for file in files:
            validate(subject, file)
        assert subject.misfits() == [("a", needed)]
        known = schema(a=needed)
    subject = ValidatorUnderTest(known, values=True)
    assert all(validate(subject, file).good for file in files)
    assert subject.profile.fits


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("source", [cells(a=["ABCD"]), typed(a=pa.array(["ABCD"]))])
def test_text_is_base64_only_in_declared_binary_column(source: Table, values: bool) -> None:
    """Other text may happen to be base64, too; its column becomes text."""
    for inferred in (False, True):
        subject = ValidatorUnderTest(schema(a="binary"), values=values, inferred=inferred)

        validate(subject, source)

        assert subject.misfits() == ([("a", "string")] if inferred else [])


def test_typed_columns_are_cast_to_schema_types() -> None:
    subject = ValidatorUnderTest(
        schema(n="number", m="decimal(20,1)", s="string", a="any"), values=True
    )
    one = pa.array([1, None], pa.int64())
    instant = pa.array([datetime(2026, 1, 31, 10, tzinfo=UTC), None], pa.timestamp("us", "UTC"))

    validated = validate(subject, typed(n=one, m=one, s=instant, a=one))

    expected = {"n": 1.0, "m": Decimal("1.0"), "s": "2026-01-31T10:00:00Z", "a": 1}
    assert validated.batch.to_pylist() == [expected, dict.fromkeys("nmsa")]
    assert (subject.profile.fits, validated.text) == (True, frozenset())


@pytest.mark.parametrize(
    ("known", "texts", "needed"),
    [
        (None, ['{"x":1}', None], "object"),
        (None, ["[1]"], "array"),
        (None, ["[1]", "{}"], "any"),
        ("object", ["{}", "[]"], "any"),
        ("any", ["1", "{}"], None),
        ("string", ["{}"], "any"),
        (None, [None], "unknown"),
    ],
)
def test_json_text_types_are_inferred_from_first_byte(
    known: str | None, texts: list[str | None], needed: str | None
) -> None:
    subject = ValidatorUnderTest(RecordSchema.from_json([] if known is None else [("a", known)]))
    batch = pa.record_batch({"a": pa.array(texts, pa.string())})

    validated = validate(subject, table(batch, json=frozenset("a")))

    assert subject.misfits() == ([] if needed is None else [("a", needed)])
    assert validated.json == frozenset("a")


def test_parse_cells_marks_only_columns_of_wide_integers() -> None:
    texts = {"a": pa.array(["1", "2"]), "b": pa.array(["9007199254740993", None])}
    columns = {name: Column(name=name, type=ColumnType.INTEGER) for name in texts}

    found = parse_cells(texts, columns, values=True)

    assert {name: one.wide for name, one in found.items()} == {"a": False, "b": True}
    assert found["b"].array.to_pylist() == [9007199254740993, None]
