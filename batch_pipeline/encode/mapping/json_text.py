"""Conversion of values of records to JSON text and back, as the Singer SDK does it."""

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

_PLAIN = frozenset({str, int, bool, type(None)})
_encode = msgspec.json.Encoder(decimal_format="number").encode

decode: Callable[[bytes | msgspec.Raw], Any] = msgspec.json.Decoder(float_hook=Decimal).decode
"""Decode JSON text; numbers with a fraction or an exponent become decimals, digit by digit."""

decode_fields: Callable[[bytes | msgspec.Raw], dict[str, msgspec.Raw]] = msgspec.json.Decoder(
    dict[str, msgspec.Raw]
).decode
"""Decode an object's keys, in order; their values stay JSON text."""


encode_fields: Callable[[dict[str, msgspec.Raw]], bytes] = msgspec.json.Encoder().encode
"""Encode an object whose values are JSON text, without blanks between them."""


DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError)
"""Errors of decoding: not JSON, not Unicode, nested too deeply, or a number that is too long."""


class NoJsonFormError(TypeError):
    """A value of an expression has no JSON form; quarantined records name this class."""

    def __init__(self, value: object) -> None:
        super().__init__(f"gives a {type(value).__name__}, which has no JSON form")


class UnmappableRecordError(Exception):
    """A record cannot be mapped; the message is the reason in the quarantine."""


def json_text(value: Any) -> bytes:
    """Return the value of an expression as compact JSON.

    Dates and times become ISO 8601 text, NaN and infinities null.

    Raises:
        NoJsonFormError: The value is a set, a function or the like.
        ValueError: A text or bytes are not Unicode, or an integer is too long.
    """
    if type(value) not in _PLAIN:
        value = _to_jsonable(value)
    return _encode(value)


def as_raw_json(value: Any) -> msgspec.Raw:
    """Return a value as JSON text, where it is not JSON text already."""
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(json_text(value))


def decode_error_reason(error: Exception) -> str:
    """Return why JSON text cannot be read, without its values; `error` is of `DECODE_ERRORS`."""
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return f"is not valid JSON ({error})"
    return f"holds a value that cannot be read ({type(error).__name__})"


def _to_jsonable(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {_key(key): _to_jsonable(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_to_jsonable(item) for item in value]
    if kind is float or kind is Decimal:
        return value if math.isfinite(value) else None
    return value if kind in _PLAIN else _text(value)


def _text(value: Any) -> str:
    kind = type(value)
    if kind is bytes:
        return str(value, "utf-8")
    if kind is datetime.datetime:
        return str(value.isoformat())
    if kind in {datetime.date, datetime.time, datetime.timedelta, datetime.timezone}:
        return str(value)
    raise NoJsonFormError(value)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode("utf-8")
    if isinstance(key, bool | None):
        return {True: "true", False: "false", None: "null"}[key]
    if isinstance(key, int | float | Decimal):
        return str(key)
    raise NoJsonFormError(key)
