"""Where is this file, why, since when: the nine stations of one file."""

import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from batch_pipeline.cli.console import head, note, print_json, say
from batch_pipeline.cli.limits_told import learned_json, learned_lines
from batch_pipeline.cli.loads_told import loads_of, print_loads
from batch_pipeline.cli.streams import as_json
from batch_pipeline.domain.backfill import backfill_name
from batch_pipeline.domain.backfill_key import backfill_key
from batch_pipeline.domain.batch import BatchStatus
from batch_pipeline.domain.errors import OF_ONE_META_TABLE
from batch_pipeline.domain.garbage import Removal
from batch_pipeline.domain.item import Item
from batch_pipeline.domain.location import as_s3, shown, to_uri
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.stream import Source, Stream
from batch_pipeline.files.landing import compare
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.settings.units import format_bytes

_FOUND = 20  # what a meta table finds at most


@click.command(short_help="Tell where a file is, why, and since when.")
@click.argument("file")
@as_json
def explain(file: str, as_json: bool) -> None:
    """Tell the stations of FILE: a path, a file:// or s3:// URI, a file name, or an item id."""
    with closing(Pipeline.from_environment()) as pipeline:
        found = [
            (stream, item)
            for stream in pipeline.streams.values()
            for item in _found(pipeline, stream, _location(file))
        ]
        stories = [_story(pipeline, stream, item) for stream, item in found]
        missing = [] if stories else _why_not(pipeline, file)
    if as_json:
        print_json({"file": file, "items": stories, "not_registered": missing})
    for story in () if as_json else stories:
        _print_story(story)
    if len(stories) >= _FOUND:
        note(f"A search gives {_FOUND} items at most; ask for others by their id.")
    for line in () if as_json else missing:
        say(line)
    if not stories:
        sys.exit(1)


def _found(pipeline: Pipeline, stream: Stream, what: str) -> list[Item]:
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


def _story(pipeline: Pipeline, stream: Stream, item: Item) -> dict[str, Any]:
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
        "modified_at": modified_at.isoformat() if modified_at else None,
        "now": _now(stream, item),
        "meta_table": None if stream.user_table is None else stream.user_table.table,
        "item_id": item.id,
        "batch_id": None if batch is None else batch.key,
        "is_late": batch is not None and batch.item_ids is not None,
        "batch_items": None if batch is None else batch.count,
        "batch_weight_bytes": None if batch is None else batch.weight,
        "learned_limit": None
        if batch is None
        else learned_json(database.learned_limits.of_batch(batch)),
        "attempts": [asdict(one) for one in attempts],
        "generation": None if manifest is None else manifest.generation,
        "part_files": [] if manifest is None else [part.uri for part in manifest.part_files],
        "quarantine_files": (
            [] if manifest is None else [part.uri for part in manifest.quarantine_files]
        ),
        "quarantine_removed": (
            None
            if manifest is None
            else _told(pipeline.database.manifests.quarantine_removal(manifest))
        ),
        "files_removed": _removal(pipeline, manifest),
        "backfills": [_backfill(pipeline, stream, item, one) for one in again],
    }


def _now(stream: Stream, item: Item) -> str:
    within = stream.source.within
    return f"it {within.advice}" if within.refuse(item.file.location) else compare(item.file)


def _removal(pipeline: Pipeline, manifest: Manifest | None) -> dict[str, Any] | None:
    return None if manifest is None else _told(pipeline.database.manifests.removal(manifest))


def _told(found: Removal | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _backfill(pipeline: Pipeline, stream: Stream, item: Item, one: BatchStatus) -> dict[str, Any]:
    """Tell of a batch of a backfill that has an item."""
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
        "files_removed": _removal(pipeline, manifest),
        "targets": [] if manifest is None else loads_of(pipeline, stream, manifest),
    }


def _why_not(pipeline: Pipeline, file: str) -> list[str]:
    lines = [f"{file} is no registered item of any stream. The streams look here:"]
    for stream in pipeline.streams.values():
        if isinstance(stream.source, Source):
            reason = pipeline.landing(stream, wait=False).why_not(file)
            lines.append(f"  {stream.name}: {shown(stream.source.uri)}: {reason}")
        else:
            lines.append(f"  {stream.name}: {stream.source.place}: no such row")
    return lines


def _print_story(story: dict[str, Any]) -> None:
    head(story["location"])
    _print_arrival(story)
    _print_batch(story)
    for one in story["backfills"]:
        _print_backfill(story, one)


def _print_batch(story: dict[str, Any]) -> None:
    if story["batch_id"] is None:
        say("  3 plan      not planned yet: `batch-pipeline run` plans and encodes it")
        return
    weight = format_bytes(story["batch_weight_bytes"])
    say(f"  3 plan      batch of {story['batch_items']} items, {weight}")
    for line in learned_lines(story["learned_limit"]):
        say(f"              {line}")
    if story["is_late"]:
        say("  4 name      outside the partitions, since it came late")
    else:
        say(f"  4 name      partition {story['batch_id']}")
    for one in story["attempts"]:
        _print_attempt(one)
    if story["generation"] is None:
        say("  7 publish   not published; `batch-pipeline run` makes the next attempt")
        return
    say(f"  7 publish   generation {story['generation']}:")
    for uri in story["part_files"]:
        say(f"              {uri}")
    if any(one["quarantined"] or one["bad_file"] for one in story["attempts"]):
        gone = story["quarantine_removed"]
        was = "is in" if gone is None else f"was, until {gone['at']:%Y-%m-%d}, in"
        say(f"              what was set aside, with line and reason, {was}")
        for uri in story["quarantine_files"]:
            say(f"              {uri}")
    _print_removal(story)
    if story["is_late"]:
        print_loads(story)
        return
    if story["files_removed"] is None:
        say(f"  8 say       `batch-pipeline messages {story['stream']}` sends it")
    else:
        say(f"  8 say       `batch-pipeline messages {story['stream']}` leaves it out")
    print_loads(story)


def _print_removal(story: dict[str, Any]) -> None:
    removal = story["files_removed"]
    if removal is None:
        return
    at, archive = removal["at"].strftime("%Y-%m-%d %H:%M:%S UTC"), removal["archive"]
    went = "deleted" if archive is None else f"moved to the archive {archive}"
    say(f"              these files were {went} {at}; materialize the partition")
    say("              again to have them anew")


def _print_backfill(story: dict[str, Any], one: dict[str, Any]) -> None:
    generation = "" if one["generation"] is None else f", generation {one['generation']}"
    say(f"  once more   by the backfill {one['job']}: {one['state']}{generation}")
    say(f"  4 name      partition {one['partition']} of {story['stream']}/backfill")
    for attempt in one["attempts"]:
        _print_attempt(attempt)
    for uri in one["part_files"]:
        say(f"              {uri}")
    _print_removal(one)
    if one["generation"] is not None and one["targets"]:
        print_loads(one)


def _print_arrival(story: dict[str, Any]) -> None:
    if story["meta_table"] is None:
        size = format_bytes(story["size_bytes"])
        cut = story["range"]
        wanted = "" if cut is None else f"bytes {cut['first']} to {cut['last']} of "
        say(f"  1 arrive    {wanted}{size}, modified {story['modified_at']}; {story['now']}")
        say(f"  2 register  item {story['item_id']} of stream {story['stream']}")
        return
    say(f"  1 arrive    weight {format_bytes(story['weight'])}; {story['now']}")
    say(f"  2 register  by you: id {story['item_id']} of {story['meta_table']}")


def _print_attempt(one: dict[str, Any]) -> None:
    started = one["started_at"].strftime("%Y-%m-%d %H:%M:%S UTC")
    number, status = one["number"], one["status"]
    say(f"  5 claim     attempt {number} {status}, started {started}, run {one['run_id']}")
    if one["error"]:
        say(f"              {one['error']}")
    if one["read"] is not None:
        counts = f"{one['written']} written, {one['quarantined']} quarantined"
        say(f"  6 encode    {one['read']} records of this file read: {counts}")
    if one["read_etag"]:
        version = "" if one["read_version"] is None else f", version {one['read_version']}"
        say(f"              from the object with etag {one['read_etag']}{version}")
    if one["bad_file"]:
        say(f"              the whole file was set aside: {one['bad_file']}")
