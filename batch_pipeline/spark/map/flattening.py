"""Flattens nested objects into columns, the way the Singer SDK does; arrays become JSON text.

The schema that the SDK needs for it is taken to describe every object down to its last property.
"""

import re
import sys
from collections.abc import Mapping

import msgspec

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.record_rules import RecordMapping
from batch_pipeline.spark.map.json_text import as_json_string, ascii_json, columns_of, json_of

_ALL_LEVELS = sys.maxsize
_LONGEST_NAME = 254  # longer ones are abbreviated, as the SDK does by default
_WORD_START = re.compile(r"(?:^|_)(.)")
_LOWER_CASE = re.compile(r"[a-z]")
_NESTED = b"{["

Record = dict[str, msgspec.Raw]


class FlattenedTwiceError(ValueError):
    """Two properties of a record would get the same name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"flattening gives two properties {name!r}")


class Flattening:
    """Objects become columns down to `max_depth` levels, named by their path.

    What is deeper, and every array, becomes JSON text. `objects` are names of columns that are left
    out where they are null: in other records they are objects, which become columns.
    """

    def __init__(
        self, *, max_depth: int, separator: str, objects: frozenset[str] = frozenset()
    ) -> None:
        self.max_depth = max_depth
        self.separator = separator
        self.objects = objects
        self._short: set[str] = set()  # names that were seen and are not abbreviated
        self._nested: set[str] = set()  # properties that were seen to be nested

    @classmethod
    def of(cls, mapping: RecordMapping) -> "Flattening | None":
        """Give the flattening of a mapping; None where there is none.

        Raises:
            InvalidValueError: the depth is negative.
        """
        if not mapping.flattening_enabled:
            return None
        depth = (
            _ALL_LEVELS if mapping.flattening_max_depth is None else mapping.flattening_max_depth
        )
        if depth < 0:
            raise InvalidValueError("flattening_max_depth", depth, "0 levels or more")
        if not depth:
            return None
        separator, objects = mapping.flattening_separator, mapping.flat_objects
        return cls(max_depth=depth, separator=separator, objects=objects)

    def flattened(
        self, record: Record, *, left: Mapping[str, bool], text: bytes | None = None
    ) -> Record:
        """Flatten a record, whose JSON text may be given.

        Properties in `left` are not taken apart: those that map to True become JSON text when they
        are nested, the others stay as they are. Nor are objects with the name of another property.

        Raises:
            FlattenedTwiceError: two properties would get the same name.
        """
        flat = self._flattened(record, left=left, text=text)
        for name in self.objects.intersection(flat) if self.objects else ():
            if bytes(flat[name]) == b"null":
                flat = {key: value for key, value in flat.items() if key != name}
        return flat

    def _flattened(self, record: Record, *, left: Mapping[str, bool], text: bytes | None) -> Record:
        parts: dict[str, Record] = {}
        taken: Record = {}
        opened: set[str] = set()
        for name in self._to_flatten(record, json_of(record) if text is None else text):
            parts[name] = self._part(name, record[name], left, opened)
            for key, value in parts[name].items():
                _put(taken, key, value)
        if not parts:
            return record
        flat: Record = {}
        for name, value in record.items():
            if name in parts:
                flat.update(parts[name])
            else:
                flat[name] = value
        if len(flat) < len(record) - len(parts) + len(taken):
            raise FlattenedTwiceError(next(name for name in taken if name in record))
        if not opened.isdisjoint(flat):
            return _NamesakesKept(self, left, frozenset(flat)).flattened(record)
        return flat

    def _to_flatten(self, record: Record, text: bytes) -> set[str]:
        """Find the properties that are nested, or whose names are too long.

        Looking at each value would take longer than all the rest: where the properties known to be
        nested hold all the braces and brackets of the record, the others hold none.
        """
        if not record.keys() <= self._short:
            self._short.update(name for name in record if len(name) <= _LONGEST_NAME)
        long_names = record.keys() - self._short
        known = self._nested.intersection(record)
        values = [bytes(record[name]) for name in known]
        braces = text.count(b"{") - 1 - sum(value.count(b"{") for value in values)
        brackets = text.count(b"[") - sum(value.count(b"[") for value in values)
        if braces or brackets:
            known = {name for name, value in record.items() if bytes(value)[0] in _NESTED}
            self._nested |= known
        return known | long_names

    def _part(
        self, name: str, value: msgspec.Raw, left: Mapping[str, bool], opened: set[str]
    ) -> Record:
        if name in left:
            return {short_name((name,), self.separator): _as_text(value) if left[name] else value}
        part: Record = {}
        self._add((name,), value, part, opened)
        return part

    def _add(
        self, path: tuple[str, ...], value: msgspec.Raw, flat: Record, opened: set[str]
    ) -> None:
        if bytes(value)[:1] == b"{" and len(path) <= self.max_depth:
            opened.add(short_name(path, self.separator))
            for name, one in columns_of(value).items():
                self._add((*path, name), one, flat, opened)
        else:
            _put(flat, short_name(path, self.separator), _as_text(value))


class _NamesakesKept:
    """Flattens a record in which an object has the name that another property gets.

    As with the SDK the object stays whole then, as JSON text, and of the two values the later one
    is the property. The SDK loses the earlier one; here it may only be null or an empty object.
    `names` are those of the properties if all objects are taken apart.
    """

    def __init__(
        self, flattening: Flattening, left: Mapping[str, bool], names: frozenset[str]
    ) -> None:
        self._flattening = flattening
        self._left = left
        self._names = names
        self._flat: Record = {}
        self._empty: set[str] = set()

    def flattened(self, record: Record) -> Record:
        for name, value in record.items():
            if name in self._left and not self._left[name]:
                self._put(short_name((name,), self._flattening.separator), value, value)
            else:
                self._add((name,), value, is_left=name in self._left)
        return self._flat

    def _add(self, path: tuple[str, ...], value: msgspec.Raw, *, is_left: bool = False) -> None:
        name = short_name(path, self._flattening.separator)
        is_open = bytes(value)[:1] == b"{" and len(path) <= self._flattening.max_depth
        if is_open and not is_left and name not in self._names:
            for inner, one in columns_of(value).items():
                self._add((*path, inner), one)
        else:
            self._put(name, value, _as_text(value))

    def _put(self, name: str, value: msgspec.Raw, written: msgspec.Raw) -> None:
        if name in self._flat and name not in self._empty:
            raise FlattenedTwiceError(name)
        text = bytes(value)
        if text == b"null" or (text[:1] == b"{" and not columns_of(value)):
            self._empty.add(name)
        else:
            self._empty.discard(name)
        self._flat[name] = written


def _as_text(value: msgspec.Raw) -> msgspec.Raw:
    if bytes(value)[0] not in _NESTED:
        return value
    return msgspec.Raw(as_json_string(ascii_json(value)))


def _put(flat: Record, name: str, value: msgspec.Raw) -> None:
    if name in flat:
        raise FlattenedTwiceError(name)
    flat[name] = value


def short_name(path: tuple[str, ...], separator: str) -> str:
    """Join the names of a path; parents are abbreviated, first ones first, while it is too long."""
    name = separator.join(path)
    if len(name) <= _LONGEST_NAME:
        return name
    parts = list(path)
    for index, part in enumerate(parts):
        if len(separator.join(parts)) <= _LONGEST_NAME:
            break
        capitals = _LOWER_CASE.sub("", _WORD_START.sub(lambda match: match[1].upper(), part))
        parts[index] = (capitals if len(capitals) > 1 else part[:3]).lower()
    return separator.join(parts)
