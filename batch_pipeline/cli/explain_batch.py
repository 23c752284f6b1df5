"""What `explain` shows of a batch that is named by its partition key or its range."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from batch_pipeline.cli.console import at, fact, head, note
from batch_pipeline.cli.load_status import loads_of, print_loads
from batch_pipeline.config.units import format_bytes
from batch_pipeline.model.errors import (
    OF_ONE_META_TABLE,
    AmbiguousJobError,
    BatchSupersededError,
    InvalidValueError,
    UnknownBatchError,
    UnknownJobError,
)

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.model.batch import Batch
    from batch_pipeline.model.stream import Stream

_SHOWN = 20
_NAME = re.compile(r"([^:/]+:)?[0-9]+-[0-9]+|-?[0-9]+\.\.-?[0-9]+")


def is_batch_name(text: str) -> bool:
    """Return whether a text has the form of a partition key, or of a range of ids."""
    return _NAME.fullmatch(text) is not None


def batch_timelines(
    pipeline: "Pipeline", streams: "list[Stream]", name: str
) -> Iterator[dict[str, Any]]:
    """Describe the batches of this name, at most one for each stream."""
    if not is_batch_name(name):
        return
    for stream in streams:
        try:
            batch = find_batch(pipeline, stream, name)
        except (BatchSupersededError, InvalidValueError) as error:
            note(str(error))
        except (UnknownBatchError, UnknownJobError):
            continue
        else:
            yield _story(pipeline, stream, batch, name if ":" in name else batch.label)


def find_batch(pipeline: "Pipeline", stream: "Stream", name: str) -> "Batch":
    """Return the batch that a partition key, an id range or a number names.

    Raises:
        UnknownBatchError, UnknownJobError: there is none.
        BatchSupersededError: it was split; the message names its parts.
        InvalidValueError: several batches have the name.
    """
    database = pipeline.database
    if ":" in name:
        return database.backfills.batch(stream.name, name)
    try:
        return database.jobs.batch(stream.name, name)
    except (AmbiguousJobError, UnknownBatchError):
        return database.batches.batch(stream.name, name)  # raises for one that was split


def _story(pipeline: "Pipeline", stream: "Stream", batch: "Batch", label: str) -> dict[str, Any]:
    database = pipeline.database
    status, manifest = database.batches.status(batch), database.manifests.of_batch(batch)
    return {
        "stream": stream.name,
        "job": batch.job,
        "batch_id": label,
        "number": batch.id,
        "state": status.state.value,
        "is_late": ":" not in label and batch.job != stream.name,
        "items": batch.count,
        "weight_bytes": batch.weight,
        "files": _files(pipeline, stream, batch),
        "attempts": [asdict(one) for one in database.history.of_batch(batch)],
        "generation": status.generation,
        "part_files": [] if manifest is None else [one.uri for one in manifest.part_files],
        "quarantine_files": (
            [] if manifest is None else [one.uri for one in manifest.quarantine_files]
        ),
        "targets": [] if manifest is None else loads_of(pipeline, stream, manifest),
    }


def _files(pipeline: "Pipeline", stream: "Stream", batch: "Batch") -> list[dict[str, Any]]:
    try:
        items = pipeline.meta_table(stream).items(batch)
    except OF_ONE_META_TABLE as error:  # the inventory knows the rest
        note(str(error))
        return []
    return [
        {"item_id": one.id, "location": one.file.location, "weight": one.weight} for one in items
    ]


def print_batch(story: dict[str, Any], now: datetime) -> None:
    """Print a batch: its state, its files, its attempts, and what they published."""
    head(f"{story['stream']}: batch {story['batch_id']}")
    generation = story["generation"]
    fact("now", story["state"] + ("" if generation is None else f", generation {generation}"))
    late = ", which came late" if story["is_late"] else ""
    weight = format_bytes(story["weight_bytes"])
    amount = f"items: {story['items']}{late}, {weight}"
    fact("batch", f"number {story['number']} of the job {story['job']}: {amount}")
    files = story["files"]
    for number, one in enumerate(files[:_SHOWN]):
        fact("" if number else "files", f"{one['item_id']}: {one['location']}")
    if len(files) > _SHOWN:
        fact("", f"… and {len(files) - _SHOWN} more (--json lists all)")
    for one in story["attempts"]:
        _print_attempt(one, now)
    for number, uri in enumerate(story["part_files"]):
        fact("" if number else "part files", uri)
    for number, uri in enumerate(story["quarantine_files"]):
        fact("" if number else "quarantine", uri)
    if generation is not None:
        print_loads(story, now)


def _print_attempt(one: dict[str, Any], now: datetime) -> None:
    started, number, status = at(one["started_at"], now), one["number"], one["status"]
    fact("attempt", f"attempt {number} {status}, started {started}, run {one['run_id']}")
    if one["error"]:
        fact("", one["error"])
    if one["read"] is not None:
        counts = f"{one['written']} written, {one['quarantined']} quarantined"
        fact("", f"records read: {one['read']}, {counts}")
    if one["generation"] is not None:
        finished = at(one["finished_at"], now)
        fact("", f"published as generation {one['generation']} by attempt {number}, {finished}")
