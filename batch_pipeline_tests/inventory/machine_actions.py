"""Actions of writers and workers in the stateful test, each compared with the model."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from batch_pipeline.inventory.attempts import FencedAttempts
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.backfill import Backfill
from batch_pipeline.model.batch import MIN_ID, Attempt, AttemptStatus, Batch, BatchState, IdRange
from batch_pipeline.model.errors import (
    BatchSupersededError,
    ConfigurationError,
    ConflictError,
    FencedError,
    JobPausedError,
)
from batch_pipeline.model.item import ItemIdSet
from batch_pipeline.model.planning import Limits, cut
from batch_pipeline_tests.factories import found_file
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.machine_model import (
    ALL_IDS,
    WAITING,
    Job,
    Model,
    ModelAttempt,
    ModelBatch,
    Row,
)
from batch_pipeline_tests.inventory.machine_system import EMPTY, STREAM, Worker, Writer, stored
from batch_pipeline_tests.seeds import LEASE, execute, query

KINDS = {"all": None, "kind_1": 1}
_PUBLISHED = """
SELECT a.seen FROM batch_pipeline.attempt a
  JOIN batch_pipeline.batch_state s ON s.batch_id = a.batch_id AND s.generation = a.generation
  JOIN batch_pipeline.job j ON j.id = s.job_id
  LEFT JOIN batch_pipeline.job p ON p.id = j.parent_id AND j.kind = 'late'
 WHERE :name IN (j.name, p.name)
"""
_STATES = """
SELECT s.batch_id, j.name, s.state, s.attempts, s.forgiven, s.generation
  FROM batch_pipeline.batch_state s JOIN batch_pipeline.job j ON j.id = s.job_id
"""
_ATTEMPTS = "SELECT batch_id, number, status, generation FROM batch_pipeline.attempt"
_JOBS = "SELECT name, paused_at IS NOT NULL, max_attempts, bisect FROM batch_pipeline.job"
_RUNS = """
SELECT j.name, b.first_id, b.last_id
  FROM batch_pipeline.bookmark b JOIN batch_pipeline.job j ON j.id = b.job_id
"""


class MachineActions(RuleBasedStateMachine):
    """Two workers, several writers, the model of their actions, and the checks of both."""

    url: ClassVar[str]
    tables: ClassVar[dict[int | None, ReflectedMetaTable]]
    observer: ClassVar[Database]

    def __init__(self) -> None:
        super().__init__()
        execute(self.observer, EMPTY)
        self.model = Model()
        self.workers = [Worker(self.url, self.tables) for _ in range(2)]
        self.writers: list[Writer] = []
        self.used_ids: set[int] = set()
        self.backfills: dict[str, Backfill] = {}

    def draw_job(self, data: st.DataObject) -> Job:
        """Draw a job to acquire from, possibly a new one."""
        planned = [name for name in self.backfills if name in self.model.jobs]
        return self.job(data.draw(st.sampled_from([*KINDS, *planned])))

    def job(self, name: str) -> Job:
        """Return a job, or its initial model."""
        known, is_stream = self.model.jobs.get(name), name == STREAM
        return known or Job(
            name=name, kind=KINDS.get(name), max_attempts=3, bisect=False, is_stream=is_stream
        )

    def attempts_of(self, attempt: ModelAttempt) -> FencedAttempts:
        """Return the attempts repository of the worker of an attempt."""
        return self.workers[attempt.worker or 0].database.attempts

    def writer(self, number: int | None) -> Writer:
        """Return an open transaction, or start one."""
        if number is not None:
            return self.writers[number]
        self.writers.append(Writer(psycopg.connect(self.url)))
        return self.writers[-1]

    def end_writer(self, number: int, *, commits: bool) -> None:
        """Commit or roll back a transaction."""
        for row in self.writers.pop(number).end(commits=commits):
            self.model.rows[row.id] = row

    def restart_worker(self, number: int) -> None:
        """End a worker as if it was killed, and start a new one."""
        self.workers[number].close()
        self.workers[number] = Worker(self.url, self.tables)
        for attempt in self.model.attempts:
            if attempt.worker == number:
                attempt.is_lost, attempt.worker = attempt.is_running, None

    def read_items(self, attempt: ModelAttempt) -> dict[int, int]:
        """Read the items of an attempt."""
        worker = self.workers[attempt.worker or 0]
        attempt.read = worker.read(attempt.batch.job, attempt.attempt.batch)
        assert attempt.read == {row.id: row.weight for row in self.model.items(attempt.batch)}
        return attempt.read

    def publish(self, attempt: ModelAttempt) -> None:
        """Publish an attempt if that is still allowed."""
        worker = self.workers[attempt.worker or 0]
        if attempt.is_running:
            read = self.read_items(attempt) if attempt.read is None else attempt.read
            assert worker.succeed(attempt.attempt, read) == attempt.batch.publish(attempt)
        elif attempt.status is AttemptStatus.SUCCEEDED:
            assert worker.succeed(attempt.attempt, {}) == attempt.generation
        else:
            with pytest.raises(FencedError):
                worker.succeed(attempt.attempt, {})

    def claim_one(self, number: int, model_batch: ModelBatch, ending: str) -> None:
        """Claim a given batch unless it is running."""
        attempts, running = self.workers[number].database.attempts, model_batch.running
        claim = attempts.claim(model_batch.batch, run_id="", lease=LEASE)
        if model_batch.state is BatchState.SUPERSEDED:
            with pytest.raises(BatchSupersededError), claim:
                pass
            return
        if running is not None and not running.is_lost:
            with pytest.raises(ConflictError, match="is running"), claim:
                pass
            return
        if running is not None:
            model_batch.end_attempt(running, AttemptStatus.ABANDONED)
        with claim as attempt:
            model_attempt = model_batch.start_attempt(attempt, number)
            if ending == "succeed":
                self.publish(model_attempt)
            elif ending == "fail":
                attempts.fail(attempt, "no", AttemptStatus.FAILED)
                model_batch.end_attempt(model_attempt, AttemptStatus.FAILED)
        model_attempt.is_lost = True

    def register(self, number: int, size: int) -> None:
        """Register files of the stream, which get the next ids."""
        known = len(self.model.registered)
        files = [found_file(known + n) for n in range(1, size + 1)]
        self.workers[number].database.meta_table(STREAM).register(files, accept_changed=False)
        rows = [Row(id=known + n, weight=10, kind=1) for n in range(1, size + 1)]
        self.model.registered |= {row.id: row for row in rows}

    def plan(self, number: int, limits: Limits) -> None:
        """Plan all registered items of the stream."""
        worker, job = self.workers[number], self.job(STREAM)
        try:
            worker.database.batches.plan(worker.database.meta_table(STREAM), limits, drain=True)
        except JobPausedError:
            assert job.paused
            return
        assert not job.paused
        [gap] = job.gaps(ALL_IDS)
        new = self._add_new_batches(job)
        assert bool(new) == bool(self.model.matching(job, gap))
        if new:
            self._check_cuts(job, gap, new, limits, is_all=True)

    def acquire(
        self,
        number: int,
        requested: Job,
        limits: Limits,
        window: IdRange,
        *,
        server_side: bool,
        sweeps: bool,
    ) -> ModelAttempt | None:
        """Acquire a batch and compare it with the model."""
        worker, job = self.workers[number], self.job(requested.name)
        is_known = worker.known_job_id(requested) is not None
        sweeps = worker.sweep_next(requested, wanted=sweeps)
        try:
            attempt = worker.acquire(requested, limits, window, server_side=server_side)
        except JobPausedError:
            assert job.paused
            return None
        assert not job.paused
        self.model.jobs[job.name] = job
        if not is_known:  # otherwise the sweep uses the previous terms
            job.max_attempts, job.bisect = requested.max_attempts, requested.bisect
        if sweeps:
            self.model.sweep(job)
        model_batch = self.model.first(job, window, *WAITING)
        job.max_attempts, job.bisect = requested.max_attempts, requested.bisect
        model_batch = (
            model_batch
            or self._new_batch(job, limits, window, attempt)
            or self._retried_batch(job, window)
        )
        assert (model_batch is None) == (attempt is None)
        if model_batch is None or attempt is None:
            return None
        assert attempt.batch == model_batch.batch
        return model_batch.start_attempt(attempt, number)

    def _new_batch(
        self, job: Job, limits: Limits, window: IdRange, attempt: Attempt | None
    ) -> ModelBatch | None:
        """Check that a new batch is the first cut of a gap, or that no rows are left."""
        gaps = list(job.gaps(window)) if job.is_incremental else []
        batch = None if attempt is None else attempt.batch
        if batch is None or batch.id in self.model.batches or self._parent_of(batch) is not None:
            # Open transactions hold the high watermark back; without any, every row is planned.
            assert self.writers or not any(self.model.matching(job, gap) for gap in gaps)
            return None
        gap = next(gap for gap in gaps if batch.id_range.last_id in gap)
        assert not any(self.model.matching(job, other) for other in gaps if other < gap)
        lowest = min(self.model.rows) if gap.first_id == MIN_ID else gap.first_id
        assert batch.id_range.first_id == lowest
        self._check_cuts(job, gap, [batch], limits, is_all=False)
        self.model.batches[batch.id] = self._model_batch(job, batch)
        return self.model.batches[batch.id]

    def _check_cuts(
        self, job: Job, gap: IdRange, batches: Sequence[Batch], limits: Limits, *, is_all: bool
    ) -> None:
        """Check that batches are the first cuts of a gap, up to a safe high watermark."""
        first_id, last_id = batches[0].id_range.first_id, batches[-1].id_range.last_id
        rows = self.model.matching(job, gap)
        beyond = [row.id for row in rows if row.id > last_id]
        inside = [(row.id, row.weight) for row in rows if row.id <= last_id]
        cuts = list(cut(inside, after_id=first_id - 1, high_watermark=last_id, limits=limits))
        assert [(expected.id_range, expected.weight, expected.count) for expected in cuts] == [
            (batch.id_range, batch.weight, batch.count) for batch in batches
        ]
        assert [batch.oversized for batch in batches] == [
            expected.weight > limits.max_weight for expected in cuts
        ]
        assert all(expected.weight <= limits.max_weight or expected.count == 1 for expected in cuts)
        more = [*inside, *((row.id, row.weight) for row in rows if row.id in beyond[:1])]
        following = list(
            cut(more, after_id=first_id - 1, high_watermark=gap.last_id, limits=limits)
        )
        ends_there = len(following) > len(cuts)
        assert not beyond or self.writers or (ends_there and not is_all)
        open_ids = {row.id for writer in self.writers for row in writer.rows}
        assert job.is_stream or not any(one in gap and one <= last_id for one in open_ids)
        job.cover(gap.first_id, last_id)

    def _retried_batch(self, job: Job, window: IdRange) -> ModelBatch | None:
        """Return the batch that is to be retried now."""
        self.model.sweep(job)
        model_batch = self.model.first(job, window, *WAITING, BatchState.FAILED)
        if model_batch is not None or not job.bisect:
            return model_batch
        for dead in self.model.live(job):
            can_be = dead.state is BatchState.DEAD and dead.batch.count > 1
            if can_be and dead.is_within(window) and self.model.halves(dead) is not None:
                return self.split_into(dead)
        return None

    def split_into(self, model_batch: ModelBatch) -> ModelBatch:
        """Add the halves of a split batch to the model and return the first."""
        halves = self.model.halves(model_batch)
        assert halves is not None
        children = stored(self.observer, "b.parent_id = :id", id=model_batch.batch.id)
        for batch, (ids, rows) in zip(children, halves, strict=True):
            assert batch.weight == sum(row.weight for row in rows)
            listed = model_batch.batch.item_ids
            if listed is None:
                assert (batch.id_range, batch.count) == (ids, len(rows))
            else:
                assert batch.item_ids == tuple(uid for uid in listed if uid in ids)
            planned = frozenset(uid for uid in model_batch.planned if uid in ids)
            self.model.batches[batch.id] = ModelBatch(
                batch=batch, job=model_batch.job, planned=planned, parent_id=model_batch.batch.id
            )
        model_batch.state = BatchState.SUPERSEDED
        return self.model.batches[children[0].id]

    def audit_job(self, number: int, job: Job, limits: Limits) -> int:
        """Audit a job, compare the result, and return the number of late rows."""
        worker, expected = self.workers[number], self.model.expected_audit(job)
        stream_table = worker.database.meta_table(STREAM).reflected()
        audit = worker.database.late_arrivals.audit(
            job.name,
            stream_table if job.is_stream else worker.tables[job.kind],
            limits=limits,
            since=None,
        )
        result = (audit.late.count, audit.known, audit.missing.count, audit.left_out)
        rest = (expected.missing, expected.left_out)
        assert result == (len(expected.late), len(expected.known), *rest)
        if not expected.late:
            return 0
        late = self.job(f"{job.name}.late")
        late.kind, late.parent, late.is_incremental = job.kind, job, False
        late.max_attempts, late.bisect = job.max_attempts, job.bisect
        new = self._add_new_batches(late)
        assert Counter(uid for batch in new for uid in batch.item_ids or ()) == Counter(
            expected.late
        )
        assert all(batch.weight <= limits.max_weight or batch.count == 1 for batch in new)
        return len(expected.late)

    def plan_backfill(self, number: int, request: Backfill) -> None:
        """Plan a backfill and compare it with the expected rows."""
        worker, job = self.workers[number], self.job(request.name)
        job.is_incremental, ids = False, request.selection.ids
        expected_ids = self._expected_items(job, request)
        try:
            worker.database.backfills.plan(request, worker.sources[None, True])
        except ConfigurationError as error:
            assert "has no items" in str(error)  # noqa: PT017 - the error is one of two outcomes
            assert self.writers or not expected_ids <= self.model.rows.keys()
            return
        is_new = job.name not in self.model.jobs
        job.max_attempts, job.bisect = request.max_attempts, request.bisect
        new = self._add_new_batches(job)
        if is_new and not new:
            del self.model.jobs[job.name]
        if not request.selection.is_window:
            listed = {uid for batch in new for uid in batch.item_ids or ()}
            assert listed == expected_ids or (self.writers and listed < expected_ids)
            return
        planned: set[int] = set()
        for gap in list(job.gaps(ids)):
            inside = [batch for batch in new if batch.id_range.last_id in gap]
            if inside:
                self._check_cuts(job, gap, inside, request.limits, is_all=True)
                planned |= {row.id for row in self.model.matching(job, gap)}
        assert self.writers or expected_ids <= planned

    def _expected_items(self, job: Job, request: Backfill) -> set[int]:
        """Return the ids that a backfill selects and has not planned yet."""
        selection = request.selection
        own = (each for each in self.model.live(job) if each.job is job)
        listed = {uid for each in own for uid in each.batch.item_ids or ()}
        if selection.item_ids is not None:
            return set(selection.item_ids) - listed
        if selection.is_window:
            gaps = job.gaps(selection.ids)
            return {row.id for gap in gaps for row in self.model.matching(job, gap)}
        assert request.parent is not None
        states = {BatchState.FAILED, BatchState.DEAD}
        live = self.model.live(self.model.jobs[request.parent])
        failed = [each for each in live if each.state in states]
        items = {row.id for each in failed for row in self.model.items(each)}
        return {uid for uid in items if uid in selection.ids} - listed

    def _add_new_batches(self, job: Job) -> list[Batch]:
        """Add new batches of a job to the model and return them."""
        all_batches = stored(self.observer, "j.name = :name", name=job.name)
        new = [batch for batch in all_batches if batch.id not in self.model.batches]
        self.model.jobs[job.name] = job
        self.model.batches |= {batch.id: self._model_batch(job, batch) for batch in new}
        return new

    def _model_batch(self, job: Job, batch: Batch) -> ModelBatch:
        return ModelBatch(batch=batch, job=job, planned=self.model.planned(job, batch))

    def _parent_of(self, batch: Batch) -> int | None:
        statement = "SELECT parent_id FROM batch_pipeline.batch WHERE id = :id"
        parent_id: int | None = query(self.observer, statement, id=batch.id)[0][0]
        return parent_id

    @invariant()
    def model_agrees(self) -> None:
        """Check that product and model agree and that the inventory's invariants hold."""
        check_invariants(self.observer, max_attempts_changed=True)
        batches, jobs = self.model.batches.values(), self.model.jobs.values()
        assert set(query(self.observer, _STATES)) == {
            (
                *(each.batch.id, each.job.name, each.state.value),
                *(len(each.attempts), each.forgiven, each.generation),
            )
            for each in batches
        }
        assert set(query(self.observer, _ATTEMPTS)) == {
            (each.batch.batch.id, each.attempt.number, each.status.value, each.generation)
            for each in self.model.attempts
        }
        assert set(query(self.observer, _JOBS)) == {
            (job.name, job.paused, job.max_attempts, job.bisect) for job in jobs
        }
        assert set(query(self.observer, _RUNS)) == {
            (job.name, *run) for job in jobs for run in job.covered
        }

    @invariant()
    def no_row_is_lost(self) -> None:
        """Check that each row with a planned id is in one live batch.

        A row may be late only if its id is not from the sequence; `finish` checks that it is found.
        """
        for job in self.model.main_jobs():
            for row in self.model.matching(job):
                owners = self.model.owners(job, row)
                assert len(owners) <= 1, f"row {row.id} of {job.name} is in {len(owners)} batches"
                is_late = job.covers(row.id) and not owners
                assert row.explicit_id or not is_late, f"{job.name} skipped row {row.id}"

    def finish(self) -> None:
        """Do all remaining work without faults; check that each row was published exactly once."""
        for number in range(len(self.writers)):
            self.end_writer(0, commits=number % 2 == 0)
        for number in range(len(self.workers)):
            self.restart_worker(number)
        control = self.workers[0].database.jobs
        for job in self.model.main_jobs():
            control.resume(job.name)
            job.paused = False
            control.retry(job.name, states=[BatchState.CANCELLED])
            for model_batch in self.model.live(job):
                if model_batch.state is BatchState.CANCELLED:
                    model_batch.forgive()
        names = {*KINDS, *(job.name for job in self.model.main_jobs() if not job.is_stream)}
        limits, is_left = Limits(max_weight=30, max_count=4), True
        while is_left:
            for name in names:
                self._drain(self.job(name), limits)
            is_left = any(self.audit_job(1, job, limits) for job in self.model.main_jobs())
        self._publish_stream(limits)
        self.model_agrees()
        for job in self.model.main_jobs():
            self._check_published_once(job)

    def _publish_stream(self, limits: Limits) -> None:
        self.plan(0, limits)
        done = {BatchState.PUBLISHED, BatchState.DEAD}
        for model_batch in self.model.live(self.job(STREAM)):
            if model_batch.state not in done:
                self.claim_one(0, model_batch, "succeed")

    def _drain(self, job: Job, limits: Limits) -> None:
        while (
            attempt := self.acquire(0, job, limits, ALL_IDS, server_side=True, sweeps=True)
        ) is not None:
            self.publish(attempt)

    def _check_published_once(self, job: Job) -> None:
        """Check that each row was published once, except those of dead batches."""
        live = self.model.live(job)
        assert {each.state for each in live} <= {BatchState.PUBLISHED, BatchState.DEAD}
        rows = query(self.observer, _PUBLISHED, name=job.name)
        counts = Counter(uid for (seen,) in rows for uid in ItemIdSet.from_json(seen))
        assert set(counts.values()) <= {1}, f"{job.name} published {counts}"
        dead = [each for each in live if each.state is BatchState.DEAD]
        unpublished = {row.id for each in dead for row in self.model.items(each)}
        listed = {uid for each in live for uid in each.batch.item_ids or ()}
        due = {
            row.id
            for row in self.model.matching(job)
            if job.is_incremental or job.covers(row.id) or row.id in listed
        }
        assert due - counts.keys() == unpublished, f"{job.name}, dead: {dead}"
        assert not unpublished & counts.keys()

    def close(self) -> None:
        """Close every session."""
        for writer in self.writers:
            with suppress(psycopg.Error):
                writer.connection.close()
        for worker in self.workers:
            worker.database.close()
