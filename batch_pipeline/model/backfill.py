"""Backfills: reprocess a part of a job's history in batches that are planned again.

`Backfill` is the request, `Selection` the items it covers, `Estimate` and `Progress` its cost and
its state. The partition key of a backfill is `<name>:<range>`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from batch_pipeline.model.batch import (
    ENDED,
    MAX_ID,
    MIN_ID,
    BatchState,
    IdRange,
    parse_partition_key,
)
from batch_pipeline.model.errors import InvalidValueError, require
from batch_pipeline.model.filter import Filter
from batch_pipeline.model.job import JobKind, JobTerms, TableIdentity
from batch_pipeline.model.planning import Cut, Limits, cut
from batch_pipeline.model.stream import STREAM_NAME

MAX_NAME = 50
_EXPECTED_NAME = (
    f"1 to {MAX_NAME} letters, digits, '_', '.' or '-', starting with a letter, digit or '_', and "
    f"not 'late', which is the job of late arrivals; without '...', which separates partition keys"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Items of a backfill: those that meet all conditions, by default all.

    `since` is inclusive, `until` exclusive; `time_column` is the column to compare, None for the
    time of registration. `item_ids` lists single items. `failed_only` selects the items of the
    parent's failed and dead batches.

    Raises:
        InvalidValueError: conditions exclude each other, or a time has no zone.
    """

    ids: IdRange = field(default=IdRange(first_id=MIN_ID, last_id=MAX_ID))
    since: datetime | None = None
    until: datetime | None = None
    time_column: str | None = None
    item_ids: tuple[int, ...] | None = None
    failed_only: bool = False

    def __post_init__(self) -> None:
        check_times(self.since, self.until)
        fits = not (self.failed_only and self.has_times)
        require(fits, "times", "since, until", "none together with failed batches")
        if self.item_ids is not None:
            name, shown = "item ids", ", ".join(map(str, self.item_ids[:5]))
            shown += ", …" if len(self.item_ids) > 5 else ""
            whole = IdRange(first_id=MIN_ID, last_id=MAX_ID)
            alone = not (self.failed_only or self.has_times) and self.ids == whole
            require(alone, name, shown, "no other selection")
            require(self.item_ids, name, (), "at least one")
            fits = min(self.item_ids) >= MIN_ID and max(self.item_ids) <= MAX_ID
            require(fits, name, shown, "64-bit integers")

    @property
    def has_times(self) -> bool:
        """Return whether items are selected by time."""
        return self.since is not None or self.until is not None

    @property
    def is_window(self) -> bool:
        """Return whether the id range is the only condition."""
        return not (self.has_times or self.failed_only or self.item_ids is not None)

    def to_json(self) -> dict[str, Any]:
        """Return JSON that identifies the selection; its size does not grow with the id list."""
        written: dict[str, Any] = {}
        if self.ids.first_id != MIN_ID:
            written["first_id"] = self.ids.first_id
        if self.ids.last_id != MAX_ID:
            written["last_id"] = self.ids.last_id
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None:
                written[name] = time.astimezone(UTC).isoformat()
        if self.has_times:
            written["time_column"] = self.time_column
        if self.item_ids is not None:
            ids = sorted(set(self.item_ids))
            digest = sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]
            written["item_ids"] = {"count": len(ids), "sha256": digest}
        if self.failed_only:
            written["failed_only"] = True
        return written


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """Request for a backfill.

    `name` is the full name of its job, `parent` the job whose history it reprocesses. The backfill
    of a stream is built by `of_stream`. Batches are cut by `max_weight` and `max_count`;
    `min_weight` is ignored.
    """

    name: str
    limits: Limits
    selection: Selection = field(default_factory=Selection)
    parent: str | None = None
    stream: str | None = None
    max_attempts: int = 3
    bisect: bool = False

    @classmethod
    def of_stream(cls, stream: str, name: str, selection: Selection, limits: Limits) -> "Backfill":
        """Build the backfill of a stream, whose ids are not negative.

        Raises:
            InvalidValueError: the name cannot be a part of file names, or an id is negative.
        """
        check_backfill_name(name)
        first_id = selection.ids.first_id
        require(first_id == MIN_ID or first_id >= 0, "first_id", first_id, "at least 0")
        job = backfill_job(stream, name)
        return cls(name=job, limits=limits, selection=selection, parent=stream, stream=stream)

    def terms(
        self, meta_table: str, where: Filter | None, identity: TableIdentity | None
    ) -> JobTerms:
        """Return the terms of its job on a table."""
        limits = {"max_weight": self.limits.max_weight, "max_count": self.limits.max_count}
        return JobTerms(
            name=self.name,
            meta_table=meta_table,
            kind=JobKind.BACKFILL,
            stream=self.stream,
            where=where,
            identity=identity,
            max_attempts=self.max_attempts,
            bisect=self.bisect,
            planned_once={"selection": self.selection.to_json(), "limits": limits},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Median speed of the last successful attempts of a job."""

    job: str
    attempts: int
    seconds_per_batch: float
    weight_per_second: float | None  # None if batches weigh nothing or took no time

    def seconds(self, batches: int, weight: int) -> float:
        """Return how long one worker takes for batches of a total weight."""
        if self.weight_per_second is None:
            return batches * self.seconds_per_batch
        return weight / self.weight_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Number of batches that planning would create, and their cost at past throughput.

    `weight` is in bytes. `pace` is None if no attempt has succeeded yet.
    """

    batches: int = 0
    items: int = 0
    weight: int = 0
    oversized: int = 0
    pace: Throughput | None = None

    @property
    def seconds(self) -> float | None:
        """Return how long one worker takes, None if the throughput is unknown."""
        return None if self.pace is None else self.pace.seconds(self.batches, self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a job: batches by state, and items and weight, total and published.

    Split batches are not counted, since their parts are. `remaining` is None if no attempt has
    succeeded yet, and 0 if no batch is left that is tried automatically.
    """

    job: str
    states: Mapping[BatchState, int]
    items: int
    items_done: int
    weight: int
    weight_done: int
    remaining: timedelta | None

    @property
    def batches(self) -> int:
        """Return the number of batches."""
        return sum(self.states.values())

    @property
    def is_finished(self) -> bool:
        """Return whether every batch is published, dead or cancelled."""
        return self.batches > 0 and ENDED.issuperset(self.states)


def check_backfill_name(name: str) -> None:
    """Check the name of a stream's backfill.

    Raises:
        InvalidValueError: the name is not safe in file names and partition keys.
    """
    fits = STREAM_NAME.fullmatch(name) and len(name) <= MAX_NAME
    require(fits and name != "late" and "..." not in name, "backfill", name, _EXPECTED_NAME)


def check_times(since: datetime | None, until: datetime | None) -> None:
    """Check a time range, which may be open at either end.

    Raises:
        InvalidValueError: a time has no zone, or the range is empty.
    """
    for name, time in (("since", since), ("until", until)):
        fits = time is None or time.tzinfo is not None
        require(fits, name, time and time.isoformat(), "a time with a zone")
    fits = since is None or until is None or until > since
    require(fits, "until", until and until.isoformat(), "a time after `since`")


def backfill_job(stream: str, name: str) -> str:
    """Return the job name of a stream's backfill."""
    return f"{stream}.{name}"


def backfill_name(stream: str, job: str) -> str:
    """Return the name of a stream's backfill from its job name."""
    return job.removeprefix(f"{stream}.")


def cut_lists(
    weighed_ids: Iterable[tuple[int, int]], limits: Limits
) -> Iterator[tuple[Cut, tuple[int, ...]]]:
    """Cut `(id, weight)` pairs in ascending order into lists of ids, as `planning.cut` does.

    Each range goes from the first to the last id of its list; other ids between them do not belong
    to the batch. Only one batch is held in memory.
    """
    for found in cut(weighed_ids, after_id=MIN_ID - 1, high_watermark=MAX_ID, limits=limits):
        whole = range(found.id_range.first_id, found.id_range.last_id + 1)
        ids = tuple(whole if found.runs is None else found.runs)
        yield replace(found, id_range=IdRange(first_id=ids[0], last_id=ids[-1]), runs=None), ids


_EXPECTED = "the name of a backfill and the range of a batch, as in 2023:00000020-00000029"


def backfill_key(name: str, key: str) -> str:
    """Return the partition key of a backfill's batch, from the key of its range.

    Raises:
        InvalidValueError: the name is not valid.
    """
    check_backfill_name(name)
    return f"{name}:{key}"


def parse_backfill_key(key: str) -> tuple[str, IdRange]:
    """Parse a key that `backfill_key` wrote; any other text is rejected.

    Raises:
        InvalidValueError: the text is not such a key.
    """
    name, _, ids = key.partition(":")
    try:
        check_backfill_name(name)
        return name, parse_partition_key(ids)
    except InvalidValueError as error:
        raise InvalidValueError("partition key", key, _EXPECTED) from error
