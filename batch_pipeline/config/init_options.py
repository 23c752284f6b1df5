"""The keys of a proposed stream file, and the stream that the product makes of them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_pipeline.config.attribute_types import absolute_uri
from batch_pipeline.config.landed_files import Choice, ReadAs, project_not_made
from batch_pipeline.config.stream_file import stream_of
from batch_pipeline.encode.readers.formats import SOURCE_READERS, RecordKind
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.location import shown, to_uri
from batch_pipeline.model.stream import (
    STREAM_NAME,
    CsvOptions,
    Stream,
    stream_name_of,
)

_NOT_NAMED = "init"  # the stream while nobody knows its name


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """What a person asked for: a project in `folder` for the files at `place`, a path or a URI.

    `include` are the name patterns of the files that are meant; all of them where it is empty.
    """

    folder: Path
    place: str
    name: str | None = None
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the files are, by a URI, and the folder of the project."""

    folder: Path
    uri: str

    @classmethod
    def of(cls, asked: InitOptions) -> "Site":
        """Take over what was asked for.

        Raises:
            ConfigurationError: there is no such place.
        """
        try:
            uri = absolute_uri(asked.place, Path.cwd())
        except (InvalidValueError, RuntimeError) as error:
            step = "Give a folder, or a URI such as s3://bucket/prefix."
            raise project_not_made(asked.place, "is no place where files land", step) from error
        if uri.startswith("file:"):
            _check_folder(Path(shown(uri)))
        return cls(folder=asked.folder, uri=uri)

    @property
    def place(self) -> str:
        """What people call the place of the files."""
        return shown(self.uri)

    @property
    def batches(self) -> str:
        """The folder of part files in the project: hidden where they would land themselves."""
        inside = f"{to_uri(self.folder / 'batches')}/".startswith(f"{self.uri.rstrip('/')}/")
        return ".batches" if inside else "batches"

    def attributes(self, name: str, source: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys below `attributes` of the stream file."""
        return {
            "stream": name,
            "source": {"uri": self._location(name), **source},
            "storage": {"root": f"../../{self.batches}/{name}"},
        }

    def stream(self, attributes: Mapping[str, Any]) -> Stream:
        """Return the stream that a stream file with these keys defines.

        Raises:
            ConfigurationError: it makes none.
        """
        return stream_of(attributes, self._stream_folder(attributes["stream"]))

    def listed(self, include: tuple[str, ...]) -> Stream:
        """Return a stream that takes all files of the folder with these name patterns."""
        source = {"include": list(include) or ["*"]}
        return self.stream(self.attributes(_NOT_NAMED, source))

    def read_as(self, read_as: ReadAs) -> Stream:
        """Return a stream that reads files with these options."""
        return self.stream(self.attributes(_NOT_NAMED, _reading(read_as)))

    def _stream_folder(self, name: str) -> Path:
        return self.folder / "streams" / name

    def _location(self, name: str) -> str:
        """Return the location for the stream file: relative if it is in the project."""
        if not self.uri.startswith("file:"):
            return self.uri
        path = Path(self.place)
        if "{{" in str(path) or "://" in str(path) or not str(path).isprintable():
            return self.uri
        if path.is_relative_to(self.folder):
            return Path(os.path.relpath(path, self._stream_folder(name))).as_posix()
        return str(path)


def source_keys(choice: Choice) -> dict[str, Any]:
    """Return the keys below `source` that select the files and say how they are read."""
    source: dict[str, Any] = {"include": list(choice.include)}
    if choice.exclude:
        source["exclude"] = list(choice.exclude)
    return {**source, **_reading(choice.read_as)}


def name_for(asked: InitOptions, choice: Choice, place: str) -> str:
    """Return the stream's name: the requested one, that of the files, or that of the folder.

    Raises:
        ConfigurationError: none of them can be the name of a stream.
    """
    step = "Name the stream with --name: letters, digits, `_`, `.` and `-`, at most 100."
    if asked.name is not None:
        if not STREAM_NAME.fullmatch(asked.name):
            raise project_not_made(f"--name {asked.name}", "is no name of a stream", step)
        return asked.name
    words = [choice.groups[0].word] if len(choice.groups) == 1 else []
    for text in (*words, place.rstrip("/").rpartition("/")[2]):
        name = stream_name_of(text)
        if name is not None and any(one.isalpha() for one in name):
            return name
    raise project_not_made(place, "neither files nor folder give a stream's name", step)


def _check_folder(path: Path) -> None:
    if path.is_file():
        step = f"Give its folder: --from {path.parent} --include {path.name}"
        raise project_not_made(str(path), "is a file, not a folder", step)
    if not path.is_dir():
        step = "Correct --from, or make the folder and let files land there first."
        raise project_not_made(str(path), "there is no such folder", step)


def _reading(read_as: ReadAs) -> dict[str, Any]:
    options: dict[str, Any] = {}
    reader = SOURCE_READERS.get(read_as.format)  # None for `auto`, which may detect csv
    if reader is None or reader.record_kind is RecordKind.TEXT_CELLS:
        if read_as.csv.delimiter != CsvOptions().delimiter:
            options["delimiter"] = read_as.csv.delimiter
        if read_as.csv.names:
            options["names"] = list(read_as.csv.names)
    if read_as.charset != "utf-8":
        options["charset"] = read_as.charset
    source: dict[str, Any] = {"format": read_as.format.value}
    return {**source, "options": options} if options else source
