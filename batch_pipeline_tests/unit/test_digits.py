"""Numbers found by the bytes of a whole column: held against a pattern for each cell."""

import re

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.spark.check.cell_numbers import doubles_in
from batch_pipeline.spark.check.digits import Digits

_CELLS = (
    st.from_regex(r"-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,9})?", fullmatch=True)
    | st.text(alphabet="019.-+e ", max_size=6)
    | st.none()
)
_DECIMAL = re.compile(r"-?(?:0(?=\.)|(?P<whole>0|[1-9][0-9]*))(?:\.(?P<fraction>[0-9]+))?")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")


def is_short_decimal(text: str) -> bool:
    """Tell of one cell whether it is a number of at most 15 digits, a zero in front left out."""
    found = _DECIMAL.fullmatch(text)
    return found is not None and len(found["whole"] or "") + len(found["fraction"] or "") <= 15


@settings(deadline=None, max_examples=300)
@given(st.lists(_CELLS, min_size=1, max_size=6).filter(any))
@example(["0.123456789012345", "0.1234567890123456", "-123456789012345", "1234567890123456"])
@example(["0", "-0", "-0.0", "00.5", "007", "-", "", "-.5", "1.", ".", "1.2.3", "1-2", "--1"])
@example(["", ""])
@example(["", "1.5", None, ""])
def test_digits_of_any_cells_agree_with_a_pattern_per_cell(texts: list[str | None]) -> None:
    """Each cell is told apart from its neighbours, and nulls are left out."""
    padded = pa.array(["9", *texts, "9"], pa.string()).slice(1, len(texts))
    present = [text for text in texts if text is not None]

    digits = Digits(padded)

    assert digits.are_short_decimals().tolist() == [is_short_decimal(text) for text in present]
    assert digits.are_integers() == all(_INTEGER.fullmatch(text) for text in present)


@pytest.mark.parametrize(
    ("strange", "inexact"),
    [("0.1", []), ("1e-05", []), ("0.8444218515250481", []), ("0.12345678901234567", [199])],
)
def test_doubles_in_many_cells_look_closely_at_the_few_long_ones(
    strange: str, inexact: list[int]
) -> None:
    """Short cells are exact as they are; of the others each is written once more."""
    found = doubles_in(pa.array(["12.50", None] * 99 + ["0.5", strange, "-7"]))

    assert found is not None
    assert found.values.to_pylist() == [12.5, None] * 99 + [0.5, float(strange), -7.0]
    assert found.inexact.tolist() == inexact


@pytest.mark.parametrize("strange", ["007", "+1", "nan", ".5", " 1", "0x1", ""])
def test_doubles_in_many_cells_with_one_that_is_no_number_are_refused(strange: str) -> None:
    """One cell that JSON would not write so is enough."""
    assert doubles_in(pa.array(["12.50"] * 200 + [strange])) is None
