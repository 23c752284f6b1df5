"""Processes that are stopped past their lease, and go on when somebody else has done their work."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batch_pipeline_tests.acceptance.sandbox import wait_until
from batch_pipeline_tests.guarantees.crashes.fork_server import Child
from batch_pipeline_tests.guarantees.crashes.installation import Scene

STOPS = ("claim.after_commit", "encode.after_claim", "encode.before_publish")
AT_ONCE = 6
_LEASE_SECONDS = 1.0
_HELD = """
SELECT count(*) FROM batch_pipeline.{} WHERE status = 'running' AND lease_until > clock_timestamp()
"""
_TRIES = """
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
class Zombies:
    """Zombies that were made so far, and what they published or recorded although they were."""

    scene: Scene
    made: int = 0
    published: int = 0

    def of_runs(self) -> None:
        """Stop some runs at their work, let one run take all of it over, and let them go on."""
        scene, before = self.scene, len(self.scene.rows(_BATCHES))
        for _ in range(AT_ONCE):
            scene.land("parcels")
        scene.warm.done("tick", name="parcels_new_files", cursor=None)
        batches = scene.rows(_BATCHES)[before:]
        runs = [run_id for run_id, job in scene.queue() if job == "parcels_encode"]
        assert len(batches) == len(runs) == AT_ONCE
        stopped = [
            self._stopped(run_id, STOPS[number % len(STOPS)]) for number, run_id in enumerate(runs)
        ]
        self._wait(stopped, "attempt")
        given = {"stream": "parcels", "job": "parcels_encode"}
        other = scene.warm.done("launch", **given, first=batches[0][1], last=batches[-1][1])
        assert scene.warm.done("run", run_id=other) == "SUCCESS"
        self._wake(stopped)
        tries = scene.rows(_TRIES, [one for one, _ in batches])
        fenced = [row for row in tries if row[1] == "abandoned" and row[0] in runs]
        assert len(fenced) == AT_ONCE, tries
        self.made += AT_ONCE
        published = [run_id for run_id, _, generation in tries if generation is not None]
        self.published += sum(run_id != other for run_id in published)
        assert published.count(other) == AT_ONCE

    def of_a_load(self) -> None:
        """Stop a load whose rows are in the target, let another one record it, let it go on."""
        scene = self.scene
        scene.land("orders")
        for sensor in ("orders_new_files", "orders_load"):
            scene.warm.done("tick", name=sensor, cursor=None)
            if sensor == "orders_new_files":
                for run_id, _ in scene.queue():
                    assert scene.warm.done("run", run_id=run_id) == "SUCCESS"
        [(run_id, _)] = scene.queue()
        zombie = self._stopped(run_id, "load.acknowledged")
        self._wait([zombie], "load")
        assert scene.warm.done("job", name="orders_load") == "SUCCESS"
        self._wake([zombie])
        self.made += 1
        [(recorded,)] = scene.rows(_LOADED, run_id)
        self.published += recorded

    def _stopped(self, run_id: str, point: str) -> Child:
        given: dict[str, Any] = {"run_id": run_id, "lease_seconds": _LEASE_SECONDS}
        return self.scene.warm.fork("run", failpoints=f"{point}=stop", **given)

    def _wait(self, children: Sequence[Child], table: str) -> None:
        wait_until(lambda: all(one.is_stopped() for one in children), "all are stopped")
        held = _HELD.format(table)
        wait_until(lambda: self.scene.rows(held) == [(0,)], "their leases are over")

    def _wake(self, children: Sequence[Child]) -> None:
        for one in children:
            signal.pidfd_send_signal(one.descriptor, signal.SIGCONT)
        for one in children:
            assert self.scene.warm.ended(one) == 0
