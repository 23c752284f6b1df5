"""Mapping of tables; columns that the mapping leaves unchanged stay Arrow columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.types as at

from batch_pipeline.encode import json_values
from batch_pipeline.encode.chunks import MalformedRecord, Table
from batch_pipeline.encode.mapping.json_text import (
    DECODE_ERRORS,
    UnmappableRecordError,
    as_raw_json,
    decode,
    decode_error_reason,
    encode_fields,
)
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import name_fault

if TYPE_CHECKING:
    from batch_pipeline.encode.mapping.mapper import Mapper, Selection
    from batch_pipeline.encode.mapping.singer_map import Flattening, SingerMap

_NESTED_TYPES = (at.is_struct, at.is_list, at.is_large_list, at.is_fixed_size_list, at.is_map)
_SAME_IN_JSON = (at.is_null, at.is_boolean, at.is_integer, at.is_string, at.is_large_string)

_Removed = dict[
    int, str | None
]  # why a row is malformed, by its position; None: it is filtered out
_Texts = list[bytes | None]  # JSON text by row, None for null


class CellKind(Enum):
    """Text whose type is not known yet, JSON text, or values of the array's type."""

    TEXT = "text"
    JSON = "json"
    TYPED = "typed"


@dataclass(frozen=True, slots=True)
class ColumnCells:
    """The cells of a column."""

    array: pa.Array
    kind: CellKind

    @property
    def may_be_nested(self) -> bool:
        """Return whether the cells can be objects or arrays."""
        return self.kind is CellKind.JSON or any(test(self.array.type) for test in _NESTED_TYPES)

    def values(self, on_nonfinite: OnNonfinite, removed: _Removed) -> list[Any]:
        """Return the cells as an expression reads them: decoded from their JSON text.

        Rows with a cell that has no JSON form are removed.
        """
        is_same = any(test(self.array.type) for test in _SAME_IN_JSON)
        if self.kind is CellKind.TEXT or (is_same and self.kind is CellKind.TYPED):
            values: list[Any] = self.array.to_pylist()
            return values
        values = list(self.json_texts(on_nonfinite, removed))
        for position, text in enumerate(values):
            if text is not None:
                try:
                    values[position] = decode(text)
                except DECODE_ERRORS as error:
                    removed.setdefault(position, decode_error_reason(error))
        return values

    def json_texts(self, on_nonfinite: OnNonfinite, removed: _Removed) -> _Texts:
        """Return the cells as JSON text, None in removed rows; remove rows as `values` does."""
        texts: _Texts = [None] * len(self.array)
        for position, cell in enumerate(self.array.to_pylist()):
            if cell is None or position in removed:
                continue
            if self.kind is CellKind.JSON:
                texts[position] = None if cell == "null" else cell.encode()
                continue
            try:
                texts[position] = json_values.json_text(cell, on_nonfinite)
            except (ValueError, RecursionError) as error:
                removed[position] = str(error)
        return texts


Columns = dict[str, ColumnCells]


def _columns_of(table: Table) -> Columns:
    columns: Columns = {}
    for name, array in zip(table.batch.schema.names, table.batch.columns, strict=True):
        kind = CellKind.JSON if name in table.json else CellKind.TYPED
        columns[name] = ColumnCells(array, CellKind.TEXT if name in table.text else kind)
    return columns


def _json_column(texts: Sequence[bytes | None]) -> ColumnCells:
    cells = [None if text is None or text == b"null" else text.decode() for text in texts]
    return ColumnCells(pa.array(cells, pa.string()), CellKind.JSON)


def _infer_column(texts: Sequence[bytes | None]) -> ColumnCells:
    """Return a column with the type of all values, or of JSON texts if they have no common type.

    Types are text, booleans, integers of 64 bits, or numbers that doubles hold exactly.
    """
    if any(text is not None and text.startswith((b"{", b"[")) for text in texts):
        return _json_column(texts)
    try:
        values = decode(b"[" + b",".join(text or b"null" for text in texts) + b"]")
    except DECODE_ERRORS:  # no expression reads these values, so they are not malformed
        return _json_column(texts)
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return ColumnCells(pa.array(values, pa.int64()), CellKind.TYPED)
    if kinds in ({str}, {bool}):
        return ColumnCells(pa.array(values), CellKind.TYPED)
    if Decimal in kinds and kinds <= {int, Decimal}:
        doubles = [None if value is None else float(Decimal(value)) for value in values]
        pairs = zip(doubles, values, strict=True)
        if all(double is None or Decimal(repr(double)) == value for double, value in pairs):
            return ColumnCells(pa.array(doubles, pa.float64()), CellKind.TYPED)
    return _json_column(texts)


def map_table(mapper: "Mapper", table: Table) -> Table:
    """Map the records of a table; columns of one type stay or become typed, others JSON text.

    The text of a bad record is its cells as JSON.
    """
    mapping = _TableMapping(mapper, table)
    if mapper.selection is not None:
        mapping.select(mapper.selection)
    if mapper.rules is not None:
        mapping.apply_rules(mapper.rules)
    if mapper.flattening is not None:
        mapping.flatten(mapper.flattening)
    return mapping.result()


class _TableMapping:
    """The mapping of one table, step by step; removed rows stay in the columns until the result."""

    def __init__(self, mapper: "Mapper", table: Table) -> None:
        self._table = table
        self._count = table.good
        self._on_nonfinite = mapper.on_nonfinite
        self._flattening = mapper.flattening
        self._columns = _columns_of(table)
        self._removed: _Removed = {}
        # Of mapped properties, the rows that flattening writes as JSON text or keeps as they are.
        self._texts: dict[str, set[int]] = {}
        self._kept: dict[str, set[int]] = {}

    def select(self, selection: "Selection") -> None:
        selected: Columns = {}
        for name, cells in self._columns.items():
            choice = selection.choice((name,))
            if choice.has_exceptions and cells.may_be_nested:
                texts = cells.json_texts(self._on_nonfinite, self._removed)
                for row, text in enumerate(texts):
                    pruned = None if text is None else selection.pruned((name,), msgspec.Raw(text))
                    texts[row] = None if pruned is None else bytes(pruned)
                selected[name] = _json_column(texts)
            elif choice.is_selected:
                selected[name] = cells
        self._columns = selected

    def apply_rules(self, rules: "SingerMap") -> None:
        """Apply the rules of a stream map; rows on which an expression fails are removed."""
        # Where no expression reads a value, the map of one row is that of all of them.
        rows = min(self._count, 1) if rules.is_static else self._count
        cells = [
            column.values(self._on_nonfinite, self._removed)
            if rules.reads(name)
            else repeat(column, rows)  # the column itself stands for a value that is not read
            for name, column in self._columns.items()
        ]
        values = zip(*cells, strict=True) if cells else repeat((), rows)
        before = {
            row: dict(zip(self._columns, one, strict=True))
            for row, one in enumerate(values)
            if rules.is_static or row not in self._removed
        }
        mapped: dict[int, dict[str, Any]] = {}
        for row, record in before.items():
            reason = None
            try:
                one = rules.mapped(record)
            except UnmappableRecordError as error:
                one, reason = None, str(error)
            if one is not None:
                mapped[row] = one
                continue
            for removed in range(self._count) if rules.is_static else (row,):
                self._removed.setdefault(removed, reason)
        columns = self._mapped_columns(rules, before, mapped)
        if self._flattening is not None:
            self._find_rows_left_whole(rules, mapped)
        self._columns = columns

    def _mapped_columns(
        self, rules: "SingerMap", before: Mapping[int, Any], mapped: Mapping[int, dict[str, Any]]
    ) -> Columns:
        names = dict.fromkeys(name for one in mapped.values() for name in one)
        if not mapped:
            known = {*self._columns, *rules.mapped_names}
            names = dict.fromkeys(n for n in rules.properties(self._columns) if n in known)
        result: Columns = {}
        for name in names:
            source = rules.source(name)
            if source in self._columns and all(
                name in one
                and one[name] is before[row][source]
                and rules.is_unchanged(before[row][source])
                for row, one in mapped.items()
            ):
                result[name] = self._columns[source]
                continue
            texts: _Texts = [None] * self._count
            for row, one in mapped.items():
                try:
                    texts[row] = rules.json_text(name, one.get(name))
                except UnmappableRecordError as error:
                    self._removed.setdefault(row, str(error))
            result[name] = _infer_column(texts)
        return result

    def _find_rows_left_whole(self, rules: "SingerMap", mapped: Mapping[int, Any]) -> None:
        """Find the rows in which flattening does not take mapped properties apart."""
        kinds: dict[str, list[bool]] = {}  # whether a value is an object or null
        for name in rules.typed_by.intersection(self._columns):
            cells = self._columns[name]
            kinds[name] = [False] * self._count
            if cells.may_be_nested:
                texts = cells.json_texts(self._on_nonfinite, {})
                kinds[name] = [text is None or text.startswith(b"{") for text in texts]
        rows = zip(*kinds.values(), strict=True) if kinds else repeat((), self._count)
        for row, objects in enumerate(rows):
            for name in rules.texts(frozenset(zip(kinds, objects, strict=True))):
                self._texts.setdefault(name, set()).add(row)
        for row, one in mapped.items():
            for name in rules.mapped_names:
                if isinstance(one.get(name), tuple):
                    self._kept.setdefault(name, set()).add(row)

    def flatten(self, flattening: "Flattening") -> None:
        """Replace objects by their properties; rows that cannot be flattened are removed."""
        flat: Columns = {}
        for name, cells in self._columns.items():
            for key, column in self._flatten_column(flattening, name, cells).items():
                if key in flat:
                    column = self._merge(flat[key], column, str(flattening.duplicate_name(key)))  # noqa: PLW2901
                flat[key] = column
        self._columns = flat

    def _flatten_column(self, flattening: "Flattening", name: str, cells: ColumnCells) -> Columns:
        short = flattening.name_of((name,))
        if not cells.may_be_nested:
            return {short: cells}
        texts = cells.json_texts(self._on_nonfinite, self._removed)
        flat: dict[str, _Texts] = {}
        for row, text in enumerate(texts):
            if text is None:
                continue
            values: dict[str, Any] = {short: msgspec.Raw(text)}
            if row not in self._kept.get(name, ()):
                whole = frozenset({name} if row in self._texts.get(name, ()) else ())
                try:
                    values = flattening.flattened({name: msgspec.Raw(text)}, whole)
                except UnmappableRecordError as error:
                    self._removed.setdefault(row, str(error))
                    continue
            for key, value in values.items():
                if key not in flat and (fault := name_fault(key)):
                    self._removed.setdefault(row, f"flattening gives {key!r}: {fault}")
                    continue
                flat.setdefault(key, [None] * len(texts))[row] = bytes(as_raw_json(value))
        if any(text is not None for text in texts):
            return {key: _infer_column(column) for key, column in flat.items()}
        return {short: _json_column(texts)}

    def _merge(self, first: ColumnCells, second: ColumnCells, duplicate: str) -> ColumnCells:
        texts = first.json_texts(self._on_nonfinite, self._removed)
        for row, text in enumerate(second.json_texts(self._on_nonfinite, self._removed)):
            if text is not None and texts[row] is not None:
                self._removed[row] = duplicate
            texts[row] = texts[row] or text
        return _infer_column(texts)

    def result(self) -> Table:
        """Return the table of the remaining rows, without flattened objects that have no value."""
        table, columns = self._table, self._columns
        objects = frozenset[str]() if self._flattening is None else self._flattening.objects
        rows: Sequence[int] = range(self._count)
        if self._removed:
            rows = [row for row in rows if row not in self._removed]
            kept = pa.array(rows, pa.int64())
            columns = {n: ColumnCells(one.array.take(kept), one.kind) for n, one in columns.items()}
        columns = {
            name: cells
            for name, cells in columns.items()
            if name not in objects or cells.array.null_count < len(rows)
        }
        batch = table.batch.select([]).slice(0, len(rows))
        if columns:
            arrays = [cells.array for cells in columns.values()]
            batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
        bad = self._malformed()
        return replace(
            table,
            batch=batch,
            line_numbers=numbers_at(table.line_numbers, rows),
            record_numbers=numbers_at(table.record_numbers, rows),
            text=_names_of(columns, CellKind.TEXT),
            json=_names_of(columns, CellKind.JSON),
            bad=(*table.bad, *bad),
            filtered=table.filtered + len(self._removed) - len(bad),
        )

    def _malformed(self) -> list[MalformedRecord]:
        bad = []
        for row, reason in sorted(self._removed.items()):
            if reason is not None:
                record: dict[str, msgspec.Raw] = {}
                for name, cells in _columns_of(self._table).items():
                    cell = ColumnCells(cells.array.slice(row, 1), cells.kind)
                    text = cell.json_texts(OnNonfinite.STRING, {})[0]
                    record[name] = msgspec.Raw(b"null" if text is None else text)
                line = self._table.line_numbers[row]
                bad.append(MalformedRecord(line=line, reason=reason, raw=encode_fields(record)))
        return bad


def numbers_at(numbers: Sequence[int], rows: Sequence[int]) -> Sequence[int]:
    """Return the numbers of the remaining rows; those of all rows stay lazy."""
    return numbers if len(rows) == len(numbers) else [numbers[row] for row in rows]


def _names_of(columns: Columns, kind: CellKind) -> frozenset[str]:
    return frozenset(name for name, cells in columns.items() if cells.kind is kind)
