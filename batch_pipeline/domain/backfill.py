"""Backfills: which part of a job's past is taken once more, cut anew, and what that would cost."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.filter import Filter
from batch_pipeline.domain.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.domain.job import JobKind, JobTerms
from batch_pipeline.domain.planning import Cut, Limits
from batch_pipeline.domain.stream import STREAM_NAME
from batch_pipeline.domain.table_identity import TableIdentity

MAX_NAME = 50
_EXPECTED_NAME = (
    f"1 to {MAX_NAME} letters, digits, '_', '.' or '-', starting with a letter, digit or '_', and "
    f"not 'late', which is the job of late arrivals; without '...', which parts partition keys"
)

_ENDED = frozenset({BatchState.PUBLISHED, BatchState.DEAD, BatchState.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which items a backfill takes: those for which all that is stated holds; all by default.

    `since` is included, `until` is not; `time_column` names the column that they are compared with,
    None the time at which the product registered the item. `item_ids` are named one by one.
    `failed_only` takes the items of the parent's failed and dead batches.

    Raises:
        InvalidValueError: parts do not go together, or a time has no zone.
    """

    ids: IdRange = field(default=IdRange(first_id=MIN_ID, last_id=MAX_ID))
    since: datetime | None = None
    until: datetime | None = None
    time_column: str | None = None
    item_ids: tuple[int, ...] | None = None
    failed_only: bool = False

    def __post_init__(self) -> None:
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None and time.tzinfo is None:
                raise InvalidValueError(name, time.isoformat(), "a time with a zone")
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise InvalidValueError("until", self.until.isoformat(), "a time after `since`")
        if self.item_ids is None:
            if self.failed_only and self.has_times:
                raise InvalidValueError("times", "since, until", "none beside failed batches")
            return
        if self.failed_only or self.has_times or not self.takes_all_ids:
            raise InvalidValueError("item ids", _short(self.item_ids), "nothing else beside them")
        if not self.item_ids:
            raise InvalidValueError("item ids", (), "at least one")
        if min(self.item_ids) < MIN_ID or max(self.item_ids) > MAX_ID:
            raise InvalidValueError("item ids", _short(self.item_ids), "64-bit integers")

    @property
    def has_times(self) -> bool:
        """Tell whether items are chosen by a time."""
        return self.since is not None or self.until is not None

    @property
    def takes_all_ids(self) -> bool:
        """Tell whether no id is out of the window."""
        return self.ids == IdRange(first_id=MIN_ID, last_id=MAX_ID)

    @property
    def is_window(self) -> bool:
        """Tell whether an id alone says if its item is taken."""
        return not (self.has_times or self.failed_only or self.item_ids is not None)

    def to_json(self) -> dict[str, Any]:
        """Write what tells this selection from others, as JSON; short, however many ids it has."""
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


@dataclass(frozen=True, kw_only=True)
class BackfillTerms(JobTerms):
    """What must never change in a backfill: besides its filter, what it takes and its limits."""

    kind: JobKind = JobKind.BACKFILL
    selection: Selection = field(default_factory=Selection)
    max_weight: int
    max_count: int

    def config(self) -> dict[str, Any]:
        """Give what must never change in the job, as JSON."""
        limits = {"max_weight": self.max_weight, "max_count": self.max_count}
        return {**JobTerms.config(self), "selection": self.selection.to_json(), "limits": limits}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A backfill as it is asked for.

    `name` is the whole name of its job, `parent` the one of the job whose past it takes: its failed
    batches, and its pace. A stream's backfill is made by `of_stream`. Batches are cut by
    `max_weight` and `max_count`; nothing waits for the minimum.
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
        """Ask for a backfill of a stream; ids of streams count from 1.

        Raises:
            InvalidValueError: the name cannot be a part of file names, or an id is below 1.
        """
        check_backfill_name(name)
        if MIN_ID < selection.ids.first_id < 1:
            raise InvalidValueError("first_id", selection.ids.first_id, "at least 1")
        return cls(
            name=backfill_job(stream, name),
            limits=limits,
            selection=selection,
            parent=stream,
            stream=stream,
        )

    def terms(
        self, meta_table: str, where: Filter | None, identity: TableIdentity | None
    ) -> BackfillTerms:
        """Give the terms of its job on a table."""
        return BackfillTerms(
            name=self.name,
            meta_table=meta_table,
            stream=self.stream,
            where=where,
            identity=identity,
            max_attempts=self.max_attempts,
            bisect=self.bisect,
            selection=self.selection,
            max_weight=self.limits.max_weight,
            max_count=self.limits.max_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast the last attempts of a job that succeeded were; medians."""

    job: str
    attempts: int
    seconds_per_batch: float
    weight_per_second: float | None  # None where batches weigh nothing or took no time

    def seconds(self, batches: int, weight: int) -> float:
        """Give how long one worker takes for that many batches of that weight in all."""
        if self.weight_per_second is None:
            return batches * self.seconds_per_batch
        return weight / self.weight_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What planning would make, and how long one worker would take by the pace of the past.

    Weight in bytes. `pace` is None where no attempt has succeeded yet.
    """

    batches: int = 0
    items: int = 0
    weight: int = 0
    oversized: int = 0
    pace: Pace | None = None

    @property
    def seconds(self) -> float | None:
        """How long one worker takes; None where nothing is known."""
        return None if self.pace is None else self.pace.seconds(self.batches, self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is: batches by state, and items and weight in all and published.

    Batches that were split are left out, since their parts count. `remaining` is None where no
    attempt has succeeded yet; it is 0 when nothing is left that will be tried by itself.
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
        """How many batches there are."""
        return sum(self.states.values())

    @property
    def is_finished(self) -> bool:
        """Tell whether every batch is published, or given up: dead, or called off by a person."""
        return self.batches > 0 and _ENDED.issuperset(self.states)


def check_backfill_name(name: str) -> None:
    """Check that a backfill of a stream can be called so.

    Raises:
        InvalidValueError: the name cannot be a part of file names and partition keys.
    """
    fits = STREAM_NAME.fullmatch(name) and len(name) <= MAX_NAME
    if not fits or name == "late" or "..." in name:
        raise InvalidValueError("backfill", name, _EXPECTED_NAME)


def backfill_job(stream: str, name: str) -> str:
    """Give the name of the job of a stream's backfill."""
    return f"{stream}.{name}"


def backfill_name(stream: str, job: str) -> str:
    """Give the name of a stream's backfill whose job is called so."""
    return job.removeprefix(f"{stream}.")


def cut_lists(
    weighed_ids: Iterable[tuple[int, int]], limits: Limits
) -> Iterator[tuple[Cut, tuple[int, ...]]]:
    """Cut `(id, weight)` pairs in rising order into lists of ids, by the rule of `planning.cut`.

    Each cut reaches from its first to its last id; what lies between and is not listed does not
    belong to it. Memory is one batch.
    """
    ids: list[int] = []
    weight = 0
    for item_id, item_weight in weighed_ids:
        if ids and (weight + item_weight > limits.max_weight or len(ids) == limits.max_count):
            yield _list_cut(ids, weight, closed=True), tuple(ids)
            ids, weight = [], 0
        ids.append(item_id)
        weight += item_weight
    if ids:
        full = weight >= limits.max_weight or len(ids) == limits.max_count
        yield _list_cut(ids, weight, closed=full), tuple(ids)


def _list_cut(ids: list[int], weight: int, *, closed: bool) -> Cut:
    id_range = IdRange(first_id=ids[0], last_id=ids[-1])
    return Cut(id_range=id_range, weight=weight, count=len(ids), closed=closed)


def _short(ids: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ids[:5]))
    return f"{shown}, …" if len(ids) > 5 else shown
