"""Stream maps and flattening: checked here, applied to records by the Singer SDK's own code."""

import ast
import copy
import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from typing import Any

import msgspec
import simpleeval
from singer_sdk.exceptions import MapExpressionError
from singer_sdk.mapper import CustomStreamMap, PluginMapper
from singer_sdk.mapper import StreamMap as SdkMap
from singer_sdk.singerlib.json import serialize_json

from batch_pipeline.encode.mapping.records import (
    DECODE_ERRORS,
    decode,
    decode_error_reason,
    decode_fields,
    is_null,
    json_text,
)
from batch_pipeline.encode.validation.json_records import BadRecordError
from batch_pipeline.model.errors import InvalidValueError, require
from batch_pipeline.model.record_rules import RecordMapping
from batch_pipeline.model.stream import Stream

_EVALUATOR = simpleeval.EvalWithCompoundTypes()  # the SDK's is of this class
_RECORD_NAMES = frozenset({"_", "record"})
_FUNCTION_NAMES = frozenset({"md5", "sha256", "datetime", "json", "bool", *_EVALUATOR.functions})
_RESERVED_NAMES = (
    _RECORD_NAMES
    | _FUNCTION_NAMES
    | {"config", "fake", "__stream_name__", "__original_stream_name__"}
)
_RANDOM_FUNCTIONS = frozenset({"rand", "randint"})
_MUTATING_METHODS = frozenset(  # methods that change a list, an object or a set in place
    {
        *("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"),
        *("popitem", "setdefault", "update", "add", "discard", "difference_update"),
        *("intersection_update", "symmetric_difference_update"),
    }
)
_SUPPORTED_NODES = {
    *(*_EVALUATOR.nodes, *_EVALUATOR.operators, ast.And, ast.Or),
    *(ast.comprehension, ast.Starred, ast.Load, ast.Store),
}
_EXPECTED = "one expression of the kind that the Singer SDK's stream maps know"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression.

    `reads` are the columns that it may name; with `reads_all` it may read any. `copies` is the
    column that it copies, if it is only a name. `mutates` states whether it calls methods that can
    change a value in place, `is_random` whether it calls functions with random results.
    """

    text: str
    reads: frozenset[str]
    reads_all: bool
    copies: str | None
    mutates: bool
    is_random: bool


def parse_expression(text: object, key: str, own: str | None = None) -> Expression:
    """Parse an expression; `key` is its key in the stream file, `self` in it is the column `own`.

    Raises:
        InvalidValueError: The text is not an expression, has parts that are never evaluated, or
            calls a function that does not exist.
    """
    if not isinstance(text, str):
        raise InvalidValueError(key, text, "an expression as text, or null")
    node = _expression_node(text, key)
    for part in ast.walk(node):
        if problem := _problem(part):
            raise InvalidValueError(key, text, f"{_EXPECTED} ({problem})")
    reads, reads_all = _reads(node)
    mutates = any(
        isinstance(one, ast.Attribute) and one.attr in _MUTATING_METHODS for one in ast.walk(node)
    )
    return Expression(
        text=text,
        reads=reads | {own} if own is not None and "self" in reads else reads,
        reads_all=reads_all or mutates,
        copies=_copied_column(node.value, own),
        mutates=mutates,
        is_random=any(map(_is_random, ast.walk(node))),
    )


def _is_random(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):  # Faker
        return getattr(node.value, "id", None) == "fake"
    return isinstance(node, ast.Call) and getattr(node.func, "id", None) in _RANDOM_FUNCTIONS


def _expression_node(text: str, key: str) -> ast.Expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd escapes in the user's text
            body = ast.parse(text).body
    except SyntaxError as error:
        raise InvalidValueError(key, text, f"{_EXPECTED} ({error.msg})") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidValueError(key, text, f"{_EXPECTED} (Python cannot parse this)") from error
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        raise InvalidValueError(key, text, f"{_EXPECTED} (this is none, or more than one)")
    return body[0]


def _problem(part: ast.AST) -> str | None:
    """Return why a part of an expression cannot be evaluated, or None."""
    if type(part) not in _SUPPORTED_NODES:
        return f"{type(part).__name__} is not available"
    if isinstance(part, ast.Attribute):
        is_hidden = part.attr.startswith(tuple(simpleeval.DISALLOW_PREFIXES))
        if is_hidden or part.attr in simpleeval.DISALLOW_METHODS:
            return f"`.{part.attr}` is not available"
        is_fake = isinstance(part.value, ast.Name) and part.value.id == "fake"
        if is_fake and importlib.util.find_spec("faker") is None:
            return "`fake` needs the package Faker, which is not installed"
    elif isinstance(part, ast.Call) and not isinstance(part.func, ast.Attribute):
        if not isinstance(part.func, ast.Name):
            return "only functions and methods can be called"
        if part.func.id not in _FUNCTION_NAMES:
            known = ", ".join(sorted(_FUNCTION_NAMES))
            return f"there is no function {part.func.id!r}; there are {known}"
    return None


def _reads(node: ast.Expr) -> tuple[frozenset[str], bool]:
    """Return the columns that an expression may name, and whether it may read any column."""
    names: set[str] = set()
    reads_all = False
    partly: set[ast.AST] = set()  # nodes of `record` from which one column is read: `record["x"]`
    for part in ast.walk(node):  # parents first
        column = _column_of_record(part)
        if column is not None:
            names.add(column)
            owner = part.func if isinstance(part, ast.Call) else part
            if isinstance(owner, ast.Subscript | ast.Attribute):
                partly.add(owner.value)
        elif isinstance(part, ast.Name):
            names.add(part.id)
            reads_all = reads_all or (part.id in _RECORD_NAMES and part not in partly)
    return frozenset(names), reads_all


def _copied_column(node: ast.expr, own: str | None) -> str | None:
    if not isinstance(node, ast.Name):
        return None if isinstance(node, ast.Call) else _column_of_record(node)
    return own if node.id == "self" else None if node.id in _RESERVED_NAMES else node.id


def _column_of_record(node: ast.AST) -> str | None:
    """Return the column that a node reads from the record (`_` is short for `record`).

    It is `x` in `record["x"]`, `record.x`, `record.get("x")` and `record.get("x", …)`.
    """
    match node:
        case ast.Subscript(
            value=ast.Name(id="record" | "_"), slice=ast.Constant(value=str() as column)
        ):
            return column
        case ast.Attribute(value=ast.Name(id="record" | "_"), attr=column):
            return None if hasattr(dict, column) else column
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="record" | "_"), attr="get"),
            args=[ast.Constant(value=str() as column)] | [ast.Constant(value=str() as column), _],
            keywords=[],
        ):
            return column
    return None


_ELSE, _FILTER, _SOURCE = "__else__", "__filter__", "__source__"
_ALIAS, _KEYS = "__alias__", "__key_properties__"
_REMOVED = (None, "__NULL__")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMap:
    """The map of a stream: its new name and keys, its filter, and its rules.

    A rule is the expression of a property, or None, which removes the property. Without
    `keeps_unmapped` only keys and mapped properties stay.
    """

    alias: str
    keys: tuple[str, ...]
    filter: Expression | None
    keeps_unmapped: bool
    rules: Mapping[str, Expression | None]

    @property
    def computed(self) -> tuple[Expression, ...]:
        """The expressions that have to be evaluated on each record."""
        texts = [one for one in self.rules.values() if one is not None and one.copies is None]
        return (*texts, *([] if self.filter is None else [self.filter]))

    @property
    def hides_values(self) -> bool:
        """Whether values of records are removed or replaced, and so must not appear anywhere.

        It is not known here whether a record has a property that a rule sets, so every rule counts
        except those that leave a property unchanged.
        """
        changes = (one is None or one.copies != name for name, one in self.rules.items())
        return not self.keeps_unmapped or any(changes)


def resolve_stream_map(
    stream: str, mapping: RecordMapping, key_properties: Sequence[str]
) -> StreamMap | None:
    """Return the map of a stream; None if no entry of `stream_maps` applies to it.

    An entry is for one stream or, with wildcards, for several; the last entry that matches applies.

    Raises:
        InvalidValueError: an entry for the stream is not a map, or it removes or copies the stream,
            which is not possible for a single stream.
    """
    resolved: StreamMap | None = None
    entries = dict(mapping.stream_maps)
    removed_by = None
    if _ELSE in entries:
        removed_by = f"stream_maps.{_ELSE}"
        require(entries.pop(_ELSE) in _REMOVED, removed_by, mapping.stream_maps[_ELSE], "null")
    for name, entry in entries.items():
        key = f"stream_maps.{name}"
        is_name = isinstance(name, str) and not name.startswith("__")
        require(is_name, key, entry, "the name of a stream, or a pattern, instead")
        source = entry.get(_SOURCE) if isinstance(entry, Mapping) else None
        pattern = name if source is None else source
        if isinstance(pattern, str) and not fnmatch(stream, pattern):
            continue
        expected = "nothing: a stream cannot produce a second one; create a stream file for it"
        require(source is None, f"{key}.{_SOURCE}", source, expected)
        removed_by, resolved = key, None
        if entry not in _REMOVED:
            require(isinstance(entry, Mapping), key, entry, "a mapping of properties")
            removed_by, resolved = None, _parse_entry(stream, name, dict(entry), key_properties)
    expected = f"a map that keeps {stream!r}; to have none of its records, delete its file"
    require(removed_by is None, str(removed_by), None, expected)
    return resolved


def _parse_entry(
    stream: str, name: str, options: dict[str, Any], key_properties: Sequence[str]
) -> StreamMap:
    prefix = f"stream_maps.{name}"
    alias = stream
    if _ALIAS in options:
        alias = _alias_of(options.pop(_ALIAS), stream, f"{prefix}.{_ALIAS}")
    condition = options.pop(_FILTER, None)
    keys = options.pop(_KEYS, key_properties)
    keys = () if keys is None else keys
    is_list = isinstance(keys, list | tuple) and all(isinstance(one, str) for one in keys)
    require(is_list, f"{prefix}.{_KEYS}", keys, "a list of properties, or null")
    keeps_unmapped = _ELSE not in options
    unmapped = options.pop(_ELSE, None)
    require(unmapped in _REMOVED, f"{prefix}.{_ELSE}", unmapped, "null, or nothing")
    rules = {
        key: None if text in _REMOVED else parse_expression(text, f"{prefix}.{key}", key)
        for key, text in options.items()
    }
    for key in keys:
        expected = f"a map of the key {key!r} too (`{key}: {key}`), because `{_ELSE}` drops it"
        require(keeps_unmapped or key in rules, f"{prefix}.{_ELSE}", None, expected)
        expected = f"an expression, because it is a key, or `{_KEYS}` without it"
        require(rules.get(key, ...) is not None, f"{prefix}.{key}", None, expected)
    return StreamMap(
        alias=stream if alias == name else alias,
        keys=tuple(keys),
        filter=None if condition is None else parse_expression(condition, f"{prefix}.{_FILTER}"),
        keeps_unmapped=keeps_unmapped,
        rules=rules,
    )


def _alias_of(text: object, stream: str, key: str) -> str:
    """Evaluate an alias; a text with undefined names is the alias itself."""
    require(isinstance(text, str), key, text, "a name, or an expression that returns one")
    evaluator = simpleeval.EvalWithCompoundTypes(names={"__stream_name__": stream})
    try:
        alias = evaluator.eval(text)
    except simpleeval.NameNotDefined:
        alias = text
    except Exception as error:
        expected = f"a name, or an expression with `__stream_name__` that returns one ({error})"
        raise InvalidValueError(key, text, expected) from error
    require(isinstance(alias, str) and bool(alias), key, text, f"a name; it returns {alias!r}")
    return str(alias)


TEXT: Mapping[str, Any] = {"type": ["string", "null"]}
OBJECT: Mapping[str, Any] = {"type": ["object", "null"], "properties": {}}
_MAX_REASON_CHARS = 300  # characters; some exceptions repeat the whole value
_ERRORS_WITHOUT_VALUES = (  # exceptions whose texts are about types and names, never about values
    simpleeval.NameNotDefined,
    simpleeval.FunctionNotDefined,
    simpleeval.AttributeDoesNotExist,
    simpleeval.OperatorNotDefined,
    simpleeval.FeatureNotAvailable,
    simpleeval.IterableTooLong,
    AttributeError,
    TypeError,
    ZeroDivisionError,
)
_CACHED_MAPS = 256  # kinds of records whose maps are cached
_CACHED_NAMES = 10_000  # of flattened properties


def register_stream(
    stream: str, options: Mapping[str, Any], properties: Mapping[str, Any], keys: Iterable[str] = ()
) -> SdkMap:
    """Return the SDK's map of a stream whose schema has these properties.

    Raises:
        Exception: the SDK refuses the options, or the schema that they result in.
    """
    mapper = PluginMapper(copy.deepcopy(dict(options)), logging.getLogger(__name__))
    schema = {"type": ["object", "null"], "properties": {**properties}}
    mapper.register_raw_stream_schema(stream, copy.deepcopy(schema), list(keys))
    return mapper.stream_maps[stream][0]


class SingerMap:
    """The filter and the rules of a stream map, evaluated by the SDK.

    Only columns for which `reads` returns true need to be values. Placeholders for the others
    are passed through. Flattening is not included.
    """

    def __init__(self, stream: Stream, stream_map: StreamMap, *, hides_values: bool) -> None:
        self._stream = stream.name
        self._options = {
            "stream_maps": stream.mapping.stream_maps,
            "stream_map_config": stream.mapping.stream_map_config,
        }
        self._keys = stream.key_properties
        self._map = stream_map
        self._hides_values = hides_values
        self._rules = stream_map.rules
        computed = stream_map.computed
        self.mapped_names = [name for name, one in self._rules.items() if one is not None]
        self._reads = frozenset[str]().union(*(text.reads for text in computed))
        self._reads_all = any(text.reads_all for text in computed)
        # Columns of a record that determine the types of mapped properties.
        self.typed_by = {*self._rules, *(one.text for one in self._rules.values() if one)}
        self._mutates = any(text.mutates for text in computed)
        self.is_static = not computed
        self.only_filters = not self._rules and stream_map.keeps_unmapped and not self._mutates
        try:
            self._sdk = self._register({})
        except Exception as error:
            expected = f"maps that the Singer SDK can apply ({error})"
            raise InvalidValueError("stream_maps", None, expected) from error
        self.texts = lru_cache(_CACHED_MAPS)(self._texts_of)

    def reads(self, name: str) -> bool:
        """Return whether an expression may read the value of a column."""
        return self._reads_all or name in self._reads

    def source(self, name: str) -> str | None:
        """Return the column that a mapped property copies, unless an expression computes it."""
        expression = self._rules.get(name)
        return name if expression is None else expression.copies

    def mapped(self, values: dict[str, Any]) -> dict[str, Any] | None:
        """Map the values of a record; return None if it is filtered out.

        Raises:
            BadRecordError: An expression fails on it.
        """
        try:
            return self._sdk.transform(values.copy() if self._mutates else values)
        except Exception as error:
            raise BadRecordError(self._failure(self._failed(values), error)) from error

    def json_text(self, name: str, value: Any) -> bytes:
        """Return a value of a mapped record as JSON.

        Raises:
            BadRecordError: It has no JSON form.
        """
        try:
            return json_text(value)
        except (TypeError, ValueError, RecursionError) as error:
            is_computed = self._rules.get(name) is not None
            subject = f'stream map of "{name}"'
            reason = self._failure(subject, error) if is_computed else decode_error_reason(error)
            raise BadRecordError(reason) from error

    def is_unchanged(self, value: Any) -> bool:
        """Return whether no expression can have changed a value in place."""
        return not self._mutates or not isinstance(value, dict | list)

    def properties(self, names: Iterable[str]) -> list[str]:
        """Return the properties of mapped records, given those of the original records."""
        return list(self._register(dict.fromkeys(names, TEXT)).transformed_schema["properties"])

    def _texts_of(self, objects: frozenset[tuple[str, bool]]) -> frozenset[str]:
        """Return the mapped properties that flattening leaves whole, as they are not objects.

        The SDK derives their types from the columns `typed_by`; `objects` holds the names of these
        columns, and whether they are objects or null.
        """
        kinds = {name: OBJECT if is_object else TEXT for name, is_object in objects}
        schema = self._register(kinds).transformed_schema["properties"]
        return frozenset(
            name for name in self._rules if "properties" not in schema.get(name, OBJECT)
        )

    def _register(self, properties: Mapping[str, Any]) -> SdkMap:
        keys = dict.fromkeys((*self._keys, *self._map.keys), TEXT)
        return register_stream(self._stream, self._options, {**keys, **properties}, self._keys)

    def _failed(self, values: Mapping[str, Any]) -> str:
        """Return the filter or property whose expression was evaluated last."""
        assert isinstance(self._sdk, CustomStreamMap)  # noqa: S101 - for the type checker
        text, names = self._sdk.expr_evaluator.expr, self._sdk.expr_evaluator.names
        if self._map.filter is not None and self._map.filter.text == text:
            return "filter of the stream map"
        # Several properties may have the same text, with a different `self` for each.
        failed = [
            name
            for name, one in self._rules.items()
            if one is not None
            and one.text == text
            and values.get(name, values.get("self")) is names.get("self")
        ]
        return f'stream map of "{failed[0]}"' if failed else "stream map"

    def _failure(self, subject: str, error: Exception) -> str:
        """Describe an error, without values of the record if they must be hidden."""
        cause = error.__cause__ if isinstance(error, MapExpressionError) else None
        error = cause if isinstance(cause, Exception) else error
        what = type(error).__name__
        if not self._hides_values or isinstance(error, _ERRORS_WITHOUT_VALUES):
            what = f"{what}: {error}"[:_MAX_REASON_CHARS]
        return f"{subject}: {what}"


Path = tuple[str, ...]


class Flattening:
    """The flattening of objects into columns, down to `max_depth` levels and named by their path.

    Deeper objects, and all arrays, become JSON text.
    """

    def __init__(self, mapping: RecordMapping, *, hides_values: bool) -> None:
        """Check the options; with `hides_values` errors name no properties.

        Raises:
            InvalidValueError: the depth is negative.
        """
        depth = mapping.flattening_max_depth
        require(depth is None or depth >= 0, "flattening_max_depth", depth, "0 levels or more")
        self.max_depth = sys.maxsize if depth is None else depth
        self.separator = mapping.flattening_separator
        self.objects = mapping.flat_objects
        self._hides_values = hides_values
        options = {
            "flattening_enabled": True,
            "flattening_max_depth": self.max_depth,
            "flattening_separator": self.separator,
        }
        self._sdk = register_stream("records", options, {})
        self.name_of = lru_cache(_CACHED_NAMES)(self._name_of)

    def flattened(
        self, record: Mapping[str, Any], texts: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """Flatten a record; values that are JSON text (`msgspec.Raw`) remain JSON text.

        Objects in `texts` are not flattened but become JSON text. Objects whose name another
        property gets are not flattened either.

        Raises:
            BadRecordError: One of two properties with the same name would be lost, or a
                value cannot be read.
        """
        objects: set[str] = set()
        try:
            leaves = self._leaves(record, lambda path: len(path) == 1 and path[0] in texts, objects)
            flat = self._by_name(leaves)
            if not objects.isdisjoint(flat):
                names = frozenset(flat)
                leaves = self._leaves(record, lambda path: self.name_of(path) in names, objects)
                flat = self._by_name(leaves, may_lose_empty=True)
            flat = {name: _text_of_nested(value) for name, value in flat.items()}
        except DECODE_ERRORS as error:
            raise BadRecordError(decode_error_reason(error)) from error
        empty = [name for name in self.objects.intersection(flat) if is_null(flat[name])]
        return {name: value for name, value in flat.items() if name not in empty} if empty else flat

    def _leaves(
        self,
        node: Mapping[str, Any],
        is_whole: Callable[[Path], bool],
        objects: set[str],
        parents: Path = (),
    ) -> Iterator[tuple[str, Any]]:
        """Yield names and values of the columns of an object; add the flattened ones to `objects`.

        `is_whole` returns whether the object at a path is not flattened.
        """
        for key, value in node.items():
            path = (*parents, key)
            if _is_object(value) and len(parents) < self.max_depth and not is_whole(path):
                objects.add(self.name_of(path))
                yield from self._leaves(decode_fields(value), is_whole, objects, path)
            else:
                yield self.name_of(path), value

    def _by_name(
        self, leaves: Iterable[tuple[str, Any]], *, may_lose_empty: bool = False
    ) -> dict[str, Any]:
        """Return values by name; only null or an empty object may be replaced by a later value."""
        flat: dict[str, Any] = {}
        for name, value in leaves:
            if name in flat and not (may_lose_empty and _is_empty(flat[name])):
                # Names of properties inside of objects can be values, too.
                if self._hides_values:
                    raise BadRecordError("cannot be flattened")
                raise BadRecordError(f"flattening produces two properties {name!r}")
            flat[name] = value
        return flat

    def _name_of(self, path: Path) -> str:
        """Return the name of the column that a property at a path becomes."""
        record: Any = None
        for name in reversed(path):
            record = {name: record}
        (column,) = self._sdk.transform(record) or {}
        return str(column)


def _is_object(value: Any) -> bool:
    return isinstance(value, msgspec.Raw) and bytes(value).startswith(b"{")


def _is_empty(value: Any) -> bool:
    return is_null(value) or (_is_object(value) and decode(value) == {})


def _text_of_nested(value: Any) -> Any:
    """Return the text that the SDK makes of an object or array, any other value as it is."""
    if isinstance(value, msgspec.Raw) and bytes(value).startswith((b"{", b"[")):
        return serialize_json(decode(value))
    return value
