"""Infer column types from values, and compare them with the known schema.

How two types widen to a common one is decided by `model.schema`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.encode.validation.text_values import (
    MAX_EXACT_INTEGER,
    NUMBER_PATTERN,
    TYPED_TEXT_TYPES,
    NumberSyntax,
    is_exact_double,
    is_valid_text,
    narrowest_decimal,
    parse_text_doubles,
)
from batch_pipeline.model.item import Item
from batch_pipeline.model.schema import Column, ColumnType, Misfit, RecordSchema, joined, needed

_TYPES_BY_FIRST_BYTE = {
    b'"': ColumnType.STRING,
    b"{": ColumnType.OBJECT,
    b"[": ColumnType.ARRAY,
    b"t": ColumnType.BOOLEAN,
    b"f": ColumnType.BOOLEAN,
    b"n": ColumnType.UNKNOWN,
}
_MAX_INTEGER_LENGTH = 20  # characters of a 64-bit integer, sign included
_SAFE_INTEGER_DIGITS = 18  # every integer of so many digits fits 64 bits


@dataclass(frozen=True, slots=True)
class InferredType:
    """The narrowest column that holds a value.

    A `wide` integer is beyond 2^53: if its column became a `number`, the value would be rounded.
    """

    column: Column
    wide: bool = False


def json_type(text: bytes) -> ColumnType | None:
    """Return the type of a JSON value by its first byte: `unknown` for null, None for a number."""
    return _TYPES_BY_FIRST_BYTE.get(text[:1])


def infer_json_type(name: str, text: bytes, known: Column | None, *, exact: bool) -> InferredType:
    """Infer the type of a JSON value.

    A string is a time, a date or binary only if its column is known to be one, and a number counts
    its digits only if the column is a decimal.

    Args:
        name: Key of the value.
        text: JSON text of the value.
        known: Column as it is known so far.
        exact: Whether a number with a fraction must be exactly its double to be a `number`.
    """
    value_type = json_type(text)
    if value_type is None:
        return _infer_number(name, str(text, "ascii"), known, exact=exact)
    if known is not None and known.type in TYPED_TEXT_TYPES and value_type is ColumnType.STRING:
        value = msgspec.json.decode(text, type=str)
        if is_valid_text(value, known):
            return InferredType(known)
    return InferredType(Column(name=name, type=value_type))


def _infer_number(name: str, text: str, known: Column | None, *, exact: bool) -> InferredType:
    if known is not None and known.type is ColumnType.DECIMAL:
        return InferredType(narrowest_decimal(name, text))
    if text.lstrip("-").isdigit():
        if len(text) <= _MAX_INTEGER_LENGTH and -(2**63) <= int(text) < 2**63:
            is_wide = exact and abs(int(text)) > MAX_EXACT_INTEGER
            return InferredType(Column(name=name, type=ColumnType.INTEGER), wide=is_wide)
        return InferredType(narrowest_decimal(name, text))
    is_double = is_exact_double(text) if exact else abs(float(text)) != float("inf")
    if is_double:
        return InferredType(Column(name=name, type=ColumnType.NUMBER))
    return InferredType(narrowest_decimal(name, text))


def infer_text_type(name: str, cells: pa.StringArray, known: Column | None) -> InferredType:
    """Infer the type of text cells, not all of them null: a kind of number, or string.

    Texts such as `007`, `+1` or `1e400` are not numbers, because writing the number would lose
    them. Cells of a decimal column count their digits.
    """
    if known is not None and known.type is ColumnType.DECIMAL:
        return InferredType(_infer_decimal(name, cells))
    syntax = NumberSyntax(cells)
    if syntax.all_integers():
        return _infer_integers(name, cells, syntax)
    doubles = parse_text_doubles(cells)
    if doubles is None:
        return InferredType(Column(name=name, type=ColumnType.STRING))
    if not len(doubles.inexact):
        return InferredType(Column(name=name, type=ColumnType.NUMBER))
    return InferredType(_infer_decimal(name, cells.take(pa.array(doubles.inexact))))


def _infer_integers(name: str, cells: pa.StringArray, syntax: NumberSyntax) -> InferredType:
    try:
        values = pc.cast(cells, pa.int64())
    except pa.ArrowInvalid:
        if syntax.max_digits <= _SAFE_INTEGER_DIGITS:
            raise
        return InferredType(_infer_decimal(name, cells))
    return InferredType(Column(name=name, type=ColumnType.INTEGER), wide=has_wide_integer(values))


def has_wide_integer(values: pa.Int64Array) -> bool:
    """Return whether an integer is beyond the range in which a double represents all integers."""
    present = values.drop_null() if values.null_count else values
    if not len(present):
        return False
    numbers = present.to_numpy()
    return int(numbers.min()) < -MAX_EXACT_INTEGER or int(numbers.max()) > MAX_EXACT_INTEGER


def _infer_decimal(name: str, cells: pa.StringArray) -> Column:
    present = cells.drop_null()
    if not pc.all(pc.match_substring_regex(present, NUMBER_PATTERN)).as_py():
        return Column(name=name, type=ColumnType.STRING)
    column = Column(name=name, type=ColumnType.UNKNOWN)
    for text in np.unique(present.to_numpy(zero_copy_only=False)).tolist():
        column = joined(column, narrowest_decimal(name, text), text_source=True)
        if column.type is not ColumnType.DECIMAL:
            return Column(name=name, type=ColumnType.STRING)
    return column


class SchemaProfile:
    """The known schema, widened by the types of all values seen so far.

    The result does not depend on the order of the values. `columns` is the widened schema. `wide`
    names the integer columns with values beyond 2^53, which must not become a `number` when a
    fraction appears. `item` is the item being read: a misfit names it, with the line of the first
    value that the known schema does not hold.
    """

    def __init__(self, schema: RecordSchema) -> None:
        self.columns: dict[str, Column] = schema.by_name()
        self.wide: set[str] = set()
        self.item: Item | None = None
        self._known = dict(self.columns)
        self._observed: dict[str, _ObservedTypes] = {}
        self._first_misfits: dict[str, tuple[Item | None, int | None, str]] = {}

    @property
    def fits(self) -> bool:
        """Whether the known schema holds every value seen so far."""
        return not self._first_misfits

    def known_column(self, name: str) -> Column | None:
        """Return a column of the known schema."""
        return self._known.get(name)

    def misfits(self) -> tuple[Misfit, ...]:
        """Return the columns that the known schema lacks or must widen, as they need to be."""
        misfits = []
        for name, column in self.columns.items():
            if name in self._first_misfits:
                item, line, seen = self._first_misfits[name]
                misfits.append(
                    Misfit(
                        column=column,
                        item_id=0 if item is None else item.id,
                        location="" if item is None else item.file.location,
                        line=line,
                        seen=seen,
                    )
                )
        return tuple(misfits)

    def accepts(self, seen: InferredType, *, text: bool) -> bool:
        """Return whether a stream that rescues may keep a value in its column.

        Either the known schema holds it, or its column has held nothing but nulls: no known type
        contradicts the value, so that it may set the type.
        """
        known = self._known.get(seen.column.name)
        is_open = known is not None and known.type is ColumnType.UNKNOWN
        return is_open or self.holds(seen, text=text)

    def holds(self, seen: InferredType, *, text: bool) -> bool:
        """Return whether the known schema holds a value without a change."""
        known = self._known.get(seen.column.name)
        return known is not None and known == needed(
            known, seen.column, wide=seen.wide, text_source=text
        )

    def add(self, seen: InferredType, *, text: bool, line: int | None = None) -> None:
        """Widen a column by the type of its values.

        Args:
            seen: The column that the values need.
            text: Whether the values are text cells, which widen to string, or typed values.
            line: Where the first of the values is.
        """
        name = seen.column.name
        if seen.wide:
            self.wide.add(name)
        observed = self._observed.setdefault(name, _ObservedTypes(seen.column))
        observed.add(seen.column, text=text)
        known = self._known.get(name)
        column = needed(
            known,
            observed.column,
            wide=name in self.wide,
            text_source=not observed.has_typed_values,
        )
        self.columns[name] = column
        if column != known:
            self._first_misfits.setdefault(name, (self.item, line, seen.column.type_text))

    def add_names(self, names: Iterable[str], *, line: int | None = None) -> None:
        """Add the columns of a header, none of whose values has been seen."""
        for name in names:
            if name not in self.columns:
                self.columns[name] = Column(name=name, type=ColumnType.UNKNOWN)
                self._first_misfits[name] = (self.item, line, ColumnType.UNKNOWN.value)


class _ObservedTypes:
    """The types seen in one column.

    A task may read CSV and JSON files of the same stream, whose values widen differently. Both
    results are kept, because a typed value may follow after any number of text cells.
    """

    def __init__(self, first: Column) -> None:
        self.has_typed_values = False
        self._as_text = self._as_typed = first

    @property
    def column(self) -> Column:
        return self._as_typed if self.has_typed_values else self._as_text

    def add(self, seen: Column, *, text: bool) -> None:
        self.has_typed_values = self.has_typed_values or not text
        self._as_text = joined(self._as_text, seen, text_source=True)
        self._as_typed = joined(self._as_typed, seen, text_source=False)
