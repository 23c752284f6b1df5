"""What is wrong with a line that should be one JSON object: looks closely, one line at a time."""

import json
import re
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.domain.schema import ColumnType
from batch_pipeline.spark.readable import readable

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|NaN|-?Infinity')
_KINDS = {
    b'"': ColumnType.STRING,
    b"{": ColumnType.OBJECT,
    b"[": ColumnType.ARRAY,
    b"t": ColumnType.BOOLEAN,
    b"f": ColumnType.BOOLEAN,
    b"n": ColumnType.UNKNOWN,
}
_PIECE_BYTES = 96 * 2**10  # stays in the cache while it is looked at
_fields = msgspec.json.Decoder(dict[str, Raw])


class BadRecordError(Exception):
    """A line is no record; the text says why."""


class _TwiceError(Exception):
    """An object has a key twice."""


def kind_of(text: bytes) -> ColumnType | None:
    """Tell what a JSON value is by its first byte, None for a number; `unknown` is null."""
    return _KINDS.get(text[:1])


def fields_of(line: bytes) -> dict[str, bytes]:
    """Take a record apart: the JSON text of each value by its key, in order.

    Raises:
        BadRecordError: it is no JSON object, no key of which is there twice, in UTF-8.
    """
    try:
        line.decode()
        fields = _fields.decode(line)
        check_nested(line)
    except UnicodeDecodeError as error:
        raise BadRecordError("is not UTF-8") from error
    except RecursionError as error:
        raise BadRecordError("is nested too deeply") from error
    except msgspec.ValidationError as error:
        found = kind_of(line.lstrip()) or "number"
        shown = "null" if found is ColumnType.UNKNOWN else found
        raise BadRecordError(f"is not a JSON object but {shown}") from error
    except msgspec.DecodeError as error:
        raise BadRecordError(_malformed(line, error)) from error
    return {name: bytes(value) for name, value in fields.items()}


def check_nested(text: bytes) -> None:
    """Look at all objects of a JSON text for keys that are there twice.

    Raises:
        BadRecordError: there is one.
        RecursionError: the value is nested too deeply.
    """
    try:
        json.loads(text.decode(), object_pairs_hook=_unique, parse_int=str, parse_float=str)
    except _TwiceError as error:
        raise BadRecordError(f"has the key {key_text(error.args[0])} twice") from error


def key_text(name: str) -> str:
    """Return a key as JSON in one readable line."""
    return readable(json.dumps(name, ensure_ascii=False))


def key_marks(text: bytes | memoryview) -> int:
    """Count the quotes that a colon or a blank follows: at least one for each key.

    Where they are no more than the keys that were read, no key was there twice.
    """
    octets = np.frombuffer(text, np.uint8)
    marks = 0
    for start in range(0, len(octets) - 1, _PIECE_BYTES):
        piece = octets[start : start + _PIECE_BYTES + 1]
        behind = piece[1:]
        found = (piece[:-1] == ord('"')) & ((behind == ord(":")) | (behind <= ord(" ")))
        marks += int(np.count_nonzero(found))
    return marks


def finite(line: bytes, rule: OnNonfinite) -> bytes:
    """Write a record without the tokens NaN, Infinity and -Infinity; all else stays as it is.

    Raises:
        BadRecordError: there are such tokens, and such records are set aside.
    """

    def written(found: re.Match[bytes]) -> bytes:
        token = found[0]
        if token.startswith(b'"'):
            return token
        if rule is OnNonfinite.QUARANTINE:
            raise BadRecordError(f"holds {token.decode()}, which JSON cannot say")
        return b"null" if rule is OnNonfinite.NULL else b'"%b"' % token

    return _TOKENS.sub(written, line)


def count_nonfinite(line: bytes) -> int:
    """Count the tokens that JSON does not have."""
    return sum(not found[0].startswith(b'"') for found in _TOKENS.finditer(line))


def nonfinite_fields(line: bytes) -> dict[str, float]:
    """Give the values of a record, those in nested objects left out, that are NaN or infinite."""
    try:
        record = json.loads(line.decode(), parse_constant=float, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {name: value for name, value in record.items() if isinstance(value, float)}


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _TwiceError(name)
        seen.add(name)


def _malformed(line: bytes, error: Exception) -> str:
    try:
        json.loads(line.decode())
    except RecursionError:
        return "is nested too deeply"
    except ValueError:
        if line.startswith(b"\xef\xbb\xbf"):
            return "starts with a byte order mark in the middle of the file"
        return f"is not valid JSON ({error})"
    return "has a text with half of a surrogate pair, which UTF-8 cannot hold"
