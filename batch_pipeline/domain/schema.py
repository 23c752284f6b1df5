"""The shape of a stream's records: ordered columns with nullable JSON types, only ever widening."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batch_pipeline.domain.errors import InvalidValueError


class ColumnType(StrEnum):
    """JSON types of a column; `unknown` has held only nulls so far, `any` holds a mixture."""

    UNKNOWN = "unknown"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    OBJECT = "object"
    ARRAY = "array"
    ANY = "any"


def widen(left: ColumnType, right: ColumnType, *, text_source: bool) -> ColumnType:
    """Give the narrowest type that holds both.

    Cells of a text source (csv) that fit no common type stay what they are, text; values of a typed
    source (jsonl) would be changed by that, so their column becomes `any`.
    """
    if left is right or right is ColumnType.UNKNOWN:
        return left
    if left is ColumnType.UNKNOWN:
        return right
    if left is ColumnType.ANY:
        return left
    if {left, right} == {ColumnType.INTEGER, ColumnType.NUMBER}:
        return ColumnType.NUMBER
    return ColumnType.STRING if text_source else ColumnType.ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A named column; its values may always be null."""

    name: str
    type: ColumnType

    def json_schema(self) -> dict[str, Any]:
        """Give the JSON Schema of the column, as Singer's SCHEMA message writes it."""
        if self.type is ColumnType.ANY:
            return {}
        if self.type is ColumnType.UNKNOWN:
            return {"type": ["null", "string"]}
        return {"type": ["null", self.type.value]}


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """Columns in order of first appearance; names are unique.

    Raises:
        InvalidValueError: a name is there twice.
    """

    columns: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise InvalidValueError("column", name, "a name that is there once")

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)

    def types(self) -> dict[str, ColumnType]:
        """Give the type of each column by name."""
        return {column.name: column.type for column in self.columns}

    def widened(self, seen: Iterable[Column], *, text_source: bool) -> "RecordSchema":
        """Give the schema that also holds `seen`: known columns widen, new ones come last."""
        types = self.types()
        for column in seen:
            known = types.get(column.name, ColumnType.UNKNOWN)
            types[column.name] = widen(known, column.type, text_source=text_source)
        return RecordSchema(tuple(Column(name=name, type=kind) for name, kind in types.items()))

    def json_schema(self) -> dict[str, Any]:
        """Give the JSON Schema of a record, as Singer's SCHEMA message writes it."""
        properties = {column.name: column.json_schema() for column in self.columns}
        return {"type": "object", "properties": properties}

    def to_json(self) -> list[list[str]]:
        """Write the columns as `[name, type]` pairs, the form kept in the inventory."""
        return [[column.name, column.type.value] for column in self.columns]

    @classmethod
    def from_json(cls, pairs: Iterable[tuple[str, str] | list[str]]) -> "RecordSchema":
        """Read what `to_json` wrote."""
        return cls(tuple(Column(name=name, type=ColumnType(kind)) for name, kind in pairs))
