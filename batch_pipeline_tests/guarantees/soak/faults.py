"""Kills processes of a `dev` by a seeded schedule.

If a service is killed, `dev` ends and is started again. Runs are not killed while a batch is on its
last attempt, because it would then wait for an operator.
"""

import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
import psycopg

from batch_pipeline_tests.acceptance.live_dev import SERVICES, WORKERS, LiveDev

_MAX_WAIT_SECONDS = 15.0
_QUIET_END = 0.9
_LAST_ATTEMPTS = """
SELECT count(*) FROM batch_pipeline.batch_state s
JOIN batch_pipeline.job j ON j.id = s.job_id
WHERE s.state = 'running' AND s.generation IS NULL AND s.attempts - s.forgiven + 1 >= j.max_attempts
"""


def schedule(
    seconds: float, *, every_seconds: float, services_until_seconds: float, seed: int
) -> Iterator[tuple[float, str]]:
    """Yield times at roughly even intervals, each with the kind of process to kill.

    Until `services_until_seconds`, every second fault hits a service. The last tenth has no faults.
    """
    rng = random.Random(seed)  # noqa: S311 - not a secret
    services = [*SERVICES]
    rng.shuffle(services)
    at, number = every_seconds, 0
    while at < seconds * _QUIET_END:
        kinds = services if number % 2 == 1 and at < services_until_seconds else [*WORKERS]
        yield at + rng.uniform(-0.2, 0.2) * every_seconds, kinds[number // 2 % len(kinds)]
        at, number = at + every_seconds, number + 1


@dataclass(slots=True)
class Faults:
    """The faults of a schedule. `missed` counts the faults that had no process to kill."""

    dev: LiveDev
    due: list[tuple[float, str]]
    done: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)

    def catch_up(self, seconds: float) -> None:
        """Kill the next process if it is due."""
        if not self.due or seconds < self.due[0][0]:
            return
        due_seconds, kind = self.due[0]
        if self._kill(kind):
            self.done[kind] += 1
        elif seconds > due_seconds + _MAX_WAIT_SECONDS:
            self.missed[kind] += 1
        else:
            return
        del self.due[0]

    def _kill(self, kind: str) -> bool:
        is_worker = kind in WORKERS
        if is_worker and not self._may_fail_again():
            return False
        processes = _processes_of(self.dev, kind)
        self.dev.may_be_down = not is_worker and bool(processes)
        for process in processes[:1] if is_worker else processes:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        if self.dev.may_be_down:
            self.dev.wait_for_exit()
            self.dev.start()
            self.dev.may_be_down = False
        return bool(processes)

    def _may_fail_again(self) -> bool:
        with suppress(psycopg.Error, OSError, IndexError):
            return self.dev.query(_LAST_ATTEMPTS) == [(0,)]
        return False


def _processes_of(dev: LiveDev, kind: str) -> list[psutil.Process]:
    processes = dev.find_processes(*(SERVICES | WORKERS)[kind])
    if kind == "Python worker":
        return [process for process in processes if _is_fork(process)]
    if kind == "PostgreSQL":
        return [process for process in processes if "postgres" in process.name()]
    if kind == "code server":
        return [*processes, *dev.find_processes(*SERVICES["definitions"])]
    return processes


def _is_fork(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        parent = process.parent()
        return parent is not None and parent.cmdline() == process.cmdline()
    return False
