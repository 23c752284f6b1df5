"""Processes of a `dev` that are killed, by a schedule that a seed makes.

If a service is killed, `dev` ends and is started again. A batch that has used up all but
one of its tries is spared: one more would leave it to a person, as it should. Nothing is judged.
"""

import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

import psutil
import psycopg

from batch_pipeline_tests.acceptance.live_dev import LiveDev

_WITHIN_SECONDS = 15.0
_QUIET_END = 0.9
_NEARLY_DEAD = """
SELECT count(*) FROM batch_pipeline.batch_state s
JOIN batch_pipeline.job j ON j.id = s.job_id
WHERE s.state = 'running' AND s.generation IS NULL AND s.attempts - s.forgiven + 1 >= j.max_attempts
"""


class Kind(StrEnum):
    """What is killed."""

    RUN = "run"
    WORKER = "Python worker"
    DATABASE = "PostgreSQL"
    SPARK = "Spark"
    DAEMON = "daemon"
    CODE_SERVER = "code server"
    WEBSERVER = "webserver"
    DEFINITIONS = "definitions"
    DEV = "dev"


WORK = (Kind.RUN, Kind.WORKER)
_WORDS = {  # of command lines
    Kind.RUN: ("spawn_main", "--multiprocessing-fork"),
    Kind.WORKER: ("worker_daemon",),
    Kind.DATABASE: ("postgres", "-D"),
    Kind.SPARK: ("SparkConnectServer",),
    Kind.DAEMON: ("dagster._daemon",),
    Kind.CODE_SERVER: ("code-server", "start"),
    Kind.WEBSERVER: ("dagster_webserver",),
    Kind.DEFINITIONS: ("api", "grpc"),
    Kind.DEV: ("batch_pipeline", "dev", "--port"),
}
PARTS = tuple(kind for kind in Kind if kind not in WORK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A fault that is to happen, so many seconds after the start."""

    seconds: float
    kind: Kind


def schedule(
    seconds: float, *, every_seconds: float, parts_until_seconds: float, seed: int
) -> Iterator[Due]:
    """Return faults at about even distances; every second one hits a part, until then, in turns.

    None is due in the last tenth.
    """
    choose = random.Random(seed)  # noqa: S311 - moments, no secrets
    parts = list(PARTS)
    choose.shuffle(parts)
    at, number = every_seconds, 0
    while at < seconds * _QUIET_END:
        is_part = number % 2 == 1 and at < parts_until_seconds
        turn = parts if is_part else WORK
        moment = at + choose.uniform(-0.2, 0.2) * every_seconds
        yield Due(seconds=moment, kind=turn[number // 2 % len(turn)])
        at, number = at + every_seconds, number + 1


@dataclass(slots=True)
class Faults:
    """Does what a schedule says; `missed` found nothing to hit for a while."""

    dev: LiveDev
    due: list[Due]
    done: Counter[Kind] = field(default_factory=Counter)
    missed: Counter[Kind] = field(default_factory=Counter)

    def catch_up(self, seconds: float) -> None:
        """Do the next fault, if it is due."""
        if not self.due or seconds < self.due[0].seconds:
            return
        if self._hit(self.due[0].kind):
            self.done[self.due.pop(0).kind] += 1
        elif seconds > self.due[0].seconds + _WITHIN_SECONDS:
            self.missed[self.due.pop(0).kind] += 1

    def _hit(self, kind: Kind) -> bool:
        if kind in WORK and not self._may_be_tried_again():
            return False
        found = processes_of(self.dev, kind)
        self.dev.may_be_down = kind in PARTS and bool(found)
        for process in found[:1] if kind in WORK else found:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        if self.dev.may_be_down:
            self.dev.wait_for_exit()
            self.dev.start()
            self.dev.may_be_down = False
        return bool(found)

    def _may_be_tried_again(self) -> bool:
        with suppress(psycopg.Error, OSError, IndexError):
            return self.dev.query(_NEARLY_DEAD) == [(0,)]
        return False


def processes_of(dev: LiveDev, kind: Kind) -> list[psutil.Process]:
    """Find the processes that a fault of a kind hits."""
    found = dev.find_processes(*_WORDS[kind])
    if kind is Kind.WORKER:
        return [one for one in found if _is_fork(one)]
    if kind is Kind.DATABASE:
        return [one for one in found if "postgres" in one.name()]
    if kind is Kind.CODE_SERVER:
        return [*found, *processes_of(dev, Kind.DEFINITIONS)]
    return found


def _is_fork(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        parent = process.parent()
        return parent is not None and parent.cmdline() == process.cmdline()
    return False
