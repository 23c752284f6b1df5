"""The command `explain`: the state and history of a file or a batch."""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from batch_pipeline.cli.console import ago, at, fact, facts, head, lasting, note, print_json, say
from batch_pipeline.cli.options import as_json, chosen, opened
from batch_pipeline.config.units import format_bytes
from batch_pipeline.model.batch import AttemptStatus, BatchState, parse_late_key
from batch_pipeline.model.errors import (
    OF_ONE_META_TABLE,
    BatchSupersededError,
    InvalidValueError,
    UnknownBatchError,
    resume_step,
)
from batch_pipeline.model.load import LoadStatus
from batch_pipeline.model.location import as_s3, shown, to_uri

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.model.batch import Batch, BatchStatus
    from batch_pipeline.model.item import Item
    from batch_pipeline.model.manifest import Manifest
    from batch_pipeline.model.stream import Stream

_SHOWN = 20
_MOST_ITEMS = 20  # maximum that a meta table returns for a name
_BATCH_NAME = re.compile(r"([^:/]+:)?[0-9]+-[0-9]+|late-[0-9]+|-?[0-9]+\.\.-?[0-9]+")


@click.command()
@click.argument("file", shell_complete=lambda *given: [CompletionItem(given[-1], type="file")])
@as_json
def explain(file: str, as_json: bool) -> None:
    """Show the state and history of a file or batch.

    FILE is a path, a file:// or s3:// URI, a file name, or an item id. Prints the current state,
    then each step with its numbers. If the file is not registered, each stream states why. FILE may
    also be a partition key or a range of ids such as 5..8, which shows the batch with its files,
    attempts and generations. Changes nothing.

    Exit codes: 1 if no stream has the file or batch.

    \b
    Example:
      batch-pipeline explain orders-2026-01-24.csv
    """
    with opened() as pipeline:
        streams, location = chosen(pipeline, ()), _location(file)
        items = [
            _item_story(pipeline, stream, item)
            for stream in streams
            for item in _items(pipeline, stream, location)
        ]
        batches = [*_batch_stories(pipeline, streams, file)]
        paused = {one["stream"]: pipeline.database.jobs.paused(one["stream"]) for one in items}
        missing = [] if items or batches else _why_not(pipeline, file)
    if as_json:
        print_json({"file": file, "items": items, "batches": batches, "not_registered": missing})
    else:
        now = datetime.now(UTC)
        for number, story in enumerate((*items, *batches)):
            if number:
                say()
            if number < len(items):
                _print_item(story, paused[story["stream"]], now)
            else:
                _print_batch(story, now)
        for line in missing:
            say(line)
    if _MOST_ITEMS in Counter(one["stream"] for one in items).values():
        note(f"At most {_MOST_ITEMS} items of a stream are shown; give an item id to see others.")
    if missing:
        sys.exit(1)


def _location(file: str) -> str:
    """Return the URI of a path to a file; file names and ids are returned unchanged."""
    if "://" in file or ("/" not in file and not os.path.lexists(file)):
        return as_s3(file)
    return to_uri(os.path.normpath(Path(file).absolute()))


def _items(pipeline: "Pipeline", stream: "Stream", location: str) -> "list[Item]":
    try:
        return pipeline.meta_table(stream).find(location)
    except OF_ONE_META_TABLE as error:  # the file may be in another stream
        note(str(error))
        return []


def _why_not(pipeline: "Pipeline", file: str) -> list[str]:
    from batch_pipeline.model.stream import Source

    what = "item or batch" if _BATCH_NAME.fullmatch(file) else "item"
    lines = [f"{file} is not a registered {what} of any stream. Checked:"]
    for stream in pipeline.usable_streams.values():
        place, reason = stream.source.place, "no such row"
        if isinstance(stream.source, Source):
            reason = pipeline.landing(stream, wait=False).why_not(file)
            place = shown(stream.source.uri)
        lines.append(f"  {stream.name}: {place}: {reason}")
    return lines


def _item_story(pipeline: "Pipeline", stream: "Stream", item: "Item") -> dict[str, Any]:
    from batch_pipeline.storage.landing import compare

    database, part, within = pipeline.database, item.file.range, stream.source.within
    batch = database.batches.batch_of_item(stream.name, item.id)
    status = None if batch is None else database.batches.status(batch)
    manifest = None if batch is None else database.manifests.of_batch(batch)
    attempts = [] if batch is None else database.history.of_item(batch, item.id)
    is_outside = within.refuse(item.file.location)
    quarantine_removed = manifest and database.manifests.quarantine_removal(manifest)
    return {
        "stream": stream.name,
        "location": item.file.location,
        "size_bytes": item.file.size_bytes,
        "range": None if part is None else {"first": part.start, "last": part.stop - 1},
        "weight": item.weight,
        "modified_at": item.file.modified_at,
        "now": f"it {within.advice}" if is_outside else compare(item.file),
        "meta_table": stream.user_table and stream.user_table.table,
        "item_id": item.id,
        "batch_id": status and status.key,
        "batch_state": status and status.state.value,
        "is_late": _is_late(pipeline, stream, item, batch),
        "batch_items": batch and batch.count,
        "batch_weight_bytes": batch and batch.weight,
        "attempts": [asdict(one) for one in attempts],
        **_published(pipeline, stream, manifest),
        "quarantine_files": _uris(manifest, "quarantine_files"),
        "quarantine_removed": quarantine_removed and {"at": quarantine_removed},
        "backfills": [
            _backfill_story(pipeline, stream, item, one)
            for one in database.backfills.of_item(stream.name, item.id)
        ],
    }


def _is_late(pipeline: "Pipeline", stream: "Stream", item: "Item", batch: "Batch | None") -> bool:
    """Return whether an item is in a list of late items, or will be after the next audit."""
    if batch is not None:
        return batch.item_ids is not None
    bookmark = pipeline.database.batches.bookmark(stream.name)
    return bookmark is not None and item.id <= bookmark


def _backfill_story(
    pipeline: "Pipeline", stream: "Stream", item: "Item", one: "BatchStatus"
) -> dict[str, Any]:
    """Describe a batch of a backfill that contains an item."""
    database = pipeline.database
    return {
        "job": one.batch.job,
        "partition": one.key,
        "state": one.state.value,
        "attempts": [asdict(each) for each in database.history.of_item(one.batch, item.id)],
        **_published(pipeline, stream, database.manifests.of_batch(one.batch)),
    }


def _published(
    pipeline: "Pipeline", stream: "Stream", manifest: "Manifest | None"
) -> dict[str, Any]:
    """Describe the newest generation of a batch, and its loads."""
    removed = manifest and pipeline.database.manifests.removal(manifest)
    return {
        "generation": manifest and manifest.generation,
        "part_files": _uris(manifest, "part_files"),
        "files_removed": removed and {"at": removed},
        "targets": _loads(pipeline, stream, manifest),
    }


def _uris(manifest: "Manifest | None", files: str) -> list[str]:
    return [] if manifest is None else [one.uri for one in getattr(manifest, files)]


def _loads(
    pipeline: "Pipeline", stream: "Stream", manifest: "Manifest | None"
) -> list[dict[str, Any]]:
    """Describe for each target whether the newest generation of a batch is loaded, or why not."""
    if manifest is None:
        return []
    known = pipeline.database.loads.of_batch(manifest.batch.id)
    newest = [one for one in known if one.generation == manifest.generation]
    names = dict.fromkeys([*(t.name for t in stream.targets), *(one.target for one in newest)])
    loads = []
    for name in names:
        tries = [one for one in newest if one.target == name]
        last = tries[-1] if tries else None
        done = (one for one in tries if one.status is LoadStatus.SUCCEEDED and not one.is_void)
        has = next(done, None)
        loads.append(
            {
                "target": name,
                "loaded": has is not None,
                "loaded_at": has and has.finished_at,
                "records": has and has.records,
                "messages": has and has.mode,
                "tries": len(tries),
                "status": last and last.status.value,
                "run_id": last and last.run_id,
                "error": last.error if last is not None and has is None else None,
            }
        )
    return loads


def _batch_stories(
    pipeline: "Pipeline", streams: "list[Stream]", name: str
) -> Iterator[dict[str, Any]]:
    """Describe the batches of this name, at most one for each stream."""
    for stream in streams if _BATCH_NAME.fullmatch(name) else ():
        try:
            batch = pipeline.database.batches.find(stream.name, name)
        except (BatchSupersededError, InvalidValueError) as error:
            note(str(error))
        except UnknownBatchError:
            continue
        else:
            yield _batch_story(pipeline, stream, batch)


def _batch_story(pipeline: "Pipeline", stream: "Stream", batch: "Batch") -> dict[str, Any]:
    database = pipeline.database
    status, manifest = database.batches.status(batch), database.manifests.of_batch(batch)
    try:
        items = pipeline.meta_table(stream).items(batch)
    except OF_ONE_META_TABLE as error:  # the inventory has the rest
        note(str(error))
        items = []
    return {
        "stream": stream.name,
        "job": batch.job,
        "batch_id": status.key,
        "number": batch.id,
        "state": status.state.value,
        "is_late": parse_late_key(status.key) is not None,
        "items": batch.count,
        "weight_bytes": batch.weight,
        "files": [
            {"item_id": one.id, "location": one.file.location, "weight": one.weight}
            for one in items
        ],
        "attempts": [asdict(one) for one in database.history.of_batch(batch)],
        **_published(pipeline, stream, manifest),
        "quarantine_files": _uris(manifest, "quarantine_files"),
    }


_ENDED = {
    AttemptStatus.FAILED: "failed",
    AttemptStatus.ABANDONED: "interrupted",
    AttemptStatus.CANCELLED: "cancelled",
}


def _print_item(story: dict[str, Any], paused: str | None, now: datetime) -> None:
    """Print the state of a file, next steps if it is stuck, and each lifecycle step."""
    head(story["location"])
    fact("now", _state(story, now))
    facts("next", _next_steps(story, paused))
    _print_arrival(story, now)
    if story["batch_id"] is None:
        fact("3 plan", "not planned yet")
    else:
        weight = format_bytes(story["batch_weight_bytes"])
        fact("3 plan", f"batch of {weight}, items: {story['batch_items']}")
        fact("4 partition", f"partition {story['batch_id']}")
        for one in story["attempts"]:
            _print_attempt(one, now)
        _print_generation(story, now)
    for one in story["backfills"]:
        generation = "" if one["generation"] is None else f", generation {one['generation']}"
        fact("backfill", f"{one['job']}: {one['state']}{generation}")
        fact("4 partition", f"partition {one['partition']} of {story['stream']}/backfill")
        for attempt in one["attempts"]:
            _print_attempt(attempt, now)
        facts("", one["part_files"])
        _print_removal(one, now)
        if one["targets"]:
            _print_loads(story["stream"], one, now)


def _state(story: dict[str, Any], now: datetime) -> str:
    """Summarize the state of a file."""
    if story["batch_id"] is None:
        return "registered, not in a batch yet"
    attempts, texts, state = story["attempts"], [], story["batch_state"]
    if not attempts:
        return "planned, not started yet" if state == BatchState.PLANNED else state
    if story["generation"] is not None:
        done = [one for one in attempts if one["generation"] == story["generation"]]
        ended = done[-1]["finished_at"] if done else None
        when = "" if ended is None else f" {ago(ended, now)}"
        texts.append(f"published{when}, generation {story['generation']}")
        if done and done[-1]["bad_file"]:
            texts.append("the whole file was excluded")
        elif done and (count := done[-1]["quarantined"]):
            texts.append(f"records quarantined: {count:,} of {done[-1]['read']:,}")
        if story["files_removed"] is not None:
            texts.append("its part files were deleted since")
        for is_loaded, words in ((True, "loaded into"), (False, "not loaded into")):
            names = [one["target"] for one in story["targets"] if one["loaded"] is is_loaded]
            texts += [f"{words} {', '.join(names)}"] if names else []
    last = attempts[-1]
    if last["status"] == AttemptStatus.RUNNING:
        texts.append(f"being encoded for {lasting(now - last['started_at'])}")
    elif last["status"] in _ENDED:
        ended = ago(last["finished_at"], now)
        texts.append(f"{_ENDED[last['status']]} {ended}, attempts: {len(attempts)}")
        if state == BatchState.CANCELLED and last["status"] != AttemptStatus.CANCELLED:
            texts.append("cancelled since")
        if state == BatchState.INTERRUPTED and last["status"] != AttemptStatus.ABANDONED:
            texts.append("to be tried again")
    return "; ".join(texts)


def _next_steps(story: dict[str, Any], paused: str | None) -> Iterator[str]:
    """Yield the commands that a person has to run for the file to proceed, in their order.

    `paused` is the reason for which the stream is paused.
    """
    name, state = story["stream"], story["batch_state"]
    if state in {BatchState.PUBLISHED, BatchState.RUNNING}:
        return
    if paused is not None:
        yield (resume_step(name, paused) or f"paused: {paused}").removesuffix(".")
    if state == BatchState.CANCELLED:
        yield f"`batch-pipeline jobs retry {name}` retries the batch"
    elif state in {BatchState.FAILED, BatchState.DEAD}:
        retry = f"batch-pipeline jobs retry {name}"
        yield f"`{retry}`, then `batch-pipeline run {name}`, retries it"
        if story["batch_items"] != 1:
            label = story["batch_id"]
            yield f"`batch-pipeline jobs split {name} --batch {label}` finds the bad item"
    elif state is None and story["is_late"]:
        yield f"`batch-pipeline reconcile {name}` plans it as a late item, as `dev` does hourly"
    else:
        yield f"`batch-pipeline run {name}` encodes it, as do the sensors of `dev`"


def _print_arrival(story: dict[str, Any], now: datetime) -> None:
    amount = f"weight {format_bytes(story['weight'])}"
    registered = f"by you: id {story['item_id']} of {story['meta_table']}"
    if story["meta_table"] is None:
        cut, modified = story["range"], story["modified_at"]
        part = "" if cut is None else f"bytes {cut['first']} to {cut['last']} of "
        when = "" if modified is None else f", modified {at(modified, now)}"
        amount = f"{part}{format_bytes(story['size_bytes'])}{when}"
        registered = f"item {story['item_id']} of stream {story['stream']}"
    fact("1 land", f"{amount}; {story['now']}")
    fact("2 register", registered)


def _print_generation(story: dict[str, Any], now: datetime) -> None:
    """Print steps 7 to 9."""
    if story["generation"] is None:
        fact("7 publish", "not published")
        return
    fact("7 publish", f"generation {story['generation']}:")
    facts("", story["part_files"])
    done = (one for one in story["attempts"] if one["generation"] == story["generation"])
    if story["quarantine_files"] and any(one["quarantined"] or one["bad_file"] for one in done):
        gone = story["quarantine_removed"]
        until = "" if gone is None else f" until {gone['at']:%Y-%m-%d}"
        fact("", f"quarantined, with line and reason{until}:")
        facts("", story["quarantine_files"])
    _print_removal(story, now)
    sent = "sends it" if story["files_removed"] is None else "omits it"
    fact("8 emit", f"`batch-pipeline messages {story['stream']}` {sent}")
    _print_loads(story["stream"], story, now)


def _print_removal(story: dict[str, Any], now: datetime) -> None:
    if (removal := story["files_removed"]) is not None:
        again = "materialize the partition again to write new ones"
        fact("", f"these files were deleted {at(removal['at'], now)}; {again}")


def _print_attempt(
    one: dict[str, Any], now: datetime, claim: str = "5 claim", encode: str = "6 encode"
) -> None:
    started, number, status = at(one["started_at"], now), one["number"], one["status"]
    fact(claim, f"attempt {number} {status}, started {started}, run {one['run_id']}")
    if one["error"]:
        fact("", one["error"])
    if one["read"] is not None:
        counts = f"{one['read']} read, {one['written']} written, {one['quarantined']} quarantined"
        fact(encode, f"{'records of this file' if encode else 'records'}: {counts}")
    if one["read_etag"]:
        version = "" if one["read_version"] is None else f", version {one['read_version']}"
        fact("", f"from the object with etag {one['read_etag']}{version}")
    if one["bad_file"]:
        fact("", f"the whole file was excluded: {one['bad_file']}")


def _print_batch(story: dict[str, Any], now: datetime) -> None:
    """Print the state, files, attempts and published files of a batch."""
    head(f"{story['stream']}: batch {story['batch_id']}")
    generation = story["generation"]
    fact("now", story["state"] + ("" if generation is None else f", generation {generation}"))
    late = ", late" if story["is_late"] else ""
    amount = f"items: {story['items']}{late}, {format_bytes(story['weight_bytes'])}"
    fact("batch", f"number {story['number']} of the job {story['job']}: {amount}")
    files = (f"{one['item_id']}: {one['location']}" for one in story["files"])
    facts("files", files, most=_SHOWN)
    for one in story["attempts"]:
        _print_attempt(one, now, "attempt", "")
        if one["generation"] is not None:
            by = f"by attempt {one['number']}, {at(one['finished_at'], now)}"
            fact("", f"published as generation {one['generation']} {by}")
    facts("part files", story["part_files"])
    _print_removal(story, now)
    facts("quarantine", story["quarantine_files"])
    if generation is not None:
        _print_loads(story["stream"], story, now)


def _print_loads(stream: str, story: dict[str, Any], now: datetime) -> None:
    """Print step 9 of a batch."""
    if not story["targets"]:
        fact("9 load", "by the Singer target that reads its messages; the stream has no `targets`")
    for one in story["targets"]:
        if one["loaded"]:
            state = f"records: {one['records']:,}, loaded {at(one['loaded_at'], now)}"
        elif story["files_removed"] is not None and one["status"] != LoadStatus.RUNNING:
            state = "not loaded, and its files were deleted"
        elif one["status"] is None:
            state = f"pending; `batch-pipeline load {stream}` loads it"
        elif one["status"] == LoadStatus.RUNNING:
            state = f"being loaded by run {one['run_id']}"
        elif one["status"] == LoadStatus.SUCCEEDED:
            state = "to be loaded again"
        else:
            state = f"pending, {one['status']}, attempts: {one['tries']}"
        fact("9 load", f"{one['target']}: {state}")
        if one["error"]:
            fact("", one["error"])
