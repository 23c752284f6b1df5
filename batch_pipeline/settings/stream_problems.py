"""What is wrong with a stream file, in the words of the file.

Turns validation errors of the models into lines and sentences; files are not read here.
"""

import difflib
import re
from collections.abc import Hashable
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from batch_pipeline.settings.stream_values import REFUSAL
from batch_pipeline.settings.yaml_lines import Document, Problem

_KEYS = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]")
# Keys and values of earlier releases, with what to use instead.
_AS_CSV = (
    "convert the files to csv, or read each line as one cell: `format: csv` with "
    "`options: {names: [line]}` and a `delimiter` and a `quote` that occur in no line"
)
_REMOVED = {
    "`batch.target_seconds`": "choose `batch.max_weight` and `batch.max_count` instead, which "
    "bound a batch",
    "`source.options.columns`": _AS_CSV,
    "`storage.archive`": "copy files away before `keep_superseded` or `keep_loaded` ends, or leave "
    "these keys out to keep all generations",
}
_REMOVED_VALUES = {("`source.format`", "text"): _AS_CSV}
_EXPECTED = {
    "string_type": "text (in quotes where YAML takes it for something else)",
    "int_type": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list, for example [a, b]",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
    "string_too_short": "some text",
    "too_short": "at least one entry",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}


def problem_of(document: Document, error: ErrorDetails, file: type[BaseModel]) -> Problem:
    """Say one validation error in the words of a file, at the line of the key or value."""
    path: tuple[Hashable, ...] = error["loc"]
    context: dict[str, Any] = error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        return Problem(line=document.line(path, of_key=True), text=_unknown_key(path, file))
    if error["type"] == "invalid_key":
        text = f"the key {error['input']!r:.80} is no text; {_known_keys(path[:-1], file)}"
        return Problem(line=document.line(path, of_key=True), text=text)
    if error["type"] == "missing":
        text = f"{_dotted(path)} is missing"
        return Problem(line=document.line(path[:-1], of_key=True), text=text)
    if error["type"] == REFUSAL:
        if context["key"]:
            path = ("attributes", *keys_of(context["key"]))
        return Problem(line=document.line(path), text=f"{_dotted(path)} {context['problem']}")
    if (removed := _removed_value(_dotted(path), error["input"])) is not None:
        text = f"{_dotted(path)} {error['input']} was removed; {removed}"
        return Problem(line=document.line(path), text=text)
    usual = context.get("expected") or error["msg"].removeprefix("Input should be ")
    expected = _EXPECTED.get(error["type"], usual).format_map(context)
    text = f"{_dotted(path)} is {_shown(error['input'])}; expected {expected}"
    of_key = error["input"] is None
    return Problem(line=document.line(path, of_key=of_key), text=text)


def keys_of(dotted: str) -> list[Hashable]:
    """Split `a.b[0].c` into its keys; entries are counted from 0."""
    return [int(index) if index else key for key, index in _KEYS.findall(dotted)]


def _unknown_key(path: tuple[Hashable, ...], file: type[BaseModel]) -> str:
    if (removed := _REMOVED.get(_dotted(path))) is not None:
        return f"{_dotted(path)} was removed; {removed}"
    name, place = str(path[-1]), f" in {_dotted(path[:-1])}" if path[:-1] else ""
    alike = [key for key in _fields_at(path[:-1], file) if abs(len(key) - len(name)) <= 2]
    close = difflib.get_close_matches(name, alike, n=1, cutoff=0.6)
    hint = f"did you mean `{close[0]}`?" if close else _known_keys(path[:-1], file)
    return f"unknown key `{name}`{place}; {hint}"


def _removed_value(key: str, value: Any) -> str | None:
    return _REMOVED_VALUES.get((key, value)) if isinstance(value, str) else None


def _known_keys(path: tuple[Hashable, ...], file: type[BaseModel]) -> str:
    return f"known keys: {', '.join(_fields_at(path, file))}"


def _fields_at(path: tuple[Hashable, ...], file: type[BaseModel]) -> dict[str, FieldInfo]:
    """Find the fields of the section at a place, by their keys in the file."""
    fields, is_named = _fields(file), False
    for key in path:
        if isinstance(key, int) or is_named:
            is_named = False
            continue  # an entry of a list, or a name of the writer's own: the section is known
        annotation = fields[str(key)].annotation
        fields, is_named = _fields(_model_in(annotation)), get_origin(annotation) is dict
    return fields


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel]:
    """Find the section that an annotation holds, alone or as the entries of a list."""
    candidates = [annotation, *get_args(annotation)]
    return next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))


def _dotted(path: tuple[Hashable, ...]) -> str:
    """Name a place as its reader knows it: below `attributes`, entries counted from 1."""
    keys = path[1:] if len(path) > 1 and path[0] == "attributes" else path
    text = ""
    for key in keys:
        text += f"[{key + 1}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return f"`{text}`"


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "keys and values"
    return f"{value!r:.80}"
