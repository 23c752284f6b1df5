"""Stream files: from `<streams folder>/<name>/defs.yaml` to the domain's streams.

Every problem of a file is reported with its line. Nothing but stream files is read: whether the
folders that they name exist is found out by who uses them.
"""

import difflib
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from batch_pipeline.domain.errors import InvalidValueError, NoStreamsError, StreamFileError
from batch_pipeline.domain.stream import Stream
from batch_pipeline.settings.stream_attributes import StreamAttributes
from batch_pipeline.settings.stream_values import REFUSAL
from batch_pipeline.settings.yaml_lines import Document, Problem, YamlProblemError, parse_yaml

__all__ = [
    "StreamAttributes",
    "find_stream_files",
    "load_streams",
    "load_streams_tolerantly",
    "read_stream_file",
]

FILE_NAME = "defs.yaml"
COMPONENT = "batch_pipeline.BatchStream"
_SHOWN_PROBLEMS = 10
_KEYS = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]")
_NEXT_STEP = "The stream was not loaded. Correct the file and run again."
_EXPECTED = {
    "string_type": "text (in quotes where YAML takes it for something else)",
    "int_type": "a whole number",
    "tuple_type": "a list, for example [a, b]",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
    "string_too_short": "some text",
    "too_short": "at least one entry",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}


class StreamFile(BaseModel):
    """The whole of a stream file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: Literal["batch_pipeline.BatchStream"]
    attributes: StreamAttributes


def read_stream_file(path: Path) -> Stream:
    """Read one stream file; paths in it are relative to its folder.

    Raises:
        StreamFileError: it cannot be read or used; tells all its problems, each with its line.
    """
    return _read(path)[0]


def find_stream_files(folder: Path) -> list[Path]:
    """List `<folder>/<name>/defs.yaml` by name, hidden folders left out; empty without a folder."""
    found = folder.glob(f"*/{FILE_NAME}")
    return sorted(path for path in found if not path.parent.name.startswith("."))


def load_streams(folder: Path) -> dict[str, Stream]:
    """Read all streams of a folder, by name and in the order of their files.

    Raises:
        NoStreamsError: there is no stream file, or no folder.
        StreamFileError: a file cannot be used, or two name the same stream; the first one is told.
    """
    if not find_stream_files(folder):
        raise NoStreamsError(str(folder))
    streams, errors = load_streams_tolerantly(folder)
    if errors:
        raise errors[0]
    return streams


def load_streams_tolerantly(folder: Path) -> tuple[dict[str, Stream], list[StreamFileError]]:
    """Read all usable streams of a folder and tell what is wrong with the other files.

    A name that two files claim is loaded from neither: which one owns the batches cannot be known.
    """
    read: list[tuple[Path, int, Stream]] = []
    errors: list[StreamFileError] = []
    files: dict[str, list[Path]] = {}
    for path in find_stream_files(folder):
        try:
            stream, line = _read(path)
        except StreamFileError as error:
            errors.append(error)
            continue
        read.append((path, line, stream))
        files.setdefault(stream.name, []).append(path)
    for path, line, stream in read:
        others = ", ".join(str(other) for other in files[stream.name] if other != path)
        if others:
            problem = f"the stream {stream.name} is also described by {others}"
            step = "Neither was loaded. Rename one or remove one of the files, then run again."
            errors.append(StreamFileError(str(path), line, problem, step))
    streams = {stream.name: stream for _, _, stream in read if len(files[stream.name]) == 1}
    return streams, sorted(errors, key=lambda error: error.path)


def _read(path: Path) -> tuple[Stream, int]:
    """Read a file and the line of its stream's name."""
    try:
        document = parse_yaml(path.read_bytes())
    except OSError as error:
        problem = f"the file cannot be read ({error.strerror or type(error).__name__})"
        raise StreamFileError(str(path), None, problem, _NEXT_STEP) from error
    except YamlProblemError as error:
        raise _error(path, [error.problem]) from error
    if not isinstance(document.value, dict):
        line = document.line(())
        text = f"the file holds no keys and values; expected `type: {COMPONENT}` and `attributes:`"
        raise _error(path, [Problem(line=line, text=text)])
    try:
        file = StreamFile.model_validate(document.value)
    except ValidationError as error:
        problems = [_problem(document, one) for one in error.errors(include_url=False)]
        raise _error(path, [*problems, *document.duplicates]) from None
    if document.duplicates:
        raise _error(path, list(document.duplicates))
    name_line = document.line(("attributes", "stream"))
    try:
        return file.attributes.to_stream(path.absolute().parent), name_line
    except InvalidValueError as error:
        line = document.line(("attributes", *_keys(error.name)))
        raise _error(path, [Problem(line=line, text=str(error).rstrip("."))]) from error


def _error(path: Path, problems: list[Problem]) -> StreamFileError:
    ordered = sorted(problems, key=lambda problem: problem.line or 0)
    texts = [
        one.text if index == 0 else f"line {one.line}: {one.text}"
        for index, one in enumerate(ordered[:_SHOWN_PROBLEMS])
    ]
    if len(ordered) > _SHOWN_PROBLEMS:
        texts.append(f"and {len(ordered) - _SHOWN_PROBLEMS} more")
    return StreamFileError(str(path), ordered[0].line, ";\n  ".join(texts), _NEXT_STEP)


def _problem(document: Document, error: ErrorDetails) -> Problem:
    """Say one validation error in the words of the file, at the line of the key or value."""
    path: tuple[Hashable, ...] = error["loc"]
    context: dict[str, Any] = error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        return Problem(line=document.line(path, of_key=True), text=_unknown_key(path))
    if error["type"] == "invalid_key":
        text = f"the key {error['input']!r:.80} is no text; {_known_keys(path[:-1])}"
        return Problem(line=document.line(path, of_key=True), text=text)
    if error["type"] == "missing":
        text = f"{_dotted(path)} is missing"
        return Problem(line=document.line(path[:-1], of_key=True), text=text)
    if error["type"] == REFUSAL:
        if context["key"]:
            path = ("attributes", *_keys(context["key"]))
        return Problem(line=document.line(path), text=f"{_dotted(path)} {context['problem']}")
    usual = context.get("expected") or error["msg"].removeprefix("Input should be ")
    expected = _EXPECTED.get(error["type"], usual).format_map(context)
    text = f"{_dotted(path)} is {_shown(error['input'])}; expected {expected}"
    of_key = error["input"] is None
    return Problem(line=document.line(path, of_key=of_key), text=text)


def _keys(dotted: str) -> list[Hashable]:
    """Split `a.b[0].c` into its keys; entries are counted from 0."""
    return [int(index) if index else key for key, index in _KEYS.findall(dotted)]


def _unknown_key(path: tuple[Hashable, ...]) -> str:
    name, place = str(path[-1]), f" in {_dotted(path[:-1])}" if path[:-1] else ""
    alike = [key for key in _fields_at(path[:-1]) if abs(len(key) - len(name)) <= 2]
    close = difflib.get_close_matches(name, alike, n=1, cutoff=0.6)
    hint = f"did you mean `{close[0]}`?" if close else _known_keys(path[:-1])
    return f"unknown key `{name}`{place}; {hint}"


def _known_keys(path: tuple[Hashable, ...]) -> str:
    return f"known keys: {', '.join(_fields_at(path))}"


def _fields_at(path: tuple[Hashable, ...]) -> dict[str, FieldInfo]:
    """Find the fields of the section at a place, by their keys in the file."""
    fields = _fields(StreamFile)
    for key in path:
        if isinstance(key, int):
            continue  # an entry of a list: its section is that of the list
        fields = _fields(_model_in(fields[str(key)].annotation))
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
