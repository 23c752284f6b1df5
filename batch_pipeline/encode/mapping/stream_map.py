"""Stream maps and their expressions: parsed and checked, without evaluating them."""

import ast
import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import simpleeval

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.record_rules import RecordMapping

_EVALUATOR = simpleeval.EvalWithCompoundTypes()  # the SDK's is of this class
_RECORD_NAMES = frozenset({"_", "record"})
_FUNCTION_NAMES = frozenset({"md5", "sha256", "datetime", "json", "bool", *_EVALUATOR.functions})
_RESERVED_NAMES = (
    _RECORD_NAMES
    | _FUNCTION_NAMES
    | {"config", "fake", "__stream_name__", "__original_stream_name__"}
)
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
    change a value in place.
    """

    text: str
    reads: frozenset[str]
    reads_all: bool
    copies: str | None
    mutates: bool


def parse_expression(text: object, key: str, own: str | None = None) -> Expression:
    """Parse an expression; `key` is its key in the stream file, `own` the column that `self` means.

    Raises:
        InvalidValueError: The text is not an expression, has parts that are never evaluated, or
            calls a function that does not exist.
    """
    if not isinstance(text, str):
        raise InvalidValueError(key, text, "an expression as text, or null")
    node = _expression_node(text, key)
    for part in ast.walk(node):
        problem = _problem(part)
        if problem is not None:
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
    )


def _expression_node(text: str, key: str) -> ast.Expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in the user's text
            body = ast.parse(text).body
    except SyntaxError as error:
        raise InvalidValueError(key, text, f"{_EXPECTED} ({error.msg})") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidValueError(key, text, f"{_EXPECTED} (Python cannot parse this)") from error
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        raise InvalidValueError(key, text, f"{_EXPECTED} (this is none, or more than one)")
    return body[0]


def _problem(part: ast.AST) -> str | None:
    if type(part) not in _SUPPORTED_NODES:
        return f"{type(part).__name__} is not available"
    if isinstance(part, ast.Attribute):
        return _attribute_problem(part)
    if isinstance(part, ast.Call):
        return _call_problem(part)
    return None


def _attribute_problem(part: ast.Attribute) -> str | None:
    is_hidden = part.attr.startswith(tuple(simpleeval.DISALLOW_PREFIXES))
    if is_hidden or part.attr in simpleeval.DISALLOW_METHODS:
        return f"`.{part.attr}` is not available"
    is_fake = isinstance(part.value, ast.Name) and part.value.id == "fake"
    if is_fake and importlib.util.find_spec("faker") is None:
        return "`fake` needs the package Faker, which is not installed"
    return None


def _call_problem(part: ast.Call) -> str | None:
    if isinstance(part.func, ast.Attribute):
        return None
    if not isinstance(part.func, ast.Name):
        return "only functions and methods can be called"
    if part.func.id in _FUNCTION_NAMES:
        return None
    return f"there is no function {part.func.id!r}; there are {', '.join(sorted(_FUNCTION_NAMES))}"


def _reads(node: ast.Expr) -> tuple[frozenset[str], bool]:
    """Return the columns that an expression may name, and whether it may read any column."""
    names: set[str] = set()
    reads_all = False
    partly: set[int] = set()  # nodes of `record` of which one column is read, as in `record["x"]`
    for part in ast.walk(node):  # parents first
        owner = part.func if isinstance(part, ast.Call) else part
        column = _column_of_get(part) if isinstance(part, ast.Call) else _column_of_record(part)
        if column is not None and isinstance(owner, ast.Subscript | ast.Attribute):
            names.add(column)
            partly.add(id(owner.value))
        elif isinstance(part, ast.Name):
            names.add(part.id)
            reads_all = reads_all or (_is_record(part) and id(part) not in partly)
    return frozenset(names), reads_all


def _copied_column(node: ast.expr, own: str | None) -> str | None:
    if not isinstance(node, ast.Name):
        return _column_of_record(node)
    return own if node.id == "self" else None if node.id in _RESERVED_NAMES else node.id


def _column_of_record(node: ast.AST) -> str | None:
    """Return the column of `record["x"]` or `record.x`, `_` being short for `record`."""
    if not isinstance(node, ast.Subscript | ast.Attribute) or not _is_record(node.value):
        return None
    if isinstance(node, ast.Attribute):
        return None if hasattr(dict, node.attr) else node.attr
    return _text_of(node.slice)


def _column_of_get(node: ast.Call) -> str | None:
    """Return the column of `record.get("x")` or `record.get("x", …)`."""
    function = node.func
    if not isinstance(function, ast.Attribute) or not _is_record(function.value):
        return None
    if function.attr != "get" or not 1 <= len(node.args) <= 2 or node.keywords:
        return None
    return _text_of(node.args[0])


def _text_of(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_record(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in _RECORD_NAMES


_ELSE, _FILTER, _SOURCE = "__else__", "__filter__", "__source__"
_ALIAS, _KEYS = "__alias__", "__key_properties__"
_REMOVED = (None, "__NULL__")


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyRule:
    """The value of a property: that of the expression, or none, which removes the property."""

    name: str
    expression: Expression | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMap:
    """The map of a stream: its new name and keys, its filter, and its rules.

    Without `keeps_unmapped` only keys and mapped properties stay.
    """

    alias: str
    keys: tuple[str, ...]
    filter: Expression | None
    keeps_unmapped: bool
    rules: tuple[PropertyRule, ...]

    @property
    def computed(self) -> tuple[Expression, ...]:
        """The expressions that have to be evaluated on each record."""
        texts = [rule.expression for rule in self.rules if rule.expression is not None]
        computed = [text for text in texts if text.copies is None]
        return (*computed, *([] if self.filter is None else [self.filter]))

    @property
    def hides_values(self) -> bool:
        """Whether values of records are removed or replaced, and so may not appear anywhere.

        Whether a record has a property that a rule makes is not known here, so every rule counts
        but those that leave a property as it is.
        """
        copies = (
            (r.name, None if r.expression is None else r.expression.copies) for r in self.rules
        )
        return not self.keeps_unmapped or any(name != copied for name, copied in copies)


def resolve_stream_map(
    stream: str, mapping: RecordMapping, key_properties: Sequence[str]
) -> StreamMap | None:
    """Return the map of a stream; None if no entry of `stream_maps` applies to it.

    Entries are for a stream or, with wildcards, for several; the last one that matches applies.

    Raises:
        InvalidValueError: an entry for the stream is no map, or one that a single stream cannot
            have: it removes the stream or copies it.
    """
    found: StreamMap | None = None
    removed_by = f"stream_maps.{_ELSE}" if _removes_others(mapping.stream_maps) else None
    for name, entry in mapping.stream_maps.items():
        key = f"stream_maps.{name}"
        if name == _ELSE:
            continue
        if not isinstance(name, str) or name.startswith("__"):
            raise InvalidValueError(key, entry, "the name of a stream, or a pattern, in its place")
        if not _applies_to(stream, name, entry, key):
            continue
        removed_by, found = key, None
        if entry not in _REMOVED:
            removed_by, found = None, _StreamEntry(stream, name, entry, key_properties).map()
    if removed_by is not None:
        expected = f"a map that keeps {stream!r}; to have none of its records, delete its file"
        raise InvalidValueError(removed_by, None, expected)
    return found


def _removes_others(stream_maps: Mapping[str, Any]) -> bool:
    if _ELSE not in stream_maps:
        return False
    if stream_maps[_ELSE] not in _REMOVED:
        raise InvalidValueError(f"stream_maps.{_ELSE}", stream_maps[_ELSE], "null")
    return True


def _applies_to(stream: str, name: str, entry: object, key: str) -> bool:
    source = entry.get(_SOURCE) if isinstance(entry, Mapping) else None
    if source is None:
        return fnmatch(stream, name)
    if isinstance(source, str) and not fnmatch(stream, source):
        return False
    expected = "left out: one stream gives no second one; make a stream file for the copy"
    raise InvalidValueError(f"{key}.{_SOURCE}", source, expected)


class _StreamEntry:
    """One entry of `stream_maps`, read for a stream."""

    def __init__(
        self, stream: str, name: str, entry: object, key_properties: Sequence[str]
    ) -> None:
        self._stream = stream
        self._name = name
        self._key = f"stream_maps.{name}"
        if not isinstance(entry, Mapping):
            raise InvalidValueError(self._key, entry, "a mapping of properties")
        self._options: dict[str, Any] = dict(entry)
        self._key_properties = tuple(key_properties)

    def map(self) -> StreamMap:
        alias = self._alias()
        condition = self._filter()
        keys = self._keys()
        keeps_unmapped = self._keeps_unmapped()
        rules = tuple(self._rule(name, value) for name, value in self._options.items())
        if not keeps_unmapped:
            self._require_mapped(keys, {rule.name for rule in rules})
        for rule in rules:
            if rule.expression is None and rule.name in keys:
                expected = f"an expression, as it is a key, or `{_KEYS}` that do without it"
                raise InvalidValueError(f"{self._key}.{rule.name}", None, expected)
        return StreamMap(
            alias=alias, keys=keys, filter=condition, keeps_unmapped=keeps_unmapped, rules=rules
        )

    def _alias(self) -> str:
        if _ALIAS not in self._options:
            return self._stream
        text, key = self._options.pop(_ALIAS), f"{self._key}.{_ALIAS}"
        if not isinstance(text, str) or not text:
            raise InvalidValueError(key, text, "a name, or an expression that gives one")
        alias = _alias_of(text, self._stream, key)
        if not isinstance(alias, str) or not alias:
            raise InvalidValueError(key, text, f"a name; it gives {alias!r}")
        return self._stream if alias == self._name else alias

    def _filter(self) -> Expression | None:
        text = self._options.pop(_FILTER, None)
        return None if text is None else parse_expression(text, f"{self._key}.{_FILTER}")

    def _keys(self) -> tuple[str, ...]:
        if _KEYS not in self._options:
            return self._key_properties
        keys = self._options.pop(_KEYS)
        if keys is None:
            return ()
        if not isinstance(keys, list | tuple) or not all(isinstance(one, str) for one in keys):
            raise InvalidValueError(f"{self._key}.{_KEYS}", keys, "a list of properties, or null")
        return tuple(keys)

    def _keeps_unmapped(self) -> bool:
        if _ELSE not in self._options:
            return True
        value = self._options.pop(_ELSE)
        if value not in _REMOVED:
            raise InvalidValueError(f"{self._key}.{_ELSE}", value, "null, or left out")
        return False

    def _rule(self, name: str, value: object) -> PropertyRule:
        key = f"{self._key}.{name}"
        if value in _REMOVED:
            return PropertyRule(name=name, expression=None)
        return PropertyRule(name=name, expression=parse_expression(value, key, name))

    def _require_mapped(self, keys: tuple[str, ...], mapped: set[str]) -> None:
        for key in keys:
            if key not in mapped:
                expected = f"a map of the key {key!r} too (`{key}: {key}`), as `{_ELSE}` drops it"
                raise InvalidValueError(f"{self._key}.{_ELSE}", None, expected)


def _alias_of(text: str, stream: str, key: str) -> object:
    """Evaluate an alias; one that names unknown things is a name itself."""
    evaluator = simpleeval.EvalWithCompoundTypes(names={"__stream_name__": stream})
    try:
        return evaluator.eval(text)
    except simpleeval.NameNotDefined:
        return text
    except Exception as error:
        expected = f"a name, or an expression with `__stream_name__` that gives one ({error})"
        raise InvalidValueError(key, text, expected) from error
