"""Turns values of typed formats into JSON text, exactly; what JSON cannot say obeys a rule.

Only the text of single values: which column holds JSON text is known by readers and writers.
"""

import math
from decimal import Decimal
from typing import Any, assert_never

import msgspec

from batch_pipeline.domain.record_rules import OnNonfinite

_CHANGED = (b"null", b"NaN", b"Infinity")  # how NaN and infinities of floats and decimals come out


def _refuse(value: object) -> Any:
    if isinstance(value, Exception):
        raise value
    raise TypeError(f"no JSON for {type(value).__name__}")


_encode = msgspec.json.Encoder(decimal_format="number", enc_hook=_refuse).encode


class NonfiniteError(ValueError):
    """A value holds a NaN or an infinity, which JSON cannot say."""

    def __init__(self, found: str) -> None:
        super().__init__(f"holds {found}, which JSON cannot say")


def json_text(value: Any, on_nonfinite: OnNonfinite) -> bytes:
    """Write a value compactly: keys in their order, decimals as numbers with all their digits.

    Binary values become base64 text, dates, times and durations ISO 8601 text, an instant in UTC
    ends with `Z`. NaN and infinities become null or the texts `NaN`, `Infinity`, `-Infinity`. An
    exception that stands where a value should be is raised.

    Raises:
        NonfiniteError: there is a NaN or an infinity, and such records are set aside.
        UnicodeEncodeError: a text holds half of a surrogate pair.
        RecursionError: the value is nested too deeply.
    """
    text = _encode(value)
    if any(mark in text for mark in _CHANGED):
        return _encode(_finite(value, on_nonfinite))
    return text


def nonfinite_text(number: float | Decimal) -> str:
    """Name a NaN or an infinity as `on_nonfinite: string` writes it."""
    if number != number:  # noqa: PLR0124 - NaN, of a float or a decimal
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _finite(value: Any, rule: OnNonfinite) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item, rule) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item, rule) for item in value]
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
