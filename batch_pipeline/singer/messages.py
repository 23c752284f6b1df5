"""SCHEMA, BATCH and STATE messages of published manifests, and the bookmarks in STATE.

`messages` generates the messages of a stream, `line` serializes a message. `encoding` of a BATCH
message has only the keys `format` and `compression`, because readers reject other keys there;
additional keys are at the top level, where readers ignore them. `messages.schema.json` beside this
module specifies all messages.

A `Bookmark` is a consumer's position in each job of a stream. `bookmark_json` writes it,
`parse_bookmark` reads it; the inventory finds the manifests that follow it.

Source: Meltano Singer SDK, `docs/batch.md` and `singer_sdk/singerlib/messages.py`.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batch_pipeline.model.batch import MAX_ID
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.storage.filesystem import filesystem_of

_OTHERS = "other_jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """The publish number of the last acknowledged manifest of each job.

    `last` identifies the manifest that was read last by job, batch id and generation, if the state
    contains it.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    last: tuple[str, str, int] | None = field(default=None, compare=False)

    def after(self, manifest: Manifest, publish_number: int) -> "Bookmark":
        """Return the bookmark that follows a manifest of one of the jobs."""
        job = manifest.batch.job
        last = (job, manifest.batch.label, manifest.generation)
        return Bookmark(numbers={**self.numbers, job: publish_number}, last=last)


def bookmark_json(manifest: Manifest, bookmark: Bookmark) -> dict[str, Any]:
    """Return the JSON of a bookmark: the last manifest sent and the numbers of other jobs."""
    job = manifest.batch.job
    others = {name: number for name, number in bookmark.numbers.items() if name != job}
    return {
        "job": job,
        "batch_id": manifest.batch.label,
        "generation": manifest.generation,
        "publish_number": bookmark.numbers[job],
        **({_OTHERS: others} if others else {}),
    }


def read_bookmark(path: Path, stream: str) -> Bookmark:
    """Read a stream's bookmark from a state file as printed by targets.

    Raises:
        ConfigurationError: the file is missing, not valid JSON, or has an invalid bookmark.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise state_file_unusable(str(path), f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise state_file_unusable(str(path), f"is not JSON ({error})") from error
    return parse_bookmark(
        parse_bookmarks(state, path=str(path)).get(stream), stream, path=str(path)
    )


def parse_bookmarks(state: Any, *, path: str) -> dict[str, Any]:
    """Return the bookmarks of a STATE value or message by stream; empty for an empty state.

    Raises:
        ConfigurationError: the state is not empty and has no bookmarks.
    """
    value = state.get("value", state) if isinstance(state, dict) else None
    bookmarks = value.get("bookmarks", None if value else {}) if isinstance(value, dict) else None
    if not isinstance(bookmarks, dict):
        raise state_file_unusable(path, "has no object `bookmarks`")
    return bookmarks


def parse_bookmark(written: Any, stream: str, *, path: str) -> Bookmark:
    """Parse the output of `bookmark_json`; None means the start. `path` is used in errors only.

    Earlier releases, which sent only the stream's own job, wrote a number and no other jobs.

    Raises:
        ConfigurationError: the value is not a bookmark of this tap.
    """
    if written is None:
        return Bookmark()
    if not isinstance(written, dict) or not _is_number(written.get("publish_number")):
        raise state_file_unusable(path, f"bookmark of {stream!r} has no `publish_number`")
    job, others = written.get("job", stream), written.get(_OTHERS, {})
    if not isinstance(job, str):
        raise state_file_unusable(path, f"bookmark of {stream!r} has a `job` that is not a name")
    if not isinstance(others, dict) or not all(_is_number(number) for number in others.values()):
        raise state_file_unusable(path, f"bookmark of {stream!r} has no numbers in `{_OTHERS}`")
    label, generation = written.get("batch_id"), written.get("generation")
    last: tuple[str, str, int] | None = None
    if isinstance(label, str) and isinstance(generation, int):
        last = (job, label, generation)
    return Bookmark(numbers={**others, job: written["publish_number"]}, last=last)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ID


def state_file_unusable(path: str, problem: str) -> ConfigurationError:
    """Build the error for an unusable state file."""
    return ConfigurationError(
        f"{path}: {problem}. No message was written. Use the last STATE value that "
        f"the target printed, or omit --state to start from the first batch."
    )


JSON_SCHEMA = Path(__file__).with_name("messages.schema.json")


def messages(
    published: Iterable[tuple[int, Manifest]],
    *,
    stream: str,
    name: str | None = None,
    bookmark: Bookmark | None = None,
) -> Iterator[Mapping[str, Any]]:
    """Yield SCHEMA (first, and when its version changes), then BATCH and STATE per manifest.

    `published` are the publish numbers and manifests that follow the bookmark. `name` replaces the
    stream's name except in bookmarks, which only this package reads. A manifest without records
    advances the state without a BATCH.
    """
    read = bookmark or Bookmark()
    announced: tuple[int, tuple[str, ...]] | None = None
    for publish_number, manifest in published:
        shape = (manifest.schema_version, manifest.key_properties)
        if manifest.part_files and shape != announced:
            yield schema_message(name or stream, manifest.schema, manifest.key_properties)
            announced = shape
        if manifest.part_files:
            yield batch_message(manifest, name=name or stream)
        read = read.after(manifest, publish_number)
        yield state_message(manifest, read, stream=stream)


def schema_message(
    name: str,
    schema: RecordSchema,
    key_properties: Iterable[str],
    columns: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return a SCHEMA message; `columns` limits its properties."""
    shape = schema.json_schema()
    if columns is not None:
        selected = {key: value for key, value in shape["properties"].items() if key in columns}
        shape["properties"] = selected
    return {
        "type": "SCHEMA",
        "stream": name,
        "schema": shape,
        "key_properties": list(key_properties),
    }


def batch_message(manifest: Manifest, *, name: str | None = None) -> dict[str, Any]:
    """Return the BATCH message of a manifest: absolute URIs of its part files in order.

    `name` replaces the stream's name. A batch is identified by `job` and `batch_id` together,
    because backfills can have the same id ranges as other jobs.
    """
    return {
        "type": "BATCH",
        "stream": name or manifest.job,
        "encoding": manifest.encoding.to_json(),
        "manifest": [_decoded_file_uri(part.uri) for part in manifest.part_files],
        "job": manifest.batch.job,
        "batch_id": manifest.batch.label,
        "generation": manifest.generation,
        "schema_version": manifest.schema_version,
        "record_count": manifest.records,
        "bytes": manifest.size_bytes,
        "sha256": [part.sha256 for part in manifest.part_files],
    }


def _decoded_file_uri(uri: str) -> str:
    """Undo percent-encoding, because the Singer SDK opens the text after `file://` verbatim.

    URIs of objects are not percent-encoded.
    """
    return f"file://{to_path(uri)}" if filesystem_of(uri).is_local else uri


def state_message(manifest: Manifest, bookmark: Bookmark, *, stream: str) -> dict[str, Any]:
    """Return the STATE message for a bookmark whose last manifest is `manifest`."""
    return {"type": "STATE", "value": {"bookmarks": {stream: bookmark_json(manifest, bookmark)}}}


def line(message: Mapping[str, Any]) -> str:
    """Return a message as one line of JSON, including the line ending."""
    return json.dumps(message, ensure_ascii=False) + "\n"
