"""A model of the inventory in plain Python: the expected result of every call.

One model covers one meta table and all jobs on it. Ids of batches and attempts are taken from the
product; everything else is computed here and compared.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from batch_pipeline.model.batch import (
    MAX_ID,
    MIN_ID,
    Attempt,
    AttemptStatus,
    Batch,
    BatchState,
    IdRange,
)

ALL_IDS = IdRange(first_id=MIN_ID, last_id=MAX_ID)
WAITING = (BatchState.PLANNED, BatchState.INTERRUPTED)
OPEN = (*WAITING, BatchState.FAILED, BatchState.DEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the meta table; `explicit_id` means that its id is not from the sequence."""

    id: int
    weight: int
    kind: int
    explicit_id: bool = False


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ModelAttempt:
    """An attempt of a worker: `is_lost` if it may be taken over, `read` holds the items it read."""

    attempt: Attempt
    batch: "ModelBatch"
    worker: int | None
    status: AttemptStatus = AttemptStatus.RUNNING
    is_lost: bool = False
    read: dict[int, int] | None = None
    generation: int | None = None

    def __repr__(self) -> str:
        return f"attempt {self.attempt.number} ({self.status}) of {self.batch!r}"

    @property
    def is_running(self) -> bool:
        """Return whether the attempt has not ended."""
        return self.status is AttemptStatus.RUNNING


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ModelBatch:
    """A batch with its attempts, oldest first; `planned` are the ids that it was planned with."""

    batch: Batch
    job: "Job"
    planned: frozenset[int]
    state: BatchState = BatchState.PLANNED
    forgiven: int = 0
    attempts: list[ModelAttempt] = field(default_factory=list)
    parent_id: int | None = None

    def __repr__(self) -> str:
        ids = self.batch.item_ids or self.batch.id_range
        return f"batch {self.batch.id} of {self.job.name} ({ids}, {self.state})"

    @property
    def running(self) -> ModelAttempt | None:
        """The running attempt."""
        return next((attempt for attempt in self.attempts if attempt.is_running), None)

    @property
    def generation(self) -> int | None:
        """The newest generation."""
        return max((each.generation for each in self.attempts if each.generation), default=None)

    @property
    def seen(self) -> dict[int, int]:
        """The items that the latest published attempt read, by id and weight."""
        published = (attempt for attempt in reversed(self.attempts) if attempt.generation)
        return next((attempt.read or {} for attempt in published), {})

    def is_within(self, window: IdRange) -> bool:
        """Return whether the whole batch is within a window."""
        ids = self.batch.id_range
        return window.first_id <= ids.first_id and ids.last_id <= window.last_id

    def start_attempt(self, attempt: Attempt, worker: int) -> ModelAttempt:
        """Start an attempt."""
        assert self.running is None
        assert attempt.number == len(self.attempts) + 1
        self.attempts.append(ModelAttempt(attempt=attempt, batch=self, worker=worker))
        self.state = BatchState.RUNNING
        return self.attempts[-1]

    def end_attempt(
        self, attempt: ModelAttempt, status: AttemptStatus, *, counts: bool = True
    ) -> None:
        """End an attempt that did not succeed; it may not count towards the limit."""
        attempt.status = status
        self.forgiven += not counts
        failed = status is AttemptStatus.FAILED
        failed_half = failed and self.parent_id is not None and self.batch.count > 1
        tried_enough = len(self.attempts) - self.forgiven >= self.job.max_attempts
        if self.generation is not None:
            self.state = BatchState.PUBLISHED
        elif status is AttemptStatus.CANCELLED:
            self.state = BatchState.CANCELLED
        elif tried_enough or failed_half:
            self.state = BatchState.DEAD
        else:
            self.state = BatchState.FAILED if failed else BatchState.INTERRUPTED

    def publish(self, attempt: ModelAttempt) -> int:
        """End an attempt that succeeded and return its generation."""
        attempt.generation, attempt.status = (self.generation or 0) + 1, AttemptStatus.SUCCEEDED
        self.state = BatchState.PUBLISHED
        return attempt.generation

    def cancel(self) -> bool:
        """Cancel the batch; return whether an attempt was running."""
        if (attempt := self.running) is None:
            self.state = BatchState.CANCELLED
            return False
        self.end_attempt(attempt, AttemptStatus.CANCELLED)
        return True

    def forgive(self) -> None:
        """Reset the batch so that it is retried as if it had no attempts."""
        self.forgiven = len(self.attempts)
        self.state = BatchState.INTERRUPTED if self.attempts else BatchState.PLANNED


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A job; `kind` is the only kind of rows that it accepts, `covered` are its planned id runs.

    The job of a stream reads registered items instead of rows.
    """

    name: str
    kind: int | None
    max_attempts: int
    bisect: bool
    is_incremental: bool = True
    is_stream: bool = False
    paused: bool = False
    covered: list[tuple[int, int]] = field(default_factory=list)
    parent: "Job | None" = None

    def gaps(self, window: IdRange) -> Iterator[IdRange]:
        """Yield the unplanned ranges of a window in order."""
        next_id = window.first_id
        for first_id, last_id in [*self.covered, (MAX_ID + 1, MAX_ID + 1)]:
            last_free = min(first_id - 1, window.last_id)
            if next_id <= last_free:
                yield IdRange(first_id=next_id, last_id=last_free)
            next_id = max(next_id, last_id + 1)

    def cover(self, first_id: int, last_id: int) -> None:
        """Add ids to the planned runs."""
        runs: list[tuple[int, int]] = []
        for run in sorted([*self.covered, (first_id, last_id)]):
            if runs and run[0] <= runs[-1][1] + 1:
                runs[-1] = (runs[-1][0], max(runs[-1][1], run[1]))
            else:
                runs.append(run)
        self.covered = runs

    def covers(self, item_id: int) -> bool:
        """Return whether an id is in a planned run."""
        return any(first_id <= item_id <= last_id for first_id, last_id in self.covered)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedAudit:
    """The expected result of an audit: late ids, ids planned by earlier audits, missing rows.

    `left_out` counts published batches that are running again.
    """

    late: frozenset[int]
    known: frozenset[int]
    missing: int
    left_out: int


@dataclass(slots=True)
class Model:
    """All rows that are committed, all items registered, all jobs by name, all batches by id."""

    rows: dict[int, Row] = field(default_factory=dict)
    registered: dict[int, Row] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    batches: dict[int, ModelBatch] = field(default_factory=dict)

    @property
    def attempts(self) -> list[ModelAttempt]:
        """All attempts, by batch."""
        return [attempt for each in self.batches.values() for attempt in each.attempts]

    @property
    def running(self) -> list[ModelAttempt]:
        """The running attempts."""
        return [attempt for attempt in self.attempts if attempt.is_running]

    def main_jobs(self) -> list[Job]:
        """Return the jobs that are not jobs of late arrivals."""
        return [job for job in self.jobs.values() if job.parent is None]

    def matching(self, job: Job, ids: IdRange = ALL_IDS) -> list[Row]:
        """Return the committed rows of a range that a job accepts, in order."""
        rows = self.registered if job.is_stream else self.rows
        matches = (row for row in rows.values() if row.id in ids and job.kind in {None, row.kind})
        return sorted(matches, key=lambda row: row.id)

    def items(self, model_batch: ModelBatch) -> list[Row]:
        """Return the committed rows of a batch, in order."""
        return [row for row in self.matching(model_batch.job) if row.id in model_batch.planned]

    def planned(self, job: Job, batch: Batch) -> frozenset[int]:
        """Return the ids that a batch would be planned with now."""
        if batch.item_ids is not None:
            return frozenset(batch.item_ids)
        return frozenset(row.id for row in self.matching(job, batch.id_range))

    def live(self, job: Job) -> list[ModelBatch]:
        """Return the unsplit batches of a job and of its late arrivals, oldest first."""
        own = (each for each in self.batches.values() if job in {each.job, each.job.parent})
        live = (each for each in own if each.state is not BatchState.SUPERSEDED)
        return sorted(live, key=lambda each: each.batch.id)

    def first(self, job: Job, window: IdRange, *states: BatchState) -> ModelBatch | None:
        """Return the oldest batch within a window in one of the states."""
        live = self.live(job)
        return next(
            (each for each in live if each.state in states and each.is_within(window)), None
        )

    def sweep(self, job: Job) -> None:
        """Close the attempts of lost workers."""
        for model_batch in self.live(job):
            if (attempt := model_batch.running) is not None and attempt.is_lost:
                model_batch.end_attempt(attempt, AttemptStatus.ABANDONED)

    def halves(self, model_batch: ModelBatch) -> list[tuple[IdRange, list[Row]]] | None:
        """Return the ranges and rows that a batch is split into, or None if it cannot be split."""
        rows = self.items(model_batch)
        if len(rows) < 2:
            return None
        middle = (len(rows) + 1) // 2
        cut, ids = rows[middle].id, model_batch.batch.id_range
        return [
            (IdRange(first_id=ids.first_id, last_id=cut - 1), rows[:middle]),
            (IdRange(first_id=cut, last_id=ids.last_id), rows[middle:]),
        ]

    def expected_audit(self, job: Job) -> ExpectedAudit:
        """Compare the rows that a job's published batches read with the current rows."""
        live = self.live(job)
        own = [each for each in live if each.job is job and each.batch.item_ids is None]
        published = [each for each in own if each.state is BatchState.PUBLISHED]
        # Dead and cancelled ones are published only on request, and then with the planned rows.
        unread = [each for each in own if each.state in {BatchState.DEAD, BatchState.CANCELLED}]
        compared: list[tuple[ModelBatch, Set[int]]] = [
            *((each, each.seen.keys()) for each in published),
            *((each, each.planned) for each in unread),
        ]
        surplus = {
            row.id
            for each, known_ids in compared
            for row in self.matching(job, each.batch.id_range)
            if row.id not in known_ids
        }
        rows = self.registered if job.is_stream else self.rows
        missing = sum(
            item_id not in rows for model_batch in published for item_id in model_batch.seen
        )
        again = sum(model_batch.generation is not None for model_batch in own) - len(published)
        if own and job.covers(MIN_ID):
            lowest = min(model_batch.batch.id_range.first_id for model_batch in own)
            surplus |= {row.id for row in self.matching(job) if row.id < lowest}
        known = surplus & self._listed_late(job)
        return ExpectedAudit(
            late=frozenset(surplus - known),
            known=frozenset(known),
            missing=missing,
            left_out=again,
        )

    def owners(self, job: Job, row: Row) -> list[ModelBatch]:
        """Return the live batches that have read a row or will read it; there is at most one."""
        return [
            model_batch
            for model_batch in self.live(job)
            if row.id in model_batch.planned
            and (model_batch.state is not BatchState.PUBLISHED or row.id in model_batch.seen)
        ]

    def _listed_late(self, job: Job) -> set[int]:
        late = (each for each in self.batches.values() if each.job.parent is job)
        return {item_id for each in late for item_id in each.batch.item_ids or ()}
