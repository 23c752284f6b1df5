"""The `target-batch-pipeline` command: a Singer target whose files the pipeline ingests.

Connects the target with stream files and the inventory. Exit codes are those of `batch-pipeline`; a
target that was ended by a signal exits with 128 plus the signal number.
"""

import json
import logging
import re
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from singer_sdk.singerlib.json import serialize_json

from batch_pipeline.app import Pipeline
from batch_pipeline.cli.console import run_plugin
from batch_pipeline.cli.demo import DEMO
from batch_pipeline.config.stream_file import (
    COMPONENT,
    FILE_NAME,
    check_valid,
    find_stream_files,
    load_valid_streams,
    read_stream_file,
    stream_text,
)
from batch_pipeline.model.errors import InvalidValueError, StreamFileError
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.schema import name_fault, schema_of
from batch_pipeline.model.stream import Source, SourceFormat, Stream, identifier_of
from batch_pipeline.singer.target.config import (
    AnnouncedStream,
    StreamLanding,
    stream_name,
    unusable_landing,
)
from batch_pipeline.singer.target.landing_files import landing_failed
from batch_pipeline.singer.target.target import LandingTarget
from batch_pipeline.storage.filesystem import filesystem_of


class TargetBatchPipeline(LandingTarget):
    """Lands the records of any Singer tap as files, and registers them in a batch-pipeline.

    Landings are those of stream files, and new ones below a folder.
    """

    package_name = "batch-pipeline"

    @cached_property
    def _pipeline(self) -> Pipeline:
        config = self.settings
        given = {
            "home": config.home,
            "streams": config.streams_folder,
            "inventory_conn": config.inventory_conn,
        }
        return Pipeline.from_environment(settings=given)

    @cached_property
    def _stream_files(self) -> tuple[dict[str, Stream], list[StreamFileError]]:
        """The streams with valid files by name, and the errors of the other files."""
        return load_valid_streams(self._pipeline.settings.streams)

    @cached_property
    def _folder_of_new(self) -> Path:
        """The folder for new stream files: by default not the demo's, unless it has others."""
        settings = self._pipeline.settings
        is_used = "streams" in settings.model_fields_set or self._stream_files[0].keys() - {DEMO}
        return settings.streams if is_used else Path.cwd() / "streams"

    def landing_of(self, wanted: AnnouncedStream) -> StreamLanding:
        """Return the landing of a Singer stream; write a stream file if there is none.

        Raises:
            StreamFileError: its stream file cannot be used.
            ConfigurationError: its stream file describes no landing folder.
            ConfigurationError: a folder or file cannot be created.
        """
        name = self.settings.stream_names.get(wanted.name) or stream_name(wanted.name)
        known, errors = self._stream_files
        check_valid(name, errors)
        stream = known.get(name) or self._described(name)
        landings = self.settings.landing_root or self._pipeline.home.path / "landing"
        folder = landings.absolute() / name
        if stream is None and self.settings.create_streams:
            stream = self._created(wanted, name, folder)
        if stream is None:
            root, file_format = to_uri(folder), SourceFormat.AUTO
        elif isinstance(stream.source, Source):
            root, file_format = stream.source.uri, stream.source.format
        else:
            raise unusable_landing(name, "lists its files in a table of your own")
        registry = self._pipeline.database.meta_table(name)
        return StreamLanding(stream=name, root=root, format=file_format, registry=registry)

    def close(self) -> None:
        """Close the inventory."""
        if "_pipeline" in self.__dict__:
            self._pipeline.close()

    def _described(self, name: str) -> Stream | None:
        """Read the file in the stream's own folder again: it may be invalid, or new."""
        for folder in dict.fromkeys((self._pipeline.settings.streams, self._folder_of_new)):
            path = folder / name / FILE_NAME
            if path in find_stream_files(folder):
                stream = read_stream_file(path)
                return stream if stream.name == name else None
        return None

    def _created(self, wanted: AnnouncedStream, name: str, folder: Path) -> Stream | None:
        """Create a stream file and the landing folder; files that exist, or appear, are kept."""
        for other in self._stream_files[0].values():
            if other.identifier == identifier_of(name):
                problem = f"has the same name in Dagster as {other.name!r}, so neither would run"
                raise unusable_landing(name, problem)
        place = self._folder_of_new / name
        text, schema = scaffold(wanted, name, to_uri(folder))
        files = filesystem_of(to_uri(place))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (place / FILE_NAME).exists():
                if schema is not None:
                    files.create_if_absent(to_uri(place / _schema_file_of(name)), schema.encode())
                files.create_if_absent(to_uri(place / FILE_NAME), text.encode())
        except OSError as error:
            where, reason = str(error.filename or place), (error.strerror or "unknown").lower()
            raise landing_failed(where, reason) from error
        stream = self._described(name)
        if stream is None:
            problem = f"has no stream file, and {place / FILE_NAME} describes another stream"
            raise unusable_landing(name, problem)
        self._stream_files[0][name] = stream
        return stream


_TEMPLATE = re.compile(r"\{[{%#]")
_COMMENTS = {
    "source.uri": "where the target lands its files",
    "schema.evolution": "columns that come later are added, types are widened",
    "storage.root": "where the encoded files are written",
}


def scaffold(announced: AnnouncedStream, stream: str, uri: str) -> tuple[str, str | None]:
    """Compose a stream file for a Singer stream from its SCHEMA, and the JSON Schema beside it.

    If the SCHEMA is not a list of columns, for example because of references, or is empty, there is
    no JSON Schema: the columns are inferred from the records.

    Raises:
        ConfigurationError: a key property is a template, which Dagster would execute, or a name
            cannot be stored.
    """
    if fault := name_fault(announced.name):
        raise unusable_landing(stream, f"has the Singer name {announced.name!r}: {fault}")
    for key in announced.key_properties:
        if fault := name_fault(key):
            raise unusable_landing(stream, f"has the key property {key!r}: {fault}")
        if _TEMPLATE.search(key):
            problem = f"has the key property {key!r}, which would be a template in a stream file"
            raise unusable_landing(stream, problem)
    declared: str | None = None
    with suppress(InvalidValueError):
        if schema_of(announced.schema).columns:
            declared = serialize_json(dict(announced.schema)) + "\n"
    columns = {"mode": "infer"} if declared is None else {"file": _schema_file_of(stream)}
    attributes = {
        "stream": stream,
        "source": {"uri": uri, "format": "auto"},
        "key_properties": announced.key_properties,
        "schema": {**columns, "evolution": "add"},
        "storage": {"root": "./batches"},
    }
    origin = f"from the first SCHEMA of the Singer stream {json.dumps(announced.name)}"
    heading = (
        f"Written by target-batch-pipeline {origin}.",
        "Edit it as needed: it is not overwritten.",
    )
    return stream_text(COMPONENT, attributes, comments=_COMMENTS, heading=heading), declared


def _schema_file_of(stream: str) -> str:
    return f"{stream}.schema.json"


def main() -> None:
    """Run the target on standard input; errors are one message on standard error."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    saved = "Everything that the last printed STATE covers is saved; continue from it."
    run_plugin(TargetBatchPipeline.cli, saved)


if __name__ == "__main__":
    main()
