"""Where is this file, why, since when: the nine stations of one file."""

import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from batch_pipeline.cli.console import head, print_json, say
from batch_pipeline.cli.streams import as_json
from batch_pipeline.domain.item import Item
from batch_pipeline.domain.location import to_path, to_uri
from batch_pipeline.domain.stream import Stream
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.settings.units import format_bytes


@click.command(short_help="Tell where a file is, why, and since when.")
@click.argument("file")
@as_json
def explain(file: str, as_json: bool) -> None:
    """Tell the stations of FILE: a path, a file:// URI, a file name, or an item id."""
    with closing(Pipeline.from_environment()) as pipeline:
        found = [
            (stream, item)
            for stream in pipeline.streams.values()
            for item in pipeline.database.meta_table(stream.name).find(_location(file))
        ]
        stories = [_story(pipeline, stream, item) for stream, item in found]
        missing = [] if stories else _why_not(pipeline, file)
    if as_json:
        print_json({"file": file, "items": stories, "not_registered": missing})
    for story in () if as_json else stories:
        _print_story(story)
    for line in () if as_json else missing:
        say(line)
    if not stories:
        sys.exit(1)


def _location(file: str) -> str:
    """Give the URI of what looks like a path to a file; names and ids stay as they are."""
    if "://" in file or ("/" not in file and not Path(file).exists()):
        return file
    return to_uri(Path(file).absolute())


def _story(pipeline: Pipeline, stream: Stream, item: Item) -> dict[str, Any]:
    database = pipeline.database
    batch = database.batches.batch_of_item(stream.name, item.id)
    manifest = None if batch is None else database.manifests.of_batch(batch)
    attempts = [] if batch is None else database.history.of_item(batch, item.id)
    return {
        "stream": stream.name,
        "location": item.file.location,
        "size_bytes": item.file.size_bytes,
        "modified_at": item.file.modified_at.isoformat(),
        "now": pipeline.landing(stream, wait=False).compare(item.file),
        "item_id": item.id,
        "batch_id": None if batch is None else batch.key,
        "batch_items": None if batch is None else batch.count,
        "batch_weight_bytes": None if batch is None else batch.weight,
        "attempts": [asdict(one) for one in attempts],
        "generation": None if manifest is None else manifest.generation,
        "part_files": [] if manifest is None else [part.uri for part in manifest.part_files],
        "quarantine_files": (
            [] if manifest is None else [part.uri for part in manifest.quarantine_files]
        ),
    }


def _why_not(pipeline: Pipeline, file: str) -> list[str]:
    lines = [f"{file} is no registered item of any stream. The streams look here:"]
    for stream in pipeline.streams.values():
        reason = pipeline.landing(stream, wait=False).why_not(file)
        lines.append(f"  {stream.name}: {to_path(stream.source.uri)}: {reason}")
    return lines


def _print_story(story: dict[str, Any]) -> None:
    head(story["location"])
    size = format_bytes(story["size_bytes"])
    say(f"  1 arrive    {size}, modified {story['modified_at']}; {story['now']}")
    say(f"  2 register  item {story['item_id']} of stream {story['stream']}")
    if story["batch_id"] is None:
        say("  3 plan      not planned yet: `batch-pipeline run` plans and encodes it")
        return
    weight = format_bytes(story["batch_weight_bytes"])
    say(f"  3 plan      batch of {story['batch_items']} items, {weight}")
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
        say("              what was set aside, with line and reason, is in")
        for uri in story["quarantine_files"]:
            say(f"              {uri}")
    say(f"  8 say       `batch-pipeline messages {story['stream']}` sends it")
    say("  9 load      by the Singer target that reads those messages")


def _print_attempt(one: dict[str, Any]) -> None:
    started = one["started_at"].strftime("%Y-%m-%d %H:%M:%S UTC")
    number, status = one["number"], one["status"]
    say(f"  5 claim     attempt {number} {status}, started {started}, run {one['run_id']}")
    if one["error"]:
        say(f"              {one['error']}")
    if one["read"] is not None:
        counts = f"{one['written']} written, {one['quarantined']} quarantined"
        say(f"  6 encode    {one['read']} records of this file read: {counts}")
    if one["bad_file"]:
        say(f"              the whole file was set aside: {one['bad_file']}")
