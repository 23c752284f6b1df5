"""The files of a project that `init` writes: a stream file, and the configuration of Dagster.

Existing files are never overwritten.
"""

from importlib.resources import files
from pathlib import Path

from batch_pipeline.config.stream_file import FILE_NAME, check_valid, load_valid_streams
from batch_pipeline.config.stream_proposal import project_not_made
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.stream import Stream

STREAMS = "streams"
_OF_DAGSTER = ("dagster.yaml", "workspace.yaml")
_IGNORED = ".gitignore"


def write_project(
    folder: Path, stream: Stream, text: str, *, ignored: tuple[str, ...]
) -> tuple[list[Path], dict[Path, str]]:
    """Write the files of a project that are missing; `ignored` are folders for `.gitignore`.

    Returns the files that were written, and those that existed, each with a next step.

    Raises:
        ConfigurationError: the stream exists already, or a file cannot be written.
    """
    _check_new(folder, stream)
    packaged = files("batch_pipeline.defs.instance")
    texts = {folder / STREAMS / stream.name / FILE_NAME: text}
    texts |= {folder / one: (packaged / one).read_text(encoding="utf-8") for one in _OF_DAGSTER}
    texts[folder / _IGNORED] = "".join(f"{one}/\n" for one in ignored)
    written: list[Path] = []
    kept: dict[Path, str] = {}
    for path, content in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(content)
        except FileExistsError as error:
            if path.name == FILE_NAME:  # its folder is a file, or another process wrote it
                raise _unwritable(path, error) from error
            step = _next_step(path, content)
            if step is not None:
                kept[path] = step
        except OSError as error:
            for one in written:
                one.unlink()
            raise _unwritable(path, error) from error
    return written, kept


def _check_new(folder: Path, stream: Stream) -> None:
    """Check that a project has no such stream yet.

    Raises:
        ConfigurationError: the stream, one of the same name in Dagster, or the file exists already.
        StreamFileError: an invalid file describes the stream.
    """
    path = folder / STREAMS / stream.name / FILE_NAME
    other = "choose another name with --name, or remove the file"
    if path.exists():
        step = f"It defines how the stream runs: edit it by hand, {other}."
        raise project_not_made(str(path), "already exists", step)
    known, errors = load_valid_streams(folder / STREAMS)
    check_valid(stream.name, errors)
    for name in (one.name for one in known.values() if one.identifier == stream.identifier):
        where = "in a folder with another name"
        if name != stream.name:
            where = f"the same in Dagster as {stream.name}"
        problem = f"already has the stream {name}, {where}"
        raise project_not_made(str(folder / STREAMS), problem, f"Edit that one by hand, {other}.")


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    reason = error.strerror or type(error).__name__
    step = "Choose another folder, or correct this one."
    return project_not_made(str(path), f"cannot be written ({reason})", step)


def _next_step(path: Path, content: str) -> str | None:
    """Return the next step for a file that exists already; None if its content is the same."""
    try:
        there = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return "it cannot be read"
    if path.name == _IGNORED:
        missing = [one for one in content.splitlines() if one not in there.splitlines()]
        return f"add {', '.join(missing)} to it" if missing else None
    if there == content:
        return None
    return f"compare it with {files('batch_pipeline.defs.instance') / path.name}"
