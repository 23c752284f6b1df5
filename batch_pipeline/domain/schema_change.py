"""Why a schema changed: the record that showed a column, and what became of it, or a declaration.

How types widen is `schema`'s; who keeps the versions is not known here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batch_pipeline.domain.errors import SchemaDeclarationError
from batch_pipeline.domain.schema import Column, RecordSchema, widen


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A column as it needs to be, and the first record that the schema's column cannot hold.

    `line` is where that record starts, or its number in a file without lines; None where it was not
    a record but the file as a whole that told of the column. `seen` is the type of what was found.
    """

    column: Column
    item_id: int
    location: str
    line: int | None
    seen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """What one version did to a column: types in words, `before` is None for a new column."""

    name: str
    before: str | None
    after: str
    item_id: int | None = None
    location: str | None = None
    line: int | None = None

    @property
    def sentence(self) -> str:
        """The change in words."""
        if self.before is None:
            said = f"added `{self.name}` ({self.after})"
        else:
            said = f"`{self.name}` from {self.before} to {self.after}"
        if self.location is None:
            return said
        line = "" if self.line is None else f", line {self.line}"
        return f"{said}, first in {self.location}{line}"

    def to_json(self) -> dict[str, Any]:
        """Write the change as the inventory keeps it."""
        return {
            "column": self.name,
            "before": self.before,
            "after": self.after,
            "item_id": self.item_id,
            "location": self.location,
            "line": self.line,
        }


def changes_between(
    before: RecordSchema, after: RecordSchema, because: Sequence[Misfit] = ()
) -> tuple[SchemaChange, ...]:
    """Tell what changed from a version to a wider one, and which records showed it."""
    known = before.by_name()
    places = {misfit.column.name: misfit for misfit in because}
    changes = []
    for column in after.columns:
        old, place = known.get(column.name), places.get(column.name)
        if old == column:
            continue
        changes.append(
            SchemaChange(
                name=column.name,
                before=None if old is None else old.type_text,
                after=column.type_text,
                item_id=None if place is None else place.item_id,
                location=None if place is None else place.location,
                line=None if place is None else place.line,
            )
        )
    return tuple(changes)


def with_declared(
    stream: str, known: RecordSchema, earlier: RecordSchema | None, declared: RecordSchema
) -> RecordSchema:
    """Give the schema that holds what is known as well as what is declared.

    Columns that are no longer declared stay. A type that records have widened beyond its
    declaration stays as it is. `earlier` is the declaration that the last version came from.

    Raises:
        SchemaDeclarationError: a column is declared narrower than it was, or with a type that goes
            with the known one only as something wider than both.
    """
    columns, declared_before = known.by_name(), (earlier or RecordSchema()).by_name()
    for column in declared.columns:
        was, present = declared_before.get(column.name), columns.get(column.name)
        if was is not None and widen(was, column, text_source=False) != column:
            raise SchemaDeclarationError(
                stream, column.name, column.type_text, f"was declared {was.type_text} before"
            )
        if present is None:
            continue
        both = widen(present, column, text_source=False)
        if both not in (present, column):
            known_as = f"is {present.type_text} in the published files"
            raise SchemaDeclarationError(stream, column.name, column.type_text, known_as)
    return known.widened(declared.columns, text_source=False)
