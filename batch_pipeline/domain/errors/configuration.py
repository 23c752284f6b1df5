"""What an operator or a program gave and cannot be used: values, settings and stream files.

What is wrong with a place that they name belongs to the module of that place.
"""

from dataclasses import dataclass

from batch_pipeline.domain.errors.base import ConfigurationError

_LONGEST_SHOWN = 1_000  # characters of a value


@dataclass(eq=False)
class InvalidValueError(ConfigurationError):
    """A value that an operator gave is outside what it may be."""

    name: str
    value: object
    expected: str

    def sentence(self) -> str:
        shown = repr(self.value)
        if len(shown) > _LONGEST_SHOWN:
            shown = f"{shown[:_LONGEST_SHOWN]} …"
        return f"{self.name} is {shown}; expected {self.expected}."


@dataclass(eq=False)
class SettingError(ConfigurationError):
    """A setting cannot be used; `source` tells where it was given, the value is never repeated."""

    name: str
    source: str
    problem: str
    next_step: str

    def sentence(self) -> str:
        return f"{self.name} ({self.source}): {self.problem}. Nothing was started. {self.next_step}"


@dataclass(eq=False)
class StreamFileError(ConfigurationError):
    """A stream file cannot be used as written; `stream` is the name in it, if it can be read."""

    path: str
    line: int | None
    problem: str
    next_step: str
    stream: str | None = None

    def sentence(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.problem}. {self.next_step}"


@dataclass(eq=False)
class StreamAttributesError(ConfigurationError):
    """A stream cannot be described as a program described it."""

    stream: str
    problem: str

    def sentence(self) -> str:
        place = f"The stream {self.stream!r}"
        stop = "" if self.problem.endswith("?") else "."
        return f"{place}: {self.problem}{stop} It was not made. Correct the arguments."


@dataclass(eq=False)
class StreamFilesError(ConfigurationError):
    """Some stream files of a folder cannot be used."""

    problems: tuple[StreamFileError, ...]

    def sentence(self) -> str:
        files = f"Stream files that cannot be used: {len(self.problems)}."
        return "\n".join([files, *map(str, self.problems)])


@dataclass(eq=False)
class UnknownStreamError(ConfigurationError):
    """A stream was asked for that no stream file describes."""

    stream: str
    known: tuple[str, ...]
    folder: str

    def sentence(self) -> str:
        known = ", ".join(self.known) or "none"
        return (
            f"No stream {self.stream!r} in {self.folder} (streams there: {known}). Nothing was "
            f"done. Check the name, or point BATCH_PIPELINE_STREAMS at the folder that holds "
            f"{self.stream}/defs.yaml."
        )


@dataclass(eq=False)
class NoStreamsError(ConfigurationError):
    """The streams folder holds no stream file."""

    folder: str

    def sentence(self) -> str:
        return (
            f"No stream file found below {self.folder}. Nothing was done. Write "
            f"<name>/defs.yaml there, set BATCH_PIPELINE_STREAMS to another folder, or try "
            f"`batch-pipeline demo`."
        )


@dataclass(eq=False)
class ProjectNotMadeError(ConfigurationError):
    """A project cannot be made of a place with files."""

    place: str
    problem: str
    next_step: str

    def sentence(self) -> str:
        return f"{self.place}: {self.problem}. Nothing was written. {self.next_step}"
