"""Finds the stream map of a stream in its settings and checks it; no record is seen here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import simpleeval

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.record_rules import RecordMapping
from batch_pipeline.spark.map.expression_text import ExpressionText, parse

_ELSE, _FILTER, _SOURCE = "__else__", "__filter__", "__source__"
_ALIAS, _KEYS = "__alias__", "__key_properties__"
_REMOVED = (None, "__NULL__")


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyRule:
    """What becomes of a property: what the expression gives, or nothing."""

    name: str
    expression: ExpressionText | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMap:
    """A stream's map: its name and keys afterwards, which records stay, and their properties.

    Without `keeps_unmapped` only keys and mapped properties stay.
    """

    alias: str
    keys: tuple[str, ...]
    filter: ExpressionText | None
    keeps_unmapped: bool
    rules: tuple[PropertyRule, ...]

    @classmethod
    def without_rules(cls, stream: str, keys: Sequence[str]) -> "StreamMap":
        """Give the map that leaves all as it is."""
        keys = tuple(keys)
        return cls(alias=stream, keys=keys, filter=None, keeps_unmapped=True, rules=())


def stream_map_of(
    stream: str, mapping: RecordMapping, key_properties: Sequence[str]
) -> StreamMap | None:
    """Give the map of a stream; None where no entry of `stream_maps` is for it.

    Entries are for a stream or, with wildcards, for several; the last one that fits is taken.

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
        if not _is_for(stream, name, entry, key):
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


def _is_for(stream: str, name: str, entry: object, key: str) -> bool:
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

    def _filter(self) -> ExpressionText | None:
        text = self._options.pop(_FILTER, None)
        return None if text is None else parse(text, f"{self._key}.{_FILTER}")

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
        return PropertyRule(name=name, expression=parse(value, key))

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
