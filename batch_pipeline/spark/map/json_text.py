"""Turns values of records into JSON text and back, the way the Singer SDK does."""

import datetime
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

_PLAIN = frozenset({str, int, bool, type(None)})
_BEYOND_ASCII = re.compile("[^\x00-~]")
_encode = msgspec.json.Encoder(decimal_format="number").encode

decoded: Callable[[bytes | msgspec.Raw], Any] = msgspec.json.Decoder(float_hook=Decimal).decode
"""Decode JSON text; numbers with a fraction or an exponent become decimals, digit by digit."""

columns_of: Callable[[bytes | msgspec.Raw], dict[str, msgspec.Raw]] = msgspec.json.Decoder(
    dict[str, msgspec.Raw]
).decode
"""Decode an object's keys, in order; their values stay JSON text."""


json_of: Callable[[dict[str, msgspec.Raw]], bytes] = msgspec.json.Encoder().encode
"""Write an object of JSON texts, compactly between its values."""


UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError)
"""What decoding may raise: not JSON, not Unicode, too deep, too long a number."""


class NoJsonFormError(TypeError):
    """An expression gave something that has no JSON form."""

    def __init__(self, value: object) -> None:
        super().__init__(f"gives a {type(value).__name__}, which has no JSON form")


def json_text(value: Any) -> bytes:
    """Write what an expression gave as compact JSON.

    Dates and times become ISO 8601 text, NaN and infinities null.

    Raises:
        NoJsonFormError: it is a set, a function or the like.
        ValueError: a text or bytes are not Unicode, or an integer is too long.
    """
    if type(value) not in _PLAIN:
        value = _jsonable(value)
    return _encode(value)


def unreadable(error: Exception) -> str:
    """Say why JSON text cannot be read, given one of `UNREADABLE`; no value is in what is said."""
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return f"is not valid JSON ({error})"
    return f"holds a value that cannot be read ({type(error).__name__})"


def ascii_json(text: bytes | msgspec.Raw) -> bytes:
    """Rewrite JSON text compactly, in ASCII: the text that flattening puts in place of a value."""
    compact = str(_encode(decoded(text)), "utf-8")
    if compact.isascii() and "\x7f" not in compact:
        return compact.encode()
    return _BEYOND_ASCII.sub(_escaped, compact).encode()


def as_json_string(text: bytes) -> bytes:
    """Write a text as a JSON string."""
    return _encode(str(text, "utf-8"))


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _jsonable(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {_key(key): _jsonable(one) for key, one in value.items()}
    if kind is list or kind is tuple:
        return [_jsonable(one) for one in value]
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
