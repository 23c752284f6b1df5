"""Parsing text cells and inferring their types: exact, or rejected."""

import math
import re
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.arrow_types import exact_cast
from batch_pipeline.encode.validation import type_inference
from batch_pipeline.encode.validation.type_inference import (
    NumberSyntax,
    infer_text_type,
    is_valid_text,
    narrowest_decimal,
    parse_text_doubles,
    parse_texts,
)
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline_tests.encode.writers.part_factories import cells

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBERS = (
    st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,19})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
    | st.integers(-(2**65), 2**65).map(str)
    | st.decimals(0, 1000, places=2).map(str)
)
_OTHERS = st.text(alphabet="019.-+eEnaif ", max_size=6) | st.none()


def is_exactly_double(text: str) -> bool:
    """Return whether a JSON number is exactly its double, and not an integer beyond 2^53."""
    number = float(text)
    if not math.isfinite(number) or (text.lstrip("-").isdigit() and abs(int(text)) > 2**53):
        return False
    try:
        return Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:
        return False


@settings(deadline=None, max_examples=100)
@given(
    st.lists(_NUMBERS | st.none(), min_size=1, max_size=6).filter(any)
    | st.lists(_NUMBERS | _OTHERS, min_size=1, max_size=4).filter(any)
)
@example(["0.1", None, "0.10", "1.0", "1e-05", "1E5", "5e-324"])
@example(["0.30000000000000004", "12345.678901234567", "1.7976931348623157e308"])
@example(["9007199254740992", "9007199254740993", "9007199254740994.0", "1e400", "1e-400"])
@example(["0.8444218515250481", "0.12345678901234566", "0.12345678901234567", "1e22", "1e400"])
@example(["0.123456789012345678", "0.1000000000000000055511151231257827"])
@example(["inf", "1.5"])
@example([".5"])
@example(["01.5"])
def test_parse_text_doubles_of_any_cells_agrees_with_checking_each_cell(
    texts: list[str | None],
) -> None:
    """All cells must be JSON numbers; those that differ from their double are inexact."""
    padded = pa.array(["9", *texts, "9"], pa.string()).slice(1, len(texts))

    if not all(text is None or _NUMBER.fullmatch(text) for text in texts):
        with pytest.raises(pa.ArrowInvalid):
            parse_text_doubles(padded)
        return
    values, found = parse_text_doubles(padded)
    assert values.to_pylist() == [None if text is None else float(text) for text in texts]
    inexact = [
        at for at, text in enumerate(texts) if text is not None and not is_exactly_double(text)
    ]
    assert found.tolist() == inexact


_DIGIT_CELLS = (
    st.from_regex(r"-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,9})?", fullmatch=True)
    | st.text(alphabet="019.-+e ", max_size=6)
    | st.none()
)
_DECIMAL = re.compile(r"-?(?:0(?=\.)|(?P<whole>0|[1-9][0-9]*))(?:\.(?P<fraction>[0-9]+))?")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")


def is_short_decimal(text: str) -> bool:
    """Return whether a cell is a number of at most 15 digits, not counting a leading zero."""
    found = _DECIMAL.fullmatch(text)
    return found is not None and len(found["whole"] or "") + len(found["fraction"] or "") <= 15


@settings(deadline=None, max_examples=100)
@given(st.lists(_DIGIT_CELLS, min_size=1, max_size=6).filter(any))
@example(["0.123456789012345", "0.1234567890123456", "-123456789012345", "1234567890123456"])
@example(["0", "-0", "-0.0", "00.5", "007", "-", "", "-.5", "1.", ".", "1.2.3", "1-2", "--1"])
@example(["7", "007"])
@example(["", ""])
@example(["", "1.5", None, ""])
def test_number_syntax_of_any_cells_agrees_with_a_pattern_per_cell(texts: list[str | None]) -> None:
    padded = pa.array(["9", *texts, "9"], pa.string()).slice(1, len(texts))
    present = [text for text in texts if text is not None]

    digits = NumberSyntax(padded)

    assert digits.short_decimals().tolist() == [is_short_decimal(text) for text in present]
    assert digits.all_integers() == all(_INTEGER.fullmatch(text) for text in present)


@pytest.mark.parametrize(
    ("other", "inexact"),
    [("0.1", []), ("1e-05", []), ("0.8444218515250481", []), ("0.12345678901234567", [199])],
)
def test_parse_text_doubles_of_many_cells_reports_inexact_ones(
    other: str, inexact: list[int]
) -> None:
    """Short cells are exact without a check; the others are compared with their double."""
    values, found = parse_text_doubles(pa.array(["12.50", None] * 99 + ["0.5", other, "-7"]))

    assert values.to_pylist() == [12.5, None] * 99 + [0.5, float(other), -7.0]
    assert found.tolist() == inexact


WIDE = Column(name="a", type=ColumnType.DECIMAL, precision=20)
PRICE = Column(name="a", type=ColumnType.DECIMAL, precision=7, scale=2)


@pytest.mark.parametrize(
    "text", ["1.8250014089803463e-217", "15E-39", f"0.{'0' * 50}1", "1e20", "0.5"]
)
def test_number_out_of_range_of_decimal_column_is_invalid(text: str) -> None:
    """Arrow's own cast turns some numbers close to 0 into 0."""
    assert not is_valid_text(text, WIDE)


TEXTS = [
    *("1", "-0", "007", "1.5", "1e5", "9" * 40, "0.1000000000000000055", "inf", "true", "x", ""),
    *("QUJD", "QUI=", "QUJ", "2026-01-31", "2026-1-31", "2026-02-30", "10:00", "10:00:00"),
    *("10:00:00.1234560", "10:00:00.1234567", "24:00:00", "10:00:00Z", "0001-01-01T00:00Z"),
    *("2026-01-31T10:00Z", "2026-01-31 10:00:00+0100", "2026-01-31T10:00:00-01:30", "0000-01-01"),
    *("2026-01-31T10:00:00", "2026-01-31 10:00:00.123", "2026-01-31T10", "2026-01-31T10:00\n"),
]


@pytest.mark.parametrize("kind", [kind for kind in ColumnType if kind is not ColumnType.DECIMAL])
def test_texts_parsed_together_have_the_values_of_texts_parsed_one_by_one(kind: ColumnType) -> None:
    column = Column(name="a", type=kind)
    singles = [parse_texts(pa.array([text]), column) for text in TEXTS]
    expected = [array[0].as_py() for array, _ in singles]
    for repeats in (1, 20):
        together, invalid = parse_texts(pa.array(TEXTS * repeats), column)
        assert together.to_pylist() == expected * repeats
        positions = [at for at, (_, wrong) in enumerate(singles * repeats) if wrong]
        assert invalid == positions


def test_many_invalid_texts_are_not_parsed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a column that is declared `date-time`, in a file whose times have no zone."""
    calls: list[int] = []
    parse_all = type_inference._parse_all

    def counted(texts: pa.StringArray, column: Column) -> pa.Array:
        calls.append(len(texts))
        return parse_all(texts, column)

    monkeypatch.setattr(type_inference, "_parse_all", counted)
    column = Column(name="a", type=ColumnType.TIMESTAMP)
    for text in ("2026-01-31T10:00:00", "2026-01-31"):
        _, invalid = parse_texts(pa.array([text] * 4_000), column)
        assert len(invalid) == 4_000
    assert calls == [4_000, 4_000]


def test_narrowest_decimal_of_many_trailing_zeros_takes_linear_time() -> None:
    column = narrowest_decimal("a", "0.1" + "0" * 1_000_000)
    assert column.type_text == "decimal(1,1)"


@pytest.mark.parametrize("text", ["1" * 77, "-" + "9" * 200 + ".01", "9" * 400, "1" * 39])
@pytest.mark.parametrize("column", [WIDE, PRICE, Column.from_text("a", "decimal(38,0)")])
def test_number_with_too_many_digits_is_invalid(text: str, column: Column) -> None:
    """Arrow's own cast turns a number that is far too long into another number."""
    assert not is_valid_text(text, column)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5e2", "150.00"),
        ("-25E-2", "-0.25"),
        ("0e-300", "0.00"),
        (f"1.5{'0' * 40}", "1.50"),
        ("12345.67", "12345.67"),
    ],
)
def test_parsed_decimal_is_exact(text: str, value: str) -> None:
    values, invalid = parse_texts(cells(a=[text, None]).batch.column(0), PRICE)
    assert (values.to_pylist(), invalid) == ([Decimal(value), None], [])


@given(text=st.integers(-(10**38) + 1, 10**38 - 1).map(str), scale=st.integers(0, 38))
@example(text="9" * 29, scale=30)
@example(text=f"{'9' * 28}5{'0' * 9}", scale=0)
def test_parsed_integer_in_decimal_column_is_exact_or_invalid(text: str, scale: int) -> None:
    """Arrow's own cast overflows silently if digits and scale exceed 38."""
    values, invalid = parse_texts(pa.array([text]), Column.from_text("a", f"decimal(38,{scale})"))
    fits = abs(int(text)) < 10 ** (38 - scale)
    assert values.to_pylist() == [Decimal(text) if fits else None]
    assert invalid == ([] if fits else [0])


@given(number=st.integers(-(10**38) + 1, 10**38 - 1), scale=st.integers(0, 38))
@example(number=833807301619270076786788433, scale=22)
def test_exact_cast_to_greater_scale_is_exact_or_raises(number: int, scale: int) -> None:
    """Decimals of a file can overflow in the same way."""
    decimals = pa.array([Decimal(number)], pa.decimal128(38, 0))
    if abs(number) < 10 ** (38 - scale):
        assert exact_cast(decimals, pa.decimal128(38, scale)).to_pylist() == [number]
        return
    with pytest.raises(pa.ArrowInvalid):
        exact_cast(decimals, pa.decimal128(38, scale))


@settings(deadline=None, max_examples=100)
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
def test_infer_text_type_of_any_cells_agrees_with_a_pattern_per_cell(
    texts: list[str | None],
) -> None:
    present = [cell for cell in texts if cell is not None]
    if all(_INTEGER.fullmatch(cell) for cell in present):
        expected = ColumnType.INTEGER
    elif all(_NUMBER.fullmatch(cell) and math.isfinite(float(cell)) for cell in present):
        expected = ColumnType.NUMBER
    else:
        expected = ColumnType.STRING
    padded = pa.array(["9", *texts, "9"], pa.string()).slice(1, len(texts))

    assert infer_text_type("a", padded, None).column == Column(name="a", type=expected)
