"""The inventory in plain Python: what every call must come to, said without a database.

One model stands for one meta table and all jobs on it. Ids of batches and attempts are taken over
from what the product gave; everything else is worked out here, to be compared.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch, BatchState
from batch_pipeline.model.id_range import MAX_ID, MIN_ID, IdRange

ALL_IDS = IdRange(first_id=MIN_ID, last_id=MAX_ID)
WAITING = (BatchState.PLANNED, BatchState.INTERRUPTED)
OPEN = (*WAITING, BatchState.FAILED, BatchState.DEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the meta table; `by_hand` has an id that somebody made up."""

    id: int
    weight: int
    kind: int
    by_hand: bool = False


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Try:
    """An attempt that `worker` started: `gone` when it may be taken over, `read` is what it saw."""

    attempt: Attempt
    batch: "Held"
    worker: int | None
    status: AttemptStatus = AttemptStatus.RUNNING
    gone: bool = False
    read: dict[int, int] | None = None
    generation: int | None = None

    def __repr__(self) -> str:
        return f"attempt {self.attempt.number} ({self.status}) of {self.batch!r}"

    @property
    def is_running(self) -> bool:
        """Tell whether nobody has ended it."""
        return self.status is AttemptStatus.RUNNING


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Held:
    """A batch with its attempts, oldest first; `planned` are the ids that it was planned with."""

    batch: Batch
    job: "Job"
    planned: frozenset[int]
    state: BatchState = BatchState.PLANNED
    forgiven: int = 0
    tries: list[Try] = field(default_factory=list)
    parent_id: int | None = None

    def __repr__(self) -> str:
        ids = self.batch.item_ids or self.batch.id_range
        return f"batch {self.batch.id} of {self.job.name} ({ids}, {self.state})"

    @property
    def running(self) -> Try | None:
        """The attempt that nobody has ended."""
        return next((one for one in self.tries if one.is_running), None)

    @property
    def generation(self) -> int | None:
        """How often it was published."""
        return max((one.generation for one in self.tries if one.generation), default=None)

    @property
    def seen(self) -> dict[int, int]:
        """What its latest published attempt read, by id and weight."""
        published = [one for one in self.tries if one.generation is not None]
        return (published[-1].read or {}) if published else {}

    def holds(self, item_id: int) -> bool:
        """Tell whether an id belongs to it."""
        return item_id in self.planned

    def lies_in(self, window: IdRange) -> bool:
        """Tell whether all of it lies in a window."""
        ids = self.batch.id_range
        return window.first_id <= ids.first_id and ids.last_id <= window.last_id

    def begin(self, attempt: Attempt, worker: int) -> Try:
        """Start an attempt."""
        assert self.running is None
        assert attempt.number == len(self.tries) + 1
        self.tries.append(Try(attempt=attempt, batch=self, worker=worker))
        self.state = BatchState.RUNNING
        return self.tries[-1]

    def end(self, one: Try, status: AttemptStatus, *, counts: bool = True) -> None:
        """End an attempt that did not succeed, and may be none of those that the job allows."""
        one.status = status
        self.forgiven += not counts
        failed = status is AttemptStatus.FAILED
        failed_half = failed and self.parent_id is not None and self.batch.count > 1
        tried_enough = len(self.tries) - self.forgiven >= self.job.max_attempts
        if self.generation is not None:
            self.state = BatchState.PUBLISHED
        elif status is AttemptStatus.CANCELLED:
            self.state = BatchState.CANCELLED
        elif tried_enough or failed_half:
            self.state = BatchState.DEAD
        else:
            self.state = BatchState.FAILED if failed else BatchState.INTERRUPTED

    def publish(self, one: Try) -> int:
        """End an attempt that succeeded, and give its generation."""
        one.generation, one.status = (self.generation or 0) + 1, AttemptStatus.SUCCEEDED
        self.state = BatchState.PUBLISHED
        return one.generation

    def cancel(self) -> bool:
        """Call it off; tell whether it was being tried."""
        if (one := self.running) is None:
            self.state = BatchState.CANCELLED
            return False
        self.end(one, AttemptStatus.CANCELLED)
        return True

    def forgive(self) -> None:
        """Let it be tried again as if it never had been."""
        self.forgiven = len(self.tries)
        self.state = BatchState.INTERRUPTED if self.tries else BatchState.PLANNED


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A job: `kind` is the only kind of rows that it takes, `covered` its planned runs of ids.

    That of a stream takes registered items instead.
    """

    name: str
    kind: int | None
    max_attempts: int
    bisect: bool
    grows: bool = True
    is_stream: bool = False
    paused: bool = False
    covered: list[tuple[int, int]] = field(default_factory=list)
    parent: "Job | None" = None

    def takes(self, row: Row) -> bool:
        """Tell whether a row passes its filter."""
        return self.kind is None or row.kind == self.kind

    def gaps(self, window: IdRange) -> Iterator[IdRange]:
        """Give what is not planned of a window, rising."""
        next_id = window.first_id
        for first_id, last_id in [*self.covered, (MAX_ID + 1, MAX_ID + 1)]:
            last_free = min(first_id - 1, window.last_id)
            if next_id <= last_free:
                yield IdRange(first_id=next_id, last_id=last_free)
            next_id = max(next_id, last_id + 1)

    def cover(self, first_id: int, last_id: int) -> None:
        """Note that ids are planned."""
        runs: list[tuple[int, int]] = []
        for run in sorted([*self.covered, (first_id, last_id)]):
            if runs and run[0] <= runs[-1][1] + 1:
                runs[-1] = (runs[-1][0], max(runs[-1][1], run[1]))
            else:
                runs.append(run)
        self.covered = runs

    def has_planned(self, item_id: int) -> bool:
        """Tell whether an id lies in a planned run."""
        return any(first_id <= item_id <= last_id for first_id, last_id in self.covered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """What an audit must find: ids to plan, ids planned by earlier audits, rows that are gone.

    `left_out` counts published batches that are just tried again.
    """

    fresh: frozenset[int]
    known: frozenset[int]
    missing: int
    left_out: int


@dataclass(slots=True)
class Model:
    """All rows that are committed, all items registered, all jobs by name, all batches by id."""

    rows: dict[int, Row] = field(default_factory=dict)
    registered: dict[int, Row] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    batches: dict[int, Held] = field(default_factory=dict)

    @property
    def tries(self) -> list[Try]:
        """All attempts, by batch."""
        return [one for held in self.batches.values() for one in held.tries]

    def roots(self) -> list[Job]:
        """Give the jobs that are not for the late arrivals of another one."""
        return [one for one in self.jobs.values() if one.parent is None]

    def matching(self, job: Job, ids: IdRange = ALL_IDS) -> list[Row]:
        """Give the committed rows of a range that a job takes, rising."""
        rows = self.registered if job.is_stream else self.rows
        found = (row for row in rows.values() if row.id in ids and job.takes(row))
        return sorted(found, key=lambda row: row.id)

    def items(self, held: Held) -> list[Row]:
        """Give the committed rows of a batch, rising."""
        return [row for row in self.matching(held.job) if held.holds(row.id)]

    def planned(self, job: Job, one: Batch) -> frozenset[int]:
        """Give the ids that a batch is planned with right now."""
        if one.item_ids is not None:
            return frozenset(one.item_ids)
        return frozenset(row.id for row in self.matching(job, one.id_range))

    def live(self, job: Job) -> list[Held]:
        """Give the batches of a job and of its late arrivals that were not split, oldest first."""
        return sorted(
            (
                held
                for held in self.batches.values()
                if job in {held.job, held.job.parent} and held.state is not BatchState.SUPERSEDED
            ),
            key=lambda held: held.batch.id,
        )

    def first(self, job: Job, window: IdRange, *states: BatchState) -> Held | None:
        """Give the oldest batch of a window in some states."""
        found = (held for held in self.live(job) if held.state in states and held.lies_in(window))
        return next(found, None)

    def sweep(self, job: Job) -> None:
        """Close the attempts whose worker is gone."""
        for held in self.live(job):
            if (one := held.running) is not None and one.gone:
                held.end(one, AttemptStatus.ABANDONED)

    def halves(self, held: Held) -> list[tuple[IdRange, list[Row]]] | None:
        """Give the ranges and rows that a batch is split into, None when it cannot be."""
        rows = self.items(held)
        if len(rows) < 2:
            return None
        middle = (len(rows) + 1) // 2
        cut, ids = rows[middle].id, held.batch.id_range
        return [
            (IdRange(first_id=ids.first_id, last_id=cut - 1), rows[:middle]),
            (IdRange(first_id=cut, last_id=ids.last_id), rows[middle:]),
        ]

    def lateness(self, job: Job) -> Lateness:
        """Compare what published batches of a job read with the rows that are there."""
        own = [held for held in self.live(job) if held.job is job and held.batch.item_ids is None]
        published = [held for held in own if held.state is BatchState.PUBLISHED]
        surplus = {
            row.id
            for held in published
            for row in self.matching(job, held.batch.id_range)
            if row.id not in held.seen
        }
        # Nobody will publish these by itself, and whoever does reads what was planned.
        surplus |= {
            row.id
            for held in own
            if held.state in {BatchState.DEAD, BatchState.CANCELLED}
            for row in self.matching(job, held.batch.id_range)
            if row.id not in held.planned
        }
        rows = self.registered if job.is_stream else self.rows
        missing = sum(item_id not in rows for held in published for item_id in held.seen)
        again = sum(held.generation is not None for held in own) - len(published)
        if own and job.has_planned(MIN_ID):
            lowest = min(held.batch.id_range.first_id for held in own)
            surplus |= {row.id for row in self.matching(job) if row.id < lowest}
        known = surplus & self._listed_late(job)
        return Lateness(
            fresh=frozenset(surplus - known),
            known=frozenset(known),
            missing=missing,
            left_out=again,
        )

    def homes(self, job: Job, row: Row) -> list[Held]:
        """Give the live batches that have read a row, or will; there must never be two."""
        return [
            held
            for held in self.live(job)
            if held.holds(row.id)
            and (held.state is not BatchState.PUBLISHED or row.id in held.seen)
        ]

    def will_be_late(self, job: Job, row: Row) -> bool:
        """Tell whether a row came into the range of a batch that is yet to be published."""
        return any(
            held.state not in {BatchState.PUBLISHED, BatchState.DEAD, BatchState.CANCELLED}
            and held.batch.item_ids is None
            and row.id in held.batch.id_range
            and not held.holds(row.id)
            for held in self.live(job)
        )

    def _listed_late(self, job: Job) -> set[int]:
        late = (held for held in self.batches.values() if held.job.parent is job)
        return {item_id for held in late for item_id in held.batch.item_ids or ()}
