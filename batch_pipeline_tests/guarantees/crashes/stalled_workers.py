"""Stops processes past their leases, and continues them after other processes did their work."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from batch_pipeline_tests.acceptance.sandbox import wait_until
from batch_pipeline_tests.guarantees.crashes.fork_server import Child
from batch_pipeline_tests.guarantees.crashes.installation import CrashInstallation

_STOPS = ("claim.after_commit", "encode.after_claim", "encode.before_publish")
_RUNS = 6
_LEASE_SECONDS = 1.0
_LEASES = """
SELECT count(*) FROM batch_pipeline.{} WHERE status = 'running' AND lease_until > clock_timestamp()
"""
_ATTEMPTS = """
SELECT a.run_id, a.status, a.generation FROM batch_pipeline.attempt a
  JOIN batch_pipeline.batch b ON b.id = a.batch_id
  JOIN batch_pipeline.job j ON j.id = b.job_id
 WHERE j.name = 'parcels' AND b.id = ANY(%s) ORDER BY b.id, a.number
"""
_BATCHES = """
SELECT b.id, lpad(b.first_id::text, 8, '0') || '-' || lpad(b.last_id::text, 8, '0')
  FROM batch_pipeline.batch b JOIN batch_pipeline.job j ON j.id = b.job_id
 WHERE j.name = 'parcels' ORDER BY b.first_id
"""
_LOADED = "SELECT count(*) FROM batch_pipeline.load WHERE run_id = %s AND status = 'succeeded'"


@dataclass(slots=True, kw_only=True)
class StalledWorkers:
    """The number of stalled workers, and of those that published or recorded a load."""

    installation: CrashInstallation
    stalled: int = 0
    published: int = 0

    def encode(self) -> None:
        """Stop encoding runs, let another run take over their batches, and continue the runs."""
        actions, query = self.installation.actions, self.installation.query
        before = len(query(_BATCHES))
        for _ in range(_RUNS):
            self.installation.land("parcels")
        actions.run("tick", name="parcels_new_files", cursor=None)
        batches = query(_BATCHES)[before:]
        runs = [run_id for run_id, job in self.installation.queue() if job == "parcels_encode"]
        assert len(batches) == len(runs) == _RUNS
        stopped = [
            self._fork(run_id, _STOPS[number % len(_STOPS)]) for number, run_id in enumerate(runs)
        ]
        self._wait_until_stopped(stopped, "attempt")
        arguments = {"stream": "parcels", "job": "parcels_encode"}
        other = actions.run("launch", **arguments, first=batches[0][1], last=batches[-1][1])
        assert actions.run("run", run_id=other) == "SUCCESS"
        self._continue(stopped)
        attempts = query(_ATTEMPTS, [batch_id for batch_id, _ in batches])
        fenced = [row for row in attempts if row[1] == "abandoned" and row[0] in runs]
        assert len(fenced) == _RUNS, attempts
        self.stalled += _RUNS
        published = [run_id for run_id, _, generation in attempts if generation is not None]
        self.published += sum(run_id != other for run_id in published)
        assert published.count(other) == _RUNS

    def load(self) -> None:
        """Stop a load whose rows are in the target, let another run record it, and continue it."""
        actions = self.installation.actions
        self.installation.land("orders")
        actions.run("tick", name="orders_new_files", cursor=None)
        for run_id, _ in self.installation.queue():
            assert actions.run("run", run_id=run_id) == "SUCCESS"
        actions.run("tick", name="orders_load", cursor=None)
        [(run_id, _)] = self.installation.queue()
        stopped = [self._fork(run_id, "load.acknowledged")]
        self._wait_until_stopped(stopped, "load")
        assert actions.run("job", name="orders_load") == "SUCCESS"
        self._continue(stopped)
        self.stalled += 1
        [(recorded,)] = self.installation.query(_LOADED, run_id)
        self.published += recorded

    def _fork(self, run_id: str, point: str) -> Child:
        return self.installation.actions.fork(
            "run", failpoints=f"{point}=stop", run_id=run_id, lease_seconds=_LEASE_SECONDS
        )

    def _wait_until_stopped(self, children: Sequence[Child], table: str) -> None:
        wait_until(lambda: all(child.is_stopped() for child in children), "all are stopped")
        leases = _LEASES.format(table)
        wait_until(lambda: self.installation.query(leases) == [(0,)], "their leases have ended")

    def _continue(self, children: Sequence[Child]) -> None:
        for child in children:
            signal.pidfd_send_signal(child.descriptor, signal.SIGCONT)
        for child in children:
            assert self.installation.actions.exit_code(child) == 0
