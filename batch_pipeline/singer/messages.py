"""SCHEMA, BATCH and STATE messages of published manifests.

`messages` generates the messages of a stream, `line` serializes a message. `encoding` of a BATCH
message has only the keys `format` and `compression`, because readers reject others there;
additional keys are at the top level, where readers ignore them. `messages.schema.json` beside this
module specifies all messages. This module opens no files.

Source: Meltano Singer SDK, `docs/batch.md` and `singer_sdk/singerlib/messages.py`.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.singer.bookmarks import Bookmark, bookmark_json
from batch_pipeline.storage.filesystem import filesystem_of

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
    encoding = manifest.encoding
    return {
        "type": "BATCH",
        "stream": name or manifest.job,
        "encoding": {"format": encoding.format.value, "compression": encoding.compression.value},
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
    return {
        "type": "STATE",
        "value": {"bookmarks": {stream: bookmark_json(manifest, bookmark)}},
    }


def line(message: Mapping[str, Any]) -> str:
    """Return a message as one line of JSON, including the line ending."""
    return json.dumps(message, ensure_ascii=False) + "\n"
