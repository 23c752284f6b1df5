"""Encodes the inputs of the golden files: all steps from landing to manifest, without Spark.

Each task runs in this process instead of a Spark worker. Everything else is as in production: a
stream file, a landing folder, an inventory, a storage root.
"""

import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from batch_pipeline.app import Pipeline
from batch_pipeline.encode.task import TaskSpec, encode_items
from batch_pipeline.model.encode_request import EncodeRequest, EncodeResult
from batch_pipeline.model.location import to_path
from batch_pipeline.pipeline.attempt import encode
from batch_pipeline.spark.encoder import combine_reports, raise_task_errors
from batch_pipeline.spark.task_planning import plan_tasks
from batch_pipeline_tests.factories import environment_of
from batch_pipeline_tests.regression.inputs import (
    Input,
    stream_inputs,
    text_inputs,
    typed_inputs,
)

# Libraries that write part files or parse values, so that their versions determine the bytes.
LIBRARIES = ("pyarrow", "isal", "zstandard", "msgspec", "fastavro", "simpleeval", "singer-sdk")
_ONE_PER_FORMAT = ("jsonl-none", "parquet-snappy", "arrow-none")
_OTHER_ENCODINGS = (
    *("jsonl-gzip", "jsonl-zstd", "parquet-zstd", "parquet-gzip", "parquet-none", "arrow-zstd"),
)
_LANDED_AT = 1_750_000_000
_STARTED_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
_KEYS_OF_A_RUN = {"token", "run_id", "started_at", "published_at"}
# In names of part files.
_RANDOM_NAME_PARTS = re.compile(r"-a(\d+)-[0-9a-f]{8}-(\d{8})-[0-9a-f]{8}\.")


def installed_libraries() -> dict[str, str]:
    """Return the versions of the libraries that determine the bytes."""
    return {name: version(name) for name in LIBRARIES}


def check_libraries(expected: Mapping[str, str], installed: Mapping[str, str]) -> None:
    """Fail if the golden files were made with other versions of the libraries."""
    other = [
        f"{name} {expected.get(name)}, installed is {installed.get(name)}"
        for name in sorted({*expected, *installed})
        if expected.get(name) != installed.get(name)
    ]
    assert not other, (
        f"The golden files were made with other versions of libraries: {'; '.join(other)}. The "
        f"bytes of part files depend on them, so nothing was compared. Install the versions of "
        f"uv.lock; after an upgrade, run `python -m batch_pipeline_tests.regression --update` on "
        f"the commit that upgrades and nothing else."
    )


def inputs() -> list[Input]:
    """Return all inputs; their names differ."""
    return [*text_inputs(), *typed_inputs(), *stream_inputs()]


def encodings_of(input_: Input) -> tuple[str, ...]:
    """Return the encodings that an input is encoded in, as `format-compression`."""
    if input_.name == "limits.compression_level":
        return ("jsonl-gzip", "jsonl-zstd")
    if input_.name.startswith("lineage.source_file"):  # paths can be replaced only in text
        return ("jsonl-none",)
    return (*_ONE_PER_FORMAT, *_OTHER_ENCODINGS) if input_.all_encodings else _ONE_PER_FORMAT


def golden_streams(*, in_all_formats: bool) -> dict[str, tuple[Input, str]]:
    """Return inputs and encodings by the name of their stream.

    Unless `in_all_formats`, each input of text has one of the formats in turn. Typed inputs have
    all formats, and those in all encodings keep these.
    """
    text = {
        input_.name: position for position, input_ in enumerate((*text_inputs(), *stream_inputs()))
    }
    streams: dict[str, tuple[Input, str]] = {}
    for input_ in inputs():
        encodings = encodings_of(input_)
        if not in_all_formats and input_.name in text and not input_.all_encodings:
            encodings = (encodings[text[input_.name] % len(encodings)],)
        streams |= {f"{input_.name}-{encoding}": (input_, encoding) for encoding in encodings}
    return streams


def golden_entries(
    streams: Mapping[str, tuple[Input, str]], folder: Path, database_url: str
) -> dict[str, Any]:
    """Encode the inputs of streams and return an entry per batch."""
    for name, (input_, encoding) in streams.items():
        write_stream(folder, name, input_, encoding)
    with closing(Pipeline.from_environment(environment_of(folder, database_url))) as pipeline:
        return {
            f"{name} batch {number}": entry
            for name in streams
            for number, entry in enumerate(_encoded(pipeline, name, folder), 1)
        }


def write_stream(folder: Path, name: str, input_: Input, encoding: str) -> None:
    """Write the stream file of an input and land its files."""
    landing, stream_folder = folder / "landing" / name, folder / "streams" / name
    landing.mkdir(parents=True)
    stream_folder.mkdir(parents=True)
    for file, content in input_.files.items():
        (landing / file).write_bytes(content)
        os.utime(landing / file, (_LANDED_AT, _LANDED_AT))
    format_, _, compression = encoding.partition("-")
    attributes: dict[str, Any] = {**input_.attributes, "stream": name}
    attributes["source"] = {"uri": str(landing), **attributes.get("source", {})}
    attributes["storage"] = {"root": str(folder / "batches" / name)}
    defaults = {"format": format_, "compression": compression}
    attributes["encoding"] = {**defaults, **attributes.get("encoding", {})}
    if "stream_maps" in attributes:
        attributes["stream_maps"] = {name: attributes["stream_maps"]}
    document = {"type": "batch_pipeline.BatchStream", "attributes": attributes}
    (stream_folder / "defs.yaml").write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
    if input_.schema is not None:
        (stream_folder / "schema.json").write_text(json.dumps(input_.schema), encoding="utf-8")


class TaskEncoder:
    """Runs the tasks of an encode sequentially in this process."""

    def prepare(self) -> None:
        """Do nothing; no session is needed."""

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Encode the items as Spark workers do."""
        reports = [
            encode_items(
                TaskSpec(
                    number=number,
                    stem=request.stem,
                    stream=request.stream,
                    schema=request.schema,
                    items=work.items,
                    context=request.context,
                ),
                execution=f"{number:08x}",
            )
            for number, work in enumerate(plan_tasks(request.items, {}))
        ]
        raise_task_errors(reports, request.stream)
        return combine_reports(reports, request)


def _encoded(pipeline: Pipeline, name: str, folder: Path) -> Iterator[dict[str, Any]]:
    stream = pipeline.stream(name)
    table = pipeline.database.meta_table(name)
    table.register(
        pipeline.landing(stream, wait=False).found_files(), cutter=pipeline.cutter(stream)
    )
    pipeline.database.batches.plan(table, stream.limits, drain=True)
    context = replace(pipeline.encode_context(stream, no_session), encoder=TaskEncoder())
    for status in pipeline.database.batches.statuses(name):
        try:
            manifest = encode(context, status.batch, run_id="run-1", now=lambda: _STARTED_AT)
        except Exception as error:  # noqa: BLE001 - errors are compared, too
            message = str(error).replace(str(folder), "FOLDER")
            yield {"failed": type(error).__name__, "message": message}
            continue
        yield entry_of(Path(to_path(manifest.pointer_uri)), folder)


def entry_of(manifest_file: Path, folder: Path) -> dict[str, Any]:
    """Return the compared values of a published manifest and its files."""
    manifest = json.loads(manifest_file.read_text("utf-8"))
    parts, quarantine = manifest["part_files"], manifest["quarantine_files"]
    same = normalized(manifest, folder)
    origin = same.pop("inventory", None)  # separate, because only the restore check reads it
    columns = manifest["schema"]["properties"]
    return {
        "part_files": [_digest_of_file(part, folder) for part in parts],
        "quarantine_files": [_digest_of_file(part, folder) for part in quarantine],
        "manifest": _digest(json.dumps(same, sort_keys=True).encode()),
        "origin": _digest(json.dumps(origin, sort_keys=True).encode()),
        "records": {**manifest["records"], "in_files": [part["records"] for part in parts]},
        "columns": {name: _type_text(rule) for name, rule in columns.items()},
    }


def normalized(value: Any, folder: Path) -> Any:
    """Replace values that differ between runs: paths, times, tokens, sizes and digests of files.

    A file's digest is an entry of its own; size and digest depend on the paths in lineage and
    quarantine files.
    """
    if isinstance(value, list):
        return [normalized(inner, folder) for inner in value]
    if isinstance(value, dict):
        is_file = "sha256" in value
        return {
            key: key.upper() if key in _KEYS_OF_A_RUN else normalized(inner, folder)
            for key, inner in value.items()
            if not (is_file and key in {"sha256", "size_bytes"})
        }
    if isinstance(value, str):
        return _RANDOM_NAME_PARTS.sub(
            r"-a\1-TOKEN-\2-EXECUTION.", value.replace(str(folder), "HOME")
        )
    return value


def _type_text(rule: dict[str, Any]) -> str:
    types = [name for name in rule.get("type", ["any"]) if name != "null"]
    return " ".join([*types, *(str(value) for key, value in rule.items() if key != "type")])


def _digest_of_file(part: dict[str, Any], folder: Path) -> str:
    """Return the digest of a file; paths of this run are replaced in its content."""
    content = Path(to_path(part["uri"])).read_bytes()
    assert hashlib.sha256(content).hexdigest() == part["sha256"]
    assert len(content) == part["size_bytes"]
    if "/quarantine/" in part["uri"]:
        content = gzip.decompress(content)
    return _digest(content.replace(str(folder).encode(), b"HOME"))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def no_session() -> Any:
    """Fail, because these tests encode without Spark."""
    raise AssertionError("Spark must not be used")
