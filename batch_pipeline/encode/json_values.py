"""Write values of typed formats as JSON text without loss, for columns that hold JSON.

JSON has no NaN and no infinities; `on_nonfinite` of the stream determines how they are written.
"""

import math
from decimal import Decimal
from typing import Any, assert_never

import msgspec

from batch_pipeline.model.record_rules import OnNonfinite

# msgspec writes null for floats, a name for decimals.
_NONFINITE_MARKS = (b"null", b"NaN", b"Infinity")


def _reject_unknown(value: object) -> Any:
    if isinstance(value, Exception):
        raise value
    raise TypeError(f"no JSON for {type(value).__name__}")


_encode = msgspec.json.Encoder(decimal_format="number", enc_hook=_reject_unknown).encode


class NonfiniteError(ValueError):
    """A value contains NaN or an infinity, which JSON cannot represent."""

    def __init__(self, number: str) -> None:
        super().__init__(f"holds {number}, which JSON cannot represent")


def json_text(value: Any, on_nonfinite: OnNonfinite) -> bytes:
    """Return a value as compact JSON: keys in order, decimals as numbers with all their digits.

    Binary values become base64, dates, times and durations ISO 8601 strings, with a `Z` for UTC.
    NaN and infinities become null or the strings `NaN`, `Infinity`, `-Infinity`. An exception
    among the values is raised: readers substitute it for a value that they cannot convert.

    Raises:
        NonfiniteError: The value has NaN or an infinity, and the rule is to quarantine the record.
        UnicodeEncodeError: A string contains half of a surrogate pair.
        RecursionError: The value is nested too deeply.
    """
    text = _encode(value)
    # Nonfinite numbers are rare, and replacing them copies the value. The marks may also be part of
    # a string, or stand for null; then nothing changes.
    if any(mark in text for mark in _NONFINITE_MARKS):
        return _encode(_replace_nonfinite(value, on_nonfinite))
    return text


def nonfinite_text(number: float | Decimal) -> str:
    """Return the name of NaN or an infinity, as `on_nonfinite: string` writes it."""
    if number != number:  # noqa: PLR0124 - NaN, as a float or a decimal
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _replace_nonfinite(value: Any, rule: OnNonfinite) -> Any:
    if isinstance(value, dict):
        return {key: _replace_nonfinite(item, rule) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_nonfinite(item, rule) for item in value]
    if not isinstance(value, (float, Decimal)) or math.isfinite(value):
        return value
    match rule:
        case OnNonfinite.QUARANTINE:
            raise NonfiniteError(nonfinite_text(value))
        case OnNonfinite.NULL:
            return None
        case OnNonfinite.STRING:
            return nonfinite_text(value)
        case _:
            assert_never(rule)
