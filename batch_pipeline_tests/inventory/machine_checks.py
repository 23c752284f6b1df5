"""Checks of the stateful test after each step and at the end."""

from collections import Counter
from contextlib import suppress

import psycopg
from hypothesis.stateful import invariant

from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.item import ItemIdSet
from batch_pipeline.model.planning import Limits
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.machine_actions import KINDS
from batch_pipeline_tests.inventory.machine_model import ALL_IDS, Job
from batch_pipeline_tests.inventory.machine_plans import MachinePlans
from batch_pipeline_tests.inventory.machine_system import STREAM
from batch_pipeline_tests.seeds import query

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


class MachineChecks(MachinePlans):
    """Invariants after each step, and the final check when all work is done."""

    @invariant()
    def model_agrees(self) -> None:
        """Check that product and model agree and that the inventory's invariants hold."""
        check_invariants(self.observer, max_attempts_changed=True)
        batches, jobs = self.model.batches.values(), self.model.jobs.values()
        assert set(query(self.observer, _STATES)) == {
            (
                model_batch.batch.id,
                model_batch.job.name,
                model_batch.state.value,
                len(model_batch.attempts),
                model_batch.forgiven,
                model_batch.generation,
            )
            for model_batch in batches
        }
        assert set(query(self.observer, _ATTEMPTS)) == {
            (
                model_batch.batch.id,
                attempt.attempt.number,
                attempt.status.value,
                attempt.generation,
            )
            for model_batch in batches
            for attempt in model_batch.attempts
        }
        assert set(query(self.observer, _JOBS)) == {
            (job.name, job.paused, job.max_attempts, job.bisect) for job in jobs
        }
        assert set(query(self.observer, _RUNS)) == {
            (job.name, *run) for job in jobs for run in job.covered
        }

    @invariant()
    def no_row_is_lost(self) -> None:
        """Check that each row with a planned id is in one live batch or detected as late."""
        for job in self.model.main_jobs():
            late = self.model.expected_audit(job).late
            for row in self.model.matching(job):
                owners = self.model.owners(job, row)
                assert len(owners) <= 1, f"row {row.id} of {job.name} is in {len(owners)} batches"
                if not owners and job.covers(row.id):
                    assert row.explicit_id, (
                        f"{job.name} skipped row {row.id}, whose id is from the sequence"
                    )
                    is_found = row.id in late or self.model.will_be_late(job, row)
                    assert is_found, f"no audit of {job.name} would find row {row.id}"

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
        assert {model_batch.state for model_batch in live} <= {
            BatchState.PUBLISHED,
            BatchState.DEAD,
        }
        rows = query(self.observer, _PUBLISHED, name=job.name)
        counts = Counter(uid for (seen,) in rows for uid in ItemIdSet.from_json(seen))
        assert set(counts.values()) <= {1}, f"{job.name} published {counts}"
        dead = [model_batch for model_batch in live if model_batch.state is BatchState.DEAD]
        unpublished = {row.id for model_batch in dead for row in self.model.items(model_batch)}
        listed = {uid for model_batch in live for uid in model_batch.batch.item_ids or ()}
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
