"""Exact JSON out of bytes: no number loses a digit, no key is lost, no other dialect is taken.

Nothing here knows what a message is.
"""

import json
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

EXACT = msgspec.json.Decoder(float_hook=Decimal)
FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
UNREADABLE = (ValueError, ArithmeticError, RecursionError)  # msgspec's errors are ValueErrors
_ENCODER = msgspec.json.Encoder()
_ESCAPED_COLON = b"\\u003"


class TwiceError(ValueError):
    """A key is there twice; its text is the key."""


def parse(line: bytes) -> Any:
    """Give what a text says: integers as int, all other numbers as Decimal.

    Raises:
        TwiceError: an object has a key twice.
        ValueError: it is no JSON in UTF-8; the text says why.
    """
    try:
        text = line.decode("utf-8")
        value = json.loads(
            text, parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_pairs
        )
        EXACT.decode(line)  # refuses half characters, which no file in UTF-8 can hold
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is no UTF-8") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ArithmeticError as error:
        raise ValueError("a number is too large to be told") from error
    return value


def is_complete(value: Any, text: bytes) -> bool:
    """Tell that no key of a text was lost in its value, where that can be told quickly.

    A key costs one colon outside of strings; the strings of value and text have the same colons as
    long as none of them is escaped.
    """
    return _ESCAPED_COLON not in text and _ENCODER.encode(value).count(b":") == text.count(b":")


def are_complete(fields: dict[str, msgspec.Raw], line: bytes) -> bool:
    """Tell the same of the fields of an object; what is inside of them is not looked at."""
    colons = len(fields)
    for name, raw in fields.items():
        colons += name.count(":") + bytes(raw).count(b":")
    return _ESCAPED_COLON not in line and colons == line.count(b":")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise TwiceError(name)
            seen.add(name)
    return found
