"""Mapping of tables; columns that the rules leave unchanged stay Arrow columns."""

from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batch_pipeline.encode.chunks import MalformedRecord, Table
from batch_pipeline.encode.mapping.json_text import UnmappableRecordError
from batch_pipeline.encode.mapping.selection import Selection, SelectionResult
from batch_pipeline.encode.mapping.table_cells import (
    CellKind,
    ColumnCells,
    Columns,
    FlattenOverrides,
    TableFlattening,
    columns_of_table,
    infer_column,
    json_column,
    record_as_json,
)
from batch_pipeline.model.record_rules import OnNonfinite

if TYPE_CHECKING:
    from batch_pipeline.encode.mapping.mapper import Mapper
    from batch_pipeline.encode.mapping.singer_map import SingerMap


Mask = npt.NDArray[np.bool_]
_Row = dict[str, Any]  # values by column; of columns that no expression reads, the column itself


class TableRules:
    """The rules of a stream map, applied to a table of `count` rows.

    Rows on which an expression fails are added to `failed` by their position, with the reason.
    """

    def __init__(
        self, rules: "SingerMap", on_nonfinite: OnNonfinite, columns: Columns, count: int
    ) -> None:
        self._rules = rules
        self._count = count
        self._on_nonfinite = on_nonfinite
        self.failed: dict[int, str] = {}
        # Where no expression reads a value, the map of one row is that of all of them.
        rows = min(count, 1) if rules.is_static else count
        cells = [
            column.values(on_nonfinite, self.failed) if rules.reads(name) else repeat(column, rows)
            for name, column in columns.items()
        ]
        values = zip(*cells, strict=True) if cells else repeat((), rows)
        self._rows: list[_Row] = [dict(zip(columns, row, strict=True)) for row in values]
        self._mapped: list[_Row] = []

    def mapped(self) -> Mask:
        """Map the rows, and return which of them are kept."""
        mapped = [self._map_row(position, row) for position, row in enumerate(self._rows)]
        stays = np.array([one is not None for one in mapped], bool)
        self._rows = [row for row, one in zip(self._rows, mapped, strict=True) if one is not None]
        self._mapped = [one for one in mapped if one is not None]
        if not self._rules.is_static:
            return stays
        for reason in list(self.failed.values()):
            self.failed = dict.fromkeys(range(self._count), reason)
        return np.repeat(stays, self._count) if self._count else stays

    def columns(self, originals: Columns, failed: dict[int, str]) -> Columns:
        """Return the columns of the rows that stay; `originals` are those before, of these rows.

        Positions of values without a JSON form are added to `failed`, with the reason.
        """
        result: Columns = {}
        names = dict.fromkeys(name for row in self._mapped for name in row)
        if not self._mapped:
            known = {*originals, *self._rules.mapped_names}
            names = dict.fromkeys(n for n in self._rules.properties(originals) if n in known)
        for name in names:
            source = self._rules.source(name)
            if source in originals and self._is_unchanged(name, source):
                result[name] = originals[source]
            else:
                result[name] = self._computed_column(name, failed)
        return result

    def overrides(self, originals: Columns, count: int) -> FlattenOverrides:
        """Return how flattening treats mapped properties in each of `count` rows."""
        kinds = {
            name: self._objects_or_nulls(originals[name])
            for name in self._rules.typed_by(originals)
        }
        rows = zip(*kinds.values(), strict=True) if kinds else repeat((), count)
        texts = [self._rules.texts(dict(zip(kinds, row, strict=True))) for row in rows]
        left: dict[str, list[bool | None]] = {}
        for name in self._rules.mapped_names:
            left[name] = [True if name in one else None for one in texts]
            for position, row in enumerate(self._mapped):
                if isinstance(row.get(name), tuple):
                    left[name][position] = False
        return left

    def _map_row(self, position: int, row: _Row) -> _Row | None:
        if position in self.failed:
            return None
        try:
            return self._rules.mapped(row)
        except UnmappableRecordError as error:
            self.failed[position] = str(error)
            return None

    def _is_unchanged(self, name: str, source: str) -> bool:
        pairs = zip(self._mapped, self._rows, strict=True)
        return all(
            name in mapped and mapped[name] is row[source] and self._rules.is_unchanged(row[source])
            for mapped, row in pairs
        )

    def _computed_column(self, name: str, failed: dict[int, str]) -> ColumnCells:
        texts: list[bytes | None] = [None] * len(self._mapped)
        for position, row in enumerate(self._mapped):
            try:
                texts[position] = self._rules.json_text(name, row.get(name))
            except UnmappableRecordError as error:
                failed.setdefault(position, str(error))
        return infer_column(texts)

    def _objects_or_nulls(self, cells: ColumnCells) -> list[bool]:
        """Return in which rows a column has an object or null."""
        if not cells.may_be_nested:
            return [False] * len(cells.array)
        texts = cells.json_texts(self._on_nonfinite, self.failed)
        return [text is None or text.startswith(b"{") for text in texts]


_Failed = dict[int, str]  # why a row cannot be mapped, by its position


def map_table(mapper: "Mapper", table: Table) -> Table:
    """Map the records of a table; columns of one type stay or become typed, others JSON text.

    The text of a bad record is its cells as JSON.
    """
    return _TableMapping(mapper, table).mapped()


class _TableMapping:
    """The mapping of one table, step by step; `_rows` are the rows that remain."""

    def __init__(self, mapper: "Mapper", table: Table) -> None:
        self._map = mapper
        self._on_nonfinite = mapper.on_nonfinite
        self._table = table
        self._columns = columns_of_table(table)
        self._rows: npt.NDArray[Any] = np.arange(table.good)
        self._bad: list[MalformedRecord] = []
        self._filtered = table.filtered
        self._overrides: FlattenOverrides = {}

    def mapped(self) -> Table:
        if self._map.selection is not None:
            self._select(self._map.selection)
        if self._map.rules is not None:
            self._apply_rules(self._map.rules)
        if self._map.flattening is not None:
            failed: _Failed = {}
            columns = TableFlattening(
                self._map.flattening, self._on_nonfinite, self._overrides, failed
            )
            self._columns = columns.flattened(self._columns)
            self._move_to_bad(failed)
        return self._result()

    def _select(self, selection: Selection) -> None:
        selected: Columns = {}
        failed: _Failed = {}
        for name, cells in self._columns.items():
            choice = selection.choice((name,))
            if (
                choice in {SelectionResult.KEPT_INSIDE, SelectionResult.DROPPED_INSIDE}
                and cells.may_be_nested
            ):
                selected[name] = self._prune(selection, name, cells, failed)
            elif choice in {SelectionResult.KEPT, SelectionResult.KEPT_INSIDE}:
                selected[name] = cells
        self._columns = selected
        self._move_to_bad(failed)

    def _prune(
        self, selection: Selection, name: str, cells: ColumnCells, failed: _Failed
    ) -> ColumnCells:
        pruned: list[bytes | None] = []
        for text in cells.json_texts(self._on_nonfinite, failed):
            one = None if text is None else selection.pruned((name,), msgspec.Raw(text))
            pruned.append(None if one is None else bytes(one))
        return json_column(pruned)

    def _apply_rules(self, rules: "SingerMap") -> None:
        run = TableRules(rules, self._on_nonfinite, self._columns, len(self._rows))
        stays = run.mapped()
        self._filter_rows(stays, run.failed)
        failed: _Failed = {}
        if self._map.flattening is not None:
            self._overrides = run.overrides(self._columns, len(self._rows))
        self._columns = run.columns(self._columns, failed)
        self._move_to_bad(failed)

    def _move_to_bad(self, failed: _Failed) -> None:
        if failed:
            self._filter_rows(np.ones(len(self._rows), bool), failed)

    def _filter_rows(self, stays: Mask, failed: _Failed) -> None:
        """Keep the rows that stay and did not fail; count the others as filtered or bad."""
        originals = columns_of_table(self._table)
        for position, reason in sorted(failed.items()):
            row = int(self._rows[position])
            raw = record_as_json(originals, row)
            self._bad.append(
                MalformedRecord(line=self._table.line_numbers[row], reason=reason, raw=raw)
            )
            stays[position] = False
        if stays.all():
            return
        self._filtered += len(stays) - int(stays.sum()) - len(failed)
        mask = pa.array(stays)
        self._columns = {name: cells.filtered(mask) for name, cells in self._columns.items()}
        self._overrides = {
            name: [one for one, is_kept in zip(left, stays, strict=True) if is_kept]
            for name, left in self._overrides.items()
        }
        self._rows = self._rows[stays]

    def _result(self) -> Table:
        table, rows = self._table, self._rows.tolist()
        are_all = len(rows) == table.good
        arrays = [cells.array for cells in self._columns.values()]
        batch = table.batch.select([]).slice(0, len(rows))
        if arrays:
            batch = pa.RecordBatch.from_arrays(arrays, names=list(self._columns))
        return replace(
            table,
            batch=batch,
            line_numbers=table.line_numbers
            if are_all
            else [table.line_numbers[row] for row in rows],
            record_numbers=table.record_numbers
            if are_all
            else [table.record_numbers[row] for row in rows],
            text=self._names_of(CellKind.TEXT),
            json=self._names_of(CellKind.JSON),
            bad=(*table.bad, *self._bad),
            filtered=self._filtered,
        )

    def _names_of(self, kind: CellKind) -> frozenset[str]:
        return frozenset(name for name, cells in self._columns.items() if cells.kind is kind)
