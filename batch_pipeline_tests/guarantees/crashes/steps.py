"""What the processes of a storm are asked to do next, so that a point can be reached.

Files and rows arrive here, and what has to be there before is done by processes that live. Nothing
is killed here.
"""

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from batch_pipeline_tests.guarantees.crashes.fork_server import Child
from batch_pipeline_tests.guarantees.crashes.installation import Scene
from batch_pipeline_tests.guarantees.crashes.points import Deed

STREAMS = ("orders", "visits", "notes")
SENSORS = (
    *(f"{stream}_new_files" for stream in STREAMS),
    *("orders_backfill", "orders_load", "visits_load"),
)
STUCK = """
SELECT DISTINCT j.name, j.meta_table FROM batch_pipeline.job j
  JOIN batch_pipeline.batch_state s ON s.job_id = j.id
 WHERE s.state IN ('dead', 'failed', 'cancelled')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A deed with what it is given; it dies at a point, or after some seconds, or not at all."""

    deed: str
    given: dict[str, Any]
    point: str = ""
    seconds: float | None = None


@dataclass(slots=True, kw_only=True)
class Steps:
    """Prepares steps; remembers the cursors of sensors and the last STATE of the target."""

    scene: Scene
    chance: random.Random
    notes: int = 0
    _cursors: dict[str, str | None] = field(default_factory=dict)
    _backfills: int = 0

    def to(self, deed: Deed, point: str) -> list[Step]:
        """Prepare a deed that dies at a point; none where no run waits."""
        if deed in (Deed.ENCODE, Deed.LOAD):
            return self._runs(point, is_load=deed is Deed.LOAD)
        prepare: dict[Deed, Callable[[str], Step]] = {
            Deed.FILES: self._files,
            Deed.TARGET: self._target,
            Deed.AUDIT: self._late,
            Deed.BACKFILL: self._backfill,
            Deed.GC: self._gc,
            Deed.CANCEL: self._cancel,
            Deed.RETRY: self._retry,
            Deed.PAUSE: lambda point: _command("jobs", "pause", "orders", point=point),
        }
        return [prepare[deed](point)]

    def tick(self, sensor: str, *, point: str = "") -> Step:
        """Evaluate a sensor."""
        given = {"name": sensor, "cursor": self._cursors.get(sensor)}
        return Step(deed="tick", given=given, point=point)

    def audit(self, *, point: str = "") -> Step:
        """Reconcile all streams, and look for rows that came late."""
        config = {"reconcile_streams": {"config": {"streams": [*STREAMS]}}}
        given = {"name": "batch_pipeline_reconcile", "config": {"ops": config}}
        return Step(deed="job", given=given, point=point)

    def again(self) -> list[Step]:
        """Let a person try what died three times, and take up what was paused."""
        stuck = self.scene.rows(STUCK)
        return [_command("jobs", "retry", name, "--meta-table", table) for name, table in stuck]

    def hear(self, step: Step, child: Child, code: int) -> None:
        """Remember what a process told before its end, as daemon and runner of the tap do."""
        if step.deed == "tick" and code == 0:
            self._cursors[step.given["name"]] = _later(child.gave())
        if step.deed == "target":
            for line in child.printed.read_text().splitlines(keepends=True):
                with suppress(ValueError, TypeError, KeyError):
                    if line.endswith("\n"):
                        self.notes = json.loads(line)["at"]

    def _now(self, sensor: str) -> None:
        step = self.tick(sensor)
        self._cursors[sensor] = _later(self.scene.warm.done("tick", **step.given))

    def _runs(self, point: str, *, is_load: bool) -> list[Step]:
        if point == "schema.before_commit":
            self.scene.land("orders", new_column=True)
        for _ in range(2):
            waiting = [run for run in self.scene.queue() if run[1].endswith("_load") == is_load]
            if waiting:
                given = {"run_id": self.chance.choice(waiting)[0]}
                return [Step(deed="run", given=given, point=point)]
            self.scene.land("orders")
            self.scene.land("visits")
            wanted = [one for one in SENSORS if one.endswith("_load") == is_load]
            for sensor in self.chance.sample(wanted, 2):
                self._now(sensor)
        return []

    def _files(self, point: str) -> Step:
        stream = "orders" if point.startswith("register") else self.chance.choice(STREAMS)
        for name in sorted({"orders", "visits", stream} - {"notes"}):
            self.scene.land(name)
        return self.tick(f"{stream}_new_files", point=point)

    def _late(self, point: str) -> Step:
        self.scene.land_late()
        return self.audit(point=point)

    def _gc(self, point: str) -> Step:
        self.scene.age()
        return _command("gc", point=point)

    def _cancel(self, point: str) -> Step:
        self.scene.land("orders")
        self._now("orders_new_files")
        return _command("jobs", "cancel", "orders", point=point)

    def _retry(self, point: str) -> Step:
        names = [name for name, _ in self.scene.rows(STUCK)]
        return _command("jobs", "retry", self.chance.choice(names or ["orders"]), point=point)

    def _backfill(self, point: str) -> Step:
        first = self.chance.randint(1, max(self.scene.files.get("orders", 1) - 3, 1))
        self._backfills += 1
        asked = {
            "stream": "orders",
            "name": f"again{self._backfills}",
            "first_id": first,
            "last_id": first + 2,
            "max_count": 2,
            "dry_run": False,
        }
        config = {"ops": {"plan_or_estimate": {"config": asked}}}
        return Step(
            deed="job",
            given={"name": "batch_pipeline_plan_backfill", "config": config},
            point=point,
        )

    def _target(self, point: str) -> Step:
        """Let the target hear what the tap says after the last STATE."""
        folder = self.scene.sandbox.folder
        config, messages = folder / "target.json", folder / "messages.jsonl"
        config.write_text(json.dumps({"max_records": 2, "create_streams": False}))
        schema = {"properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
        said: list[dict[str, Any]] = [
            {"type": "SCHEMA", "stream": "notes", "schema": schema, "key_properties": ["id"]}
        ]
        for one in range(self.notes + 1, self.notes + 5):
            record = {"id": one, "name": f"note {one}"}
            said.append({"type": "RECORD", "stream": "notes", "record": record})
            said.append({"type": "STATE", "value": {"at": one}})
        messages.write_text("".join(f"{json.dumps(one)}\n" for one in said))
        given = {"config": str(config), "messages": str(messages)}
        return Step(deed="target", given=given, point=point)


def _command(*words: str, point: str = "") -> Step:
    return Step(deed="command", given={"words": [*words]}, point=point)


def _later(cursor: str | None) -> str | None:
    """Return a cursor as it is long after it was written: every pause it remembers is over."""
    return None if cursor is None else json.dumps({"runs": json.loads(cursor).get("runs", 0)})
