"""Runs a seeded sequence of actions, and kills most of their processes and some servers.

The seed alone decides which process is killed and where. Afterwards `drain` completes all remaining
work, so that the checker can look for faults.
"""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from batch_pipeline_tests.guarantees.crashes.fork_server import UNEXPECTED_ERROR, Child
from batch_pipeline_tests.guarantees.crashes.installation import CrashInstallation

# The kind of action that reaches a failpoint, by the first part of the failpoint's name.
KINDS = {
    "register": "new files",
    "plan": "new files",
    "claim": "encode",
    "schema": "encode",
    "encode": "encode",
    "publish": "encode",
    "pointer": "encode",
    "fail": "encode",
    "load": "load",
    "warehouse": "load",
    "collect": "gc",
    "backfill": "backfill",
    "audit": "audit",
    "retry": "retry",
    "cancel": "cancel",
    "pause": "pause",
    "target": "target",
}
# `inventory/test_failpoints.py` names the tests for these: failpoints of the library, of commands
# for one batch, of buckets and restored backups, and of Spark workers, which lack the setting.
COVERED_ELSEWHERE = (
    *("acquire.", "bisect.", "discard."),
    *("encode.before_rename", "succeed.", "upload."),
)
_STREAMS = ("orders", "visits", "notes")
_SENSORS = (
    *(f"{stream}_new_files" for stream in _STREAMS),
    *("orders_backfill", "orders_load", "visits_load"),
)
_MAX_DELAY_SECONDS = 0.8
_WAIT_SECONDS = 20.0
_MAX_WAITS = 30
_MAX_STEPS = 3  # at the same time
_RESUME_ROUNDS = 8  # until failed batches are retried and paused jobs resumed
_QUIET_ROUNDS = 2
_UNFINISHED = """
SELECT count(*) FROM batch_pipeline.batch_state WHERE state NOT IN ('published', 'superseded')
"""
_PAUSED = "SELECT name FROM batch_pipeline.job WHERE paused_at IS NOT NULL"
_FAILED = """
SELECT DISTINCT j.name, j.meta_table FROM batch_pipeline.job j
  JOIN batch_pipeline.batch_state s ON s.job_id = j.id
 WHERE s.state IN ('dead', 'failed', 'cancelled')
"""
_RECOVERIES = """
SELECT a.run_id, extract(epoch FROM next.finished_at)::float8
  FROM batch_pipeline.attempt a
  JOIN batch_pipeline.attempt next ON next.batch_id = a.batch_id AND next.number = a.number + 1
 WHERE a.run_id = ANY(%s) AND a.status <> 'succeeded' AND next.status = 'succeeded'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An action, and where to kill it: at a failpoint, after some seconds, or nowhere."""

    action: str
    arguments: dict[str, Any]
    point: str = ""
    seconds: float | None = None

    @property
    def failpoints(self) -> str:
        """The failpoint setting. The points `fail.…` are reached only after a failure."""
        first = "encode.before_publish=raise," if self.point.startswith("fail.") else ""
        return f"{first}{self.point}=kill" if self.point else ""


@dataclass(slots=True, kw_only=True)
class CrashInjector:
    """An injector of kills at `points`, with counts of the kills.

    `fired` counts kills by failpoint, `servers` by server. `runs` has the time at which each run
    was killed, `unexpected` the errors of processes that were not killed. Like the daemon and a
    tap's runner, the injector keeps the cursors of sensors and the last STATE of the target.
    """

    installation: CrashInstallation
    rng: random.Random
    points: Sequence[str]
    fired: Counter[str] = field(default_factory=Counter)
    at_random: int = 0
    servers: Counter[str] = field(default_factory=Counter)
    runs: dict[str, float] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    _cursors: dict[str, str | None] = field(default_factory=dict)
    _notes: int = 0
    _backfills: int = 0

    @property
    def kills(self) -> int:
        """The number of killed processes and servers."""
        return self.fired.total() + self.at_random + self.servers.total()

    def run(self, kills: int, points: Collection[str], *, server_every: int) -> None:
        """Kill processes until every point has fired, and a server every `server_every` rounds."""
        rounds = 0
        while self.kills < kills or not self.fired.keys() >= set(points):
            rounds += 1
            self._run(self._next_steps(points), with_server=rounds % server_every == 0)
            if rounds % _RESUME_ROUNDS == 0:
                self._resume()

    def drain(self) -> None:
        """Complete all work without further kills."""
        while self.installation.gaps:
            self.installation.land_late()
        quiet_rounds = 0
        while quiet_rounds < _QUIET_ROUNDS:
            self._run([self._audit()])
            self._resume()
            self._run([self._tick(*_SENSORS)])
            waiting = self.installation.queue()
            self._run_all([_run_step(run_id) for run_id, _ in waiting])
            is_quiet = not waiting and self.installation.query(_UNFINISHED) == [(0,)]
            quiet_rounds = quiet_rounds + 1 if is_quiet else 0

    def max_recovery_seconds(self) -> float:
        """Return the longest time from a kill until the next attempt published."""
        recoveries = self.installation.query(_RECOVERIES, [*self.runs])
        return max((end - self.runs[run_id] for run_id, end in recoveries), default=0.0)

    def _next_steps(self, points: Collection[str]) -> list[Step]:
        """Draw a failpoint, and return steps that reach it and steps that run concurrently."""
        candidates = [point for point in points if not self.fired[point]] or self.points
        [point] = self.rng.choices(
            candidates, [1 / (1 + self.fired[point]) for point in candidates]
        )
        steps = self._steps_to(point)
        used = {step.arguments.get("run_id") for step in steps}
        others = [run_id for run_id, _ in self.installation.queue() if run_id not in used]
        for run_id in self.rng.sample(others, min(len(others), 2)):
            steps.append(self._with_random_kill(_run_step(run_id)))
        if len(steps) < _MAX_STEPS:
            steps.append(self._with_random_kill(self._tick(self.rng.choice(_SENSORS))))
        return steps

    def _with_random_kill(self, step: Step) -> Step:
        if self.rng.random() < 0.5:
            return step
        return replace(step, seconds=self.rng.uniform(0.02, _MAX_DELAY_SECONDS))

    def _steps_to(self, point: str) -> list[Step]:
        """Return the step to kill at a failpoint; none if it needs a run and none is queued."""
        kind = KINDS[point.partition(".")[0]]
        if kind in ("encode", "load"):
            return self._waiting_run(point, is_load=kind == "load")
        prepare: dict[str, Callable[[str], Step]] = {
            "new files": self._new_files,
            "target": self._target,
            "audit": self._late_rows,
            "backfill": self._backfill,
            "gc": self._gc,
            "cancel": self._cancel,
            "retry": self._retry,
            "pause": lambda point: _command("jobs", "pause", "orders", point=point),
        }
        return [prepare[kind](point)]

    def _waiting_run(self, point: str, *, is_load: bool) -> list[Step]:
        if point == "schema.before_commit":
            self.installation.land("orders", new_column=True)
        for _ in range(2):
            queue = self.installation.queue()
            waiting = [run_id for run_id, job in queue if job.endswith("_load") == is_load]
            if waiting:
                return [replace(_run_step(self.rng.choice(waiting)), point=point)]
            self.installation.land("orders")
            self.installation.land("visits")
            sensors = [sensor for sensor in _SENSORS if sensor.endswith("_load") == is_load]
            self._run_tick(*self.rng.sample(sensors, 2))
        return []

    def _new_files(self, point: str) -> Step:
        stream = "orders" if point.startswith("register") else self.rng.choice(_STREAMS)
        for name in ("orders", "visits"):
            self.installation.land(name)
        return self._tick(f"{stream}_new_files", point=point)

    def _late_rows(self, point: str) -> Step:
        self.installation.land_late()
        return self._audit(point=point)

    def _gc(self, point: str) -> Step:
        self.installation.age()
        return _command("gc", point=point)

    def _cancel(self, point: str) -> Step:
        self.installation.land("orders")
        self._run_tick("orders_new_files")
        return _command("jobs", "cancel", "orders", point=point)

    def _retry(self, point: str) -> Step:
        names = [name for name, _ in self.installation.query(_FAILED)]
        return _command("jobs", "retry", self.rng.choice(names or ["orders"]), point=point)

    def _backfill(self, point: str) -> Step:
        first = self.rng.randint(1, max(self.installation.files.get("orders", 1) - 3, 1))
        self._backfills += 1
        backfill = {
            "stream": "orders",
            "name": f"again{self._backfills}",
            "first_id": first,
            "last_id": first + 2,
            "max_count": 2,
            "dry_run": False,
        }
        return _job("batch_pipeline_plan_backfill", "plan_or_estimate", backfill, point=point)

    def _target(self, point: str) -> Step:
        """Return a step that runs the target on the messages after its last STATE."""
        folder = self.installation.sandbox.folder
        config, messages = folder / "target.json", folder / "messages.jsonl"
        config.write_text(json.dumps({"max_records": 2, "create_streams": False}))
        schema = {"properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
        lines: list[dict[str, Any]] = [
            {"type": "SCHEMA", "stream": "notes", "schema": schema, "key_properties": ["id"]}
        ]
        for uid in range(self._notes + 1, self._notes + 5):
            record = {"id": uid, "name": f"note {uid}"}
            lines.append({"type": "RECORD", "stream": "notes", "record": record})
            lines.append({"type": "STATE", "value": {"at": uid}})
        messages.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        arguments = {"config": str(config), "messages": str(messages)}
        return Step(action="target", arguments=arguments, point=point)

    def _tick(self, *sensors: str, point: str = "") -> Step:
        cursors = {sensor: self._cursors.get(sensor) for sensor in sensors}
        return Step(action="tick", arguments={"cursors": cursors}, point=point)

    def _run_tick(self, *sensors: str) -> None:
        self._keep(self.installation.actions.run("tick", **self._tick(*sensors).arguments))

    def _keep(self, cursors: dict[str, str | None]) -> None:
        """Keep cursors without their delays, as if they had passed."""
        for sensor, cursor in cursors.items():
            runs = cursor and json.dumps({"runs": json.loads(cursor).get("runs", 0)})
            self._cursors[sensor] = runs

    def _audit(self, *, point: str = "") -> Step:
        """Return a step that reconciles all streams and audits them for late rows."""
        config = {"streams": [*_STREAMS]}
        return _job("batch_pipeline_reconcile", "reconcile_streams", config, point=point)

    def _resume(self) -> None:
        """Resume paused jobs and retry dead batches, as an operator does."""
        resumed = [_command("jobs", "resume", name) for (name,) in self.installation.query(_PAUSED)]
        self._run_all(resumed)
        failed = self.installation.query(_FAILED)
        self._run_all(
            [_command("jobs", "retry", name, "--meta-table", table) for name, table in failed]
        )

    def _run_all(self, steps: Sequence[Step]) -> None:
        """Run steps to their end, two at a time."""
        remaining = iter(steps)
        while pair := list(islice(remaining, 2)):
            self._run(pair)

    def _run(self, steps: Sequence[Step], *, with_server: bool = False) -> None:
        """Run steps at the same time, kill them as specified, and count the kills."""
        actions = self.installation.actions
        running = [
            (step, actions.fork(step.action, failpoints=step.failpoints, **step.arguments))
            for step in steps
        ]
        if with_server:
            delay = self.rng.uniform(0.1, _MAX_DELAY_SECONDS)
            running[0][1].has_ended(within_seconds=delay)
            self._kill_server()
        self._kill_after_delay(running)
        before = self.kills
        self._wait(running, excused=with_server)
        if with_server:
            self.installation.expire_leases([*self.runs])
        if with_server or self.kills > before:
            actions.run("monitor")

    def _kill_after_delay(self, running: Sequence[tuple[Step, Child]]) -> None:
        began = time.monotonic()
        timed = [(step.seconds, child) for step, child in running if step.seconds is not None]
        for seconds, child in sorted(timed, key=lambda pair: pair[0]):
            remaining = max(seconds - (time.monotonic() - began), 0.0)
            if not child.has_ended(within_seconds=remaining):
                signal.pidfd_send_signal(child.descriptor, signal.SIGKILL)

    def _wait(self, running: list[tuple[Step, Child]], *, excused: bool) -> None:
        """Wait until all children have ended.

        After a restart of the database, a killed process counts as alive until its lease expires,
        and loads wait for that.
        """
        waits = 0
        while running:
            ended = [pair for pair in running if pair[1].has_ended(within_seconds=_WAIT_SECONDS)]
            for step, child in ended:
                self._note_end(step, child, excused=excused)
            running = [pair for pair in running if pair not in ended]
            if running:
                waits += 1
                assert waits < _MAX_WAITS, f"{running} hang"
                self.installation.expire_leases([*self.runs])

    def _kill_server(self) -> None:
        server = self.rng.choice(("database", "database", "Spark", "Python worker"))
        if server == "database":
            number = self.rng.choice((signal.SIGKILL, signal.SIGQUIT))
            self.installation.kill_database(number)
        elif server == "Spark":
            self.installation.kill_spark()
        elif not self.installation.kill_python_worker():
            return
        self.servers[server] += 1
        self.installation.query("SELECT 1")

    def _note_end(self, step: Step, child: Child, *, excused: bool) -> None:
        code = self.installation.actions.exit_code(child)
        if code == -signal.SIGKILL:
            if step.seconds is None:
                self.fired[step.point] += 1
            else:
                self.at_random += 1
            if step.action == "run":
                self.runs[step.arguments["run_id"]] = time.time()
        elif code == UNEXPECTED_ERROR and not excused:
            self.unexpected.append(f"{step}: {child.output[-2000:]}")
        if step.action == "tick" and code == 0:
            self._keep(child.result)
        if step.action == "target":
            for line in child.output.splitlines(keepends=True):
                with suppress(ValueError, TypeError, KeyError):
                    if line.endswith("\n"):
                        self._notes = json.loads(line)["at"]


def _run_step(run_id: str) -> Step:
    return Step(action="run", arguments={"run_id": run_id})


def _command(*words: str, point: str = "") -> Step:
    return Step(action="command", arguments={"words": [*words]}, point=point)


def _job(name: str, op: str, config: dict[str, Any], *, point: str) -> Step:
    arguments = {"name": name, "config": {"ops": {op: {"config": config}}}}
    return Step(action="job", arguments=arguments, point=point)
