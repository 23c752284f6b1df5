"""Stream files: reading them, with the line of each problem, and writing new ones."""

import difflib
import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from batch_pipeline.config.attribute_types import REFUSAL
from batch_pipeline.config.stream_attributes import StreamAttributes, alternatives
from batch_pipeline.config.units import format_bytes
from batch_pipeline.config.yaml_lines import Document, Problem, YamlProblemError, parse_yaml
from batch_pipeline.model.encoding import Format
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, StreamFileError
from batch_pipeline.model.stream import Source, Stream


def check_apart(stream: Stream) -> None:
    """Check that no file that the stream writes is one that its landing lists.

    Hidden folders of a landing are not listed, so that it may write there.

    Raises:
        InvalidValueError: storage is the landing, or lies in it.
    """
    if not isinstance(stream.source, Source):
        return
    landing, root = stream.source.uri, stream.storage.root
    inside = f"/{root}/".removeprefix(f"/{landing}/")
    if f"{root}/".startswith(f"{landing}/") and "/." not in f"/{inside}":
        expected = f"a place outside of `source.uri` ({landing}), or part files land there, and"
        raise InvalidValueError("storage.root", root, f"{expected} are read and written again")


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


def _problem(document: Document, error: ErrorDetails) -> Problem:
    """Describe a validation error with the line of the key or value."""
    path: tuple[Hashable, ...] = error["loc"]
    context: dict[str, Any] = error.get("ctx", {})
    kind, value, of_key = error["type"], error["input"], True
    if kind == "extra_forbidden":
        text = _unknown_key(path)
    elif kind == "invalid_key":
        text = f"the key {value!r:.80} is not text; {_known_keys(path[:-1])}"
    elif kind == "missing":
        text, path = f"{_dotted(path)} is missing", path[:-1]
    elif kind == REFUSAL:
        if context["key"]:
            path = ("attributes", *keys_of(context["key"]))
        text, of_key = f"{_dotted(path)} {context['problem']}", False
    elif isinstance(value, str) and (_dotted(path), value) in _REMOVED_VALUES:
        text = f"{_dotted(path)} {value} was removed; {_REMOVED_VALUES[_dotted(path), value]}"
        of_key = False
    else:
        usual = context.get("expected") or error["msg"].removeprefix("Input should be ")
        expected = _EXPECTED.get(kind, usual).format_map(context)
        shown = "keys and values" if isinstance(value, dict) else f"{value!r:.80}"
        of_key = value is None
        text = f"{_dotted(path)} is {'empty' if of_key else shown}; expected {expected}"
    return Problem(line=document.line(path, of_key=of_key), text=text)


def keys_of(dotted: str) -> list[Hashable]:
    """Split `a.b[0].c` into its keys; entries are counted from 0."""
    return [int(index) if index else key for key, index in _KEYS.findall(dotted)]


def _unknown_key(path: tuple[Hashable, ...]) -> str:
    if (removed := _REMOVED.get(_dotted(path))) is not None:
        return f"{_dotted(path)} was removed; {removed}"
    name, place = str(path[-1]), f" in {_dotted(path[:-1])}" if path[:-1] else ""
    alike = [key for key in _fields_at(path[:-1]) if abs(len(key) - len(name)) <= 2]
    close = difflib.get_close_matches(name, alike, n=1, cutoff=0.6)
    hint = f"did you mean `{close[0]}`?" if close else _known_keys(path[:-1])
    return f"unknown key `{name}`{place}; {hint}"


def _known_keys(path: tuple[Hashable, ...]) -> str:
    return f"known keys: {', '.join(_fields_at(path))}"


def _fields_at(path: tuple[Hashable, ...]) -> dict[str, FieldInfo]:
    """Find the fields of the section at a place, by their keys in the file."""
    fields, is_named = _fields(StreamFile), False
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


FILE_NAME = "defs.yaml"
COMPONENT = "batch_pipeline.BatchStream"
_SHOWN_PROBLEMS = 10
_NEXT_STEP = "The stream was not loaded. Correct the file and run again."


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
        ConfigurationError: there is no stream file, or no folder.
        StreamFileError, ConfigurationError: files cannot be used, or two name the same stream.
    """
    streams, errors = load_valid_streams(folder)
    if errors:
        raise invalid_file_error(errors)
    if not streams:
        raise no_streams(str(folder))
    return streams


def invalid_file_error(errors: Sequence[StreamFileError]) -> StreamFileError | ConfigurationError:
    """Return one error for all stream files that cannot be used."""
    return errors[0] if len(errors) == 1 else invalid_files_error(errors)


def load_valid_streams(folder: Path) -> tuple[dict[str, Stream], list[StreamFileError]]:
    """Read all valid streams of a folder, and return the errors of the other files.

    A name that two files claim is loaded from neither: which one owns the batches cannot be known.
    """
    read, errors, streams = [], [], {}
    for path in find_stream_files(folder):
        try:
            read.append((path, *_read(path)))
        except StreamFileError as error:
            errors.append(error)
    for path, stream, line in read:
        same = [str(one) for one, other, _ in read if other.name == stream.name and one != path]
        if same:
            problem = f"the stream {stream.name} is also described by {', '.join(same)}"
            step = "Neither was loaded. Rename one or remove one of the files, then run again."
            errors.append(StreamFileError(str(path), line, problem, step, stream.name))
        else:
            streams[stream.name] = stream
    return streams, sorted(errors, key=lambda error: error.path)


def read_component(path: Path, *, number: int, fill: Callable[[Any], Any]) -> Stream:
    """Read the stream of one component in a file of a Dagster project, counted from 0.

    `fill` replaces templates in the attributes. What else the file says is Dagster's.

    Raises:
        StreamFileError: the attributes cannot be used; tells all their problems, with lines.
    """
    document = _parsed(path, number)
    value: dict[str, Any] = {"type": COMPONENT}
    if isinstance(document.value, dict) and "attributes" in document.value:
        value["attributes"] = fill(document.value["attributes"])
    return _stream_in(path, replace(document, value=value))


def describe_stream(stream: str, *, folder: Path | None = None, **attributes: Any) -> Stream:
    """Describe a stream in Python, with the keys that stand below `attributes` in a stream file.

    `folder` is where relative paths start (default: the current folder).

    Raises:
        ConfigurationError: they cannot be used; tells all their problems.
    """
    return stream_of({"stream": stream, **attributes}, folder or Path.cwd())


def stream_of(attributes: Mapping[str, Any], base: Path) -> Stream:
    """Make a stream of what stands below `attributes` in a file; `base` is where paths start.

    Raises:
        ConfigurationError: they cannot be used; tells all their problems.
    """
    value = {"type": COMPONENT, "attributes": dict(attributes)}
    document = Document(value=value, key_lines={}, value_lines={}, duplicates=())
    made = _stream_or_problems(document, base)
    if isinstance(made, list):
        problem = ";\n  ".join(one.text for one in made[:_SHOWN_PROBLEMS])
        stop = "" if problem.endswith("?") else "."
        raise ConfigurationError(
            f"The stream {str(attributes.get('stream', ''))!r}: {problem}{stop} It was not made. "
            f"Correct the arguments."
        )
    return made


def _read(path: Path) -> tuple[Stream, int]:
    """Read a file and the line of its stream's name."""
    document = _parsed(path, None)
    if not isinstance(document.value, dict):
        line = document.line(())
        text = f"the file holds no keys and values; expected `type: {COMPONENT}` and `attributes:`"
        raise _error(path, [Problem(line=line, text=text)])
    return _stream_in(path, document), document.line(("attributes", "stream"))


def _parsed(path: Path, number: int | None) -> Document:
    try:
        return parse_yaml(path.read_bytes(), number=number)
    except OSError as error:
        problem = f"the file cannot be read ({error.strerror or type(error).__name__})"
        raise StreamFileError(str(path), None, problem, _NEXT_STEP) from error
    except YamlProblemError as error:
        raise _error(path, [error.problem]) from error


def _stream_in(path: Path, document: Document) -> Stream:
    made = _stream_or_problems(document, path.absolute().parent)
    if isinstance(made, list):
        name = None
        with suppress(KeyError, TypeError):
            name = document.value["attributes"]["stream"]
        raise replace(_error(path, made), stream=name if isinstance(name, str) else None)
    return made


def _stream_or_problems(document: Document, base: Path) -> Stream | list[Problem]:
    try:
        file = StreamFile.model_validate(document.value)
    except ValidationError as error:
        problems = [_problem(document, one) for one in error.errors(include_url=False)]
        return [*problems, *document.duplicates]
    if document.duplicates:
        return list(document.duplicates)
    try:
        stream = file.attributes.to_stream(base)
        check_apart(stream)
    except InvalidValueError as error:
        line = document.line(("attributes", *keys_of(error.name)))
        return [Problem(line=line, text=str(error).rstrip("."))]
    return stream


def _error(path: Path, problems: list[Problem]) -> StreamFileError:
    ordered = sorted(problems, key=lambda problem: problem.line or 0)
    texts = [
        one.text if index == 0 else f"line {one.line}: {one.text}"
        for index, one in enumerate(ordered[:_SHOWN_PROBLEMS])
    ]
    if len(ordered) > _SHOWN_PROBLEMS:
        texts.append(f"and {len(ordered) - _SHOWN_PROBLEMS} more")
    return StreamFileError(str(path), ordered[0].line, ";\n  ".join(texts), _NEXT_STEP)


def invalid_files_error(problems: Sequence[StreamFileError]) -> ConfigurationError:
    """Build the error of a folder with stream files that cannot be used."""
    files = f"Stream files that cannot be used: {len(problems)}."
    return ConfigurationError("\n".join([files, *map(str, problems)]))


def no_streams(folder: str) -> ConfigurationError:
    """Build the error of a folder without stream files."""
    return ConfigurationError(
        f"No stream file found below {folder}. Nothing was done. Write "
        f"<name>/defs.yaml there, set BATCH_PIPELINE_STREAMS to another folder, or try "
        f"`batch-pipeline demo`."
    )


_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:+-]+", re.ASCII)
_NOTES = {
    "stream": "what its assets and its BATCH messages are called",
    "source.uri": "the folder where files land: a path, relative to this file, or file:///…",
    "source.include": "patterns of file names, such as orders-*.csv",
    "source.exclude": "patterns of file names that are left out",
    "source.format": "csv, jsonl, json, parquet, avro; auto looks into each file",
    "source.options": "how text files are written",
    "batch.max_weight": "size of a batch's files together; a heavier file is a batch of its own",
    "batch.max_count": "files in a batch",
    "key_properties": "columns that together identify a record",
    "encoding.format": alternatives(Format),
    "storage.root": "where the encoded files are written",
}
_USUAL: dict[str, Any] = {
    "source": {"include": ["*"]},
    "batch": {"max_weight": 64 * 2**20, "max_count": 1_000},
    "key_properties": [],
    "encoding": {"format": "jsonl", "compression": "gzip"},
}
_ORDER = ("stream", "source", "batch", "key_properties", "encoding", "storage", "on_bad_record")
_SECTIONS = {"source": ("uri", "include", "exclude", "format", "options")}


def stream_text(
    component: str,
    attributes: Mapping[str, Any],
    *,
    notes: Mapping[str, str] | None = None,
    heading: Sequence[str] = (),
) -> str:
    """Write a stream file: the keys given, and the usual ones that are not.

    `notes` are comments by dotted key, instead of the usual ones or beside keys that have none;
    `heading` are lines of a comment above the attributes.
    """
    comments = _NOTES | dict(notes or {})
    lines = [f"type: {component}", "", *(f"# {_line(one)}" for one in heading), "attributes:"]
    for key in _ORDER:
        usual, value = _USUAL.get(key), attributes.get(key)
        if isinstance(usual, Mapping) and isinstance(value, Mapping):
            value = {**usual, **value}
        elif value is None:
            value = usual
        if value is None:
            continue
        if not isinstance(value, Mapping):
            lines.append(f"  {key}: {_written(value)}{_comment(comments, key)}")
            continue
        lines.append(f"  {key}:{_comment(comments, key)}")
        names = _SECTIONS.get(key, tuple(value))
        for name in (one for one in names if one in value):
            written = _written(value[name])
            if name == "max_weight":
                written = format_bytes(value[name]).replace(" ", "")
            lines.append(f"    {name}: {written}{_comment(comments, f'{key}.{name}')}")
    return "\n".join(lines) + "\n"


def _comment(comments: Mapping[str, str], key: str) -> str:
    return f"  # {_line(comments[key])}" if key in comments else ""


def _line(text: str) -> str:
    """Keep a comment to its line, and to characters that YAML takes."""
    return "".join(one if one.isprintable() else " " for one in text)


def _written(value: Any) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN_WORD.fullmatch(value) and yaml.safe_load(value) == value
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_written(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(json.dumps(one, ensure_ascii=False) for one in value) + "]"
    return json.dumps(value)
