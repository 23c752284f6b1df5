"""Decode JSON records into structs with one field per column, and structs into Arrow arrays.

msgspec compiles a decoder for the columns of a schema. It rejects a record as soon as a value is
not of its column's type, so that a record that it accepts needs no further check, except for the
types in `UNCHECKED_TYPES`. `json_validator` finds out why it rejected a record.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple

from batch_pipeline.encode.arrow_types import JSON_TYPES, arrow_type_of
from batch_pipeline.encode.validation.json_syntax import (
    BadRecordError,
    check_duplicate_keys,
    count_key_quotes,
)
from batch_pipeline.encode.validation.text_values import (
    MAX_EXACT_INTEGER,
    TYPED_TEXT_TYPES,
    parse_json_doubles,
    parse_texts,
)
from batch_pipeline.model.schema import Column, ColumnType

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
UNCHECKED_TYPES = TYPED_TEXT_TYPES | {ColumnType.DECIMAL}  # the decoder accepts any string, number


class RecordDecoder:
    """Decodes a record into a struct with one field per column, in order; absent keys are UNSET.

    Args:
        columns: The columns; a record with another key is rejected.
        values: Whether the records become Arrow columns. If so, a number must be exactly a double,
            and nested values remain JSON text (`Raw`).
        exact: Whether numbers remain JSON text too, because a number of the block may not be
            exactly its double. Decimals always do.
        optional: Names of columns that `decode_complete` does not require.
        wide: Names of integer columns that may hold values beyond 2^53.
    """

    def __init__(
        self,
        columns: Iterable[Column],
        *,
        values: bool,
        exact: bool = False,
        optional: frozenset[str] = frozenset(),
        wide: frozenset[str] = frozenset(),
    ) -> None:
        self.columns = tuple(columns)
        self.raw = frozenset(
            index
            for index, column in enumerate(self.columns)
            if _is_raw(column.type, values=values, exact=exact)
        )
        self.optional = optional
        self._values = values
        self._wide = wide
        self._lenient_type, self.decode = self._compile(frozenset(self.columns))
        absent = frozenset(column for column in self.columns if column.name in optional)
        _, self.decode_complete = self._compile(absent)
        self.required_count = len(self.columns) - len(absent)

    def field_getter(self, types: Iterable[ColumnType]) -> Callable[[Struct], Any] | None:
        """Return a getter for the fields of the columns of some types, or None without such.

        It returns the value of a single column, a tuple of the values of several columns.
        """
        wanted = frozenset(types)
        names = [f"c{i}" for i, column in enumerate(self.columns) if column.type in wanted]
        return attrgetter(*names) if names else None

    def record(self, values: dict[str, Any]) -> Struct:
        """Build the struct that decoding would give, from values by column name."""
        fields = {
            f"c{i}": values[column.name]
            for i, column in enumerate(self.columns)
            if column.name in values
        }
        return self._lenient_type(**fields)

    def _compile(
        self, may_be_absent: frozenset[Column]
    ) -> tuple[type[Struct], Callable[[bytes | memoryview], Any]]:
        fields: list[Any] = []
        for i, column in enumerate(self.columns):
            field_type = self._field_type(i, column)
            if column in may_be_absent:
                fields.append((f"c{i}", field_type | UnsetType, UNSET))
            else:
                fields.append((f"c{i}", field_type))
        names = {f"c{i}": column.name for i, column in enumerate(self.columns)}
        try:
            struct = msgspec.defstruct(
                "Record",
                fields,
                rename=names,
                forbid_unknown_fields=True,
                gc=False,
                kw_only=True,
            )
            return struct, msgspec.json.Decoder(struct).decode
        except ValueError:
            # msgspec refuses names that JSON writes with an escape. Every record then takes the
            # slow path, which needs the struct only to hold its values.
            return msgspec.defstruct("Record", fields, kw_only=True), _reject

    def _field_type(self, index: int, column: Column) -> Any:
        if index in self.raw:
            return Raw
        if column.type is ColumnType.INTEGER and self._values and column.name not in self._wide:
            return _ExactInteger | None
        if column.type is ColumnType.NUMBER and self._values:
            return _ExactInteger | float | None
        return _FIELD_TYPES.get(column.type, str | None)


@lru_cache(maxsize=8)
def cached_decoder(
    columns: tuple[Column, ...],
    *,
    values: bool,
    exact: bool,
    optional: frozenset[str],
    wide: frozenset[str],
) -> RecordDecoder:
    """Return a decoder, shared by all files with the same columns because compiling is slow."""
    return RecordDecoder(columns, values=values, exact=exact, optional=optional, wide=wide)


def _is_raw(column_type: ColumnType, *, values: bool, exact: bool) -> bool:
    if column_type is ColumnType.DECIMAL:
        return True
    return values and (column_type in JSON_TYPES or (exact and column_type is ColumnType.NUMBER))


def _reject(_text: bytes | memoryview) -> Any:
    raise msgspec.ValidationError


_NULL = b"null"
_FIRST_BYTES = {ColumnType.OBJECT: b"{", ColumnType.ARRAY: b"["}
_NUMBER_FIRST_BYTES = frozenset(b"-0123456789")


@dataclass(slots=True)
class DecodedColumns:
    """Arrow arrays, and the positions of records with a value that is not of its column's type."""

    arrays: list[pa.Array] = field(default_factory=list)
    invalid: set[int] = field(default_factory=set)


def decode_columns(
    records: Sequence[Struct], decoder: RecordDecoder, *, sparse: bool
) -> DecodedColumns:
    """Build an array per column, null where a value is absent or invalid.

    `sparse` states that any key may be absent, not just those of the optional columns.
    """
    result = DecodedColumns()
    value_tuples = zip(*map(astuple, records), strict=True)
    for index, (column, values) in enumerate(zip(decoder.columns, value_tuples, strict=True)):
        may_be_absent = sparse or column.name in decoder.optional
        raw = index in decoder.raw
        array, invalid = _build_array(column, values, raw=raw, sparse=may_be_absent)
        result.arrays.append(array)
        result.invalid.update(invalid)
    return result


def check_columns(records: Sequence[Struct], decoder: RecordDecoder) -> DecodedColumns:
    """Find the records with an invalid value of a type that the decoder does not check."""
    result = DecodedColumns()
    for index, column in enumerate(decoder.columns):
        if column.type in UNCHECKED_TYPES:
            values = [getattr(record, f"c{index}") for record in records]
            _, invalid = _build_array(column, values, raw=index in decoder.raw, sparse=True)
            result.invalid.update(invalid)
    return result


def _build_array(
    column: Column, values: Sequence[Any], *, raw: bool, sparse: bool
) -> tuple[pa.Array, list[int]]:
    if column.type is ColumnType.UNKNOWN:
        return pa.nulls(len(values), pa.string()), []
    if raw:
        if sparse:
            values = [_NULL if value is UNSET else value for value in values]
        return _build_array_from_json(column, list(map(bytes, values)))
    if sparse:
        values = [None if value is UNSET else value for value in values]
    if column.type in TYPED_TEXT_TYPES:
        return parse_texts(pa.array(values, pa.string()), column)
    return pa.array(values, arrow_type_of(column)), []


def _build_array_from_json(column: Column, texts: list[bytes]) -> tuple[pa.Array, list[int]]:
    if column.type in JSON_TYPES:
        return _build_nested(column, texts)
    if column.type is ColumnType.NUMBER:
        return parse_json_doubles(texts)
    invalid = [
        position
        for position, text in enumerate(texts)
        if text[0] not in _NUMBER_FIRST_BYTES and text != _NULL
    ]
    for position in invalid:
        texts[position] = _NULL
    numbers = [None if text == _NULL else str(text, "ascii") for text in texts]
    array, inexact = parse_texts(pa.array(numbers, pa.string()), column)
    return array, invalid + inexact


def _build_nested(column: Column, texts: list[bytes]) -> tuple[pa.StringArray, list[int]]:
    first_byte = _FIRST_BYTES.get(column.type, b"")
    invalid = [
        position
        for position, text in enumerate(texts)
        if not text.startswith(first_byte) and text != _NULL
    ]
    joined = b"[" + b",".join(texts) + b"]"
    if not _is_sound(joined):
        invalid += [position for position, text in enumerate(texts) if not _is_sound_alone(text)]
    if invalid:
        positions = frozenset(invalid)
        texts = [_NULL if at in positions else text for at, text in enumerate(texts)]
    values = [None if text == _NULL else text for text in texts]
    return pa.array(values, pa.binary()).cast(pa.string()), invalid


def _is_sound(text: bytes) -> bool:
    """Return whether a JSON text is provably UTF-8 without duplicate keys.

    msgspec does neither check inside of `Raw`. Decoding and encoding drops duplicate keys, so that
    an equal number of key quotes proves that there were none. False may also mean "not proven".
    """
    if b":" not in text and b'"' not in text:
        return True
    try:
        encoded = msgspec.json.encode(msgspec.json.decode(text))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    # An escaped \u0022 is encoded as \", which may add the quote that a duplicate key has removed.
    return b"\\u0022" not in text and count_key_quotes(encoded) == count_key_quotes(text)


def _is_sound_alone(text: bytes) -> bool:
    if _is_sound(text):
        return True
    try:
        text.decode()
        check_duplicate_keys(text)
    except (BadRecordError, UnicodeDecodeError, RecursionError):
        return False
    return True
