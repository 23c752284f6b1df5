"""What is proven of the numbers in a block of JSON text, held against a look at each number."""

import json
from math import isfinite

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.spark.check.json_numbers import holds_only_exact
from batch_pipeline.spark.check.number_text import is_exact

_NUMBERS = (
    st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
    | st.integers(10**14, 10**17).map(lambda digits: f"0.{digits}")
)
_TEXTS = st.from_regex(r'"[0-9.,:/eE {}-]{0,40}"', fullmatch=True)


def block(values: list[str]) -> bytes:
    """Make lines of records of three columns."""
    lines = [values[start : start + 3] for start in range(0, len(values), 3)]
    records = [",".join(f'"a{at}": {value}' for at, value in enumerate(line)) for line in lines]
    return "".join(f"{{{record}}}\n" for record in records).encode()


@settings(deadline=None, max_examples=400)
@given(st.lists(_NUMBERS | _TEXTS, min_size=1, max_size=7))
@example(["0.30000000000000004", "1.7976931348623157e308", "5e-324"])
@example(["1234567890123456789.5"])
@example(["123456789012345e-330"])
@example(["1.00000000000000001e5", "1e-0000000000000000000000000000000000000000330"])
@example(["123456789012345678e0000000000000000000000000000000000000000000001"])
@example(['"2026.11.21.10.11.12"', '" 2026.11.21.10.11.12 "', "0.1"])
def test_block_proven_exact_holds_no_other_number(values: list[str]) -> None:
    """Where a number is not its double the proof fails, but for those that no decoder takes."""
    floats = [text for text in values if text[0] != '"' and not text.lstrip("-").isdigit()]

    if holds_only_exact(block(values)):
        assert all(is_exact(text) for text in floats if isfinite(float(text)))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-90), min_size=1))
def test_block_of_floats_as_python_writes_them_is_proven_exact(numbers: list[float]) -> None:
    """Digits that come back are digits enough."""
    assert holds_only_exact(block(list(map(json.dumps, numbers))))


@pytest.mark.parametrize(
    ("text", "proven"),
    [
        (b'{"a":0.1234567890123456789}\n', False),
        (b'{"a":-0.30000000000000004441}\n', False),
        (b'{"a":[12345678901234567890.5]}\n', False),
        (b'{"a":0.30000000000000004}\n', True),
        (b'{"a":0.10000000000000000000}\n', True),
        (b'{"a":12345678901234567890}\n', True),
        (b'{"a":"12345678901234567890.5"}\n', True),
        (b"{}\n", True),
        (b"", True),
    ],
)
def test_block_of_one_record_is_proven_exact_where_it_is(text: bytes, proven: bool) -> None:
    """Integers are the decoder's business, and texts hold no numbers."""
    assert holds_only_exact(text) is proven
