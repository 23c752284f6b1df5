"""The command `explain`: where is this file, why, since when, and its nine stations."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from batch_pipeline.cli.console import note, print_json, say
from batch_pipeline.cli.streams import as_json, chosen, opened
from batch_pipeline.model.backfill import backfill_key, backfill_name
from batch_pipeline.model.errors import OF_ONE_META_TABLE
from batch_pipeline.model.location import as_s3, shown, to_uri

if TYPE_CHECKING:
    from batch_pipeline.model.batch import BatchStatus
    from batch_pipeline.model.garbage import Removal
    from batch_pipeline.model.item import Item
    from batch_pipeline.model.manifest import Manifest
    from batch_pipeline.model.stream import Stream
    from batch_pipeline.settings.pipeline import Pipeline

_FOUND = 20  # what a meta table finds at most


def _complete_file(_ctx: object, _param: object, incomplete: str) -> list[CompletionItem[str]]:
    return [CompletionItem(incomplete, type="file")]


@click.command()
@click.argument("file", shell_complete=_complete_file)
@as_json
def explain(file: str, as_json: bool) -> None:
    """Tell the stations of FILE: a path, a file:// or s3:// URI, a file name, or an item id.

    First where it is by now, then each station with its numbers. A file that is no item of any
    stream is told with the reason, stream by stream. FILE may also be a partition key, or a range
    of ids such as 5..8: then the batch is shown with its files, attempts and generations. Nothing
    is changed.

    Exit codes: 1 when no stream has the file or the batch.

    \b
    Example:
      batch-pipeline explain orders-2026-01-24.csv
    """
    from batch_pipeline.cli.explain_batch import batch_stories, print_batch
    from batch_pipeline.cli.stations import print_story

    with opened() as pipeline:
        streams = chosen(pipeline, ())
        found = [
            (stream, item)
            for stream in streams
            for item in _found(pipeline, stream, _location(file))
        ]
        stories = [_story(pipeline, stream, item) for stream, item in found]
        batches = [*batch_stories(pipeline, streams, file)]
        missing = [] if stories or batches else _why_not(pipeline, file)
    if as_json:
        told = {"file": file, "items": stories, "batches": batches, "not_registered": missing}
        print_json(told)
    now = datetime.now(UTC)
    for number, story in enumerate(() if as_json else stories):
        if number:
            say()
        print_story(story, now)
    for number, batch in enumerate(() if as_json else batches):
        if number or stories:
            say()
        print_batch(batch, now)
    if len(stories) >= _FOUND:
        note(f"A search gives {_FOUND} items at most; ask for others by their id.")
    for line in () if as_json else missing:
        say(line)
    if not (stories or batches):
        sys.exit(1)


def _found(pipeline: "Pipeline", stream: "Stream", what: str) -> "list[Item]":
    try:
        return pipeline.meta_table(stream).find(what)
    except OF_ONE_META_TABLE as error:  # the file may be in another stream
        note(str(error))
        return []


def _location(file: str) -> str:
    """Give the URI of what looks like a path to a file; names and ids stay as they are."""
    if "://" in file or ("/" not in file and not Path(file).exists()):
        return as_s3(file)
    return to_uri(Path(file).absolute())


def _story(pipeline: "Pipeline", stream: "Stream", item: "Item") -> dict[str, Any]:
    from batch_pipeline.cli.loads_told import loads_of

    database, modified_at, part = pipeline.database, item.file.modified_at, item.file.range
    batch = database.batches.batch_of_item(stream.name, item.id)
    manifest = None if batch is None else database.manifests.of_batch(batch)
    attempts = [] if batch is None else database.history.of_item(batch, item.id)
    again = database.backfills.of_item(stream.name, item.id)
    return {
        "stream": stream.name,
        "targets": [] if manifest is None else loads_of(pipeline, stream, manifest),
        "location": item.file.location,
        "size_bytes": item.file.size_bytes,
        "range": None if part is None else {"first": part.start, "last": part.stop - 1},
        "weight": item.weight,
        "modified_at": modified_at,
        "now": _now(stream, item),
        "meta_table": None if stream.user_table is None else stream.user_table.table,
        "item_id": item.id,
        "batch_id": None if batch is None else batch.key,
        "is_late": batch is not None and batch.item_ids is not None,
        "batch_items": None if batch is None else batch.count,
        "batch_weight_bytes": None if batch is None else batch.weight,
        "attempts": [asdict(one) for one in attempts],
        "generation": None if manifest is None else manifest.generation,
        "part_files": [] if manifest is None else [part.uri for part in manifest.part_files],
        "quarantine_files": (
            [] if manifest is None else [part.uri for part in manifest.quarantine_files]
        ),
        "quarantine_removed": _removed(manifest, database.manifests.quarantine_removal),
        "files_removed": _removed(manifest, database.manifests.removal),
        "backfills": [_backfill(pipeline, stream, item, one) for one in again],
    }


def _now(stream: "Stream", item: "Item") -> str:
    from batch_pipeline.storage.landing import compare

    within = stream.source.within
    return f"it {within.advice}" if within.refuse(item.file.location) else compare(item.file)


def _removed(
    manifest: "Manifest | None", ask: "Callable[[Manifest], Removal | None]"
) -> dict[str, Any] | None:
    """Tell when files of a manifest went, if they did."""
    found = None if manifest is None else ask(manifest)
    return None if found is None else asdict(found)


def _backfill(
    pipeline: "Pipeline", stream: "Stream", item: "Item", one: "BatchStatus"
) -> dict[str, Any]:
    """Tell of a batch of a backfill that has an item."""
    from batch_pipeline.cli.loads_told import loads_of

    manifest = pipeline.database.manifests.of_batch(one.batch)
    name = backfill_name(stream.name, one.batch.job)
    attempts = pipeline.database.history.of_item(one.batch, item.id)
    return {
        "job": one.batch.job,
        "partition": backfill_key(name, one.batch.id_range),
        "state": one.state.value,
        "generation": one.generation,
        "attempts": [asdict(each) for each in attempts],
        "part_files": [] if manifest is None else [part.uri for part in manifest.part_files],
        "files_removed": _removed(manifest, pipeline.database.manifests.removal),
        "targets": [] if manifest is None else loads_of(pipeline, stream, manifest),
    }


def _why_not(pipeline: "Pipeline", file: str) -> list[str]:
    from batch_pipeline.cli.explain_batch import is_batch_name
    from batch_pipeline.model.stream import Source

    what = "item and no batch" if is_batch_name(file) else "item"
    lines = [f"{file} is no registered {what} of any stream. The streams look here:"]
    for stream in pipeline.usable_streams.values():
        if isinstance(stream.source, Source):
            reason = pipeline.landing(stream, wait=False).why_not(file)
            lines.append(f"  {stream.name}: {shown(stream.source.uri)}: {reason}")
        else:
            lines.append(f"  {stream.name}: {stream.source.place}: no such row")
    return lines
