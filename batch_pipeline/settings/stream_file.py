"""Stream files: from `<streams folder>/<name>/defs.yaml` to the domain's streams.

Every problem of a file is reported with its line. Nothing but stream files is read: whether the
folders that they name exist is found out by who uses them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, StreamFileError
from batch_pipeline.model.stream import Stream
from batch_pipeline.settings.places import check_apart
from batch_pipeline.settings.stream_attributes import StreamAttributes
from batch_pipeline.settings.stream_problems import keys_of, problem_of
from batch_pipeline.settings.yaml_lines import Document, Problem, YamlProblemError, parse_yaml

__all__ = [
    "StreamAttributes",
    "describe_stream",
    "faulty",
    "find_stream_files",
    "load_streams",
    "load_streams_tolerantly",
    "read_component",
    "read_stream_file",
    "stream_of",
]

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
    streams, errors = load_streams_tolerantly(folder)
    if errors:
        raise faulty(errors)
    if not streams:
        raise no_streams(str(folder))
    return streams


def faulty(errors: Sequence[StreamFileError]) -> StreamFileError | ConfigurationError:
    """Return one error for all stream files that cannot be used."""
    return errors[0] if len(errors) == 1 else unusable_files(tuple(errors))


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
            errors.append(StreamFileError(str(path), line, problem, step, stream.name))
    streams = {stream.name: stream for _, _, stream in read if len(files[stream.name]) == 1}
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
        texts = [one.text for one in made[:_SHOWN_PROBLEMS]]
        raise _stream_attributes(str(attributes.get("stream", "")), ";\n  ".join(texts))
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
        raise replace(_error(path, made), stream=_name_in(document.value))
    return made


def _name_in(value: Any) -> str | None:
    """Return the name of the stream that a document describes, None where it has none."""
    attributes = value.get("attributes") if isinstance(value, dict) else None
    name = attributes.get("stream") if isinstance(attributes, dict) else None
    return name if isinstance(name, str) else None


def _stream_or_problems(document: Document, base: Path) -> Stream | list[Problem]:
    try:
        file = StreamFile.model_validate(document.value)
    except ValidationError as error:
        problems = [
            problem_of(document, one, StreamFile) for one in error.errors(include_url=False)
        ]
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


def _stream_attributes(stream: str, problem: str) -> ConfigurationError:
    place = f"The stream {stream!r}"
    stop = "" if problem.endswith("?") else "."
    return ConfigurationError(f"{place}: {problem}{stop} It was not made. Correct the arguments.")


def unusable_files(problems: tuple[StreamFileError, ...]) -> ConfigurationError:
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
