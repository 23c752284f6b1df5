"""What writers and workers do in the stateful test, with the product and its model at once."""

from typing import ClassVar

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from batch_pipeline.inventory.attempts import FencedAttempts
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.backfill import Backfill
from batch_pipeline.model.batch import AttemptStatus, BatchState
from batch_pipeline.model.errors import BatchSupersededError, ConflictError, FencedError
from batch_pipeline_tests.inventory.machine_model import Held, Job, Model, Try
from batch_pipeline_tests.inventory.machine_system import EMPTY, STREAM, Worker, Writer
from batch_pipeline_tests.seeds import LEASE, execute

KINDS = {"all": None, "odd": 1}


class Deeds(RuleBasedStateMachine):
    """Two workers, some writers, and the model of what they did."""

    url: ClassVar[str]
    tables: ClassVar[dict[int | None, ReflectedMetaTable]]
    watch: ClassVar[Database]

    def __init__(self) -> None:
        super().__init__()
        execute(self.watch, EMPTY)
        self.model = Model()
        self.workers = [Worker(self.url, self.tables) for _ in range(2)]
        self.writers: list[Writer] = []
        self.taken: set[int] = set()
        self.backfills: dict[str, Backfill] = {}

    def a_job(self, data: st.DataObject) -> Job:
        """Draw a job that may be acquired from, perhaps a new one."""
        planned = [name for name in self.backfills if name in self.model.jobs]
        return self.job(data.draw(st.sampled_from([*KINDS, *planned])))

    def job(self, name: str) -> Job:
        """Give a job, or what it will be."""
        known, is_stream = self.model.jobs.get(name), name == STREAM
        return known or Job(
            name=name, kind=KINDS.get(name), max_attempts=3, bisect=False, is_stream=is_stream
        )

    def attempts_of(self, one: Try) -> FencedAttempts:
        """Give the attempts as the worker of one sees them."""
        return self.workers[one.worker or 0].database.attempts

    def writer(self, number: int | None) -> Writer:
        """Give an open transaction, or a new one."""
        if number is not None:
            return self.writers[number]
        self.writers.append(Writer(psycopg.connect(self.url)))
        return self.writers[-1]

    def end_writer(self, number: int, *, commits: bool) -> None:
        """End a transaction; its rows are there now, or never."""
        for row in self.writers.pop(number).end(commits=commits):
            self.model.rows[row.id] = row

    def restart_worker(self, number: int) -> None:
        """End a worker as if it were killed, and start another one."""
        self.workers[number].close()
        self.workers[number] = Worker(self.url, self.tables)
        for one in self.model.tries:
            if one.worker == number:
                one.gone, one.worker = one.is_running, None

    def read_items(self, one: Try) -> dict[int, int]:
        """Read the items of an attempt."""
        worker = self.workers[one.worker or 0]
        one.read = worker.read(one.batch.job, one.attempt.batch)
        assert one.read == {row.id: row.weight for row in self.model.items(one.batch)}
        return one.read

    def publish(self, one: Try) -> None:
        """Let an attempt succeed, if it still may."""
        worker = self.workers[one.worker or 0]
        if one.is_running:
            read = self.read_items(one) if one.read is None else one.read
            assert worker.succeed(one.attempt, read) == one.batch.publish(one)
        elif one.status is AttemptStatus.SUCCEEDED:
            assert worker.succeed(one.attempt, {}) == one.generation
        else:
            with pytest.raises(FencedError):
                worker.succeed(one.attempt, {})

    def claim_one(self, number: int, held: Held, ending: str) -> None:
        """Try one certain batch, if nobody does."""
        attempts, running = self.workers[number].database.attempts, held.running
        refused: type[Exception] | None = None
        message = ""
        if held.state is BatchState.SUPERSEDED:
            refused, message = BatchSupersededError, ""
        elif running is not None and not running.gone:
            refused, message = ConflictError, "is running"
        if refused is not None:
            with (
                pytest.raises(refused, match=message or None),
                attempts.claim(held.batch, run_id="", lease=LEASE),
            ):
                pass
            return
        if running is not None:
            held.end(running, AttemptStatus.ABANDONED)
        with attempts.claim(held.batch, run_id="", lease=LEASE) as attempt:
            one = held.begin(attempt, number)
            if ending == "succeed":
                self.publish(one)
            elif ending == "fail":
                attempts.fail(attempt, "no", AttemptStatus.FAILED)
                held.end(one, AttemptStatus.FAILED)
        one.gone = True
