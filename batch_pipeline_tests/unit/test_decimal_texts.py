"""Texts of numbers as values of a decimal column: exactly the number, or no value at all."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.spark.arrow_types import exact_cast
from batch_pipeline.spark.check.text_forms import fits_text, read_texts
from batch_pipeline_tests.unit.part_scene import cells, schema
from batch_pipeline_tests.unit.test_columns import columns

WIDE = Column(name="a", type=ColumnType.DECIMAL, precision=20)
PRICE = Column(name="a", type=ColumnType.DECIMAL, precision=7, scale=2)


@pytest.mark.parametrize(
    "text",
    ["1.8250014089803463e-217", "1.5e-38", "15E-39", "1e-400", f"0.{'0' * 50}1", "1e20", "0.5"],
)
def test_number_that_a_decimal_column_cannot_hold_does_not_fit(text: str) -> None:
    """Expect what is nearly 0 not to become 0, which Arrow's own cast makes of some."""
    assert not fits_text(text, WIDE)


@pytest.mark.parametrize("text", ["1" * 77, "-" + "9" * 200 + ".01", "9" * 400, "1" * 39])
@pytest.mark.parametrize("column", [WIDE, PRICE, Column.from_text("a", "decimal(38,0)")])
def test_number_of_too_many_digits_does_not_fit(text: str, column: Column) -> None:
    """Expect what is far too long not to become another number, which Arrow's cast makes of it."""
    assert not fits_text(text, column)


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
def test_number_that_a_decimal_column_holds_is_read_exactly(text: str, value: str) -> None:
    """Expect the same value from the check and from the part file."""
    values, unfit = read_texts(cells(a=[text, None]).batch.column(0), PRICE)
    assert (values.to_pylist(), unfit) == ([Decimal(value), None], [])
    assert columns(cells(a=[text, None]), schema(a="decimal(7,2)")) == {"a": [Decimal(value), None]}


@given(text=st.integers(-(10**38) + 1, 10**38 - 1).map(str), scale=st.integers(0, 38))
@example(text="9" * 29, scale=30)
@example(text=f"{'9' * 28}5{'0' * 9}", scale=0)
def test_whole_number_in_a_decimal_column_is_itself_or_does_not_fit(text: str, scale: int) -> None:
    """Expect no number that overflows 38 digits, once its scale is added, to become another one."""
    values, unfit = read_texts(pa.array([text]), Column.from_text("a", f"decimal(38,{scale})"))
    fits = abs(int(text)) < 10 ** (38 - scale)
    assert values.to_pylist() == [Decimal(text) if fits else None]
    assert unfit == ([] if fits else [0])


@given(number=st.integers(-(10**38) + 1, 10**38 - 1), scale=st.integers(0, 38))
@example(number=833807301619270076786788433, scale=22)
def test_decimal_cast_to_a_greater_scale_is_itself_or_refused(number: int, scale: int) -> None:
    """Expect the same of the decimals of a file whose column has digits behind the point."""
    decimals = pa.array([Decimal(number)], pa.decimal128(38, 0))
    if abs(number) < 10 ** (38 - scale):
        assert exact_cast(decimals, pa.decimal128(38, scale)).to_pylist() == [number]
        return
    with pytest.raises(pa.ArrowInvalid):
        exact_cast(decimals, pa.decimal128(38, scale))
