"""Text cells are numbers exactly when their doubles are: held against a look at each cell."""

import math
import re
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.spark.check.cell_numbers import doubles_in

_FORM = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBERS = (
    st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,19})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
    | st.integers(-(2**65), 2**65).map(str)
    | st.decimals(0, 1000, places=2).map(str)
)
_OTHERS = st.text(alphabet="019.-+eEnaif ", max_size=6) | st.none()


def is_held(text: str) -> bool:
    """Tell of a JSON number whether its double is exact, and no integer beyond 2^53."""
    number = float(text)
    if not math.isfinite(number) or (text.lstrip("-").isdigit() and abs(int(text)) > 2**53):
        return False
    try:
        return Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:
        return False


@settings(deadline=None, max_examples=300)
@given(
    st.lists(_NUMBERS | st.none(), min_size=1, max_size=6).filter(any)
    | st.lists(_NUMBERS | _OTHERS, min_size=1, max_size=4).filter(any)
)
@example(["0.1", None, "0.10", "1.0", "1e-05", "1E5", "5e-324"])
@example(["0.30000000000000004", "12345.678901234567", "1.7976931348623157e308"])
@example(["9007199254740992", "9007199254740993", "9007199254740994.0", "1e400", "1e-400"])
@example(["nan"])
@example(["inf", "1.5"])
@example(["1."])
@example([".5"])
@example(["+1"])
@example(["01.5"])
def test_doubles_in_any_cells_agree_with_a_look_at_each_cell(texts: list[str | None]) -> None:
    """All cells must be JSON numbers; those that are not their double are told, nothing else."""
    padded = pa.array(["9", *texts, "9"], pa.string()).slice(1, len(texts))
    found = doubles_in(padded)

    if not all(text is None or _FORM.fullmatch(text) for text in texts):
        assert found is None
        return
    assert found is not None
    assert found.values.to_pylist() == [None if text is None else float(text) for text in texts]
    inexact = [at for at, text in enumerate(texts) if text is not None and not is_held(text)]
    assert found.inexact.tolist() == inexact


@pytest.mark.parametrize(
    ("text", "is_exact"),
    [
        ("0.1", True),
        ("0.10", True),
        ("0.8444218515250481", True),
        ("0.12345678901234566", True),
        ("0.12345678901234567", False),
        ("0.123456789012345678", False),
        ("0.1000000000000000055511151231257827", False),
        ("1e22", True),
        ("1e400", False),
    ],
)
def test_doubles_in_one_cell_tell_whether_its_digits_come_back(text: str, is_exact: bool) -> None:
    """A number is exact when its double, written as short as possible, has the same digits."""
    found = doubles_in(pa.array([text]))

    assert found is not None
    assert len(found.inexact) == (not is_exact)
