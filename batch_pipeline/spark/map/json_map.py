"""Maps JSON records; values that no expression reads keep their text, digit by digit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from batch_pipeline.spark.chunks import BadText, JsonRecords
from batch_pipeline.spark.map.expression import Expression
from batch_pipeline.spark.map.flattening import FlattenedTwiceError
from batch_pipeline.spark.map.in_place import ExpressionFailedError, changed_in_place
from batch_pipeline.spark.map.json_text import (
    UNREADABLE,
    columns_of,
    decoded,
    json_of,
    json_text,
    unreadable,
)
from batch_pipeline.spark.map.record_plan import RecordPlan, Step

Record = dict[str, msgspec.Raw]
_Left = dict[str, bool]


class RecordSetAsideError(Exception):
    """A record cannot be mapped; the text says why."""


class JsonMap:
    """Applies a plan to chunks of JSON records; bad records keep their text."""

    def __init__(self, plan: RecordPlan) -> None:
        self._plan = plan
        self._selection = plan.selection
        self._flattening = plan.flattening
        self._removed = [step.name for step in plan.steps if step.expression is None]
        self._only_removes = plan.keeps_unmapped and len(self._removed) == len(plan.steps)
        self._stays = not plan.steps and plan.keeps_unmapped and plan.filter is None
        self._only_filters = (
            not plan.steps
            and plan.keeps_unmapped
            and plan.selection is None
            and plan.flattening is None
            and not plan.changes
        )

    def mapped(self, chunk: JsonRecords) -> JsonRecords:
        """Map the records of a chunk."""
        lines: list[bytes] = []
        bad: list[BadText] = []
        gone: set[int] = set()
        mapped = self.mapped_line
        for index, line in enumerate(chunk.lines):
            try:
                text = mapped(line)
            except RecordSetAsideError as error:
                bad.append(BadText(line=chunk.places[index], reason=str(error), raw=line))
                gone.add(index)
                continue
            if text is None:
                gone.add(index)
            else:
                lines.append(text)
        return replace(
            chunk,
            lines=lines,
            places=_without(chunk.places, gone),
            numbers=_without(chunk.numbers, gone),
            bad=(*chunk.bad, *bad),
            filtered=chunk.filtered + len(gone) - len(bad),
        )

    def mapped_line(self, line: bytes) -> bytes | None:
        """Map one record; None when it is filtered out.

        Raises:
            RecordSetAsideError: it is no record, or an expression fails on it.
        """
        try:
            record = columns_of(line)
            if self._selection is not None:
                self._selection.select(record)
        except UNREADABLE as error:
            raise _refused(error) from error
        left: _Left = {}
        result = record if self._stays else self._stepped(record, left)
        if result is None or (self._plan.is_custom and not result):
            return None
        if self._only_filters:
            return line
        if self._flattening is not None and result:
            is_as_read = self._stays and self._selection is None
            result = self._flattened(result, left, line if is_as_read else None)
        return json_of(result)

    def _stepped(self, record: Record, left: _Left) -> Record | None:
        plan = self._plan
        if plan.changes:
            return self._stepped_on_values(record, left)
        values = self._values(record)
        if plan.filter is not None and not self._value(plan.filter, values):
            return None
        if self._only_removes:
            for name in self._removed:
                record.pop(name, None)
            return record
        if plan.keeps_unmapped:
            result = record.copy()
        else:
            result = {key: record[key] for key in plan.keys if key in record}
        for step in plan.steps:
            if step.expression is None:
                result.pop(step.name, None)
            elif step.copies in record:
                result[step.name] = record[step.copies]
                self._note_type(step, record, left)
            else:
                value = self._value(step.expression, values)
                result[step.name] = self._text(step.expression, value)
                self._note_type(step, record, left, is_tuple=isinstance(value, tuple))
        return result

    def _stepped_on_values(self, record: Record, left: _Left) -> Record | None:
        try:
            changed = changed_in_place(self._plan, self._values(record))
        except ExpressionFailedError as failed:
            raise RecordSetAsideError(failed.reason) from failed
        if changed is None:
            return None
        for step in self._plan.steps:
            if step.expression is not None:
                is_tuple = isinstance(changed.get(step.name, (None, None))[0], tuple)
                self._note_type(step, record, left, is_tuple=is_tuple)
        return {name: self._text(by, value) for name, (value, by) in changed.items()}

    def _values(self, record: Record) -> dict[str, Any]:
        plan = self._plan
        reads = record if plan.reads_all else plan.reads
        try:
            return {name: decoded(record[name]) for name in reads if name in record}
        except UNREADABLE as error:
            raise RecordSetAsideError(unreadable(error)) from error

    def _value(self, expression: Expression, values: dict[str, Any]) -> Any:
        try:
            return expression.value(values)
        except Exception as error:
            reason = expression.failure(error, hides_values=self._plan.hides_values)
            raise RecordSetAsideError(reason) from error

    def _text(self, expression: Expression | None, value: Any) -> msgspec.Raw:
        try:
            return msgspec.Raw(json_text(value))
        except (TypeError, ValueError, RecursionError) as error:
            if expression is None:
                raise RecordSetAsideError(unreadable(error)) from error
            reason = expression.failure(error, hides_values=self._plan.hides_values)
            raise RecordSetAsideError(reason) from error

    def _note_type(
        self, step: Step, record: Record, left: _Left, *, is_tuple: bool = False
    ) -> None:
        if self._flattening is None:
            return
        if is_tuple:
            left[step.name] = False
        elif step.like is not None and not _is_object(step.like, record):
            left[step.name] = True

    def _flattened(self, record: Record, left: _Left, text: bytes | None) -> Record:
        assert self._flattening is not None  # noqa: S101 - for the type checker
        try:
            return self._flattening.flattened(record, left=left, text=text)
        except FlattenedTwiceError as error:
            hides = self._plan.hides_values
            reason = "cannot be flattened" if hides else str(error)
            raise RecordSetAsideError(reason) from error
        except UNREADABLE as error:
            raise RecordSetAsideError(unreadable(error)) from error


def _is_object(like: Sequence[str | None], record: Record) -> bool:
    for name in like:
        if name is None:
            return False
        if name in record:
            return bytes(record[name])[:1] in (b"{", b"n")
    return False


def _refused(error: Exception) -> RecordSetAsideError:
    if isinstance(error, msgspec.ValidationError):
        return RecordSetAsideError("is not a JSON object")
    return RecordSetAsideError(unreadable(error))


def _without(numbers: Sequence[int], left_out: set[int]) -> Sequence[int]:
    if not left_out:
        return numbers
    return [number for index, number in enumerate(numbers) if index not in left_out]
