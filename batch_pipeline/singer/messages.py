"""SCHEMA, BATCH, STATE and ACTIVATE_VERSION lines of published manifests.

A BATCH message holds in `encoding` nothing but `format` and `compression`, because readers refuse
other keys there; facts of ours are extra keys at the top level, which readers ignore. What all our
messages look like is in `messages.schema.json` beside this module. No file is opened here.

Source: Meltano Singer SDK, `docs/batch.md` and `singer_sdk/singerlib/messages.py`.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from batch_pipeline.domain.location import is_object, to_path
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.singer.bookmarks import Bookmark, bookmark_json

JSON_SCHEMA = Path(__file__).with_name("messages.schema.json")


def schema_message(
    manifest: Manifest, *, name: str | None = None, columns: Collection[str] | None = None
) -> dict[str, Any]:
    """Announce the shape of the records that follow; `name` stands in for the stream's.

    With `columns` only these are announced.
    """
    keys = manifest.key_properties
    return announcement(name or manifest.stream, manifest.schema, keys, columns)


def announcement(
    name: str,
    schema: RecordSchema,
    key_properties: Iterable[str],
    columns: Collection[str] | None = None,
) -> dict[str, Any]:
    """Write a SCHEMA message; with `columns` only these are in it."""
    shape = schema.json_schema()
    if columns is not None:
        kept = {one: what for one, what in shape["properties"].items() if one in columns}
        shape["properties"] = kept
    return {
        "type": "SCHEMA",
        "stream": name,
        "schema": shape,
        "key_properties": list(key_properties),
    }


def batch_message(manifest: Manifest, *, name: str | None = None) -> dict[str, Any]:
    """Carry the manifest: absolute URIs of its part files in record order.

    `name` stands in for the stream's. `job` and `batch_id` together say which batch it is:
    backfills have ranges of ids that other jobs have, too.
    """
    encoding = manifest.encoding
    return {
        "type": "BATCH",
        "stream": name or manifest.stream,
        "encoding": {"format": encoding.format.value, "compression": encoding.compression.value},
        "manifest": [_plain_uri(part.uri) for part in manifest.part_files],
        "job": manifest.batch.job,
        "batch_id": manifest.batch.label,
        "generation": manifest.generation,
        "schema_version": manifest.schema_version,
        "record_count": manifest.records,
        "bytes": manifest.size_bytes,
        "sha256": [part.sha256 for part in manifest.part_files],
    }


def _plain_uri(uri: str) -> str:
    """Undo percent-encoding, because the Singer SDK opens what stands after `file://` verbatim.

    URIs of objects have none.
    """
    return uri if is_object(uri) else f"file://{to_path(uri)}"


def state_message(manifest: Manifest, bookmark: Bookmark, *, stream: str) -> dict[str, Any]:
    """Say that everything up to a bookmark, whose last manifest this is, has been sent."""
    return {
        "type": "STATE",
        "value": {"bookmarks": {stream: bookmark_json(manifest, bookmark)}},
    }


def activate_version_message(name: str, version: int) -> dict[str, Any]:
    """Say that records of other versions are to be taken out of the table of a stream.

    Published batches never need it: the next generation of a batch says itself what it replaces.
    """
    return {"type": "ACTIVATE_VERSION", "stream": name, "version": version}


def messages(
    published: Iterable[tuple[int, Manifest]],
    *,
    stream: str,
    name: str | None = None,
    bookmark: Bookmark | None = None,
) -> Iterator[Mapping[str, Any]]:
    """Give SCHEMA (first, and whenever its version changes), then BATCH and STATE per manifest.

    `published` are publish numbers with the manifests that come after the bookmark. `name` stands
    in for the stream's, but in bookmarks, which are ours to read. A manifest without records moves
    the state but sends no BATCH.
    """
    read = bookmark or Bookmark()
    announced: tuple[int, tuple[str, ...]] | None = None
    for publish_number, manifest in published:
        shape = (manifest.schema_version, manifest.key_properties)
        if manifest.part_files and shape != announced:
            yield schema_message(manifest, name=name or stream)
            announced = shape
        if manifest.part_files:
            yield batch_message(manifest, name=name or stream)
        read = read.after(manifest, publish_number)
        yield state_message(manifest, read, stream=stream)


def line(message: Mapping[str, Any]) -> str:
    """Write a message as one line of JSON, ending included."""
    return json.dumps(message, ensure_ascii=False) + "\n"
