"""The declared JSON Schema of a stream's records after their mapping.

What the mapping removes is gone, a renamed property keeps its type, objects become columns. What an
expression computes has the type that the schema declares for its name, if it does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.json_schema import nested_kind, properties_of, schema_of
from batch_pipeline.domain.schema import ColumnType
from batch_pipeline.spark.map.flattening import Flattening, short_name
from batch_pipeline.spark.map.record_plan import RecordPlan
from batch_pipeline.spark.map.selection import Choice, Selection

Shapes = dict[str, Any]  # JSON Schemas of properties by name


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedSchema:
    """A JSON Schema of mapped records; `objects` are the columns that objects would have been."""

    schema: Mapping[str, Any]
    objects: frozenset[str] = frozenset()


def mapped_schema(declared: Mapping[str, Any], plan: RecordPlan) -> MappedSchema:
    """Return the schema of records that a plan has mapped; `declared` is one of a record."""
    shapes: Shapes = dict(declared["properties"])
    selected = shapes if plan.selection is None else _selected(plan.selection, (), shapes)
    stepped = _stepped(plan, shapes, selected)
    objects: frozenset[str] = frozenset()
    if plan.flattening is not None:
        flattened = _Flattened(plan.flattening, stepped)
        stepped, objects = flattened.shapes, frozenset(flattened.objects)
    return MappedSchema(schema={**declared, "properties": stepped}, objects=objects)


def _selected(selection: Selection, path: tuple[str, ...], shapes: Shapes) -> Shapes:
    found: Shapes = {}
    for name, shape in shapes.items():
        choice = selection.choice((*path, name))
        if choice is Choice.DROPPED:
            continue
        inner = properties_of(shape)
        if choice is Choice.KEPT or not inner:
            found[name] = shape
            continue
        left = _selected(selection, (*path, name), inner)
        if left or choice is Choice.KEPT_INSIDE:
            found[name] = {"type": ["null", "object"], "properties": left}
    return found


def _stepped(plan: RecordPlan, declared: Shapes, selected: Shapes) -> Shapes:
    shapes = {
        name: shape for name, shape in selected.items() if plan.keeps_unmapped or name in plan.keys
    }
    for step in plan.steps:
        if step.expression is None:
            shapes.pop(step.name, None)
        elif step.name in declared:
            shapes[step.name] = declared[step.name]
        elif step.copies in selected:
            shapes[step.name] = selected[step.copies]
    return shapes


class _Flattened:
    """Columns of the properties of objects; deeper objects, and arrays, become JSON text."""

    def __init__(self, flattening: Flattening, shapes: Shapes) -> None:
        self._flattening = flattening
        self._declared = shapes
        self.shapes: Shapes = {}
        self.objects: set[str] = set()
        for name, shape in shapes.items():
            self._add((name,), shape)

    def _add(self, path: tuple[str, ...], shape: Any) -> None:
        name = short_name(path, self._flattening.separator)
        is_inner = len(path) > 1
        kind = nested_kind(shape)
        if kind is ColumnType.OBJECT and len(path) <= self._flattening.max_depth:
            self.objects.add(name)
            for inner, one in properties_of(shape).items():
                self._add((*path, inner), one)
        elif is_inner and (name in self._declared or not _is_column(shape)):
            return
        else:
            self.shapes[name] = shape if kind is None else {"type": ["null", "string"]}


def _is_column(shape: Any) -> bool:
    """Return whether the type of a nested property, which nothing has checked, is known."""
    try:
        schema_of({"properties": {"inner": shape}})
    except InvalidValueError:
        return False
    return True
