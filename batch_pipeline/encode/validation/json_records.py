"""Decode single JSON records, and examine those that are not of the schema's types.

msgspec compiles a decoder for the columns of a schema. It rejects a record as soon as a value is
not of its column's type, so that a record that it accepts needs no further check, except for the
types in `UNCHECKED_TYPES`. `RecordValidator` is exact but slow: it determines why a record was
rejected. `json_validator` explains how the two work together.
"""

import json
import re
from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from itertools import count
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Raw, Struct, UnsetType

from batch_pipeline.encode.arrow_types import JSON_TYPES, OPENING_BRACKETS, arrow_type_of
from batch_pipeline.encode.errors import escape_unprintable, too_many_columns
from batch_pipeline.encode.validation.type_inference import (
    MAX_EXACT_INTEGER,
    TYPED_TEXT_TYPES,
    InferredType,
    SchemaProfile,
    infer_json_type,
    json_type,
    parse_texts,
    slice_strings,
)
from batch_pipeline.model.record_rules import RESCUED, Evolution, OnNonfinite
from batch_pipeline.model.schema import Column, ColumnType, name_fault
from batch_pipeline.model.stream import Stream

# Types whose Arrow columns hold NaN, or may do so once they are widened.
_NAN_TYPES = (ColumnType.NUMBER, ColumnType.UNKNOWN, ColumnType.INTEGER)
# Strings are matched as well, so that NaN inside a string is not mistaken for a token. An open
# string extends to the end: trying each of its quotes would take quadratic time.
_STRING_OR_NONFINITE = re.compile(rb'"(?:[^"\\]++|\\.)*+\\?(?:"|\Z)|NaN|-?Infinity', re.DOTALL)
# Escapes of a quote, a colon and a blank, which encoding writes without an escape.
KEY_LIKE_ESCAPE = re.compile(rb"\\u00(?:2[02]|3[aA])")
SLICE_BYTES = 96 * 2**10  # the arrays of one slice stay in the processor's cache
_decode_raw_fields = msgspec.json.Decoder(dict[str, Raw]).decode


class BadRecordError(Exception):
    """A line that is not a valid record, or a record that cannot be mapped.

    The text is the reason. It is written to quarantine files, whose bytes must not change.
    """


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
        raise BadRecordError(explain_malformed(line, error)) from error
    return {name: bytes(value) for name, value in fields.items()}


def check_duplicate_keys(text: bytes) -> None:
    """Raise if an object anywhere in a JSON text has the same key twice; UTF-8 is not checked.

    Every JSON parser keeps only one of the two values, so that the other would be lost silently.

    Raises:
        BadRecordError: There is a duplicate key.
        RecursionError: The value is nested too deeply.
    """
    json.loads(
        text.decode(errors="surrogateescape"),
        object_pairs_hook=_reject_duplicates,
        parse_int=str,
        parse_float=str,
    )


def quote_key(name: str) -> str:
    """Return a key as JSON in one printable line."""
    return escape_unprintable(json.dumps(name, ensure_ascii=False))


def count_key_quotes(text: bytes) -> int:
    """Count the quotes that are followed by a colon or by whitespace: at least one for each key.

    The count is a cheap proof that a block has no duplicate keys: a decoder that read as many keys
    as there are such quotes dropped none. It may be too high, because strings can contain
    `":`; then the records are examined one by one. It is never too low.
    """
    data = np.frombuffer(text, np.uint8)
    count = 0
    for start in range(0, len(data) - 1, SLICE_BYTES):
        part = data[start : start + SLICE_BYTES + 1]
        following = part[1:]
        is_key_quote = (part[:-1] == ord('"')) & ((following == ord(":")) | (following <= ord(" ")))
        count += int(np.count_nonzero(is_key_quote))
    return count


def keeps_all_keys(value: object, text: bytes) -> bool:
    """Return whether it is proven that decoding a text to this value dropped no duplicate key."""
    try:
        written = msgspec.json.encode(value)
    except RecursionError:  # encoding needs more of the stack than decoding
        return False
    return has_same_keys(written, text)


def has_same_keys(written: bytes, text: bytes) -> bool:
    """Return whether it is proven that a text has no other keys than what decoding it kept.

    Encoding the decoded value writes as many key quotes as the text has, unless a key was
    duplicated.
    """
    return KEY_LIKE_ESCAPE.search(text) is None and (
        count_key_quotes(written) == count_key_quotes(text)
    )


def replace_nonfinite(line: bytes, rule: OnNonfinite, nulls: Container[int] = ()) -> bytes:
    """Replace the tokens NaN, Infinity and -Infinity as the rule says; keep all other bytes.

    The tokens at the positions `nulls`, as `nonfinite_fields` counts them, become null.

    Raises:
        BadRecordError: There is another such token, and the rule is to quarantine the record.
    """
    positions = count()

    def replacement(match: re.Match[bytes]) -> bytes:
        token = match[0]
        if token.startswith(b'"'):
            return token
        if next(positions) in nulls or rule is OnNonfinite.NULL:
            return b"null"
        if rule is OnNonfinite.QUARANTINE:
            raise BadRecordError(f"holds {token.decode()}, which JSON cannot represent")
        return b'"%b"' % token

    return _STRING_OR_NONFINITE.sub(replacement, line)


def nonfinite_fields(line: bytes) -> dict[int, tuple[str, float]]:
    """Return the keys and values that are NaN or infinite, by their positions among such tokens.

    Tokens inside objects and arrays are counted, but not returned.
    """
    positions = count()

    def parse(token: str) -> tuple[int, float]:
        return next(positions), float(token)

    try:
        record = json.loads(line.decode(), parse_constant=parse, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(record, dict):
        return {}
    tokens = {name: value for name, value in record.items() if isinstance(value, tuple)}
    return {position: (name, number) for name, (position, number) in tokens.items()}


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise BadRecordError(f"has the key {quote_key(name)} twice")
        names.add(name)


def explain_malformed(line: bytes, error: Exception) -> str:
    """Return why msgspec cannot decode a line that is UTF-8, without values."""
    try:
        json.loads(line.decode())
    except RecursionError:
        return "is nested too deeply"
    except ValueError:
        if line.startswith(b"\xef\xbb\xbf"):
            return "starts with a byte order mark in the middle of the file"
        return f"is not valid JSON ({error})"
    # Python's parser accepts lone surrogates, msgspec does not.
    return "has a text with an unpaired surrogate, which UTF-8 cannot encode"


_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_ExactInteger = Annotated[int, msgspec.Meta(ge=-MAX_EXACT_INTEGER, le=MAX_EXACT_INTEGER)]
_FIELD_TYPES: dict[ColumnType, Any] = {
    ColumnType.UNKNOWN: None,
    ColumnType.BOOLEAN: bool | None,
    ColumnType.INTEGER: _Int64 | None,
    ColumnType.NUMBER: float | None,
    ColumnType.DECIMAL: Raw,
    ColumnType.OBJECT: dict[str, Any] | None,
    ColumnType.ARRAY: list[Any] | None,
    ColumnType.ANY: Any,
}  # all other types are strings
UNCHECKED_TYPES = TYPED_TEXT_TYPES | {ColumnType.DECIMAL}  # decoders accept any string or number


OPTIONAL = frozenset({RESCUED})  # columns that no record of a source needs to have


class RecordDecoder:
    """Decodes a record into a struct with one field per column, in order; absent keys are UNSET.

    `decode` accepts records that lack keys, `decode_complete` only if they are `OPTIONAL`.

    Args:
        columns: The columns; a record with another key is rejected.
        values: Whether the records become Arrow columns. If so, nested values and numbers remain
            JSON text (`Raw`), because a number must be exactly its double. Decimals always do.
        wide: Names of integer columns that may hold values beyond 2^53.
    """

    def __init__(
        self,
        columns: tuple[Column, ...],
        *,
        values: bool,
        wide: frozenset[str] = frozenset(),
    ) -> None:
        self.columns = columns
        self.optional = frozenset(column for column in columns if column.name in OPTIONAL)
        self._values = values
        self._wide = wide
        raw = {ColumnType.DECIMAL, ColumnType.NUMBER, *JSON_TYPES} if values else UNCHECKED_TYPES
        self._raw = raw - TYPED_TEXT_TYPES
        # The columns that `build_columns` has to build: those that decoding does not check.
        self.built = [
            index for index, one in enumerate(columns) if values or one.type in UNCHECKED_TYPES
        ]
        self._lenient_type, self.decode = self._compile(frozenset(columns))
        _, self.decode_complete = self._compile(self.optional)

    def record(self, fields: dict[str, bytes], nonfinite: dict[str, float]) -> Struct:
        """Build the struct that decoding would return, from JSON texts by column name.

        For a `nonfinite` column, the struct has its value, which JSON lacks, instead of its text.
        """
        values: dict[str, Any] = {}
        for index, column in enumerate(self.columns):
            text = fields.get(column.name)
            if text is not None:
                is_raw = column.type in self._raw
                value = Raw(text) if is_raw else _decode_value(text)
                values[f"c{index}"] = nonfinite.get(column.name, value)
        return self._lenient_type(**values)

    def build_columns(
        self, records: Sequence[Struct], *, sparse: bool
    ) -> tuple[list[pa.Array], set[int]]:
        """Build the arrays of columns, null where a value is absent or invalid.

        Args:
            records: Structs of this decoder.
            sparse: Whether any key may be absent, not just those of the optional columns.

        Returns:
            The arrays, and the positions of records with a value that its column cannot hold.
        """
        arrays: list[pa.Array] = []
        all_invalid: set[int] = set()
        for index in self.built:
            column = self.columns[index]
            values: list[Any] = list(map(attrgetter(f"c{index}"), records))
            is_raw = column.type in self._raw
            if sparse or column in self.optional:
                absent = _NULL if is_raw else None
                values = [absent if value is UNSET else value for value in values]
            nonfinite = {}
            if sparse and column.type is ColumnType.NUMBER and float in set(map(type, values)):
                nonfinite = {at: one for at, one in enumerate(values) if isinstance(one, float)}
                values = [_NULL if isinstance(one, float) else one for one in values]
            array, invalid = _build_array(column, values, is_raw=is_raw)
            if nonfinite:
                cells = enumerate(array.to_pylist())
                array = pa.array([nonfinite.get(at, one) for at, one in cells], array.type)
            arrays.append(array)
            all_invalid.update(invalid)
        return arrays, all_invalid

    def _compile(
        self, may_be_absent: frozenset[Column]
    ) -> tuple[type[Struct], Callable[[bytes | memoryview], Any]]:
        fields: list[Any] = [
            (f"c{i}", self._field_type(column) | UnsetType, UNSET)
            if column in may_be_absent
            else (f"c{i}", self._field_type(column))
            for i, column in enumerate(self.columns)
        ]
        names = {f"c{i}": column.name for i, column in enumerate(self.columns)}
        options: dict[str, Any] = {"forbid_unknown_fields": True, "gc": False, "kw_only": True}
        try:
            struct = msgspec.defstruct("Record", fields, rename=names, **options)
            return struct, msgspec.json.Decoder(struct).decode
        except ValueError:
            # msgspec refuses names that JSON writes with an escape. Every record then takes the
            # slow path, which needs the struct only to hold its values.
            return msgspec.defstruct("Record", fields, kw_only=True), reject

    def _field_type(self, column: Column) -> Any:
        if column.type in self._raw:
            return Raw
        if column.type is ColumnType.INTEGER and self._values and column.name not in self._wide:
            return _ExactInteger | None
        return _FIELD_TYPES.get(column.type, str | None)


# Shared by all files with the same columns, because compiling is slow.
cached_decoder = lru_cache(maxsize=8)(RecordDecoder)


def reject(_text: bytes | memoryview) -> Any:
    """Reject every record."""
    raise msgspec.ValidationError


def _decode_value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.ValidationError:
        # A number out of range, inside a value that remains text: the decoded value is never read.
        return None


_NULL = b"null"
_NUMBER_OR_NULL = tuple(bytes([byte]) for byte in b"-0123456789n")


def _build_array(
    column: Column, values: Sequence[Any], *, is_raw: bool
) -> tuple[pa.Array, list[int]]:
    if column.type is ColumnType.UNKNOWN:
        return pa.nulls(len(values), pa.string()), []
    if column.type in JSON_TYPES:
        return _build_nested(column, list(map(bytes, values)))
    if is_raw:
        texts, invalid = _number_texts(values)
        array, inexact = parse_texts(texts, column)
        return array, invalid + inexact
    if column.type in TYPED_TEXT_TYPES:
        return parse_texts(pa.array(values, pa.string()), column)
    return pa.array(values, arrow_type_of(column)), []


def _number_texts(values: Sequence[Raw | bytes]) -> tuple[pa.StringArray, list[int]]:
    """Return the texts of JSON numbers, and the positions of values other than numbers and null."""
    invalid: list[int] = []
    joined = b",".join(values)
    data = np.frombuffer(joined, np.uint8)
    commas = np.flatnonzero(data == ord(","))
    starts = np.append(0, commas + 1)
    is_null = ~_NUMBER_BYTES[data[starts]]
    if len(commas) >= len(values) or (data[starts[is_null]] != ord("n")).any():
        texts = list(map(bytes, values))
        invalid = [at for at, text in enumerate(texts) if not text.startswith(_NUMBER_OR_NULL)]
        for position in invalid:
            texts[position] = _NULL
        return _number_texts(texts)[0], invalid
    stops = np.append(commas, len(data))
    numbers = slice_strings(joined, starts, stops, numbers=True)
    return pc.if_else(pa.array(is_null), None, numbers) if is_null.any() else numbers, invalid


_NUMBER_BYTES = np.isin(np.arange(256), np.frombuffer(b"-0123456789", np.uint8))


def _build_nested(column: Column, texts: list[bytes]) -> tuple[pa.StringArray, list[int]]:
    first_byte = OPENING_BRACKETS.get(column.type, "").encode()
    invalid = {
        position
        for position, text in enumerate(texts)
        if not text.startswith(first_byte) and text != _NULL
    }
    if not _is_sound(b"[" + b",".join(texts) + b"]"):
        invalid |= {position for position, text in enumerate(texts) if not _is_sound_alone(text)}
    values = [
        None if text == _NULL or position in invalid else text
        for position, text in enumerate(texts)
    ]
    return pa.array(values, pa.binary()).cast(pa.string()), sorted(invalid)


def _is_sound(text: bytes) -> bool:
    """Return whether a JSON text is provably UTF-8 without duplicate keys.

    msgspec does neither check inside `Raw`. False may also mean "not proven".
    """
    if b":" not in text and b'"' not in text:
        return True
    try:
        return keeps_all_keys(msgspec.json.decode(text), text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _is_sound_alone(text: bytes) -> bool:
    if _is_sound(text):
        return True
    try:
        text.decode()
        check_duplicate_keys(text)
    except (BadRecordError, UnicodeDecodeError, RecursionError):
        return False
    return True


class RecordValidator:
    """Validates single records, and widens the profile by their values or rescues the values."""

    def __init__(self, profile: SchemaProfile, stream: Stream, *, values: bool) -> None:
        self._profile = profile
        self._values = values
        self._on_nonfinite = stream.on_nonfinite
        self._rescues = stream.schema.evolution is Evolution.RESCUE
        self._max_columns = stream.read_limits.max_columns

    def validate(
        self, line: bytes, decoder: RecordDecoder, *, place: int
    ) -> tuple[bytes, Struct | None, bool]:
        """Validate a record that starts at line `place` of its file.

        Returns:
            The text, with rescued values moved; the decoded struct, None if the known schema does
            not hold it; and whether values were rescued.

        Raises:
            BadRecordError: The line is not a valid record.
        """
        line, nonfinite = self._replace_nonfinite(line)
        fields = split_record(line)
        self._check_names(fields)
        rescued = {
            name: text
            for name, text in fields.items()
            if not self._accept(name, text, is_nan=name in nonfinite, place=place)
        }
        if rescued:
            fields = self._move_rescued(fields, rescued)
            line = _join_fields(fields)
        record = decoder.record(fields, nonfinite) if self._profile.fits else None
        return line, record, bool(rescued)

    def _replace_nonfinite(self, line: bytes) -> tuple[bytes, dict[str, float]]:
        if b"NaN" not in line and b"Infinity" not in line:
            return line, {}
        # A column of doubles holds NaN itself; all other values follow the rule.
        fields = nonfinite_fields(line) if self._values else {}
        held = {at: field for at, field in fields.items() if self._holds_nan(field[0])}
        return replace_nonfinite(line, self._on_nonfinite, held), dict(held.values())

    def _holds_nan(self, name: str) -> bool:
        column = self._profile.columns.get(name)
        if self._rescues and not self._profile.accepts(_double(name), text=False):
            return False  # rescued values are JSON
        return column is None or column.type in _NAN_TYPES

    def _check_names(self, fields: dict[str, bytes]) -> None:
        known, limit = self._profile.columns, self._max_columns
        new = [name for name in fields if name not in known]
        for name in () if self._rescues else new:  # a rescued key is part of a text, not a column
            if fault := name_fault(name):
                raise BadRecordError(f"has the key {quote_key(name)}: {fault}")
        if len(fields) > limit:
            raise BadRecordError(too_many_columns(len(fields), limit))
        if not self._rescues and (reason := self._profile.refusal(len(new), limit)):
            raise BadRecordError(reason)

    def _accept(self, name: str, text: bytes, *, is_nan: bool, place: int) -> bool:
        """Add a value to the profile, or return False if it must be rescued."""
        known, exact = self._profile.text_column(name), self._values
        inferred = _double(name) if is_nan else infer_json_type(name, text, known, exact=exact)
        if self._rescues and not self._profile.accepts(inferred, text=False):
            return False
        self._profile.add(inferred, text=False, line=place)
        return True

    def _move_rescued(
        self, fields: dict[str, bytes], rescued: dict[str, bytes]
    ) -> dict[str, bytes]:
        if RESCUED in fields:
            rescued = {**rescued, RESCUED: fields[RESCUED]}
        remaining = {
            name: b"null" if name in rescued else text
            for name, text in fields.items()
            if name in self._profile.columns
        }
        return remaining | {RESCUED: msgspec.json.encode(str(_join_fields(rescued), "utf-8"))}


def _double(name: str) -> InferredType:
    return InferredType(Column(name=name, type=ColumnType.NUMBER))


def _join_fields(fields: dict[str, bytes]) -> bytes:
    pairs = (msgspec.json.encode(name) + b":" + text for name, text in fields.items())
    return b"{" + b",".join(pairs) + b"}"
