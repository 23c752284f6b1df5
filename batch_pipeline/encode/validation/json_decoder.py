"""Decode JSON records into structs with one field per column, and structs into Arrow arrays.

msgspec compiles a decoder for the columns of a schema. It rejects a record as soon as a value is
not of its column's type, so that a record that it accepts needs no further check, except for the
types in `UNCHECKED_TYPES`. `json_validator` finds out why it rejected a record.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Raw, Struct, UnsetType

from batch_pipeline.encode.arrow_types import JSON_TYPES, arrow_type_of
from batch_pipeline.encode.validation.json_syntax import (
    BadRecordError,
    check_duplicate_keys,
    keeps_all_keys,
)
from batch_pipeline.encode.validation.text_values import (
    MAX_EXACT_INTEGER,
    TYPED_TEXT_TYPES,
    parse_texts,
    slice_strings,
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
        values: Whether the records become Arrow columns. If so, nested values and numbers remain
            JSON text (`Raw`), because a number must be exactly its double. Decimals always do.
        optional: Names of columns that `decode_complete` does not require.
        wide: Names of integer columns that may hold values beyond 2^53.
    """

    def __init__(
        self,
        columns: tuple[Column, ...],
        *,
        values: bool,
        optional: frozenset[str] = frozenset(),
        wide: frozenset[str] = frozenset(),
    ) -> None:
        self.columns = columns
        self.optional = frozenset(column for column in columns if column.name in optional)
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

    def record(self, fields: dict[str, bytes]) -> Struct:
        """Build the struct that decoding would give, from JSON texts by column name."""
        values: dict[str, Any] = {}
        for index, column in enumerate(self.columns):
            text = fields.get(column.name)
            if text is not None:
                is_raw = column.type in self._raw
                values[f"c{index}"] = Raw(text) if is_raw else _decode_value(text)
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
            array, invalid = _build_array(column, values, is_raw=is_raw)
            arrays.append(array)
            all_invalid.update(invalid)
        return arrays, all_invalid

    def _compile(
        self, may_be_absent: frozenset[Column]
    ) -> tuple[type[Struct], Callable[[bytes | memoryview], Any]]:
        fields: list[Any] = []
        for i, column in enumerate(self.columns):
            field_type = self._field_type(column)
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

    def _field_type(self, column: Column) -> Any:
        if column.type in self._raw:
            return Raw
        if column.type is ColumnType.INTEGER and self._values and column.name not in self._wide:
            return _ExactInteger | None
        return _FIELD_TYPES.get(column.type, str | None)


# Shared by all files with the same columns, because compiling is slow.
cached_decoder = lru_cache(maxsize=8)(RecordDecoder)


def _reject(_text: bytes | memoryview) -> Any:
    raise msgspec.ValidationError


def _decode_value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.ValidationError:
        # A number out of range, inside of a value that goes on as text: the value is never read.
        return None


_NULL = b"null"
_FIRST_BYTES = {ColumnType.OBJECT: b"{", ColumnType.ARRAY: b"["}
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
    """Return the texts of JSON numbers, and the positions of values that are no number or null."""
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
    # The decoder reads `-0` as the integer 0, but `-0.0` as a double with a sign.
    second = data[np.minimum(starts + 1, len(data) - 1)]
    starts += (stops - starts == 2) & (data[starts] == ord("-")) & (second == ord("0"))
    numbers = slice_strings(joined, starts, stops)
    return pc.if_else(pa.array(is_null), None, numbers) if is_null.any() else numbers, invalid


_NUMBER_BYTES = np.isin(np.arange(256), np.frombuffer(b"-0123456789", np.uint8))


def _build_nested(column: Column, texts: list[bytes]) -> tuple[pa.StringArray, list[int]]:
    first_byte = _FIRST_BYTES.get(column.type, b"")
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

    msgspec does neither check inside of `Raw`. False may also mean "not proven".
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
