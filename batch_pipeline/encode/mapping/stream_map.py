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
    partly: set[ast.AST] = set()  # nodes of `record` of which one column is read: `record["x"]`
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
    """Return the column that a node reads of the record (`_` is short for `record`).

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
        """Whether values of records are removed or replaced, and so may not appear anywhere.

        Whether a record has a property that a rule makes is not known here, so every rule counts
        but those that leave a property as it is.
        """
        changes = (one is None or one.copies != name for name, one in self.rules.items())
        return not self.keeps_unmapped or any(changes)


def resolve_stream_map(
    stream: str, mapping: RecordMapping, key_properties: Sequence[str]
) -> StreamMap | None:
    """Return the map of a stream; None if no entry of `stream_maps` applies to it.

    Entries are for a stream or, with wildcards, for several; the last one that matches applies.

    Raises:
        InvalidValueError: an entry for the stream is no map, or one that a single stream cannot
            have: it removes the stream or copies it.
    """
    resolved: StreamMap | None = None
    entries = dict(mapping.stream_maps)
    removed_by = None
    if _ELSE in entries:
        removed_by = f"stream_maps.{_ELSE}"
        _require(entries.pop(_ELSE) in _REMOVED, removed_by, mapping.stream_maps[_ELSE], "null")
    for name, entry in entries.items():
        key = f"stream_maps.{name}"
        is_name = isinstance(name, str) and not name.startswith("__")
        _require(is_name, key, entry, "the name of a stream, or a pattern, in its place")
        source = entry.get(_SOURCE) if isinstance(entry, Mapping) else None
        pattern = name if source is None else source
        if isinstance(pattern, str) and not fnmatch(stream, pattern):
            continue
        expected = "left out: one stream gives no second one; make a stream file for the copy"
        _require(source is None, f"{key}.{_SOURCE}", source, expected)
        removed_by, resolved = key, None
        if entry not in _REMOVED:
            _require(isinstance(entry, Mapping), key, entry, "a mapping of properties")
            removed_by, resolved = None, _parse_entry(stream, name, dict(entry), key_properties)
    expected = f"a map that keeps {stream!r}; to have none of its records, delete its file"
    _require(removed_by is None, str(removed_by), None, expected)
    return resolved


def _require(condition: bool, key: str, value: object, expected: str) -> None:  # noqa: FBT001
    if not condition:
        raise InvalidValueError(key, value, expected)


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
    _require(is_list, f"{prefix}.{_KEYS}", keys, "a list of properties, or null")
    keeps_unmapped = _ELSE not in options
    unmapped = options.pop(_ELSE, None)
    _require(unmapped in _REMOVED, f"{prefix}.{_ELSE}", unmapped, "null, or left out")
    rules = {
        key: None if text in _REMOVED else parse_expression(text, f"{prefix}.{key}", key)
        for key, text in options.items()
    }
    for key in keys:
        if not keeps_unmapped and key not in rules:
            expected = f"a map of the key {key!r} too (`{key}: {key}`), as `{_ELSE}` drops it"
            raise InvalidValueError(f"{prefix}.{_ELSE}", None, expected)
        expected = f"an expression, as it is a key, or `{_KEYS}` that do without it"
        _require(rules.get(key, ...) is not None, f"{prefix}.{key}", None, expected)
    return StreamMap(
        alias=stream if alias == name else alias,
        keys=tuple(keys),
        filter=None if condition is None else parse_expression(condition, f"{prefix}.{_FILTER}"),
        keeps_unmapped=keeps_unmapped,
        rules=rules,
    )


def _alias_of(text: object, stream: str, key: str) -> str:
    """Evaluate an alias; one that names unknown things is a name itself."""
    _require(isinstance(text, str), key, text, "a name, or an expression that gives one")
    evaluator = simpleeval.EvalWithCompoundTypes(names={"__stream_name__": stream})
    try:
        alias = evaluator.eval(text)
    except simpleeval.NameNotDefined:
        alias = text
    except Exception as error:
        expected = f"a name, or an expression with `__stream_name__` that gives one ({error})"
        raise InvalidValueError(key, text, expected) from error
    _require(isinstance(alias, str) and bool(alias), key, text, f"a name; it gives {alias!r}")
    return str(alias)
