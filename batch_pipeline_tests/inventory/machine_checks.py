"""What the stateful test compares after each step and in the end."""

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
from batch_pipeline_tests.inventory.machine_plans import Plans
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


class Checks(Plans):
    """What must be true after each deed, and when all work is done."""

    @invariant()
    def agrees(self) -> None:
        """Expect product and model to say the same, and every promise to hold."""
        check_invariants(self.watch, max_attempts_changed=True)
        batches, jobs = self.model.batches.values(), self.model.jobs.values()
        assert set(query(self.watch, _STATES)) == {
            (
                held.batch.id,
                held.job.name,
                held.state.value,
                len(held.tries),
                held.forgiven,
                held.generation,
            )
            for held in batches
        }
        assert set(query(self.watch, _ATTEMPTS)) == {
            (held.batch.id, one.attempt.number, one.status.value, one.generation)
            for held in batches
            for one in held.tries
        }
        assert set(query(self.watch, _JOBS)) == {
            (job.name, job.paused, job.max_attempts, job.bisect) for job in jobs
        }
        assert set(query(self.watch, _RUNS)) == {
            (job.name, *run) for job in jobs for run in job.covered
        }

    @invariant()
    def loses_nothing(self) -> None:
        """Expect every row that a job has passed to be in one live batch, or found late."""
        for job in self.model.roots():
            late = self.model.lateness(job).fresh
            for row in self.model.matching(job):
                homes = self.model.homes(job, row)
                assert len(homes) <= 1, f"row {row.id} of {job.name} is in {len(homes)} batches"
                if not homes and job.has_planned(row.id):
                    assert row.by_hand, f"{job.name} has passed row {row.id}, which no one made up"
                    is_found = row.id in late or self.model.will_be_late(job, row)
                    assert is_found, f"no audit of {job.name} would find row {row.id}"

    def finish(self) -> None:
        """Do all that is left without faults: then every row was published exactly once."""
        for number in range(len(self.writers)):
            self.end_writer(0, commits=number % 2 == 0)
        for number in range(len(self.workers)):
            self.restart_worker(number)
        control = self.workers[0].database.jobs
        for job in self.model.roots():
            control.resume(job.name)
            job.paused = False
            control.retry(job.name, states=[BatchState.CANCELLED])
            for held in self.model.live(job):
                if held.state is BatchState.CANCELLED:
                    held.forgive()
        names = {*KINDS, *(job.name for job in self.model.roots() if not job.is_stream)}
        limits, is_left = Limits(max_weight=30, max_count=4), True
        while is_left:
            for name in names:
                self._drain(self.job(name), limits)
            is_left = any(self.audit_job(1, job, limits) for job in self.model.roots())
        self._publish_stream(limits)
        self.agrees()
        for job in self.model.roots():
            self._check_published_once(job)

    def _publish_stream(self, limits: Limits) -> None:
        self.plan(0, limits)
        done = {BatchState.PUBLISHED, BatchState.DEAD}
        for held in self.model.live(self.job(STREAM)):
            if held.state not in done:
                self.claim_one(0, held, "succeed")

    def _drain(self, job: Job, limits: Limits) -> None:
        while (one := self.acquire(0, job, limits, ALL_IDS, short=True, sweeps=True)) is not None:
            self.publish(one)

    def _check_published_once(self, job: Job) -> None:
        """Expect each row once, save for those of batches that are dead."""
        live = self.model.live(job)
        assert {held.state for held in live} <= {BatchState.PUBLISHED, BatchState.DEAD}
        found = query(self.watch, _PUBLISHED, name=job.name)
        counts = Counter(uid for (seen,) in found for uid in ItemIdSet.from_json(seen))
        assert set(counts.values()) <= {1}, f"{job.name} published {counts}"
        dead = [held for held in live if held.state is BatchState.DEAD]
        unpublished = {row.id for held in dead for row in self.model.items(held)}
        listed = {uid for held in live for uid in held.batch.item_ids or ()}
        due = {
            row.id
            for row in self.model.matching(job)
            if job.grows or job.has_planned(row.id) or row.id in listed
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
