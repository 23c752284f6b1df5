"""A seeded storm: processes of the system at work, of which most die, and servers now and then.

What dies when is drawn from the seed alone. Afterwards `drain` lets everything be done that is left
to do, as time does; what came of it others judge.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice

from batch_pipeline_tests.guarantees.crashes.fork_server import SURPRISED, Child
from batch_pipeline_tests.guarantees.crashes.installation import Scene
from batch_pipeline_tests.guarantees.crashes.points import DEED_OF, armed
from batch_pipeline_tests.guarantees.crashes.steps import SENSORS, Step, Steps

_LONGEST_DELAY_SECONDS = 0.8
_LONG_SECONDS = 20.0
_MOST_LOOKS = 30
_AT_ONCE = 3
_ROUNDS_TO_A_PERSON = 8  # who tries again what died too often
_QUIET_LOOKS = 2
_UNDONE = """
SELECT count(*) FROM batch_pipeline.batch_state WHERE state NOT IN ('published', 'superseded')
"""
_PAUSED = "SELECT name FROM batch_pipeline.job WHERE paused_at IS NOT NULL"
_ENDS = """
SELECT batch_id, number, run_id, status, extract(epoch FROM finished_at)::float8
  FROM batch_pipeline.attempt
"""


@dataclass(slots=True, kw_only=True)
class Storm:
    """What was killed: points by how often they fired, servers by name, runs with the time.

    `surprises` are what processes died of that nobody had killed.
    """

    scene: Scene
    chance: random.Random
    fired: Counter[str] = field(default_factory=Counter)
    at_random: int = 0
    servers: Counter[str] = field(default_factory=Counter)
    runs: dict[str, float] = field(default_factory=dict)
    surprises: list[str] = field(default_factory=list)
    steps: Steps = field(init=False)

    def __post_init__(self) -> None:
        self.steps = Steps(scene=self.scene, chance=self.chance)

    @property
    def kills(self) -> int:
        """How many processes and servers were killed."""
        return self.fired.total() + self.at_random + self.servers.total()

    def rage(self, kills: int, points: Collection[str], *, server_every: int) -> None:
        """Kill so many, at each of the points at least once; a server every so many rounds."""
        number = 0
        while self.kills < kills or not self.fired.keys() >= set(points):
            number += 1
            self._do(self._round(points), server=number % server_every == 0)
            if number % _ROUNDS_TO_A_PERSON == 0:
                self._let_a_person_look()

    def drain(self) -> None:
        """Do all that is left, without a fault."""
        while self.scene.gaps:
            self.scene.land_late()
        quiet = 0
        while quiet < _QUIET_LOOKS:
            self._do([self.steps.audit()])
            self._let_a_person_look()
            self._do_all([self.steps.tick(one) for one in SENSORS])
            waiting = self.scene.queue()
            self._do_all([Step(deed="run", given={"run_id": run_id}) for run_id, _ in waiting])
            is_quiet = not waiting and self.scene.rows(_UNDONE) == [(0,)]
            quiet = quiet + 1 if is_quiet else 0

    def longest_recovery_seconds(self) -> float:
        """Return the longest time from a kill to the publish by the very next attempt."""
        rows = self.scene.rows(_ENDS)
        ends = {(batch, number): (status, end) for batch, number, _, status, end in rows}
        waits = [0.0]
        for batch, number, run_id, status, _ in rows:
            following, end = ends.get((batch, number + 1), ("", 0.0))
            if run_id in self.runs and status != "succeeded" and following == "succeeded":
                waits.append(end - self.runs[run_id])
        return max(waits)

    def _round(self, points: Collection[str]) -> list[Step]:
        """Draw a point to die at, and what goes on beside it."""
        aims = [one for one in points if not self.fired[one]] or list(DEED_OF)
        [aim] = self.chance.choices(aims, [1 / (1 + self.fired[one]) for one in aims])
        chosen = self.steps.to(DEED_OF[aim], aim)
        mine = {step.given.get("run_id") for step in chosen}
        others = [run_id for run_id, _ in self.scene.queue() if run_id not in mine]
        for run_id in self.chance.sample(others, min(len(others), 2)):
            chosen.append(self._any_end(Step(deed="run", given={"run_id": run_id})))
        if len(chosen) < _AT_ONCE:
            chosen.append(self._any_end(self.steps.tick(self.chance.choice(SENSORS))))
        return chosen

    def _any_end(self, step: Step) -> Step:
        """Let a deed die at any moment, or live."""
        if self.chance.random() < 0.5:
            return step
        seconds = self.chance.uniform(0.02, _LONGEST_DELAY_SECONDS)
        return Step(deed=step.deed, given=step.given, seconds=seconds)

    def _let_a_person_look(self) -> None:
        paused = [["jobs", "resume", name] for (name,) in self.scene.rows(_PAUSED)]
        self._do_all([Step(deed="command", given={"words": words}) for words in paused])
        self._do_all(self.steps.again())

    def _do_all(self, steps: Sequence[Step]) -> None:
        left = iter(steps)
        while some := list(islice(left, 2)):
            self._do(some)

    def _do(self, steps: Sequence[Step], *, server: bool = False) -> None:
        """Do some deeds at once, kill those that are to be killed, and count."""
        warm = self.scene.warm
        children = [
            warm.fork(one.deed, failpoints=armed(one.point) if one.point else "", **one.given)
            for one in steps
        ]
        if server:
            warm.has_ended(children[0], self.chance.uniform(0.1, _LONGEST_DELAY_SECONDS))
            self._kill_a_server()
        self._kill_in_time(steps, children)
        before = self.kills
        self._wait(list(zip(steps, children, strict=True)), excused=server)
        if server:
            self.scene.let_leases_end([*self.runs])
        if server or self.kills > before:
            warm.done("monitor")

    def _wait(self, working: list[tuple[Step, Child]], *, excused: bool) -> None:
        """Wait for the end of all children.

        After a restart of the database, what was killed is not known to be dead before its lease is
        over; a load waits for that.
        """
        warm, looks = self.scene.warm, 0
        while working:
            over = [pair for pair in working if warm.has_ended(pair[1], _LONG_SECONDS)]
            for step, child in over:
                self._note(step, child, warm.ended(child), excused=excused)
            working = [pair for pair in working if pair not in over]
            if working:
                looks += 1
                assert looks < _MOST_LOOKS, f"{working} hang"
                self.scene.let_leases_end([*self.runs])

    def _kill_in_time(self, steps: Sequence[Step], children: Sequence[Child]) -> None:
        began = time.monotonic()
        timed = [
            (step.seconds, child)
            for step, child in zip(steps, children, strict=True)
            if step.seconds is not None
        ]
        for seconds, child in sorted(timed, key=lambda pair: pair[0]):
            left = seconds - (time.monotonic() - began)
            if not self.scene.warm.has_ended(child, max(left, 0.0)):
                signal.pidfd_send_signal(child.descriptor, signal.SIGKILL)

    def _kill_a_server(self) -> None:
        which = self.chance.choice(("database", "database", "Spark", "Python worker"))
        if which == "database":
            self.scene.kill_database(self.chance.choice((signal.SIGKILL, signal.SIGQUIT)))
        elif which == "Spark":
            self.scene.kill_spark()
        elif not self.scene.kill_worker():
            return
        self.servers[which] += 1
        self.scene.rows("SELECT 1")

    def _note(self, step: Step, child: Child, code: int, *, excused: bool) -> None:
        if code == -signal.SIGKILL:
            if step.seconds is None:
                self.fired[step.point] += 1
            else:
                self.at_random += 1
            if step.deed == "run":
                self.runs[step.given["run_id"]] = time.time()
        elif code == SURPRISED and not excused:
            self.surprises.append(f"{step}: {child.printed.read_text()[-2000:]}")
        self.steps.hear(step, child, code)
