"""Descriptions of types, bounds and defaults for the stream file reference."""

import json
import re
import types
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator
from pydantic.fields import FieldInfo

from batch_pipeline.config.attribute_types import (
    Command,
    Duration,
    Location,
    QueueUrl,
    Section,
    Size,
    TargetConfig,
    Variable,
    Where,
    stream_name,
)
from batch_pipeline.config.stream_attributes import LineageValue, OnBadFileValue
from batch_pipeline.config.units import format_bytes, format_duration

_DEFAULT_TEXT = re.compile(
    r" \((?:(?:bytes|seconds), or with a unit[^;()]*; )?default:? ([^()]+)\)"
)
_NO_BOUND = 2**31 - 1


def _reader(kind: Any) -> Any:
    """Return the function that parses values of a type."""
    validators = (BeforeValidator, AfterValidator)
    return next(it.func for it in get_args(kind)[1:] if isinstance(it, validators))


_KINDS = {
    stream_name: "name",
    _reader(Size): "size",
    _reader(Duration): "duration",
    _reader(Location): "location",
    _reader(QueueUrl): "URL",
    _reader(Where): "filter",
    _reader(Command): "text, or list of words",
    _reader(TargetConfig): "keys and values",
    _reader(Variable): "`$NAME`",
}
_SHORT_FORMS = {
    _reader(LineageValue): "`true`, or a ",
    _reader(OnBadFileValue): "`fail`, `skip` or `quarantine`, or ",
}
_PLAIN = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}


def type_words(field: FieldInfo, path: str) -> str:
    """Describe the type of a key with its bounds; `path` is used in links to sections."""
    return _words(field.annotation, field.metadata, path)


def meaning(field: FieldInfo) -> str:
    """Return the description of a key without its default."""
    return _DEFAULT_TEXT.sub("", _text(field))


def _text(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def described_default(field: FieldInfo) -> str | None:
    """Return the default in a description, if any."""
    match = _DEFAULT_TEXT.search(_text(field))
    return None if match is None else match[1]


def model_default(field: FieldInfo) -> str | None:
    """Return a default as YAML text; None if it needs a description."""
    value = field.default
    is_empty = isinstance(value, str | tuple | dict) and not value
    if field.is_required() or isinstance(value, Section) or value is None or is_empty:
        return None
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, str):
        return value
    is_size = _reader(Size) in _readers(field.metadata)
    return _size(value) if is_size and value else json.dumps(value)


def anchor(path: str) -> str:
    """Return the anchor of a section."""
    return f"#{path.replace('.', '').lower()}"


def section_in(annotation: Any) -> type[Section] | None:
    """Return the section in an annotation, alone or in a list or mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    sections = (section_in(argument) for argument in get_args(annotation))
    return next((section for section in sections if section is not None), None)


def _words(annotation: Any, metadata: Sequence[Any], path: str) -> str:
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _words(inner, [*metadata, *more], path)
    readers = _readers(metadata)
    kind = next((_KINDS[reader] for reader in readers if reader in _KINDS), None)
    short = next((_SHORT_FORMS[reader] for reader in readers if reader in _SHORT_FORMS), "")
    return f"{short}{kind or _plain(annotation, path)}{_bounds(annotation, metadata, kind)}"


def _constraints(metadata: Sequence[Any]) -> list[Any]:
    return [
        constraint
        for entry in metadata
        for constraint in (entry.metadata if isinstance(entry, FieldInfo) else [entry])
    ]


def _readers(metadata: Sequence[Any]) -> list[Any]:
    return [getattr(constraint, "func", None) for constraint in _constraints(metadata)]


def _plain(annotation: Any, path: str) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in {Union, types.UnionType}:
        return " or ".join(_words(member, (), path) for member in inner if member is not type(None))
    if section_in(annotation) is not None:
        place = f"{path}.NAME" if origin is dict else path
        return f"[{'list of keys' if origin is tuple else 'keys'}]({anchor(place)})"
    if origin is tuple:
        item = _words(inner[0], (), path)
        return f"list of {item}" if item.startswith("`") else f"list of {item}s"
    if origin is Literal or (isinstance(annotation, type) and issubclass(annotation, StrEnum)):
        return _choice(inner or [member.value for member in annotation])
    return "keys and values" if origin is dict else _PLAIN[annotation]


def _choice(values: Sequence[str]) -> str:
    *most, last = (f"`{value}`" for value in values)
    return f"{', '.join(most)} or {last}"


def _bounds(annotation: Any, metadata: Sequence[Any], kind: str | None) -> str:
    bounds = {
        name: getattr(constraint, name)
        for constraint in _constraints(metadata)
        for name in ("ge", "le", "min_length")
        if getattr(constraint, name, None) is not None
    }
    least, most = bounds.get("ge"), bounds.get("le", _NO_BOUND)
    if get_origin(annotation) is tuple and "min_length" in bounds:
        return ", at least one"
    if least is None:
        return ""
    if most < _NO_BOUND:
        return f" from {least} to {most}"
    return f", {_size(least) if kind == 'size' else least} or more"


def _size(size_bytes: int) -> str:
    return format_bytes(size_bytes).replace(" ", "")
