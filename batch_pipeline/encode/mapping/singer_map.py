"""The Singer SDK's own stream map of a stream, applied to records."""

import copy
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import simpleeval
from singer_sdk.exceptions import MapExpressionError
from singer_sdk.mapper import CustomStreamMap, PluginMapper
from singer_sdk.mapper import StreamMap as SdkMap

from batch_pipeline.encode.mapping.json_text import (
    DECODE_ERRORS,
    UnmappableRecordError,
    decode,
    decode_error_reason,
    decode_fields,
    json_text,
)
from batch_pipeline.encode.mapping.stream_map import StreamMap
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.record_rules import RecordMapping
from batch_pipeline.model.stream import Stream

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
_CACHED_MAPS = 256  # of records, whose maps are kept


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

    Only columns for which `reads` is true need to be values. Placeholders for the others
    are passed through. Flattening is not part of it.
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
        # Columns of a record that decide about the types of mapped properties.
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
        """Return the column that a mapped property is, unless an expression computes it."""
        expression = self._rules.get(name)
        return name if expression is None else expression.copies

    def mapped(self, values: dict[str, Any]) -> dict[str, Any] | None:
        """Map the values of a record; return None if it is filtered out.

        Raises:
            UnmappableRecordError: An expression fails on it.
        """
        try:
            return self._sdk.transform(values.copy() if self._mutates else values)
        except Exception as error:
            raise UnmappableRecordError(self._failure(self._failed(values), error)) from error

    def json_text(self, name: str, value: Any) -> bytes:
        """Return a value of a mapped record as JSON.

        Raises:
            UnmappableRecordError: It has no JSON form.
        """
        try:
            return json_text(value)
        except (TypeError, ValueError, RecursionError) as error:
            is_computed = self._rules.get(name) is not None
            subject = f'stream map of "{name}"'
            reason = self._failure(subject, error) if is_computed else decode_error_reason(error)
            raise UnmappableRecordError(reason) from error

    def is_unchanged(self, value: Any) -> bool:
        """Return whether no expression can have changed a value in place."""
        return not self._mutates or not isinstance(value, dict | list)

    def properties(self, names: Iterable[str]) -> list[str]:
        """Return the properties that mapped records have, given those that there were."""
        return list(self._register(dict.fromkeys(names, TEXT)).transformed_schema["properties"])

    def _texts_of(self, objects: frozenset[tuple[str, bool]]) -> frozenset[str]:
        """Return the mapped properties that flattening leaves whole, as they are no objects.

        The SDK derives their types from the columns `typed_by`; `objects` has their names, and
        whether they are objects or null.
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
        # The same text may be that of several properties, with another `self` for each.
        failed = [
            name
            for name, one in self._rules.items()
            if one is not None
            and one.text == text
            and values.get(name, values.get("self")) is names.get("self")
        ]
        return f'stream map of "{failed[0]}"' if failed else "stream map"

    def _failure(self, subject: str, error: Exception) -> str:
        """Describe an error, without values of the record if they are to be hidden."""
        cause = error.__cause__ if isinstance(error, MapExpressionError) else None
        error = cause if isinstance(cause, Exception) else error
        what = type(error).__name__
        if not self._hides_values or isinstance(error, _ERRORS_WITHOUT_VALUES):
            what = f"{what}: {error}"[:_MAX_REASON_CHARS]
        return f"{subject}: {what}"


Path = tuple[str, ...]


class Flattening:
    """Objects become columns down to `max_depth` levels, named by their path.

    What is deeper, and every array, becomes JSON text.
    """

    def __init__(self, mapping: RecordMapping, *, hides_values: bool) -> None:
        """Check the options; with `hides_values` errors name no properties.

        Raises:
            InvalidValueError: the depth is negative.
        """
        depth = mapping.flattening_max_depth
        if depth is not None and depth < 0:
            raise InvalidValueError("flattening_max_depth", depth, "0 levels or more")
        self.max_depth = sys.maxsize if depth is None else depth
        self._separator = mapping.flattening_separator
        self.objects = mapping.flat_objects
        self._hides_values = hides_values
        self._options = {
            "flattening_enabled": True,
            "flattening_max_depth": self.max_depth,
            "flattening_separator": self._separator,
        }
        self._sdk: Callable[[frozenset[str]], Any] = lru_cache(_CACHED_MAPS)(
            lambda texts: (
                register_stream("records", self._options, dict.fromkeys(texts, TEXT)).transform
            )
        )

    def flattened(
        self, record: Mapping[str, Any], texts: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """Flatten a record, whose values may be JSON text (`msgspec.Raw`) and then stay so.

        Of the objects that are taken apart, none is among `texts`, which become JSON text, and none
        has the name that another property gets.

        Raises:
            UnmappableRecordError: One of two properties with the same name would be lost, or a
                value cannot be read.
        """
        objects: list[tuple[str, int]] = []
        try:
            opened = self._decode_nested(record, (), texts, objects)
            flat: dict[str, Any] = self._sdk(texts)(opened)
            leaves = len(record) + sum(size - 1 for _, size in objects)
            if len(flat) != leaves or any(name in flat for name, _ in objects):
                flat = self._flatten_with_same_names(record, texts)
        except DECODE_ERRORS as error:
            raise UnmappableRecordError(decode_error_reason(error)) from error
        empty = [name for name in self.objects.intersection(flat) if _is_null(flat[name])]
        return {name: value for name, value in flat.items() if name not in empty} if empty else flat

    def duplicate_name(self, name: str) -> UnmappableRecordError:
        """Return the error for two properties to which flattening gives the same name."""
        if self._hides_values:  # names of properties inside of objects can be values, too
            return UnmappableRecordError("cannot be flattened")
        return UnmappableRecordError(f"flattening gives two properties {name!r}")

    def name_of(self, path: Path) -> str:
        """Return the name of the column that a property at a path becomes."""
        record: Any = None
        for name in reversed(path):
            record = {name: record}
        (column,) = self._sdk(frozenset())(record)
        return str(column)

    def _decode_nested(
        self,
        node: Mapping[str, Any],
        path: Path,
        texts: Collection[str],
        objects: list[tuple[str, int]],
    ) -> dict[str, Any]:
        """Decode what is nested; to `objects` add names and sizes of those to be taken apart."""
        result: dict[str, Any] = {}
        for name, value in node.items():
            is_open = len(path) < self.max_depth and (bool(path) or name not in texts)
            if isinstance(value, msgspec.Raw):
                start = bytes(value)[:1]
                if start == b"{" and is_open:
                    value = decode_fields(value)  # noqa: PLW2901
                elif start in (b"{", b"["):
                    value = decode(value)  # noqa: PLW2901
            if isinstance(value, dict) and is_open:
                inner = (*path, name)
                objects.append((self._separator.join(inner), len(value)))
                value = self._decode_nested(value, inner, texts, objects)  # noqa: PLW2901
            result[name] = value
        return result

    def _flatten_with_same_names(
        self, record: Mapping[str, Any], texts: Collection[str]
    ) -> dict[str, Any]:
        """Flatten a record in which an object has the name that another property gets.

        The SDK leaves the object whole then, as JSON text, and of the two values keeps the later
        one. The one that it loses may only be null or an empty object.
        """
        values = {
            name: decode(value) if isinstance(value, msgspec.Raw) else value
            for name, value in record.items()
        }
        schema = {name: TEXT if name in texts else _schema_of(one) for name, one in values.items()}
        try:
            sdk = register_stream("records", self._options, schema)
        except ValueError as error:  # two columns of the schema have the same name
            raise self.duplicate_name(str(error).rpartition(": ")[2]) from error
        leaves: dict[str, Any] = {}
        for name, value in self._leaves(values, (), sdk.transformed_schema["properties"]):
            if name in leaves and leaves[name] not in (None, {}):
                raise self.duplicate_name(name)
            leaves[name] = value
        return dict(sdk.transform(values) or {})

    def _leaves(
        self, node: Mapping[str, Any], path: Path, whole: Collection[str]
    ) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            inner = (*path, key)
            name = self.name_of(inner)
            if isinstance(value, dict) and len(path) < self.max_depth and name not in whole:
                yield from self._leaves(value, inner, whole)
            else:
                yield name, value


def _schema_of(value: Any) -> Mapping[str, Any]:
    if isinstance(value, dict):
        properties = {name: _schema_of(one) for name, one in value.items()}
        return {"type": ["object", "null"], "properties": properties}
    return TEXT


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, msgspec.Raw) and bytes(value) == b"null")
