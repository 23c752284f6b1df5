"""Maps tables column by column: select, filter, take the steps, flatten, and count what is left."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.spark.chunks import BadText, Table
from batch_pipeline.spark.map.flattening import Flattening
from batch_pipeline.spark.map.record_plan import RecordPlan
from batch_pipeline.spark.map.selection import Choice, Selection
from batch_pipeline.spark.map.table_cells import (
    CellKind,
    Cells,
    Columns,
    columns_of_table,
    json_cells,
    record_text,
)
from batch_pipeline.spark.map.table_flattening import TableFlattening
from batch_pipeline.spark.map.table_steps import Mask, TableSteps

_Failed = dict[int, str]  # why a row cannot be mapped, by its position


class TableMap:
    """Applies a plan to tables; columns of one type stay or become typed, others JSON text.

    The text of a bad record is its cells as JSON.
    """

    def __init__(self, plan: RecordPlan, on_nonfinite: OnNonfinite) -> None:
        self._plan = plan
        self._on_nonfinite = on_nonfinite

    def mapped(self, table: Table) -> Table:
        """Map the records of a table."""
        return _TableRun(self._plan, self._on_nonfinite, table).mapped()


class _TableRun:
    """The mapping of one table, station by station; `_rows` are the rows of it that are left."""

    def __init__(self, plan: RecordPlan, on_nonfinite: OnNonfinite, table: Table) -> None:
        self._plan = plan
        self._on_nonfinite = on_nonfinite
        self._table = table
        self._columns = columns_of_table(table)
        self._rows: npt.NDArray[Any] = np.arange(table.good)
        self._bad: list[BadText] = []
        self._filtered = table.filtered
        self._left: dict[str, list[bool | None]] = {}

    def mapped(self) -> Table:
        plan = self._plan
        if plan.selection is not None:
            self._select(plan.selection)
        if plan.changes:
            steps = self._steps()
            self._columns, stays = steps.changed()
            self._left = steps.left
            self._keep(stays, steps.failed)
        else:
            self._filter_and_step()
        if plan.is_custom and not self._columns:
            self._keep(np.zeros(len(self._rows), bool), {})
        if plan.flattening is not None:
            self._flatten(plan.flattening)
        return self._table_left()

    def _steps(self) -> TableSteps:
        return TableSteps(self._plan, self._on_nonfinite, self._columns, len(self._rows))

    def _select(self, selection: Selection) -> None:
        selected: Columns = {}
        failed: _Failed = {}
        for name, cells in self._columns.items():
            choice = selection.choice((name,))
            if choice in {Choice.KEPT_INSIDE, Choice.DROPPED_INSIDE} and cells.may_nest:
                selected[name] = self._pruned(selection, name, cells, failed)
            elif choice in {Choice.KEPT, Choice.KEPT_INSIDE}:
                selected[name] = cells
        self._columns = selected
        self._set_aside(failed)

    def _pruned(self, selection: Selection, name: str, cells: Cells, failed: _Failed) -> Cells:
        pruned: list[bytes | None] = []
        for text in cells.json_texts(self._on_nonfinite, failed):
            one = None if text is None else selection.pruned((name,), msgspec.Raw(text))
            pruned.append(None if one is None else bytes(one))
        return json_cells(pruned)

    def _filter_and_step(self) -> None:
        plan = self._plan
        if plan.filter is not None:
            steps = self._steps()
            stays = steps.filtered(plan.filter)
            self._keep(stays, steps.failed)
        steps = self._steps()
        self._columns = steps.stepped()
        self._left = steps.left
        self._set_aside(steps.failed)

    def _flatten(self, flattening: Flattening) -> None:
        failed: _Failed = {}
        columns = TableFlattening(flattening, self._on_nonfinite, self._left, failed)
        self._columns = columns.flattened(self._columns)
        self._left = {}
        if self._plan.hides_values:  # names of properties inside of objects can be values, too
            failed = dict.fromkeys(failed, "cannot be flattened")
        self._set_aside(failed)

    def _set_aside(self, failed: _Failed) -> None:
        if failed:
            self._keep(np.ones(len(self._rows), bool), failed)

    def _keep(self, stays: Mask, failed: _Failed) -> None:
        """Keep the rows that stay and are not among the failed, and account for the others."""
        originals = columns_of_table(self._table)
        for position, reason in sorted(failed.items()):
            row = int(self._rows[position])
            raw = record_text(originals, row)
            self._bad.append(BadText(line=self._table.places[row], reason=reason, raw=raw))
            stays[position] = False
        if stays.all():
            return
        self._filtered += len(stays) - int(stays.sum()) - len(failed)
        mask = pa.array(stays)
        self._columns = {name: cells.filtered(mask) for name, cells in self._columns.items()}
        self._left = {
            name: [one for one, is_kept in zip(left, stays, strict=True) if is_kept]
            for name, left in self._left.items()
        }
        self._rows = self._rows[stays]

    def _table_left(self) -> Table:
        table, rows = self._table, self._rows.tolist()
        are_all = len(rows) == table.good
        arrays = [cells.array for cells in self._columns.values()]
        batch = table.batch.select([]).slice(0, len(rows))
        if arrays:
            batch = pa.RecordBatch.from_arrays(arrays, names=list(self._columns))
        return replace(
            table,
            batch=batch,
            places=table.places if are_all else [table.places[row] for row in rows],
            numbers=table.numbers if are_all else [table.numbers[row] for row in rows],
            text=self._names_of(CellKind.TEXT),
            json=self._names_of(CellKind.JSON),
            bad=(*table.bad, *self._bad),
            filtered=self._filtered,
        )

    def _names_of(self, kind: CellKind) -> frozenset[str]:
        return frozenset(name for name, cells in self._columns.items() if cells.kind is kind)
