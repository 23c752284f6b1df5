"""Texts of numbers as values of a decimal column: exactly the number, or no value at all."""

from decimal import Decimal

import pytest

from batch_pipeline.domain.schema import Column, ColumnType
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
