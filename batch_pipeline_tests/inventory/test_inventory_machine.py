"""The inventory against a model in plain Python, step by step, in any order (G1, G2, G4).

Hypothesis writes rows in overlapping transactions, acquires, ends, abandons, cancels, splits,
audits and restarts, and compares everything after each step. At the end all work is done without
faults, and every row must have been published exactly once by each job.

By default there are few runs; `--long` makes 100 of 50 steps, and the nightly form 800, most of
them of 60 steps: `uv run pytest --hypothesis-profile=nightly -k test_inventory_matches_model`
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import MIN_ID, AttemptStatus, BatchState, IdRange
from batch_pipeline.model.errors import ConfigurationError, UnknownBatchError
from batch_pipeline.model.planning import Limits
from batch_pipeline_tests.inventory.machine_actions import MachineActions
from batch_pipeline_tests.inventory.machine_model import ALL_IDS, OPEN, ModelAttempt, Row
from batch_pipeline_tests.inventory.machine_system import insert_explicit_id, meta_tables
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import LEASE, execute, expire

WEIGHTS = st.integers(0, 20)
ROWS = st.lists(st.tuples(WEIGHTS, st.integers(1, 2)), min_size=1, max_size=5)
LIMITS = st.builds(Limits, max_weight=st.integers(1, 40), max_count=st.integers(1, 5))
WORKERS = st.integers(0, 1)
BOUNDS = st.integers(-8, 60)
WINDOWS = st.one_of(
    st.just(ALL_IDS),
    st.builds(
        lambda first, size: IdRange(first_id=first, last_id=first + size), BOUNDS, BOUNDS.map(abs)
    ),
    st.builds(lambda last: IdRange(first_id=MIN_ID, last_id=last), BOUNDS),
)
CLOSED = st.sampled_from(  # status, and whether the attempt counts
    [
        (AttemptStatus.FAILED, True),
        (AttemptStatus.ABANDONED, True),
        (AttemptStatus.ABANDONED, False),
        (AttemptStatus.CANCELLED, True),
    ]
)
RETRIABLE = [BatchState.FAILED, BatchState.DEAD, BatchState.CANCELLED, BatchState.INTERRUPTED]


class InventoryMachine(MachineActions):
    """One rule per action; `done` counts what happened in all runs."""

    done: ClassVar[Counter[str]] = Counter()

    def draw(self, data: st.DataObject, what: Any) -> Any:
        return data.draw(st.sampled_from(list(what)))

    @initialize(rows=ROWS)
    def start(self, rows: list[tuple[int, int]]) -> None:
        """Start with some rows."""
        self.used_ids |= set(self.writer(None).insert(rows, keep=True))
        self.end_writer(0, commits=True)

    @rule(data=st.data(), rows=ROWS, keep=st.integers(0, 4))
    def write(self, data: st.DataObject, rows: list[tuple[int, int]], keep: int) -> None:
        """Insert rows in a new or an already open transaction, which stays open."""
        new = [None] if len(self.writers) < 4 else []
        number = self.draw(data, [*new, *range(len(self.writers))])
        self.used_ids |= set(self.writer(number).insert(rows, keep=keep > 0))

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), commits=st.integers(0, 3))
    def end_a_writer(self, data: st.DataObject, commits: int) -> None:
        """Commit or roll back one of the open transactions."""
        self.end_writer(self.draw(data, range(len(self.writers))), commits=commits > 0)

    @rule(data=st.data(), weight=WEIGHTS, kind=st.integers(1, 2))
    def write_explicit_id(self, data: st.DataObject, weight: int, kind: int) -> None:
        """Insert a row with a free id, possibly below a bookmark."""
        free = [uid for uid in range(-6, max(self.used_ids)) if uid not in self.used_ids]
        if not free:
            return
        row = Row(id=self.draw(data, free), weight=weight, kind=kind, explicit_id=True)
        insert_explicit_id(self.url, row)
        self.used_ids.add(row.id)
        self.model.rows[row.id] = row

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        row = self.model.rows.pop(self.draw(data, self.model.rows))
        execute(self.observer, "DELETE FROM public.files WHERE id = :id", id=row.id)

    @rule(
        worker=WORKERS,
        data=st.data(),
        limits=LIMITS,
        server_side=st.booleans(),
        sweeps=st.booleans(),
    )
    def acquire_next(
        self, worker: int, data: st.DataObject, limits: Limits, *, server_side: bool, sweeps: bool
    ) -> None:
        """Acquire the next batch of a job."""
        self.acquire(
            worker, self.draw_job(data), limits, ALL_IDS, server_side=server_side, sweeps=sweeps
        )

    @rule(worker=WORKERS, data=st.data(), limits=LIMITS, window=WINDOWS, server_side=st.booleans())
    def acquire_within(
        self,
        worker: int,
        data: st.DataObject,
        limits: Limits,
        window: IdRange,
        *,
        server_side: bool,
    ) -> None:
        """Acquire within a window, possibly with changed terms."""
        known = self.draw_job(data)
        max_attempts = data.draw(st.sampled_from([known.max_attempts, 1, 2, 3]))
        bisect = data.draw(st.sampled_from([known.bisect, True]))
        job = replace(known, max_attempts=max_attempts, bisect=bisect)
        self.acquire(worker, job, limits, window, server_side=server_side, sweeps=False)

    @precondition(lambda self: self.model.attempts)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Read the items of a running attempt, long before it ends."""
        running = [attempt for attempt in self.model.running if attempt.read is None]
        if running:
            self.read_items(self.draw(data, running))

    @precondition(lambda self: self.model.running)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        """Publish a running attempt, even if its lease has expired."""
        self.publish(self.draw(data, self.model.running))

    @precondition(lambda self: not all(attempt.is_running for attempt in self.model.attempts))
    @rule(data=st.data())
    def succeed_again(self, data: st.DataObject) -> None:
        """Publish an ended attempt: published ones stay, others are fenced."""
        self.publish(
            self.draw(data, [attempt for attempt in self.model.attempts if not attempt.is_running])
        )

    @precondition(lambda self: self.model.attempts)
    @rule(data=st.data(), closed=CLOSED)
    def fail(self, data: st.DataObject, closed: tuple[AttemptStatus, bool]) -> None:
        """Close an attempt, running or not."""
        attempt: ModelAttempt = self.draw(data, self.model.attempts)
        status, counts = closed
        unpublished = self.attempts_of(attempt).fail(attempt.attempt, "no", status, counts=counts)
        assert unpublished == (attempt.status is not AttemptStatus.SUCCEEDED)
        if attempt.is_running:
            attempt.batch.end_attempt(attempt, status, counts=counts)

    @precondition(lambda self: self.model.running)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """Let the lease of an attempt expire, as for a process that hangs."""
        attempt: ModelAttempt = self.draw(data, self.model.running)
        self.attempts_of(attempt).heartbeat.stop_renewing(attempt.attempt.token)
        expire(self.observer, attempt.attempt)
        attempt.is_lost = True

    @rule(number=WORKERS)
    def renew(self, number: int) -> None:
        """Renew all leases of a worker, including expired ones."""
        heartbeat = self.workers[number].database.heartbeat
        running = [attempt for attempt in self.model.running if attempt.worker == number]
        for attempt in running:
            heartbeat.renew(attempt.attempt.token, LEASE)
            attempt.is_lost = False
        heartbeat._renew_all()
        assert all(heartbeat.is_renewing(attempt.attempt.token) for attempt in running)

    @rule(number=WORKERS)
    def restart(self, number: int) -> None:
        """Kill a worker and start another one."""
        self.restart_worker(number)

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data(), number=WORKERS, ending=st.sampled_from(["succeed", "fail", "leave"]))
    def claim(self, data: st.DataObject, number: int, ending: str) -> None:
        """Claim a given batch; batches of a stream also when they are published."""
        batches = self.model.batches.values()
        choice = [batch for batch in batches if batch.generation is None or batch.job.is_stream]
        if choice:
            self.claim_one(number, self.draw(data, choice), ending)

    @rule(number=WORKERS, size=st.integers(1, 4), limits=LIMITS, plans=st.booleans())
    def register_and_plan(self, number: int, size: int, limits: Limits, *, plans: bool) -> None:
        """Register files of a stream, and possibly plan its batches."""
        self.register(number, size)
        if plans:
            self.plan(number, limits)

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data(), number=WORKERS, whole=st.booleans())
    def cancel(self, data: st.DataObject, number: int, *, whole: bool) -> None:
        """Cancel one batch, or all unpublished batches of a job."""
        control = self.workers[number].database.jobs
        model_batch = self.draw(data, self.model.batches.values())
        main_job = model_batch.job.parent or model_batch.job
        if model_batch.state is BatchState.SUPERSEDED and not whole:
            with pytest.raises(UnknownBatchError):
                control.cancel(main_job.name, model_batch.batch.id)
            return
        chosen = self.model.live(main_job) if whole else [model_batch]
        open_batches = [batch for batch in chosen if batch.state in {*OPEN, BatchState.RUNNING}]
        done = control.cancel(main_job.name, *([] if whole else [model_batch.batch.id]))
        attempts = sum([batch.cancel() for batch in open_batches])
        cancelled = [batch for batch in open_batches if batch.generation is None]
        assert (done.batches, done.attempts) == (len(cancelled), attempts)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), number=WORKERS, states=st.sets(st.sampled_from(RETRIABLE), min_size=1))
    def retry(self, data: st.DataObject, number: int, states: set[BatchState]) -> None:
        """Retry batches of a job."""
        main_job = self.draw(data, self.model.main_jobs())
        chosen = [each for each in self.model.live(main_job) if each.state in states]
        assert self.workers[number].database.jobs.retry(main_job.name, states=states) == len(chosen)
        for model_batch in chosen:
            model_batch.forgive()

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), number=WORKERS)
    def pause_or_resume(self, data: st.DataObject, number: int) -> None:
        """Pause a job, or resume a paused one."""
        main_job = self.draw(data, self.model.main_jobs())
        control = self.workers[number].database.jobs
        (control.resume if main_job.paused else control.pause)(main_job.name)
        main_job.paused = not main_job.paused

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data(), number=WORKERS)
    def bisect(self, data: st.DataObject, number: int) -> None:
        """Split a batch."""
        model_batch = self.draw(data, self.model.batches.values())
        main_job, worker = model_batch.job.parent or model_batch.job, self.workers[number]
        split: Callable[..., Any] = worker.database.jobs.split
        halves = self.model.halves(model_batch)
        arguments = (main_job.name, model_batch.batch.id, worker.table(model_batch.job))
        if model_batch.state is BatchState.SUPERSEDED:
            with pytest.raises(UnknownBatchError, match="has no batch"):
                split(*arguments)
        elif halves is None or model_batch.state in {BatchState.RUNNING, BatchState.PUBLISHED}:
            with pytest.raises(ConfigurationError, match="cannot be split"):
                split(*arguments)
        else:
            split(*arguments)
            self.split_into(model_batch)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), number=WORKERS, limits=LIMITS)
    def audit(self, data: st.DataObject, number: int, limits: Limits) -> None:
        """Audit a job for late arrivals."""
        self.audit_job(number, self.draw(data, self.model.main_jobs()), limits)

    @rule(data=st.data(), number=WORKERS, limits=LIMITS, window=WINDOWS)
    def backfill(self, data: st.DataObject, number: int, limits: Limits, window: IdRange) -> None:
        """Plan a backfill of a window, a list or failed items, or plan an earlier one again."""
        parent = "all" if "all" in self.model.jobs else None
        kinds = ["window", *(["failed"] if parent else []), *(["list"] if self.model.rows else [])]
        kind = self.draw(data, [*kinds, *(["again"] if self.backfills else [])])
        if kind == "again":
            self.plan_backfill(number, self.draw(data, self.backfills.values()))
            return
        selection = Selection(ids=window, failed_only=kind == "failed")
        if kind == "list":
            some = st.sets(st.sampled_from(sorted(self.model.rows)), min_size=1, max_size=5)
            selection = Selection(item_ids=tuple(data.draw(some)))
        name = f"backfill-{len(self.backfills)}"
        request = Backfill(name=name, limits=limits, selection=selection, parent=parent)
        self.backfills[name] = request
        self.plan_backfill(number, request)

    def teardown(self) -> None:
        """Do all remaining work without faults, unless the run has already failed."""
        try:
            if sys.exc_info()[0] is None:
                self.finish()
                self.done["runs"] += 1
                self.done["rows"] += len(self.model.rows)
                self.done["batches"] += len(self.model.batches)
                self.done["attempts"] += len(self.model.attempts)
        finally:
            self.close()


@pytest.mark.guarantee("G1", "G2", "G4", "G5")
def test_inventory_matches_model(
    database_url: str, database: Database, figures: Figures, *, long_form: bool
) -> None:
    """Product and model agree after every step, and every row is published exactly once."""
    with meta_tables(database_url) as tables:
        InventoryMachine.url, InventoryMachine.observer = database_url, database
        InventoryMachine.tables = tables
        run_state_machine_as_test(InventoryMachine, settings=_settings(long_form=long_form))
    figures(**{f"{name}_against_the_model": n for name, n in InventoryMachine.done.items()})


def _settings(*, long_form: bool) -> settings:
    if settings.get_current_profile_name() == "nightly":
        return settings.get_profile("nightly")
    return settings(
        max_examples=100 if long_form else 6,
        stateful_step_count=50 if long_form else 30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
