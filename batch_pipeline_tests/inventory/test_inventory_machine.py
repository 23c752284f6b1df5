"""The inventory against a model in plain Python, step by step, in any order (G1, G2, G4).

Hypothesis writes rows in transactions that overlap, acquires, ends, abandons, cancels, splits,
audits and restarts, and compares everything after each step. At the end all work is done without
faults, and every row must have been published exactly once by each job.

Few runs are made usually, 100 of 50 steps with `--long`; the nightly form makes 800, most of them
of 60 steps: `uv run pytest --hypothesis-profile=nightly -k test_inventory_does_what_the_model_does`
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
from batch_pipeline.model.batch import AttemptStatus, BatchState
from batch_pipeline.model.errors import ConfigurationError, UnknownBatchError
from batch_pipeline.model.id_range import MIN_ID, IdRange
from batch_pipeline.model.planning import Limits
from batch_pipeline_tests.inventory.machine_checks import Checks
from batch_pipeline_tests.inventory.machine_model import ALL_IDS, OPEN, Row, Try
from batch_pipeline_tests.inventory.machine_system import insert_by_hand, meta_tables
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
CLOSED = st.sampled_from(  # how, and whether it counts
    [
        (AttemptStatus.FAILED, True),
        (AttemptStatus.ABANDONED, True),
        (AttemptStatus.ABANDONED, False),
        (AttemptStatus.CANCELLED, True),
    ]
)
RETRIABLE = [BatchState.FAILED, BatchState.DEAD, BatchState.CANCELLED, BatchState.INTERRUPTED]


class InventoryMachine(Checks):
    """What may happen, one rule each; `done` counts what happened in all runs."""

    done: ClassVar[Counter[str]] = Counter()

    def drawn(self, data: st.DataObject, what: Any) -> Any:
        return data.draw(st.sampled_from(list(what)))

    @initialize(rows=ROWS)
    def start(self, rows: list[tuple[int, int]]) -> None:
        """Begin with some rows."""
        self.taken |= set(self.writer(None).insert(rows, keep=True))
        self.end_writer(0, commits=True)

    @rule(data=st.data(), rows=ROWS, keep=st.integers(0, 4))
    def write(self, data: st.DataObject, rows: list[tuple[int, int]], keep: int) -> None:
        """Insert rows in a transaction that stays open, a new one or one that is."""
        new = [None] if len(self.writers) < 4 else []
        number = self.drawn(data, [*new, *range(len(self.writers))])
        self.taken |= set(self.writer(number).insert(rows, keep=keep > 0))

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), commits=st.integers(0, 3))
    def end_a_writer(self, data: st.DataObject, commits: int) -> None:
        """Commit or roll back any of the open transactions."""
        self.end_writer(self.drawn(data, range(len(self.writers))), commits=commits > 0)

    @rule(data=st.data(), weight=WEIGHTS, kind=st.integers(1, 2))
    def write_by_hand(self, data: st.DataObject, weight: int, kind: int) -> None:
        """Insert a row where nobody expects one any more."""
        free = [one for one in range(-6, max(self.taken)) if one not in self.taken]
        if not free:
            return
        row = Row(id=self.drawn(data, free), weight=weight, kind=kind, by_hand=True)
        insert_by_hand(self.url, row)
        self.taken.add(row.id)
        self.model.rows[row.id] = row

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Delete a row."""
        row = self.model.rows.pop(self.drawn(data, self.model.rows))
        execute(self.watch, "DELETE FROM public.files WHERE id = :id", id=row.id)

    @rule(worker=WORKERS, data=st.data(), limits=LIMITS, short=st.booleans(), sweeps=st.booleans())
    def take(
        self, worker: int, data: st.DataObject, limits: Limits, *, short: bool, sweeps: bool
    ) -> None:
        """Acquire whatever is next of a job."""
        self.acquire(worker, self.a_job(data), limits, ALL_IDS, short=short, sweeps=sweeps)

    @rule(worker=WORKERS, data=st.data(), limits=LIMITS, window=WINDOWS, short=st.booleans())
    def take_within(
        self, worker: int, data: st.DataObject, limits: Limits, window: IdRange, *, short: bool
    ) -> None:
        """Acquire within a window, perhaps on other terms than before."""
        one = self.a_job(data)
        job = replace(
            one,
            max_attempts=data.draw(st.sampled_from([one.max_attempts, 1, 2, 3])),
            bisect=data.draw(st.sampled_from([one.bisect, True])),
        )
        self.acquire(worker, job, limits, window, short=short, sweeps=False)

    @precondition(lambda self: self.model.tries)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Let a worker read the items of its batch, long before it ends."""
        running = [one for one in self.model.tries if one.is_running and one.read is None]
        if running:
            self.read_items(self.drawn(data, running))

    @precondition(lambda self: any(one.is_running for one in self.model.tries))
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        """Publish an attempt that runs, though its lease may have run out."""
        self.publish(self.drawn(data, [one for one in self.model.tries if one.is_running]))

    @precondition(lambda self: not all(one.is_running for one in self.model.tries))
    @rule(data=st.data())
    def succeed_again(self, data: st.DataObject) -> None:
        """Publish an attempt that has ended: what was published stays, zombies are refused."""
        self.publish(self.drawn(data, [one for one in self.model.tries if not one.is_running]))

    @precondition(lambda self: self.model.tries)
    @rule(data=st.data(), closed=CLOSED)
    def fail(self, data: st.DataObject, closed: tuple[AttemptStatus, bool]) -> None:
        """Close an attempt, running or not."""
        one: Try = self.drawn(data, self.model.tries)
        status, counts = closed
        unpublished = self.attempts_of(one).fail(one.attempt, "no", status, counts=counts)
        assert unpublished == (one.status is not AttemptStatus.SUCCEEDED)
        if one.is_running:
            one.batch.end(one, status, counts=counts)

    @precondition(lambda self: any(one.is_running for one in self.model.tries))
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """Let the lease of an attempt run out, as of a process that hangs."""
        one: Try = self.drawn(data, [one for one in self.model.tries if one.is_running])
        self.attempts_of(one).heartbeat.stop_renewing(one.attempt.token)
        expire(self.watch, one.attempt)
        one.gone = True

    @rule(number=WORKERS)
    def renew(self, number: int) -> None:
        """Let a worker renew all its leases, those included that have run out meanwhile."""
        heartbeat = self.workers[number].database.heartbeat
        running = [one for one in self.model.tries if one.is_running and one.worker == number]
        for one in running:
            heartbeat.renew(one.attempt.token, LEASE)
            one.gone = False
        heartbeat._renew_all()
        assert all(heartbeat.is_renewing(one.attempt.token) for one in running)

    @rule(number=WORKERS)
    def restart(self, number: int) -> None:
        """End a worker without a word and start another one in its place."""
        self.restart_worker(number)

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data(), number=WORKERS, ending=st.sampled_from(["succeed", "fail", "leave"]))
    def claim(self, data: st.DataObject, number: int, ending: str) -> None:
        """Try one certain batch: of a stream also one that is published, which is another try."""
        batches = self.model.batches.values()
        choice = [one for one in batches if one.generation is None or one.job.is_stream]
        if choice:
            self.claim_one(number, self.drawn(data, choice), ending)

    @rule(number=WORKERS, size=st.integers(1, 4), limits=LIMITS, plans=st.booleans())
    def register_and_plan(self, number: int, size: int, limits: Limits, *, plans: bool) -> None:
        """Register files of a stream, and perhaps plan its batches."""
        self.register(number, size)
        if plans:
            self.plan(number, limits)

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data(), number=WORKERS, whole=st.booleans())
    def cancel(self, data: st.DataObject, number: int, *, whole: bool) -> None:
        """Call off a batch, or all of a job that are not published."""
        control = self.workers[number].database.jobs
        held = self.drawn(data, self.model.batches.values())
        root = held.job.parent or held.job
        if held.state is BatchState.SUPERSEDED and not whole:
            with pytest.raises(UnknownBatchError):
                control.cancel_batch(root.name, held.batch.id)
            return
        chosen = self.model.live(root) if whole else [held]
        open_ones = [one for one in chosen if one.state in {*OPEN, BatchState.RUNNING}]
        done = (
            control.cancel(root.name) if whole else control.cancel_batch(root.name, held.batch.id)
        )
        assert (done.batches, done.attempts) == (
            len(open_ones),
            sum([one.cancel() for one in open_ones]),
        )

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), number=WORKERS, states=st.sets(st.sampled_from(RETRIABLE), min_size=1))
    def retry(self, data: st.DataObject, number: int, states: set[BatchState]) -> None:
        """Let batches of a job be tried again."""
        root = self.drawn(data, self.model.roots())
        chosen = [held for held in self.model.live(root) if held.state in states]
        assert self.workers[number].database.jobs.retry(root.name, states=states) == len(chosen)
        for held in chosen:
            held.forgive()

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), number=WORKERS)
    def pause_or_resume(self, data: st.DataObject, number: int) -> None:
        """Pause a job, or let a paused one go on."""
        root = self.drawn(data, self.model.roots())
        control = self.workers[number].database.jobs
        (control.resume if root.paused else control.pause)(root.name)
        root.paused = not root.paused

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data(), number=WORKERS)
    def bisect(self, data: st.DataObject, number: int) -> None:
        """Split a batch by hand."""
        held = self.drawn(data, self.model.batches.values())
        root, worker = held.job.parent or held.job, self.workers[number]
        split: Callable[..., Any] = worker.database.jobs.split
        halves = self.model.halves(held)
        refused: Any = None
        message = ""
        if held.state is BatchState.SUPERSEDED:
            refused, message = UnknownBatchError, "has no batch"
        elif halves is None or held.state in {BatchState.RUNNING, BatchState.PUBLISHED}:
            refused, message = ConfigurationError, "cannot be split"
        if refused is not None:
            with pytest.raises(refused, match=message):
                split(root.name, held.batch.id, worker.table(held.job))
            return
        split(root.name, held.batch.id, worker.table(held.job))
        self.split_into(held)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), number=WORKERS, limits=LIMITS)
    def audit(self, data: st.DataObject, number: int, limits: Limits) -> None:
        """Look for late arrivals."""
        self.audit_job(number, self.drawn(data, self.model.roots()), limits)

    @rule(data=st.data(), number=WORKERS, limits=LIMITS, window=WINDOWS)
    def backfill(self, data: st.DataObject, number: int, limits: Limits, window: IdRange) -> None:
        """Plan a backfill: a window, a list of items, what failed, or an earlier one again."""
        parent = "all" if "all" in self.model.jobs else None
        kinds = ["window", *(["failed"] if parent else []), *(["list"] if self.model.rows else [])]
        kind = self.drawn(data, [*kinds, *(["again"] if self.backfills else [])])
        if kind == "again":
            self.plan_backfill(number, self.drawn(data, self.backfills.values()))
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
        """Do all that is left without faults, unless the run has failed already."""
        try:
            if sys.exc_info()[0] is None:
                self.finish()
                self.done["runs"] += 1
                self.done["rows"] += len(self.model.rows)
                self.done["batches"] += len(self.model.batches)
                self.done["attempts"] += len(self.model.tries)
        finally:
            self.close()


@pytest.mark.guarantee("G1", "G2", "G4", "G5")
def test_inventory_does_what_the_model_does(
    database_url: str, database: Database, figures: Figures, *, long_form: bool
) -> None:
    """Expect product and model to agree after every step, and every row exactly once in the end."""
    with meta_tables(database_url) as tables:
        InventoryMachine.url, InventoryMachine.watch = database_url, database
        InventoryMachine.tables = tables
        run_state_machine_as_test(InventoryMachine, settings=_settings(long_form=long_form))
    figures(**{f"{name}_against_the_model": n for name, n in InventoryMachine.done.items()})


def _settings(*, long_form: bool) -> settings:
    if settings.get_current_profile_name() == "nightly":
        return settings.get_profile("nightly")
    return settings(
        max_examples=100 if long_form else 15,
        stateful_step_count=50 if long_form else 30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
