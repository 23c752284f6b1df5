"""Turns decoded JSON records into Arrow columns and finds the values that do not fit them.

Whole columns at a time; what becomes of a record with such a value is decided elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.spark.arrow_types import JSON_TYPES, arrow_type_of
from batch_pipeline.spark.check.json_faults import BadRecordError, check_nested, key_marks
from batch_pipeline.spark.check.number_text import doubles_of
from batch_pipeline.spark.check.record_decoder import RecordDecoder
from batch_pipeline.spark.check.text_forms import TEXT_FORMS, read_texts

_NULL = b"null"
_OPENINGS = {ColumnType.OBJECT: b"{", ColumnType.ARRAY: b"["}
_IN_NUMBERS = frozenset(b"-0123456789")
LOOKED_AT = TEXT_FORMS | {ColumnType.DECIMAL}  # types whose values no decoder checks


@dataclass(slots=True)
class Columns:
    """Arrow arrays, and the records (by position) with values that do not fit."""

    arrays: list[pa.Array] = field(default_factory=list)
    unfit: set[int] = field(default_factory=set)


def columns_of(records: Sequence[Struct], decoder: RecordDecoder, *, sparse: bool) -> Columns:
    """Make an array per column, null where a value is absent or does not fit.

    `sparse` tells that keys may be absent.
    """
    found = Columns()
    columns = zip(*map(astuple, records), strict=True)
    for at, (column, values) in enumerate(zip(decoder.columns, columns, strict=True)):
        is_optional = sparse or column.name in decoder.optional
        array, unfit = _array(column, values, raw=at in decoder.raw, sparse=is_optional)
        found.arrays.append(array)
        found.unfit.update(unfit)
    return found


def check_columns(records: Sequence[Struct], decoder: RecordDecoder) -> Columns:
    """Look only at the columns whose values the decoder itself has not checked."""
    found = Columns()
    for at, column in enumerate(decoder.columns):
        if column.type in LOOKED_AT:
            values = [getattr(record, f"c{at}") for record in records]
            found.unfit.update(_array(column, values, raw=at in decoder.raw, sparse=True)[1])
    return found


def _array(
    column: Column, values: Sequence[Any], *, raw: bool, sparse: bool
) -> tuple[pa.Array, list[int]]:
    if column.type is ColumnType.UNKNOWN:
        return pa.nulls(len(values), pa.string()), []
    if raw:
        if sparse:
            values = [_NULL if value is UNSET else value for value in values]
        return _array_of_texts(column, list(map(bytes, values)))
    if sparse:
        values = [None if value is UNSET else value for value in values]
    if column.type in TEXT_FORMS:
        return read_texts(pa.array(values, pa.string()), column)
    return pa.array(values, arrow_type_of(column)), []


def _array_of_texts(column: Column, texts: list[bytes]) -> tuple[pa.Array, list[int]]:
    if column.type in JSON_TYPES:
        return _nested(column, texts)
    if column.type is ColumnType.NUMBER:
        return doubles_of(texts)
    unfit = [
        position
        for position, text in enumerate(texts)
        if text[0] not in _IN_NUMBERS and text != _NULL
    ]
    for position in unfit:
        texts[position] = _NULL
    numbers = [None if text == _NULL else str(text, "ascii") for text in texts]
    array, inexact = read_texts(pa.array(numbers, pa.string()), column)
    return array, unfit + inexact


def _nested(column: Column, texts: list[bytes]) -> tuple[pa.StringArray, list[int]]:
    opening = _OPENINGS.get(column.type, b"")
    unfit = [
        position
        for position, text in enumerate(texts)
        if not text.startswith(opening) and text != _NULL
    ]
    joined = b"[" + b",".join(texts) + b"]"
    if not _is_sound(joined):
        unfit += [position for position, text in enumerate(texts) if not _is_sound_alone(text)]
    if unfit:
        unsound = frozenset(unfit)
        texts = [_NULL if at in unsound else text for at, text in enumerate(texts)]
    values = [None if text == _NULL else text for text in texts]
    return pa.array(values, pa.binary()).cast(pa.string()), unfit


def _is_sound(text: bytes) -> bool:
    """Prove, as far as that is cheap, that a JSON text is UTF-8 and has no key twice."""
    if b":" not in text and b'"' not in text:
        return True
    try:
        again = msgspec.json.encode(msgspec.json.decode(text))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return b"\\u0022" not in text and key_marks(again) == key_marks(text)


def _is_sound_alone(text: bytes) -> bool:
    if _is_sound(text):
        return True
    try:
        text.decode()
        check_nested(text)
    except (BadRecordError, UnicodeDecodeError, RecursionError):
        return False
    return True
