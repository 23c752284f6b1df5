"""SCHEMA, BATCH and STATE lines of published manifests.

A BATCH message holds in `encoding` nothing but `format` and `compression`, because readers refuse
other keys there; facts of ours are extra keys at the top level, which readers ignore.

Source: Meltano Singer SDK, `docs/batch.md` and `singer_sdk/singerlib/messages.py`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_pipeline.domain.errors import ConfigurationError
from batch_pipeline.domain.id_range import MAX_ID
from batch_pipeline.domain.location import to_path
from batch_pipeline.domain.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """How far a consumer has read: the publish number of the last manifest it acknowledged."""

    publish_number: int = 0


@dataclass(eq=False)
class StateFileError(ConfigurationError):
    """A state file is not what a target printed."""

    path: str
    problem: str

    def sentence(self) -> str:
        return (
            f"{self.path}: {self.problem}. No message was written. Give the last STATE value that "
            f"the target printed, or leave --state out to start from the first batch."
        )


def read_bookmark(path: Path, stream: str) -> Bookmark:
    """Read a stream's bookmark from a state file as targets print it.

    Raises:
        StateFileError: the file is missing, no JSON, or its bookmark is not one of ours.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StateFileError(str(path), f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise StateFileError(str(path), f"is no JSON ({error})") from error
    value = state.get("value", state) if isinstance(state, dict) else None
    bookmarks = value.get("bookmarks", {}) if isinstance(value, dict) else None
    if not isinstance(bookmarks, dict):
        raise StateFileError(str(path), "has no object `bookmarks`")
    bookmark = bookmarks.get(stream)
    if bookmark is None:
        return Bookmark()
    number = bookmark.get("publish_number") if isinstance(bookmark, dict) else None
    if type(number) is not int or not 0 <= number <= MAX_ID:
        raise StateFileError(str(path), f"bookmark of {stream!r} has no `publish_number`")
    return Bookmark(publish_number=number)


def schema_message(manifest: Manifest, *, name: str | None = None) -> dict[str, Any]:
    """Announce the shape of the records that follow; `name` stands in for the stream's."""
    return {
        "type": "SCHEMA",
        "stream": name or manifest.stream,
        "schema": manifest.schema.json_schema(),
        "key_properties": list(manifest.key_properties),
    }


def batch_message(manifest: Manifest, *, name: str | None = None) -> dict[str, Any]:
    """Carry the manifest: absolute URIs of its part files in record order.

    `name` stands in for the stream's.
    """
    encoding = manifest.encoding
    return {
        "type": "BATCH",
        "stream": name or manifest.stream,
        "encoding": {"format": encoding.format.value, "compression": encoding.compression.value},
        "manifest": [_plain_uri(part.uri) for part in manifest.part_files],
        "batch_id": manifest.batch.key,
        "generation": manifest.generation,
        "schema_version": manifest.schema_version,
        "record_count": manifest.records,
        "bytes": manifest.size_bytes,
        "sha256": [part.sha256 for part in manifest.part_files],
    }


def _plain_uri(uri: str) -> str:
    """Undo percent-encoding, because the Singer SDK opens what stands after `file://` verbatim."""
    return f"file://{to_path(uri)}"


def state_message(manifest: Manifest, publish_number: int) -> dict[str, Any]:
    """Say that everything up to this manifest, in publish order, has been sent."""
    bookmark = {
        "job": manifest.batch.job,
        "batch_id": manifest.batch.key,
        "generation": manifest.generation,
        "publish_number": publish_number,
    }
    return {"type": "STATE", "value": {"bookmarks": {manifest.stream: bookmark}}}


def messages(
    published: Iterable[tuple[int, Manifest]], *, name: str | None = None
) -> Iterator[Mapping[str, Any]]:
    """Give SCHEMA (first, and whenever its version changes), then BATCH and STATE per manifest.

    `name` stands in for the stream's, but in bookmarks, which are ours to read. A manifest without
    records moves the state but sends no BATCH.
    """
    announced: tuple[int, tuple[str, ...]] | None = None
    for publish_number, manifest in published:
        shape = (manifest.schema_version, manifest.key_properties)
        if manifest.part_files and shape != announced:
            yield schema_message(manifest, name=name)
            announced = shape
        if manifest.part_files:
            yield batch_message(manifest, name=name)
        yield state_message(manifest, publish_number)


def line(message: Mapping[str, Any]) -> str:
    """Write a message as one line of JSON, ending included."""
    return json.dumps(message, ensure_ascii=False) + "\n"
