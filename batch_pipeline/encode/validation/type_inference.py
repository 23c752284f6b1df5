"""Parse text as typed values, infer types from values, and compare them with the known schema.

CSV cells and JSON values share the rules: numbers as in JSON, ISO 8601 dates and times, base64. The
invariant is that a value is never changed silently: all parsers return the rows with a text that
the type cannot represent exactly. A number is a `number` only if the shortest form of its double
has the same digits. How two types widen to a common one is decided by `model.schema`.
"""

import base64
import binascii
import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, localcontext
from typing import assert_never

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.encode.arrow_types import arrow_type_of, check_range, exact_cast, text_offsets
from batch_pipeline.encode.chunks import Mask, Offsets
from batch_pipeline.model.item import Item
from batch_pipeline.model.schema import (
    MAX_PRECISION,
    Column,
    ColumnType,
    Misfit,
    RecordSchema,
    joined,
    needed,
)

MAX_TEXT_BYTES = 2**31 - 1  # of an Arrow string array, whose offsets have 32 bits
MAX_EXACT_INTEGER = 2**53  # a double represents every integer up to this one
_MAX_EXACT_LENGTH = 18  # one more than an integer of at most 2^53 has, sign included


def narrowest_decimal(name: str, text: str) -> Column:
    """Return the narrowest decimal column for a JSON number, or `any` for more than 38 digits."""
    try:
        _, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:  # an exponent of many digits
        return Column(name=name, type=ColumnType.ANY)
    assert isinstance(exponent, int)  # noqa: S101 - a JSON number is finite
    if digits == (0,):
        return Column(name=name, type=ColumnType.DECIMAL, precision=1)
    zeros = len(digits) - len(bytes(digits).rstrip(b"\0"))
    dropped = max(min(zeros, -exponent), 0)
    digits, exponent = digits[: len(digits) - dropped], exponent + dropped
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale, 1)
    if precision > MAX_PRECISION:
        return Column(name=name, type=ColumnType.ANY)
    return Column(name=name, type=ColumnType.DECIMAL, precision=precision, scale=scale)


def is_exact_double(text: str) -> bool:
    """Return whether the shortest form of a number's double has the same value as its text."""
    number = float(text)
    if not math.isfinite(number):
        return False
    try:
        return Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:  # an exponent of many digits
        return False


def slice_strings(
    text: bytes, starts: Offsets, stops: Offsets, *, numbers: bool = False
) -> pa.StringArray:
    """Return the strings at ascending, non-empty byte ranges of a common text.

    With `numbers`, `-0` loses its sign: it is an integer, whereas `-0.0` is a double with a sign.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise pa.ArrowCapacityError
    if numbers:
        data = np.frombuffer(text, np.uint8)
        second = data[np.minimum(starts + 1, len(data) - 1)]
        starts = starts + ((stops - starts == 2) & (data[starts] == _MINUS) & (second == _ZERO))
    # Every second string is a requested one, the others are the bytes between those.
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, stops
    buffers = pa.py_buffer(bounds), pa.py_buffer(text)
    between = pa.StringArray.from_buffers(max(len(bounds) - 1, 0), *buffers)
    return between.take(pa.array(np.arange(0, len(bounds), 2)))


_EXACT_DIGITS = 15  # a double represents every decimal number of this many digits
MAX_INTEGER_DIGITS = 19  # of a 64-bit integer; the cast rejects those of 19 digits that overflow
_MINUS, _POINT, _ZERO, _NINE = b"-.09"


class NumberSyntax:
    """The cells of a column, without nulls, that are written as numbers.

    Examines the bytes of the whole column with NumPy, because a regular expression per cell is
    about 50 times slower.
    """

    def __init__(self, column: pa.StringArray) -> None:
        cells = column.drop_null() if column.null_count else column
        data, bounds = cells.buffers()[2], text_offsets(cells)
        used = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
        self._bytes = used
        self._starts, self._ends = bounds[:-1] - bounds[0], bounds[1:] - bounds[0]
        self._last = len(used) - 1
        self._not_empty: Mask = self._ends > self._starts
        self.max_digits = 0

    def all_integers(self) -> bool:
        """Return whether all cells match `-?(0|[1-9][0-9]{0,18})`, and if so set `max_digits`."""
        if not self._not_empty.all() or self._other_bytes(_MINUS).any():
            return False
        digits_start, digits = self._unsigned()
        minuses = np.count_nonzero(self._bytes == _MINUS)
        if minuses != int((digits_start != self._starts).sum()) or not digits.all():
            return False
        self.max_digits = int(digits.max())
        padded = (self._bytes[digits_start] == _ZERO) & (digits > 1)
        return self.max_digits <= MAX_INTEGER_DIGITS and not padded.any()

    def short_decimals(self) -> Mask:
        """Mark the cells that are JSON numbers of at most 15 digits without an exponent.

        A zero that stands alone before the decimal point does not count as a digit.
        """
        if self._last < 0:
            return self._not_empty
        data = self._bytes
        digits_start, length = self._unsigned()
        points = np.flatnonzero(data == _POINT)
        cells = self._cells_containing(points)
        counts = np.bincount(cells, minlength=len(length))
        second = data[np.minimum(digits_start + 1, self._last)]
        zero_first = (data[np.minimum(digits_start, self._last)] == _ZERO) & (length > 1)
        short: Mask = (length > 0) & (counts <= 1) & (length - counts - zero_first <= _EXACT_DIGITS)
        short &= ~zero_first | (second == _POINT)
        short[cells[(points == digits_start[cells]) | (points == self._ends[cells] - 1)]] = False
        other = self._other_bytes(_POINT)
        other[digits_start[digits_start != self._starts] - 1] = False
        if other.any():
            short[self._cells_containing(np.flatnonzero(other))] = False
        return short

    def _other_bytes(self, allowed: int) -> Mask:
        other: Mask = (self._bytes - _ZERO > _NINE - _ZERO) & (self._bytes != allowed)
        return other

    def _cells_containing(self, places: Offsets) -> Offsets:
        is_one_each = len(places) == len(self._ends)
        if is_one_each and (places >= self._starts).all() and (places < self._ends).all():
            return np.arange(len(places))
        return np.searchsorted(self._ends, places, side="right")

    def _unsigned(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the start of each cell after its sign, and its length from there."""
        signs = self._bytes[np.minimum(self._starts, self._last)] == _MINUS
        digits_start = self._starts + (signs & self._not_empty)
        return digits_start, self._ends - digits_start


NUMBER_PATTERN = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"
_MIN_VECTORIZED_CELLS = 128  # below, setting up `NumberSyntax` costs more than it saves


def parse_text_doubles(cells: pa.StringArray) -> tuple[pa.DoubleArray, Offsets]:
    """Return the nearest doubles of cells, and the positions of cells that differ from them.

    Integers beyond 2^53 count as inexact, because a double represents only some of them.

    Raises:
        ArrowInvalid: A cell is not a JSON number.
    """
    values = pc.cast(cells, pa.float64())
    positions = np.arange(len(cells))
    if cells.null_count:
        positions = np.flatnonzero(cells.is_valid().to_numpy(zero_copy_only=False))
    if len(cells) >= _MIN_VECTORIZED_CELLS:
        positions = positions[~NumberSyntax(cells).short_decimals()]
    if len(positions):
        positions = positions[~_round_trips(values, cells, positions)]
    if not len(positions):
        return values, positions
    rest = cells.take(pa.array(positions))
    _require_all(pc.match_substring_regex(rest, NUMBER_PATTERN), rest)
    inexact = [not _is_exact_number(text) for text in rest.to_pylist()]
    return values, positions[np.array(inexact, np.bool_)]


def _is_exact_number(text: str) -> bool:
    if text.lstrip("-").isdigit():
        return len(text) < _MAX_EXACT_LENGTH and abs(int(text)) <= MAX_EXACT_INTEGER
    return is_exact_double(text)


def _round_trips(values: pa.DoubleArray, cells: pa.StringArray, positions: Offsets) -> Mask:
    """Mark the cells whose doubles have exactly the same text."""
    if len(positions) < len(cells):
        values, cells = values.take(pa.array(positions)), cells.take(pa.array(positions))
    written = pc.cast(values, pa.string())
    # Also false for NaN and infinities, which Arrow parses but which are not JSON numbers.
    same: Mask = np.abs(values.to_numpy()) <= MAX_EXACT_INTEGER
    if not written.equals(cells):
        same &= pc.equal(written, cells).to_numpy(zero_copy_only=False)
    return same


TYPED_TEXT_TYPES = frozenset(
    {
        ColumnType.BINARY,
        ColumnType.DATE,
        ColumnType.TIME,
        ColumnType.TIMESTAMP,
        ColumnType.LOCAL_TIMESTAMP,
    }
)
# Arrow also parses shorter texts, such as a date without a time of day; the shortest text with one
# looks like "2026-01-31T10:00Z".
_MIN_LENGTHS = {
    ColumnType.DATE: 10,
    ColumnType.TIME: 8,
    ColumnType.TIMESTAMP: 17,
    ColumnType.LOCAL_TIMESTAMP: 16,
}
# Matched by all values of a type, and by some other texts.
_FORMS = {
    ColumnType.UNKNOWN: "^$",
    ColumnType.BOOLEAN: "^(?:true|false)$",
    ColumnType.INTEGER: r"^-?(?:0|[1-9][0-9]{0,18})$",
    ColumnType.NUMBER: NUMBER_PATTERN,
    ColumnType.DECIMAL: NUMBER_PATTERN,
    ColumnType.BINARY: "^[A-Za-z0-9+/]*=*$",
    ColumnType.DATE: r"^[0-9-]{10}$",
    ColumnType.TIME: r"^[0-9:.]{8,}$",
    ColumnType.TIMESTAMP: r"^[0-9-]{10}[T ][0-9:.]+(?:Z|[+-][0-9:]+)$",
    ColumnType.LOCAL_TIMESTAMP: r"^[0-9-]{10}[T ][0-9:.]+$",
}
_EPOCH_DAY = "1970-01-01T"
# Arrow's cast turns some numbers close to 0 into 0, and overflows silently on too many digits.
_UNSAFE_DECIMAL = r"[eE]|\.[0-9]{38}|[0-9]{39}"
_TRAILING_ZEROS = r"(\.[0-9]{6})0+"  # after the microseconds


def is_valid_text(text: str, column: Column) -> bool:
    """Return whether a text is a value of the column's type."""
    return not parse_texts(pa.array([text], pa.string()), column)[1]


def parse_texts(texts: pa.StringArray, column: Column) -> tuple[pa.Array, list[int]]:
    """Parse texts as values of a column.

    Booleans are `true` and `false`, numbers as in JSON, binary is base64, dates and times are ISO
    8601 with at most microseconds. A timestamp has a zone, a local timestamp has none.

    Returns:
        The values, null where a text is not a value of the type, and the positions of those texts.
    """
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), arrow_type_of(column)), []
    try:
        if column.type is ColumnType.NUMBER:
            return _parse_doubles(texts)
        return _parse_all(texts, column), []
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, arrow_type_of(column)), [0]
    # Arrow does not say which text it rejects. First reject texts by their form: if all texts of a
    # column are invalid, bisecting takes 0.1 to 0.4 ms for each. Other invalid texts are rare, so
    # bisecting is faster than parsing each text separately.
    has_form = pc.match_substring_regex(texts, _FORMS[column.type]).fill_null(fill_value=True)
    if not pc.all(has_form).as_py():
        values, invalid = parse_texts(pc.if_else(has_form, texts, None), column)
        without = np.flatnonzero(~has_form.to_numpy(zero_copy_only=False))
        return values, sorted(without.tolist() + invalid)
    half = len(texts) // 2
    left, invalid = parse_texts(texts.slice(0, half), column)
    right, more = parse_texts(texts.slice(half), column)
    return pa.concat_arrays([left, right]), invalid + [half + position for position in more]


def _parse_all(texts: pa.StringArray, column: Column) -> pa.Array:
    match column.type:
        case ColumnType.STRING | ColumnType.ANY | ColumnType.OBJECT | ColumnType.ARRAY:
            return texts
        case ColumnType.BOOLEAN:
            _require_all(pc.is_in(texts, pa.array(["true", "false"]), skip_nulls=True), texts)
            return pc.equal(texts, "true")
        case ColumnType.BINARY:
            return pa.array([_parse_base64(text) for text in texts.to_pylist()], pa.binary())
        case ColumnType.INTEGER | ColumnType.DECIMAL:
            return _parse_exact_numbers(texts, column)
        case ColumnType.DATE | ColumnType.TIME | ColumnType.TIMESTAMP | ColumnType.LOCAL_TIMESTAMP:
            return _parse_times(texts, column)
        case ColumnType.UNKNOWN | ColumnType.NUMBER:  # `_parse_doubles` parses numbers
            raise pa.ArrowInvalid
        case _:
            assert_never(column.type)


def _parse_exact_numbers(texts: pa.StringArray, column: Column) -> pa.Array:
    if not NumberSyntax(texts).all_integers():
        if column.type is ColumnType.INTEGER:
            raise pa.ArrowInvalid
        _require_all(pc.match_substring_regex(texts, NUMBER_PATTERN), texts)
    if column.type is ColumnType.DECIMAL:
        return parse_decimals(texts, column)
    return pc.cast(texts, arrow_type_of(column))


def parse_decimals(texts: pa.StringArray, column: Column) -> pa.Array:
    """Parse texts, all of them JSON numbers, as decimals of a column.

    Raises:
        ArrowInvalid: A number has more digits than the column.
    """
    kind = arrow_type_of(column)
    if not pc.any(pc.match_substring_regex(texts, _UNSAFE_DECIMAL)).as_py():
        return exact_cast(texts, kind)
    with localcontext(prec=2 * MAX_PRECISION):
        return pa.array([_parse_decimal(text, column) for text in texts.to_pylist()], kind)


def _parse_decimal(text: str | None, column: Column) -> Decimal | None:
    if text is None:
        return None
    needed = narrowest_decimal(column.name, text)
    whole = column.precision - column.scale
    is_decimal = needed.type is ColumnType.DECIMAL
    if not is_decimal or needed.scale > column.scale or needed.precision - needed.scale > whole:
        raise pa.ArrowInvalid
    return Decimal(text).quantize(Decimal((0, (1,), -column.scale)))


def _require_all(fitting: pa.BooleanArray, texts: pa.StringArray) -> None:
    if pc.sum(fitting).as_py() != len(texts) - texts.null_count:
        raise pa.ArrowInvalid


def _parse_doubles(texts: pa.StringArray) -> tuple[pa.DoubleArray, list[int]]:
    values, inexact = parse_text_doubles(texts)
    if len(inexact):
        mask = np.zeros(len(values), np.bool_)
        mask[inexact] = True
        values = pc.if_else(pa.array(mask), None, values)
    return values, inexact.tolist()


def _parse_base64(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise pa.ArrowInvalid from error
    if base64.b64encode(data).decode() != text:
        raise pa.ArrowInvalid
    return data


def _parse_times(texts: pa.StringArray, column: Column) -> pa.Array:
    if pc.min(pc.binary_length(texts)).as_py() < _MIN_LENGTHS[column.type]:
        raise pa.ArrowInvalid
    if column.type is ColumnType.TIME:
        days = pc.binary_join_element_wise(_EPOCH_DAY, texts, "")
        return _cast_times(days, pa.timestamp("us")).cast(pa.time64("us"))
    if column.type is ColumnType.DATE:
        values = pc.cast(texts, pa.date32())
    else:
        values = _cast_times(texts, arrow_type_of(column))
    check_range(values, column.type)
    return values


def _cast_times(texts: pa.StringArray, kind: pa.DataType) -> pa.TimestampArray:
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid:
        return pc.cast(pc.replace_substring_regex(texts, _TRAILING_ZEROS, r"\1"), kind)


_TYPES_BY_FIRST_BYTE = {
    b'"': ColumnType.STRING,
    b"{": ColumnType.OBJECT,
    b"[": ColumnType.ARRAY,
    b"t": ColumnType.BOOLEAN,
    b"f": ColumnType.BOOLEAN,
    b"n": ColumnType.UNKNOWN,
}
_MAX_INTEGER_LENGTH = 20  # characters of a 64-bit integer, sign included


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

    A string is a time, a date or binary only if its column is known to be one, and the digits of a
    number are counted only if the column is a decimal.

    Args:
        name: Key of the value.
        text: JSON text of the value.
        known: Column as it is known so far, as `SchemaProfile.text_column` returns it.
        exact: Whether a `number` must be exactly its double; otherwise it must only be finite.
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
        if exact or known is None or known.type is not ColumnType.NUMBER:
            return InferredType(narrowest_decimal(name, text))
    is_double = is_exact_double(text) if exact else abs(float(text)) != float("inf")
    if is_double:
        return InferredType(Column(name=name, type=ColumnType.NUMBER))
    return InferredType(narrowest_decimal(name, text))


def infer_text_type(name: str, cells: pa.StringArray, known: Column | None) -> InferredType:
    """Infer the type of text cells, not all of them null: a kind of number, or string.

    Texts such as `007`, `+1` or `1e400` are not numbers, because writing a number would lose the
    original text. For a decimal column, the digits of the cells are counted.
    """
    if known is not None and known.type is ColumnType.DECIMAL:
        return InferredType(_infer_decimal(name, cells))
    if NumberSyntax(cells).all_integers():
        return _infer_integers(name, cells)
    try:
        _, inexact = parse_text_doubles(cells)
    except pa.ArrowInvalid:
        return InferredType(Column(name=name, type=ColumnType.STRING))
    if not len(inexact):
        return InferredType(Column(name=name, type=ColumnType.NUMBER))
    return InferredType(_infer_decimal(name, cells.take(pa.array(inexact))))


def _infer_integers(name: str, cells: pa.StringArray) -> InferredType:
    try:
        values = pc.cast(cells, pa.int64())
    except pa.ArrowInvalid:  # an integer of 19 digits, beyond 64 bits
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
    """The `known` schema, widened by the types of all values seen so far.

    The result does not depend on the order of the values. `columns` is the widened schema. `wide`
    names the integer columns with values beyond 2^53, which must not become a `number` when a
    fraction appears. `item` is the item being read: a misfit names it, with the line of the first
    value that the known schema does not hold. Text is base64 only in `declared` binary columns.
    """

    def __init__(self, schema: RecordSchema, declared: RecordSchema | None = None) -> None:
        self.columns: dict[str, Column] = schema.by_name()
        self.wide: set[str] = set()
        self.item: Item | None = None
        self.known = dict(self.columns)
        columns = () if declared is None else declared.columns
        self._base64 = {column.name for column in columns if column.type is ColumnType.BINARY}
        self._observed: dict[str, _ObservedTypes] = {}
        self._first_misfits: dict[str, tuple[Item | None, int | None, str]] = {}

    @property
    def fits(self) -> bool:
        """Whether the known schema holds every value seen so far."""
        return not self._first_misfits

    def text_column(self, name: str) -> Column | None:
        """Return the column that text is parsed for; binary is `unknown` unless it is declared.

        Any other text, such as `ABCD`, may happen to be base64: parsing it would change the value.
        """
        column = self.columns.get(name)
        if column is None or column.type is not ColumnType.BINARY or name in self._base64:
            return column
        return Column(name=name, type=ColumnType.UNKNOWN)

    def misfits(self) -> tuple[Misfit, ...]:
        """Return the columns that the known schema lacks or must widen, with their new types."""
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

    def refusal(self, added: int, max_columns: int) -> str | None:
        """Return why this number of new columns is refused, or None if it is allowed."""
        if not added or len(self.columns) + added <= max_columns:
            return None
        limit = "`read_limits.max_columns`"
        return f"has columns that would make more than {limit} allows ({max_columns})"

    def accepts(self, seen: InferredType, *, text: bool) -> bool:
        """Return whether a stream that rescues may keep a value in its column.

        Either the known schema holds it, or its column has held only nulls: no known type
        contradicts the value, so it may set the type.
        """
        known = self.known.get(seen.column.name)
        is_open = known is not None and known.type is ColumnType.UNKNOWN
        return is_open or self.holds(seen, text=text)

    def holds(self, seen: InferredType, *, text: bool) -> bool:
        """Return whether the known schema holds a value without a change."""
        known = self.known.get(seen.column.name)
        return known is not None and known == needed(
            known, seen.column, wide=seen.wide, text_source=text
        )

    def needs_line(self, seen: InferredType, *, text: bool) -> bool:
        """Return whether a value is the first that does not fit a column of the known schema."""
        name = seen.column.name
        is_first = name in self.known and name not in self._first_misfits
        return is_first and not self.holds(seen, text=text)

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
        known = self.known.get(name)
        column = needed(
            known,
            observed.column,
            wide=name in self.wide,
            text_source=not observed.has_typed_values,
        )
        self.columns[name] = column
        if column != known:
            self._first_misfits.setdefault(name, (self.item, line, seen.column.type_text))

    def add_name(self, name: str) -> None:
        """Add a column none of whose values has been seen."""
        if name not in self.columns:
            self.columns[name] = Column(name=name, type=ColumnType.UNKNOWN)
            self._first_misfits[name] = (self.item, None, ColumnType.UNKNOWN.value)


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
