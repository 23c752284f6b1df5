"""The nine stations of a file in words, as `explain` prints them; the facts are `explain`'s."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from batch_pipeline.cli.ages import ago, at, lasting
from batch_pipeline.cli.console import fact, head
from batch_pipeline.cli.loads_told import print_loads
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.settings.units import format_bytes

_ENDED = {
    AttemptStatus.FAILED: "failed",
    AttemptStatus.ABANDONED: "interrupted",
    AttemptStatus.CANCELLED: "called off",
}


def print_story(story: dict[str, Any], now: datetime) -> None:
    """Print where a file is by now, what to do if it is stuck, and how it came there."""
    head(story["location"])
    fact("now", _now(story, now))
    for number, step in enumerate(_next_steps(story)):
        fact("" if number else "next", step)
    _print_arrival(story, now)
    _print_batch(story, now)
    for one in story["backfills"]:
        _print_backfill(story, one, now)


def _now(story: dict[str, Any], now: datetime) -> str:
    if story["batch_id"] is None:
        return "registered, and in no batch yet"
    attempts, said = story["attempts"], []
    if story["generation"] is not None:
        done = [one for one in attempts if one["generation"] == story["generation"]]
        ended = done[-1]["finished_at"] if done else None
        when = "" if ended is None else f" {ago(ended, now)}"
        said.append(f"published{when}, generation {story['generation']}")
        said += _set_aside(done[-1]) if done else []
        if story["files_removed"] is not None:
            said.append("its files were removed since")
        loaded = [one["target"] for one in story["targets"] if one["loaded"]]
        missing = [one["target"] for one in story["targets"] if not one["loaded"]]
        said += [f"loaded into {', '.join(loaded)}"] if loaded else []
        said += [f"not loaded into {', '.join(missing)}"] if missing else []
    if not attempts:
        return "planned, and not tried yet"
    last = attempts[-1]
    if last["status"] == AttemptStatus.RUNNING:
        said.append(f"being encoded for {lasting(now - last['started_at'])}")
    elif last["status"] in _ENDED:
        ended = ago(last["finished_at"], now)
        said.append(f"{_ENDED[last['status']]} {ended}, attempts: {len(attempts)}")
    return "; ".join(said)


def _set_aside(attempt: dict[str, Any]) -> list[str]:
    if attempt["bad_file"]:
        return ["the whole file was set aside"]
    count = attempt["quarantined"]
    if not count:
        return []
    return [f"records set aside: {count:,} of {attempt['read']:,}"]


def _next_steps(story: dict[str, Any]) -> Iterator[str]:
    """Say what takes the file further where nothing does by itself."""
    name, last = story["stream"], story["attempts"][-1]["status"] if story["attempts"] else None
    if story["generation"] is not None or last == AttemptStatus.RUNNING:
        return
    if last == AttemptStatus.CANCELLED:
        yield f"`batch-pipeline jobs retry {name}` takes the batch up again"
    elif last == AttemptStatus.FAILED:
        retry = f"batch-pipeline jobs retry {name}"
        yield f"`{retry}`, then `batch-pipeline run {name}`, tries it again"
        if story["batch_items"] != 1:
            label = story["batch_id"]
            yield f"`batch-pipeline jobs split {name} --batch {label}` finds the bad item"
    else:
        yield f"`batch-pipeline run {name}` encodes it, as do the sensors of `dev`"


def _print_arrival(story: dict[str, Any], now: datetime) -> None:
    if story["meta_table"] is not None:
        fact("1 land", f"weight {format_bytes(story['weight'])}; {story['now']}")
        fact("2 register", f"by you: id {story['item_id']} of {story['meta_table']}")
        return
    size, cut, modified = format_bytes(story["size_bytes"]), story["range"], story["modified_at"]
    wanted = "" if cut is None else f"bytes {cut['first']} to {cut['last']} of "
    when = "" if modified is None else f", modified {at(modified, now)}"
    fact("1 land", f"{wanted}{size}{when}; {story['now']}")
    fact("2 register", f"item {story['item_id']} of stream {story['stream']}")


def _print_batch(story: dict[str, Any], now: datetime) -> None:
    if story["batch_id"] is None:
        fact("3 plan", "not planned yet")
        return
    weight = format_bytes(story["batch_weight_bytes"])
    fact("3 plan", f"batch of {weight}, items: {story['batch_items']}")
    if story["is_late"]:
        fact("4 partition", "outside the partitions, since it came late")
    else:
        fact("4 partition", f"partition {story['batch_id']}")
    for one in story["attempts"]:
        _print_attempt(one, now)
    if story["generation"] is None:
        fact("7 publish", "not published")
        return
    _print_published(story, now)
    print_loads(story, now)


def _print_published(story: dict[str, Any], now: datetime) -> None:
    fact("7 publish", f"generation {story['generation']}:")
    for uri in story["part_files"]:
        fact("", uri)
    if any(one["quarantined"] or one["bad_file"] for one in story["attempts"]):
        gone = story["quarantine_removed"]
        was = "is in" if gone is None else f"was, until {gone['at']:%Y-%m-%d}, in"
        fact("", f"what was set aside, with line and reason, {was}")
        for uri in story["quarantine_files"]:
            fact("", uri)
    _print_removal(story, now)
    if story["is_late"]:
        return
    does = "sends it" if story["files_removed"] is None else "leaves it out"
    fact("8 emit", f"`batch-pipeline messages {story['stream']}` {does}")


def _print_removal(story: dict[str, Any], now: datetime) -> None:
    removal = story["files_removed"]
    if removal is None:
        return
    again = "materialize the partition again to have them anew"
    fact("", f"these files were deleted {at(removal['at'], now)}; {again}")


def _print_backfill(story: dict[str, Any], one: dict[str, Any], now: datetime) -> None:
    generation = "" if one["generation"] is None else f", generation {one['generation']}"
    fact("once more", f"by the backfill {one['job']}: {one['state']}{generation}")
    fact("4 partition", f"partition {one['partition']} of {story['stream']}/backfill")
    for attempt in one["attempts"]:
        _print_attempt(attempt, now)
    for uri in one["part_files"]:
        fact("", uri)
    _print_removal(one, now)
    if one["generation"] is not None and one["targets"]:
        print_loads(one, now)


def _print_attempt(one: dict[str, Any], now: datetime) -> None:
    started, number, status = at(one["started_at"], now), one["number"], one["status"]
    fact("5 claim", f"attempt {number} {status}, started {started}, run {one['run_id']}")
    if one["error"]:
        fact("", one["error"])
    if one["read"] is not None:
        counts = f"{one['written']} written, {one['quarantined']} quarantined"
        fact("6 encode", f"records of this file: {one['read']} read, {counts}")
    if one["read_etag"]:
        version = "" if one["read_version"] is None else f", version {one['read_version']}"
        fact("", f"from the object with etag {one['read_etag']}{version}")
    if one["bad_file"]:
        fact("", f"the whole file was set aside: {one['bad_file']}")
