"""The mapper of a stream: it selects, filters, maps and flattens records and their schema.

Values of JSON records that no expression reads keep their text, digit by digit.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from batch_pipeline.encode.chunks import Chunk, JsonRecords
from batch_pipeline.encode.mapping.records import (
    decode_fields,
    encode_fields,
    map_json_records,
    map_table,
)
from batch_pipeline.model.errors import InvalidValueError, require, requires_extra
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import ColumnType, nested_kind, properties_of, schema_of
from batch_pipeline.model.stream import Stream

if TYPE_CHECKING:
    from batch_pipeline.encode.mapping.singer_map import Flattening, SingerMap


_TOKEN = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)  # of a pattern: a set or one character


class Choice(NamedTuple):
    """Whether a property is kept, and whether patterns decide otherwise for nested properties."""

    is_selected: bool
    has_exceptions: bool


class Selection:
    """Patterns of property paths (`email`, `address.*`); a leading `!` deselects.

    The last pattern that matches a property, or a property that contains it, decides. If the first
    pattern deselects, all others are selected initially. `keys` are always selected.

    Raises:
        InvalidValueError: there is no pattern, an empty one, or one that deselects a key by name.
    """

    def __init__(self, patterns: Sequence[str], keys: Iterable[str]) -> None:
        self._keys = frozenset(keys)
        require(patterns, "select", list(patterns), "at least one pattern")
        self._patterns: list[tuple[bool, str]] = []
        for text in patterns:
            pattern = text.removeprefix("!")
            selects = text == pattern
            require(pattern, "select", text, "a pattern of properties, such as `address.*`")
            expected = "no key of the stream: records cannot be identified without it"
            require(selects or pattern not in self._keys, "select", text, expected)
            self._patterns.append((selects, pattern))
        self.choice = lru_cache(10_000)(self._choose)  # keys of objects may be any text
        self._kept: set[str] = set()  # names of properties that remain unchanged

    @property
    def selects_all(self) -> bool:
        """Return whether nothing is deselected."""
        return all(selects for selects, _ in self._patterns) and self._patterns[0][1] == "*"

    def select(self, record: dict[str, msgspec.Raw]) -> None:
        """Remove the properties of a record that are not selected."""
        for name in record.keys() - self._kept:
            value = self.pruned((name,), record[name])
            if value is None:
                del record[name]
            else:
                record[name] = value
            if self.choice((name,)) == (True, False):
                self._kept.add(name)

    def pruned(self, path: tuple[str, ...], value: msgspec.Raw) -> msgspec.Raw | None:
        """Return the selected part of a value; None if no part is selected."""
        is_kept, has_exceptions = self.choice(path)
        if not has_exceptions:
            return value if is_kept else None
        text = bytes(value).strip()
        if not text.startswith(b"{"):
            return value if is_kept or text == b"null" else None
        selected = {
            name: pruned
            for name, inner in decode_fields(text).items()
            if (pruned := self.pruned((*path, name), inner)) is not None
        }
        return msgspec.Raw(encode_fields(selected)) if selected or is_kept else None

    def _choose(self, path: tuple[str, ...]) -> Choice:
        if path[0] in self._keys:
            return Choice(is_selected=True, has_exceptions=False)
        prefixes = [".".join(path[:length]) for length in range(1, len(path) + 1)]
        is_selected, decider = not self._patterns[0][0], -1
        for index, (selects, pattern) in enumerate(self._patterns):
            if any(fnmatchcase(prefix, pattern) for prefix in prefixes):
                is_selected, decider = selects, index
        has_exceptions = any(
            selects is not is_selected and _may_fit_inside(prefixes[-1], pattern)
            for selects, pattern in self._patterns[decider + 1 :]
        )
        return Choice(is_selected, has_exceptions)


def _may_fit_inside(path: str, pattern: str) -> bool:
    """Return whether a pattern can match a property inside the property at a path.

    It can if a prefix of the pattern matches the path with a dot, and a remainder is left.
    """
    tokens = _TOKEN.findall(pattern)
    return any(
        fnmatchcase(f"{path}.", "".join(tokens[:cut]))
        for cut in range(1, len(tokens) + 1)
        if cut < len(tokens) or tokens[-1] == "*"
    )


Schemas = dict[str, Any]  # JSON Schemas of properties by name


def _select(selection: Selection, path: tuple[str, ...], schemas: Schemas) -> Schemas:
    selected: Schemas = {}
    for name, schema in schemas.items():
        is_kept, has_exceptions = selection.choice((*path, name))
        inner = properties_of(schema)
        if has_exceptions and inner:
            left = _select(selection, (*path, name), inner)
            if left or is_kept:
                selected[name] = {"type": ["null", "object"], "properties": left}
        elif is_kept or has_exceptions:
            selected[name] = schema
    return selected


def _schemas_with_rules(rules: "SingerMap", declared: Schemas, selected: Schemas) -> Schemas:
    # The SDK knows which properties exist, but assumes that every computed value is text.
    schemas: Schemas = {}
    for name in rules.properties(selected):
        source = rules.source(name)
        if name in rules.mapped_names and name in declared:
            schemas[name] = declared[name]
        elif source in selected:
            schemas[name] = selected[source]
    return schemas


def _flatten_schemas(flattening: "Flattening", declared: Schemas) -> tuple[Schemas, set[str]]:
    """Return the columns of the properties of objects, and the names of these objects.

    Deeper objects, and arrays, become JSON text.
    """
    flat: Schemas = {}
    objects: set[str] = set()

    def add(path: tuple[str, ...], schema: Any) -> None:
        name, kind = flattening.name_of(path), nested_kind(schema)
        if kind is ColumnType.OBJECT and len(path) <= flattening.max_depth:
            objects.add(name)
            for inner, one in properties_of(schema).items():
                add((*path, inner), one)
        elif len(path) == 1 or (name not in declared and _is_column(schema)):
            flat[name] = schema if kind is None else {"type": ["null", "string"]}

    for name, schema in declared.items():
        add((name,), schema)
    return flat, objects


def _is_column(schema: Any) -> bool:
    """Return whether the type of a nested property, which has not been checked yet, is known."""
    try:
        schema_of({"properties": {"inner": schema}})
    except InvalidValueError:
        return False
    return True


_TEXT_WITHHELD = "its text is omitted because the mapping removes values"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapper:
    """The mapping of a stream: selection, rules and flattening, in this order.

    A step is None if it leaves records unchanged. `alias` and `key_properties` are the name of the
    stream and its keys after the mapping. A record on which an expression fails is malformed. With
    `hides_values`, values are removed or replaced; malformed records then have no text, because it
    would show the values from before the mapping.
    """

    alias: str
    key_properties: tuple[str, ...]
    selection: Selection | None
    rules: "SingerMap | None"
    flattening: "Flattening | None"
    hides_values: bool
    on_nonfinite: OnNonfinite

    @classmethod
    def of(cls, stream: Stream) -> "Mapper | None":
        """Return the mapper of a stream; None if records remain unchanged.

        Raises:
            InvalidValueError: the mapping is not valid.
        """
        mapping, keys = stream.mapping, stream.key_properties
        selection = Selection(mapping.select, keys)
        flattens = mapping.flattening_enabled and mapping.flattening_max_depth != 0
        stream_map = rules = flattening = None
        if mapping.stream_maps or flattens:
            feature = "stream_maps" if mapping.stream_maps else "flattening_enabled"
            with requires_extra("singer", f"`{feature}` of a stream"):
                from batch_pipeline.encode.mapping import singer_map  # imports the Singer SDK

            stream_map = singer_map.resolve_stream_map(stream.name, mapping, keys)
        if stream_map is None and selection.selects_all and not flattens:
            return None
        hides = not selection.selects_all or (stream_map is not None and stream_map.hides_values)
        if stream_map is not None:
            condition = stream_map.filter
            if stream.transform and condition is not None:
                functions = "`rand`, `randint` and `fake`"
                expected = f"a filter without {functions}: for `transform` it is used twice"
                require(not condition.is_random, "stream_maps", condition.text, expected)
            rules = singer_map.SingerMap(stream, stream_map, hides_values=hides)
        if flattens:
            flattening = singer_map.Flattening(mapping, hides_values=hides)
        return cls(
            alias=stream.name if stream_map is None else stream_map.alias,
            key_properties=keys if stream_map is None else stream_map.keys,
            selection=None if selection.selects_all else selection,
            rules=rules,
            flattening=flattening,
            hides_values=hides,
            on_nonfinite=stream.on_nonfinite,
        )

    @property
    def only_selects(self) -> bool:
        """Return whether the mapping only removes properties."""
        return self.rules is None and self.flattening is None

    def schema(self, declared: Mapping[str, Any]) -> tuple[Mapping[str, Any], frozenset[str]]:
        """Return the JSON Schema of the mapped records, and the columns that flattening replaces.

        `declared` is the schema of the unmapped records.
        """
        schemas: Schemas = dict(declared["properties"])
        mapped = schemas if self.selection is None else _select(self.selection, (), schemas)
        objects: set[str] = set()
        if self.rules is not None:
            mapped = _schemas_with_rules(self.rules, schemas, mapped)
        if self.flattening is not None:
            mapped, objects = _flatten_schemas(self.flattening, mapped)
        return {**declared, "properties": mapped}, frozenset(objects)

    def mapped(self, chunk: Chunk) -> Chunk:
        """Map the records of a chunk; dropped records count as filtered or as bad."""
        mapped: Chunk = (
            map_json_records(self, chunk)
            if isinstance(chunk, JsonRecords)
            else map_table(self, chunk)
        )
        if not self.hides_values or not mapped.bad:
            return mapped
        bad = (
            replace(one, reason=f"{one.reason}; {_TEXT_WITHHELD}", raw=b"") for one in mapped.bad
        )
        return replace(mapped, bad=tuple(bad))
