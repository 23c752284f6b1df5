"""Validate tables: text cells of CSV files, and typed columns of Parquet and Avro files.

Whole columns are validated at a time. A column whose values the schema does not hold widens the
profile, or its values are rescued row by row.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.encode.arrow_types import JSON_TYPES, OPENING_BRACKETS, arrow_type_of, column_of
from batch_pipeline.encode.chunks import Table, move_rows_to_bad
from batch_pipeline.encode.json_values import json_text, nonfinite_text
from batch_pipeline.encode.validation.type_inference import (
    MAX_EXACT_INTEGER,
    TYPED_TEXT_TYPES,
    InferredType,
    NumberSyntax,
    SchemaProfile,
    has_wide_integer,
    infer_text_type,
    parse_texts,
)
from batch_pipeline.model.record_rules import RESCUED, Evolution, OnNonfinite
from batch_pipeline.model.schema import Column, ColumnType, needed
from batch_pipeline.model.stream import Stream

Rescued = dict[int, dict[str, bytes]]  # JSON text of values by name, by row
_JSON_TYPES_BY_FIRST_CHARACTER = {text: one for one, text in OPENING_BRACKETS.items()}
# Types whose text cells are the values.
_NOT_PARSED = JSON_TYPES | {ColumnType.UNKNOWN, ColumnType.STRING}


@dataclass(frozen=True, slots=True)
class ConvertedColumn:
    """A column as the output needs it, null in the rows that are `invalid`.

    `wide` states that there are integers beyond 2^53. `inferred` is the type of the invalid values.
    """

    array: pa.Array
    invalid: Sequence[int] = ()
    wide: bool = False
    inferred: InferredType | None = None


def parse_cells(
    cells: Mapping[str, pa.StringArray], columns: Mapping[str, Column], *, values: bool
) -> dict[str, ConvertedColumn]:
    """Parse text cells as values of their columns; both are keyed by name.

    Columns of one type are parsed in one call, because each call has a fixed cost that matters in
    tables of hundreds of columns. With `values`, the result has the values, null where a cell is
    invalid; otherwise, the cells remain text.
    """
    groups: dict[tuple[ColumnType, int, int], dict[str, pa.StringArray]] = defaultdict(dict)
    for name, array in cells.items():
        column = columns[name]
        groups[column.type, column.precision, column.scale][name] = array
    parsed: dict[str, ConvertedColumn] = {}
    for group in groups.values():
        column = columns[next(iter(group))]
        texts = pa.concat_arrays(list(group.values()))
        if not values and _is_valid_unparsed(texts, column):
            parsed |= {name: ConvertedColumn(array) for name, array in group.items()}
            continue
        all_values, all_invalid = parse_texts(texts, column)
        any_wide = column.type is ColumnType.INTEGER and has_wide_integer(all_values)
        start = 0
        for name, array in group.items():
            own, stop = all_values.slice(start, len(array)), start + len(array)
            invalid = all_invalid[bisect_left(all_invalid, start) : bisect_left(all_invalid, stop)]
            parsed[name] = ConvertedColumn(
                own if values else array,
                [position - start for position in invalid],
                any_wide and has_wide_integer(own),
            )
            start = stop
    return parsed


def _is_valid_unparsed(cells: pa.StringArray, column: Column) -> bool:
    """Return whether the bytes of all cells prove, without parsing, that they are valid."""
    if column.type is ColumnType.INTEGER:
        syntax = NumberSyntax(cells)
        return syntax.all_integers() and syntax.max_digits < len(str(MAX_EXACT_INTEGER))
    return column.type is ColumnType.NUMBER and bool(NumberSyntax(cells).short_decimals().all())


class TableValidator:
    """Validates tables against the schema of the profile.

    With `values`, the columns of the result have the types of the schema, except those of type
    `any`. Otherwise, columns remain unchanged.
    """

    def __init__(self, profile: SchemaProfile, stream: Stream, *, values: bool) -> None:
        self._profile = profile
        self._values = values
        self._on_nonfinite = stream.on_nonfinite
        self._rescues = stream.schema.evolution is Evolution.RESCUE

    def validate(self, table: Table) -> Table:
        """Widen the profile by the values that the schema does not hold, or rescue them."""
        if self._on_nonfinite is OnNonfinite.QUARANTINE:
            table = self._reject_nonfinite(table)
        arrays: dict[str, pa.Array] = {}
        text: set[str] = set()
        rescued: Rescued = {}
        parsed = self._parse_text_cells(table)
        for name, array in _columns_of(table):
            is_null, is_text = array.null_count == len(array), name in table.text
            known = self._profile.columns.get(name)
            if is_null:
                validated = self._null_column(name, array, table)
            else:
                converted = self._convert(name, array, table, parsed)
                validated = self._add(name, converted, table, rescued)
            if validated is None:
                continue
            arrays[name] = validated
            is_untyped = not is_null and (known is None or known.type in JSON_TYPES)
            if is_text and validated.type == pa.string() and (not self._values or is_untyped):
                text.add(name)
        json = table.json & arrays.keys()
        if rescued:
            before = arrays.get(RESCUED, pa.nulls(table.good))
            arrays[RESCUED] = _rescued_column(rescued, before)
            text.discard(RESCUED)
            if before.null_count == table.good:
                json -= {RESCUED}
        return replace(
            table,
            batch=_batch_of(arrays) if arrays else table.batch,
            text=frozenset(text),
            json=json,
            rescued=table.rescued + len(rescued),
        )

    def _reject_nonfinite(self, table: Table) -> Table:
        """Move the rows with NaN or an infinity that the output would write as JSON to `bad`."""
        reasons: dict[int, str] = {}
        for name, array in _columns_of(table):
            known = self._profile.columns.get(name)
            if not pa.types.is_floating(array.type):
                continue
            is_json = not self._values or (known is not None and known.type in JSON_TYPES)
            if is_json or self._is_rescued(InferredType(column_of(name, array.type))):
                for row in _rows(pc.invert(pc.is_finite(array))):
                    number = nonfinite_text(array[row].as_py())
                    reasons.setdefault(
                        row, f"column {name!r} holds {number}, which JSON cannot represent"
                    )
        return move_rows_to_bad(table, reasons)

    def _is_rescued(self, inferred: InferredType, *, text: bool = False) -> bool:
        return self._rescues and not self._profile.accepts(inferred, text=text)

    def _null_column(self, name: str, array: pa.Array, table: Table) -> pa.Array | None:
        """Return a column of nulls, which fit any type; a new typed column still adds its type."""
        known = self._profile.columns.get(name)
        if known is None or known.type is ColumnType.UNKNOWN:
            column = Column(name=name, type=ColumnType.UNKNOWN)
            if name not in table.text and name not in table.json:
                column = column_of(name, array.type)
            inferred = InferredType(column)
            if self._is_rescued(inferred):
                return None
            self._profile.add_name(name)
            if column.type is not ColumnType.UNKNOWN:
                self._profile.add(inferred, text=False)
            known = self._profile.columns[name]
        return pa.nulls(len(array), arrow_type_of(known)) if self._values else array

    def _parse_text_cells(self, table: Table) -> dict[str, ConvertedColumn]:
        """Parse the text cells of the columns whose type is not a string."""
        cells = {
            name: array
            for name, array in _columns_of(table)
            if name in table.text
            and array.null_count < len(array)
            and (column := self._profile.text_column(name)) is not None
            and column.type not in _NOT_PARSED
        }
        return parse_cells(cells, self._profile.columns, values=self._values)

    def _convert(
        self, name: str, array: pa.Array, table: Table, parsed: Mapping[str, ConvertedColumn]
    ) -> ConvertedColumn:
        known = self._profile.columns.get(name)
        if name in table.json:
            return _convert_json(name, array, known)
        if name not in table.text:
            return self._convert_typed(name, array, known)
        if known is not None and known.type in (ColumnType.STRING, ColumnType.ANY):
            return ConvertedColumn(array)
        if known is None or name not in parsed:
            inferred = infer_text_type(name, array, known)
            return ConvertedColumn(array, _rows(array.is_valid()), inferred=inferred)
        converted = parsed[name]
        if converted.wide:
            self._profile.add(InferredType(known, wide=True), text=True)
        if not converted.invalid:
            return converted
        invalid = array.take(pa.array(converted.invalid))
        return replace(converted, inferred=infer_text_type(name, invalid, known))

    def _convert_typed(self, name: str, array: pa.Array, known: Column | None) -> ConvertedColumn:
        column = column_of(name, array.type)
        parsed = self._profile.text_column(name) if column.type is ColumnType.STRING else None
        if parsed is not None and parsed.type in TYPED_TEXT_TYPES:
            values, invalid = parse_texts(array.cast(pa.string()), parsed)
            unparsed = InferredType(column) if invalid else None
            return ConvertedColumn(values if self._values else array, invalid, inferred=unparsed)
        wide = column.type is ColumnType.INTEGER and has_wide_integer(array)
        inferred = InferredType(column, wide=wide)
        if known is None or known != needed(known, column, wide=wide):
            return ConvertedColumn(array, _rows(array.is_valid()), inferred=inferred)
        if wide:
            self._profile.add(inferred, text=False)
        if not self._values or known.type in JSON_TYPES or column == known:
            return ConvertedColumn(array)
        if known.type is ColumnType.STRING and column.type in TYPED_TEXT_TYPES:
            texts = (json_text(value, OnNonfinite.STRING) for value in array.to_pylist())
            strings = [msgspec.json.decode(text) for text in texts]
            return ConvertedColumn(pa.array(strings, pa.string()))
        return ConvertedColumn(array.cast(arrow_type_of(known)))

    def _add(
        self, name: str, converted: ConvertedColumn, table: Table, rescued: Rescued
    ) -> pa.Array | None:
        """Add invalid values to the profile or to `rescued`; return the column if it is kept."""
        array, invalid, inferred = converted.array, converted.invalid, converted.inferred
        if inferred is None:
            return array
        profile, is_text = self._profile, name in table.text
        known = profile.columns.get(name)
        if self._is_rescued(inferred, text=is_text):
            _rescue(table, name, invalid, rescued, self._on_nonfinite)
            if known is None:
                return None
            if self._values and array.type != arrow_type_of(known):
                return pa.nulls(len(array), arrow_type_of(known))
            return _set_null(array, invalid)
        needs_line = profile.needs_line(inferred, text=is_text)  # counting lines takes time
        line = table.line_numbers[invalid[0]] if needs_line else None
        profile.add(inferred, text=is_text, line=line)
        if invalid and profile.fits and profile.columns[name] == known:
            raise RuntimeError(f"values of {name!r} neither fit {known} nor widen it")
        return array


def _convert_json(name: str, texts: pa.StringArray, known: Column | None) -> ConvertedColumn:
    first = pc.utf8_slice_codeunits(texts, 0, 1)
    types = {
        _JSON_TYPES_BY_FIRST_CHARACTER.get(character, ColumnType.ANY)
        for character in first.unique().drop_null().to_pylist()
    }
    json_type = types.pop() if len(types) == 1 else ColumnType.ANY
    if known is not None and known.type in (ColumnType.ANY, json_type):
        return ConvertedColumn(texts)
    invalid = texts.is_valid()
    if known is not None and known.type in OPENING_BRACKETS:
        invalid = pc.not_equal(first, OPENING_BRACKETS[known.type])
    inferred = InferredType(Column(name=name, type=json_type))
    return ConvertedColumn(texts, _rows(invalid), inferred=inferred)


def _rescue(
    table: Table, name: str, rows: Collection[int], into: Rescued, on_nonfinite: OnNonfinite
) -> None:
    """Add the non-null values of some rows of a column, as JSON, to the rescued values."""
    column = table.batch.column(name)
    for row in rows:
        value = column[row].as_py()
        if value is not None:
            text = value.encode() if name in table.json else json_text(value, on_nonfinite)
            into.setdefault(row, {})[name] = text


def _rescued_column(rescued: Mapping[int, Mapping[str, bytes]], before: pa.Array) -> pa.StringArray:
    """Return the column of rescued values, including those that a record already had."""
    texts = before.cast(pa.string()).to_pylist()
    for row, values in rescued.items():
        fields = {name: msgspec.Raw(text) for name, text in values.items()}
        if texts[row] is not None:
            fields[RESCUED] = msgspec.Raw(msgspec.json.encode(texts[row]))
        texts[row] = msgspec.json.encode(fields).decode()
    return pa.array(texts, pa.string())


def _set_null(array: pa.Array, rows: Collection[int]) -> pa.Array:
    """Return the array with nulls in some rows."""
    keep = np.ones(len(array), np.bool_)
    keep[list(rows)] = False
    return pc.if_else(pa.array(keep), array, pa.scalar(None, array.type))


def _columns_of(table: Table) -> Iterable[tuple[str, pa.Array]]:
    return zip(table.batch.schema.names, table.batch.columns, strict=True)


def _batch_of(arrays: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return columns by name as a batch; `from_pydict` takes three times as long."""
    return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))


def _rows(mask: pa.BooleanArray) -> list[int]:
    """Return the rows where a mask is true."""
    rows: list[int] = np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False)).tolist()  # noqa: FBT003
    return rows
