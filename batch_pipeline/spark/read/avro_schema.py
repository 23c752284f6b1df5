"""The schema of an avro file as a tree of types, each with the Arrow type of its values.

Records are read by the tree without logical types: those are known here, and they are applied
later, so that one value that does not fit spoils its record alone.
"""

from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException

from batch_pipeline.spark.read.avro_file import AvroDamageError

_MAX_TYPES = 100_000
_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_DECIMAL_DIGITS = 76  # of the longest decimal of Arrow
_ITEMS = {"array": "items", "map": "values"}
_SMALLEST = {"null": 0, "float": 4, "double": 8}  # bytes of the shortest value; else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroType:
    """A type without a name: `arrow` is None for nested ones and unions of several types.

    `children` are the fields of a record, the items of an array or a map, the types of a union.
    `plain` is the schema to read values by, `smallest` the least number of bytes that one takes.
    """

    kind: str
    plain: Any
    smallest: int
    arrow: Any = None
    children: tuple[tuple[str, "AvroType"], ...] = ()

    @property
    def is_decimal(self) -> bool:
        """Tell whether the bytes of a value are the digits of a decimal."""
        return self.arrow is not None and pa.types.is_decimal(self.arrow)


def read_schema(schema: Any) -> AvroType:
    """Give the type of the records of a file.

    Raises:
        AvroDamageError: it is no schema of records, or one that is not supported: of values that
            hold themselves, of arrays of nothing.
    """
    try:
        named: dict[str, Any] = {}
        parsed = fastavro.parse_schema(schema, named, _force=True)
        tree = _Builder(named).type_of(parsed, ())
    except AvroDamageError:
        raise
    except (SchemaParseException, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise AvroDamageError(f"has no valid avro schema ({error})") from error
    if tree.kind != "record":
        raise AvroDamageError(f"holds no records but values of the type {tree.kind}")
    return tree


class _Builder:
    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._count = 0

    def type_of(self, schema: Any, path: tuple[str, ...]) -> AvroType:
        self._count += 1
        if self._count > _MAX_TYPES:
            raise AvroDamageError("has a schema of too many types")
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            return self.type_of(self._named[schema], path)
        facts = schema if isinstance(schema, dict) else {"type": schema}
        kind = facts["type"]
        if kind not in {"record", *_ITEMS, *_PRIMITIVES}:
            return self.type_of(kind, path)
        if kind == "record":
            return self._record(facts, path)
        return self._items(facts, path) if kind in _ITEMS else self._leaf(kind, facts)

    def _items(self, facts: dict[str, Any], path: tuple[str, ...]) -> AvroType:
        kind = facts["type"]
        items = self.type_of(facts[_ITEMS[kind]], path)
        if kind == "array" and not items.smallest:
            raise AvroDamageError("has a schema of arrays of nothing, which is not supported")
        plain = {"type": kind, _ITEMS[kind]: items.plain}
        return AvroType(kind=kind, plain=plain, smallest=1, children=(("", items),))

    def _leaf(self, kind: str, facts: dict[str, Any]) -> AvroType:
        plain: Any = kind
        smallest = _SMALLEST.get(kind, 1)
        if kind == "enum":
            plain = {"type": kind, "name": self._name(), "symbols": list(facts["symbols"])}
        elif kind == "fixed":
            smallest = int(facts["size"])
            if smallest < 0:
                raise AvroDamageError(f"has a schema with values of {smallest} bytes")
            plain = {"type": kind, "name": self._name(), "size": smallest}
        return AvroType(kind=kind, plain=plain, smallest=smallest, arrow=_arrow(kind, facts))

    def _record(self, facts: dict[str, Any], path: tuple[str, ...]) -> AvroType:
        name = facts["name"]
        if name in path:
            reason = f"has a schema of values that hold themselves ({name}), which is not supported"
            raise AvroDamageError(reason)
        children = tuple(
            (_text(child["name"]), self.type_of(child["type"], (*path, name)))
            for child in facts["fields"]
        )
        names = [child for child, _ in children]
        if len(set(names)) < len(names):
            raise AvroDamageError(f"has a schema with a field of {name} that is there twice")
        fields = [{"name": child, "type": found.plain} for child, found in children]
        plain = {"type": "record", "name": self._name(), "fields": fields}
        smallest = sum(found.smallest for _, found in children)
        return AvroType(kind="record", plain=plain, smallest=smallest, children=children)

    def _union(self, schema: list[Any], path: tuple[str, ...]) -> AvroType:
        children = tuple(("", self.type_of(branch, path)) for branch in schema)
        if any(found.kind == "union" for _, found in children):
            raise AvroDamageError("has no valid avro schema (a union in a union)")
        plain = [found.plain for _, found in children]
        return AvroType(kind="union", plain=plain, smallest=1, children=children)

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise AvroDamageError(f"has a schema with a field whose name is no text ({name!r:.80})")
    return name


def _arrow(kind: str, facts: dict[str, Any]) -> pa.DataType:
    logical = facts.get("logicalType", "")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = facts.get("precision"), facts.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision:
            if not 0 < precision <= _DECIMAL_DIGITS:
                raise AvroDamageError(f"has a schema with decimals of {precision} digits")
            return pa.decimal256(precision, scale)
    if logical == "uuid" and kind == "fixed" and facts["size"] == 16:
        return pa.uuid()
    return _LOGICAL.get((kind, logical), _PRIMITIVES[kind])
