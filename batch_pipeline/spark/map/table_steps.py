"""Evaluates the filter and the steps of a plan on a table's columns.

Records are looked at one by one only where an expression needs their values.
"""

import ast
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.spark.map.expression import Expression
from batch_pipeline.spark.map.in_place import Changed, ExpressionFailedError, changed_in_place
from batch_pipeline.spark.map.json_text import json_text
from batch_pipeline.spark.map.record_plan import RecordPlan, Step
from batch_pipeline.spark.map.table_cells import Cells, Columns, cells_of

Mask = npt.NDArray[np.bool_]
_UNREADABLE = "holds a value that cannot be read"


class TableSteps:
    """Evaluation on the columns of a table of `count` rows.

    Rows on which an expression fails are added to `failed` by their position, with the reason.
    `left` tells of each row of computed columns what flattening needs to know.
    """

    def __init__(
        self, plan: RecordPlan, on_nonfinite: OnNonfinite, columns: Columns, count: int
    ) -> None:
        self._plan = plan
        self._on_nonfinite = on_nonfinite
        self._columns = columns
        self._count = count
        self.failed: dict[int, str] = {}
        self.left: dict[str, list[bool | None]] = {}

    def filtered(self, condition: Expression) -> Mask:
        """Tell which rows stay."""
        text = condition.text
        values = self._evaluated(condition, self._rows(None if text.whole else text.reads))
        return np.array([bool(value) for value in values], bool)

    def stepped(self) -> Columns:
        """Take the steps."""
        plan = self._plan
        rows: list[dict[str, Any]] = []
        if not all(self._is_simple(step) for step in plan.steps):
            rows = self._rows(None if plan.reads_all else plan.reads)
        if plan.keeps_unmapped:
            result = dict(self._columns)
        else:
            result = {key: self._columns[key] for key in plan.keys if key in self._columns}
        for step in plan.steps:
            if step.expression is None:
                result.pop(step.name, None)
            elif step.copies in self._columns:
                result[step.name] = self._columns[step.copies]
                self._note_type(step, ())
            else:
                result[step.name] = self._computed(step, step.expression, rows)
        return result

    def changed(self) -> tuple[Columns, Mask]:
        """Filter and take the steps where expressions may change values in place.

        Columns that nothing changed stay as they are. The mask tells which rows stay.
        """
        rows = self._rows(None)
        changed = [self._row_changed(position, row) for position, row in enumerate(rows)]
        names = dict.fromkeys(name for one in changed for name in one or ())
        for step in self._plan.steps:
            if step.expression is not None:
                self._note_type(step, [(one or {}).get(step.name, (None,))[0] for one in changed])
        columns = {name: self._changed_cells(name, changed, rows) for name in names}
        return columns, np.array([one is not None for one in changed], bool)

    def _row_changed(self, position: int, row: dict[str, Any]) -> Changed | None:
        if position in self.failed:
            return None
        try:
            return changed_in_place(self._plan, row.copy())
        except ExpressionFailedError as error:
            self.failed[position] = error.reason
            return None

    def _changed_cells(
        self, name: str, changed: Sequence[Changed | None], rows: Sequence[dict[str, Any]]
    ) -> Cells:
        cells = self._columns.get(name)
        if cells is not None and not cells.may_nest:
            pairs = zip(changed, rows, strict=True)
            if all(
                one is None or (name in one and one[name][0] is row[name]) for one, row in pairs
            ):
                return cells
        results = ((one or {}).get(name, (None, None)) for one in changed)
        return self._cells(results)

    def _computed(self, step: Step, expression: Expression, rows: list[dict[str, Any]]) -> Cells:
        if isinstance(expression.text.node.value, ast.Constant):
            self._note_type(step, ())
            one = cells_of([json_text(expression.value({}))])
            return Cells(pa.repeat(one.array[0], self._count), one.kind)
        values = self._evaluated(expression, rows)
        self._note_type(step, values)
        return self._cells((value, expression) for value in values)

    def _cells(self, results: Iterable[tuple[Any, Expression | None]]) -> Cells:
        texts: list[bytes | None] = [None] * self._count
        for position, (value, by) in enumerate(results):
            try:
                texts[position] = json_text(value)
            except (TypeError, ValueError, RecursionError) as error:
                reason = _UNREADABLE if by is None else self._reason(by, error)
                self.failed.setdefault(position, reason)
        return cells_of(texts)

    def _evaluated(self, expression: Expression, rows: list[dict[str, Any]]) -> list[Any]:
        values: list[Any] = []
        for position, row in enumerate(rows):
            value = None
            if position not in self.failed:
                try:
                    value = expression.value(row)
                except Exception as error:  # noqa: BLE001 - whatever it is, the record is bad
                    self.failed[position] = self._reason(expression, error)
            values.append(value)
        return values

    def _reason(self, expression: Expression, error: Exception) -> str:
        return expression.failure(error, hides_values=self._plan.hides_values)

    def _rows(self, reads: frozenset[str] | None) -> list[dict[str, Any]]:
        """Give the rows' values by name, of the columns that are read; of all with None."""
        names = [name for name in self._columns if reads is None or name in reads]
        if not names:
            return [{} for _ in range(self._count)]
        cells = [self._columns[name].values(self._on_nonfinite, self.failed) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]

    def _note_type(self, step: Step, values: Sequence[Any]) -> None:
        if self._plan.flattening is None:
            return
        left = self._left_like(step.like)
        for position, value in enumerate(values):
            if isinstance(value, tuple):
                left[position] = False
        self.left[step.name] = left

    def _left_like(self, like: tuple[str | None, ...] | None) -> list[bool | None]:
        if like is None:
            return [None] * self._count
        known = next((name for name in like if name is None or name in self._columns), None)
        if known is None or not self._columns[known].may_nest:
            return [True] * self._count
        texts = self._columns[known].json_texts(self._on_nonfinite, self.failed)
        return [None if text is None or text.startswith(b"{") else True for text in texts]

    def _is_simple(self, step: Step) -> bool:
        """Tell that a step needs no values of records."""
        if step.expression is None or step.copies in self._columns:
            return True
        return isinstance(step.expression.text.node.value, ast.Constant)
