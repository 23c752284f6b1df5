"""Examine the text of single JSON records: keys, duplicate keys, NaN, and what makes it invalid.

These functions are exact but slow, and they run only for the records that the fast decoders reject
or cannot decide. `json_validator` explains how the two work together.
"""

import json
import re
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from batch_pipeline.encode.errors import escape_unprintable
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import ColumnType

# Strings are matched as well, so that NaN inside of one is not taken for a token.
_STRING_OR_NONFINITE = re.compile(rb'"(?:[^"\\]|\\.)*"|NaN|-?Infinity')
_TYPES_BY_FIRST_BYTE = {
    b'"': ColumnType.STRING,
    b"{": ColumnType.OBJECT,
    b"[": ColumnType.ARRAY,
    b"t": ColumnType.BOOLEAN,
    b"f": ColumnType.BOOLEAN,
    b"n": ColumnType.UNKNOWN,
}
# Escapes of a quote, a colon and a blank, which encoding writes without an escape.
_KEY_LIKE_ESCAPE = re.compile(rb"\\u00(?:2[02]|3[aA])")
_SLICE_BYTES = 96 * 2**10  # the arrays of one slice stay in the processor's cache
_decode_raw_fields = msgspec.json.Decoder(dict[str, Raw]).decode


class BadRecordError(Exception):
    """A line that is not a valid record.

    The text is the reason. It is written to quarantine files, whose bytes must not change.
    """


def json_type(text: bytes) -> ColumnType | None:
    """Return the type of a JSON value by its first byte: `unknown` for null, None for a number."""
    return _TYPES_BY_FIRST_BYTE.get(text[:1])


def split_record(line: bytes) -> dict[str, bytes]:
    """Return the JSON text of each value by its key, in order.

    Raises:
        BadRecordError: The line is not one JSON object in UTF-8, or it has a duplicate key.
    """
    try:
        line.decode()  # msgspec does not validate the strings inside of `Raw`
        fields = _decode_raw_fields(line)
        check_duplicate_keys(line)
    except UnicodeDecodeError as error:
        raise BadRecordError("is not UTF-8") from error
    except RecursionError as error:
        raise BadRecordError("is nested too deeply") from error
    except msgspec.ValidationError as error:
        value_type = json_type(line.lstrip()) or "number"
        shown = "null" if value_type is ColumnType.UNKNOWN else value_type
        raise BadRecordError(f"is not a JSON object but {shown}") from error
    except msgspec.DecodeError as error:
        raise BadRecordError(_explain_malformed(line, error)) from error
    return {name: bytes(value) for name, value in fields.items()}


def check_duplicate_keys(text: bytes) -> None:
    """Raise if an object anywhere in a JSON text has the same key twice.

    Every JSON parser keeps only one of the two values, so that the other would be lost silently.

    Raises:
        BadRecordError: There is a duplicate key.
        RecursionError: The value is nested too deeply.
    """
    json.loads(text.decode(), object_pairs_hook=_reject_duplicates, parse_int=str, parse_float=str)


def quote_key(name: str) -> str:
    """Return a key as JSON in one escape_unprintable line."""
    return escape_unprintable(json.dumps(name, ensure_ascii=False))


def count_key_quotes(text: bytes) -> int:
    """Count the quotes that are followed by a colon or by whitespace: at least one for each key.

    Proves cheaply that a whole block has no duplicate keys: a decoder that read as many keys as
    there are such quotes dropped none. The count may be too high, because strings can contain
    `":`; then the records are examined one by one. It is never too low.
    """
    data = np.frombuffer(text, np.uint8)
    count = 0
    for start in range(0, len(data) - 1, _SLICE_BYTES):
        part = data[start : start + _SLICE_BYTES + 1]
        following = part[1:]
        is_key_quote = (part[:-1] == ord('"')) & ((following == ord(":")) | (following <= ord(" ")))
        count += int(np.count_nonzero(is_key_quote))
    return count


def keeps_all_keys(value: object, text: bytes) -> bool:
    """Return whether it is proven that decoding a text to this value dropped no duplicate key.

    Encoding the value writes as many key quotes as the text has, unless a key was there twice.
    """
    return _KEY_LIKE_ESCAPE.search(text) is None and (
        count_key_quotes(msgspec.json.encode(value)) == count_key_quotes(text)
    )


def replace_nonfinite(line: bytes, rule: OnNonfinite) -> bytes:
    """Replace the tokens NaN, Infinity and -Infinity as the rule says; keep all other bytes.

    Raises:
        BadRecordError: There is such a token, and the rule is to quarantine the record.
    """

    def replacement(match: re.Match[bytes]) -> bytes:
        token = match[0]
        if token.startswith(b'"'):
            return token
        if rule is OnNonfinite.QUARANTINE:
            raise BadRecordError(f"holds {token.decode()}, which JSON cannot say")
        return b"null" if rule is OnNonfinite.NULL else b'"%b"' % token

    return _STRING_OR_NONFINITE.sub(replacement, line)


def count_nonfinite(line: bytes) -> int:
    """Count the tokens NaN, Infinity and -Infinity outside of strings."""
    return sum(not match[0].startswith(b'"') for match in _STRING_OR_NONFINITE.finditer(line))


def nonfinite_fields(line: bytes) -> dict[str, float]:
    """Return the top-level values of a record that are NaN or infinite."""
    try:
        record = json.loads(line.decode(), parse_constant=float, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {name: value for name, value in record.items() if isinstance(value, float)}


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise BadRecordError(f"has the key {quote_key(name)} twice")
        names.add(name)


def _explain_malformed(line: bytes, error: Exception) -> str:
    try:
        json.loads(line.decode())
    except RecursionError:
        return "is nested too deeply"
    except ValueError:
        if line.startswith(b"\xef\xbb\xbf"):
            return "starts with a byte order mark in the middle of the file"
        return f"is not valid JSON ({error})"
    # Python's parser accepts lone surrogates, msgspec does not.
    return "has a text with half of a surrogate pair, which UTF-8 cannot hold"
