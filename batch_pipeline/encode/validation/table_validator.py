"""Validate tables: text cells of CSV files, and typed columns of Parquet and Avro files.

Whole columns at a time. A column whose values the schema does not hold widens the profile, or its
values are rescued row by row.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.encode.arrow_types import JSON_TYPES, arrow_type_of, column_of
from batch_pipeline.encode.chunks import Table, move_rows_to_bad
from batch_pipeline.encode.json_values import json_text, nonfinite_text
from batch_pipeline.encode.validation.text_values import (
    MAX_EXACT_INTEGER,
    TYPED_TEXT_TYPES,
    NumberSyntax,
    parse_texts,
)
from batch_pipeline.encode.validation.type_inference import (
    InferredType,
    SchemaProfile,
    has_wide_integer,
    infer_text_type,
)
from batch_pipeline.model.record_rules import RESCUED, Evolution, OnNonfinite
from batch_pipeline.model.schema import (
    Column,
    ColumnType,
    needed,
)
from batch_pipeline.model.stream import Stream

Rescued = dict[int, dict[str, bytes]]  # JSON text of values by name, by row


def _reject_nonfinite(table: Table, names: Iterable[str]) -> Table:
    """Move the rows with NaN or an infinity in one of the named columns to `bad`."""
    reasons: dict[int, str] = {}
    for name in names:
        column = table.batch.column(name)
        finite = pc.fill_null(pc.is_finite(column), fill_value=True)
        if pc.all(finite).as_py():
            continue
        for row in np.flatnonzero(~finite.to_numpy(zero_copy_only=False)).tolist():
            number = nonfinite_text(column[row].as_py())
            reason = f"column {name!r} holds {number}, which JSON cannot say"
            reasons.setdefault(row, reason)
    return move_rows_to_bad(table, reasons)


def _rescue(table: Table, name: str, rows: Iterable[int], into: Rescued) -> None:
    """Add the non-null values of some rows of a column, as JSON, to the rescued values."""
    column = table.batch.column(name)
    for row in rows:
        value = column[row].as_py()
        if value is not None:
            is_json = name in table.json
            text = value.encode() if is_json else json_text(value, OnNonfinite.STRING)
            into.setdefault(row, {})[name] = text


def _rescued_column(
    rescued: Mapping[int, Mapping[str, bytes]], before: pa.StringArray | None, rows: int
) -> pa.StringArray:
    """Return the column of rescued values, which includes those that a record came with."""
    texts = [None] * rows if before is None else before.cast(pa.string()).to_pylist()
    for row, values in rescued.items():
        fields = {name: msgspec.Raw(text) for name, text in values.items()}
        if texts[row] is not None:
            fields[RESCUED] = msgspec.Raw(msgspec.json.encode(texts[row]))
        texts[row] = msgspec.json.encode(fields).decode()
    return pa.array(texts, pa.string())


def _set_null(array: pa.Array, rows: Iterable[int]) -> pa.Array:
    """Return the array with nulls in some rows."""
    keep = np.ones(len(array), np.bool_)
    keep[list(rows)] = False
    return pc.if_else(pa.array(keep), array, pa.scalar(None, array.type))


@dataclass(frozen=True, slots=True)
class ParsedCells:
    """The cells of a column, as values or as text, and the positions of invalid ones.

    `wide` states that there are integers beyond 2^53.
    """

    array: pa.Array
    invalid: Sequence[int] = ()
    wide: bool = False


def parse_cells(
    cells: Mapping[str, pa.StringArray], columns: Mapping[str, Column], *, values: bool
) -> dict[str, ParsedCells]:
    """Parse text cells as values of their columns; both are given by name.

    Columns of one type are parsed in one call, because each call has a fixed cost that counts in
    tables of hundreds of columns. With `values` the result has the values, null where a cell is
    invalid; without, the cells remain text.
    """
    by_type: dict[tuple[ColumnType, int, int], dict[str, pa.StringArray]] = defaultdict(dict)
    for name, array in cells.items():
        column = columns[name]
        by_type[column.type, column.precision, column.scale][name] = array
    parsed: dict[str, ParsedCells] = {}
    for group in by_type.values():
        parsed |= _parse_group(group, columns[next(iter(group))], values=values)
    return parsed


def _parse_group(
    cells: Mapping[str, pa.StringArray], column: Column, *, values: bool
) -> dict[str, ParsedCells]:
    texts = pa.concat_arrays(list(cells.values()))
    if not values and _is_valid_unparsed(texts, column):
        return {name: ParsedCells(array) for name, array in cells.items()}
    parsed, invalid = parse_texts(texts, column)
    any_wide = column.type is ColumnType.INTEGER and has_wide_integer(parsed)
    result: dict[str, ParsedCells] = {}
    start = 0
    for name, array in cells.items():
        stop = start + len(array)
        own = parsed.slice(start, len(array))
        own_invalid = invalid[bisect_left(invalid, start) : bisect_left(invalid, stop)]
        result[name] = ParsedCells(
            own if values else array,
            [position - start for position in own_invalid],
            any_wide and has_wide_integer(own),
        )
        start = stop
    return result


def _is_valid_unparsed(cells: pa.StringArray, column: Column) -> bool:
    """Return whether the bytes of all cells prove, without parsing, that they are valid."""
    match column.type:
        case ColumnType.STRING | ColumnType.ANY:
            return True
        case ColumnType.INTEGER:
            syntax = NumberSyntax(cells)
            return syntax.all_integers() and syntax.max_digits < len(str(MAX_EXACT_INTEGER))
        case ColumnType.NUMBER:
            return bool(NumberSyntax(cells).short_decimals().all())
        case _:
            return False


_TYPES_BY_FIRST_BYTE = {ord("{"): ColumnType.OBJECT, ord("["): ColumnType.ARRAY}
_NOT_PARSED = (
    frozenset({ColumnType.UNKNOWN, ColumnType.STRING}) | JSON_TYPES
)  # text cells are the values
_TEXT_IN_JSON = TYPED_TEXT_TYPES | {ColumnType.STRING}


@dataclass(frozen=True, slots=True)
class _Conversion:
    """A column as the output needs it, null where `invalid`, and the type of the invalid values."""

    array: pa.Array
    invalid: Sequence[int] = ()
    inferred: InferredType | None = None


@dataclass(slots=True)
class _Result:
    """The columns of a validated table, the names of those that are text cells, rescued values."""

    arrays: dict[str, pa.Array] = field(default_factory=dict)
    text: set[str] = field(default_factory=set)
    rescued: Rescued = field(default_factory=dict)


class TableValidator:
    """Validates tables against the schema of the profile.

    With `values`, the columns of the result have the types of the schema, except those of type
    `any`. Without, columns remain as they are.
    """

    def __init__(self, profile: SchemaProfile, stream: Stream, *, values: bool) -> None:
        self._profile = profile
        self._values = values
        self._on_nonfinite = stream.on_nonfinite
        self._rescues = stream.schema.evolution is Evolution.RESCUE

    def validate(self, table: Table) -> Table:
        """Widen the profile by the values that the schema does not hold, or rescue them."""
        if self._on_nonfinite is OnNonfinite.QUARANTINE:
            table = _reject_nonfinite(table, self._json_doubles(table.batch.schema))
        result = _Result()
        parsed = self._parse_text_cells(table)
        for name, array in zip(table.batch.schema.names, table.batch.columns, strict=True):
            if array.null_count == len(array):
                self._add_null_column(name, array, table, result)
            else:
                converted = self._convert(name, array, table, parsed)
                self._add_column(name, converted, table, result)
        if result.rescued:
            before = result.arrays.get(RESCUED)
            result.arrays[RESCUED] = _rescued_column(result.rescued, before, table.good)
            result.text.discard(RESCUED)
        batch = table.batch
        if result.arrays:
            batch = pa.RecordBatch.from_pydict(result.arrays)
        return replace(
            table,
            batch=batch,
            text=frozenset(result.text),
            json=table.json & result.arrays.keys(),
            rescued=table.rescued + len(result.rescued),
        )

    def _json_doubles(self, schema: pa.Schema) -> list[str]:
        """Return the names of columns of doubles that the output writes as JSON."""
        names = []
        for name, arrow_type in zip(schema.names, schema.types, strict=True):
            known = self._profile.columns.get(name)
            is_json = not self._values or (known is not None and known.type in JSON_TYPES)
            if is_json and pa.types.is_floating(arrow_type):
                names.append(name)
        return names

    def _add_null_column(self, name: str, array: pa.Array, table: Table, result: _Result) -> None:
        """Add a column of nulls, which fit any type; a new typed column still states its own."""
        known = self._profile.columns.get(name)
        if known is None or known.type is ColumnType.UNKNOWN:
            column = Column(name=name, type=ColumnType.UNKNOWN)
            if name not in table.text and name not in table.json:
                column = column_of(name, array.type)
            if self._rescues and not self._profile.accepts(column, text=False):
                return
            self._profile.add_names([name])
            if column.type is not ColumnType.UNKNOWN:
                self._profile.add(column, text=False)
            known = self._profile.columns[name]
        if self._values:
            array = pa.nulls(len(array), arrow_type_of(known))
        elif name in table.text:
            result.text.add(name)
        result.arrays[name] = array

    def _parse_text_cells(self, table: Table) -> dict[str, ParsedCells]:
        """Parse the text cells of the columns whose type is not a string."""
        columns = self._profile.columns
        cells = {
            name: array
            for name, array in zip(table.batch.schema.names, table.batch.columns, strict=True)
            if name in table.text
            and array.null_count < len(array)
            and name in columns
            and columns[name].type not in _NOT_PARSED
        }
        return parse_cells(cells, columns, values=self._values)

    def _convert(
        self, name: str, array: pa.Array, table: Table, parsed: Mapping[str, ParsedCells]
    ) -> _Conversion:
        known = self._profile.columns.get(name)
        if name in table.json:
            return self._convert_json(name, array, known)
        if name not in table.text:
            return self._convert_typed(name, array, known)
        if known is not None and name in parsed:
            return self._convert_text(name, array, known, parsed[name])
        if known is not None and known.type in (ColumnType.STRING, ColumnType.ANY):
            return _Conversion(array)
        return _Conversion(array, _valid_rows(array), infer_text_type(name, array, known))

    def _add_column(self, name: str, converted: _Conversion, table: Table, result: _Result) -> None:
        known = self._profile.columns.get(name)
        is_text = name in table.text
        array = converted.array
        inferred = converted.inferred
        if inferred is not None:
            if self._rescues and not self._profile.accepts(
                inferred.column, text=is_text, wide=inferred.wide
            ):
                _rescue(table, name, converted.invalid, result.rescued)
                if known is None:
                    return
                array = _set_null(array, converted.invalid)
                if self._values and array.type != arrow_type_of(known):
                    array = pa.nulls(len(array), arrow_type_of(known))
            else:
                self._add_to_profile(inferred, table, converted.invalid[0], is_text=is_text)
                if converted.invalid and self._profile.columns[name] == known:
                    raise RuntimeError(f"values of {name!r} neither fit {known} nor widen it")
        result.arrays[name] = array
        if is_text and array.type == pa.string() and (not self._values or _is_kept_as_text(known)):
            result.text.add(name)

    def _add_to_profile(
        self, inferred: InferredType, table: Table, row: int, *, is_text: bool
    ) -> None:
        column, wide = inferred.column, inferred.wide
        # `places` counts lines on demand, which is needed for the first misfit only.
        is_first = self._profile.fits and not self._profile.holds(column, text=is_text, wide=wide)
        is_new_column = self._profile.known_column(column.name) is None
        line = table.line_numbers[row] if is_first and not is_new_column else None
        self._profile.add(column, text=is_text, wide=wide, line=line)

    def _convert_text(
        self, name: str, cells: pa.StringArray, known: Column, parsed: ParsedCells
    ) -> _Conversion:
        if parsed.wide:
            self._profile.add(known, text=True, wide=True)
        if not parsed.invalid:
            return _Conversion(parsed.array)
        invalid = cells.take(pa.array(parsed.invalid))
        return _Conversion(parsed.array, parsed.invalid, infer_text_type(name, invalid, known))

    def _convert_json(self, name: str, texts: pa.StringArray, known: Column | None) -> _Conversion:
        first_bytes = _first_bytes(texts)
        distinct = set(first_bytes.tolist()) - {0}
        types = {_TYPES_BY_FIRST_BYTE.get(byte, ColumnType.ANY) for byte in distinct}
        json_type = types.pop() if len(types) == 1 else ColumnType.ANY
        if known is not None and known.type in (ColumnType.ANY, json_type):
            return _Conversion(texts)
        invalid = _valid_rows(texts)
        if known is not None and known.type in (ColumnType.OBJECT, ColumnType.ARRAY):
            invalid = [
                row
                for row in invalid
                if _TYPES_BY_FIRST_BYTE.get(int(first_bytes[row])) is not known.type
            ]
        return _Conversion(texts, invalid, InferredType(Column(name=name, type=json_type)))

    def _convert_typed(self, name: str, array: pa.Array, known: Column | None) -> _Conversion:
        column = column_of(name, array.type)
        is_string = column.type is ColumnType.STRING
        if known is not None and known.type in TYPED_TEXT_TYPES and is_string:
            values, invalid = parse_texts(array.cast(pa.string()), known)
            unparsed = InferredType(column) if invalid else None
            return _Conversion(values if self._values else array, invalid, unparsed)
        wide = column.type is ColumnType.INTEGER and has_wide_integer(array)
        inferred = InferredType(column, wide=wide)
        if known is None or known != needed(known, column, wide=wide):
            return _Conversion(array, _valid_rows(array), inferred)
        if wide:
            self._profile.add(column, text=False, wide=True)
        return _Conversion(self._cast(array, column, known))

    def _cast(self, array: pa.Array, column: Column, known: Column) -> pa.Array:
        if not self._values or known.type in JSON_TYPES or column == known:
            return array
        if known.type is ColumnType.STRING and column.type in _TEXT_IN_JSON - {ColumnType.STRING}:
            texts = (json_text(value, OnNonfinite.STRING) for value in array.to_pylist())
            return pa.array([msgspec.json.decode(text) for text in texts], pa.string())
        return array.cast(arrow_type_of(known))


def _is_kept_as_text(known: Column | None) -> bool:
    return known is None or known.type in JSON_TYPES


def _valid_rows(array: pa.Array) -> list[int]:
    if not array.null_count:
        return list(range(len(array)))
    rows: list[int] = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist()
    return rows


def _first_bytes(texts: pa.StringArray) -> np.ndarray:
    """Return the first byte of each text, 0 for null."""
    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts)]
    first_bytes = np.frombuffer(data, np.uint8)[np.minimum(starts, len(data) - 1)].copy()
    if texts.null_count:
        first_bytes[~texts.is_valid().to_numpy(zero_copy_only=False)] = 0
    return first_bytes
