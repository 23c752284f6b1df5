"""Actions of writers and workers in the stateful test, applied to the product and its model."""

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
from batch_pipeline_tests.inventory.machine_model import Job, Model, ModelAttempt, ModelBatch
from batch_pipeline_tests.inventory.machine_system import EMPTY, STREAM, Worker, Writer
from batch_pipeline_tests.seeds import LEASE, execute

KINDS = {"all": None, "kind_1": 1}


class MachineActions(RuleBasedStateMachine):
    """Two workers, several writers, and the model of their actions."""

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
        expected_error: type[Exception] | None = None
        message = ""
        if model_batch.state is BatchState.SUPERSEDED:
            expected_error, message = BatchSupersededError, ""
        elif running is not None and not running.is_lost:
            expected_error, message = ConflictError, "is running"
        if expected_error is not None:
            with (
                pytest.raises(expected_error, match=message or None),
                attempts.claim(model_batch.batch, run_id="", lease=LEASE),
            ):
                pass
            return
        if running is not None:
            model_batch.end_attempt(running, AttemptStatus.ABANDONED)
        with attempts.claim(model_batch.batch, run_id="", lease=LEASE) as attempt:
            model_attempt = model_batch.start_attempt(attempt, number)
            if ending == "succeed":
                self.publish(model_attempt)
            elif ending == "fail":
                attempts.fail(attempt, "no", AttemptStatus.FAILED)
                model_batch.end_attempt(model_attempt, AttemptStatus.FAILED)
        model_attempt.is_lost = True
