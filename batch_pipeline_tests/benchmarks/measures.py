"""Costs of a run: seconds, processor seconds and peak memory."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from batch_pipeline.spark.driver import DAEMON_MODULE

MB = 1_000_000
_CORES = 2
_SAMPLE_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The costs of a run; `peak_bytes` is of the largest process that handled records."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


class SparkMeter:
    """Watches the child processes: processor time, and the memory of Spark's workers."""

    def __init__(self) -> None:
        self._peak_bytes = 0
        self._ended = threading.Event()
        self._before = _processor_seconds()
        self._started = time.perf_counter()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> Cost:
        """Stop watching and return the cost."""
        seconds = time.perf_counter() - self._started
        processor_seconds = _processor_seconds() - self._before
        self._ended.set()
        self._thread.join()
        return Cost(
            seconds=seconds, processor_seconds=processor_seconds, peak_bytes=self._peak_bytes
        )

    def _watch(self) -> None:
        workers: list[psutil.Process] = []
        while not self._ended.wait(_SAMPLE_SECONDS):
            workers = workers or _workers()
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    self._peak_bytes = max(self._peak_bytes, worker.memory_info().rss)


def _workers() -> list[psutil.Process]:
    """Return Spark's Python workers, the children of its daemon."""
    children = psutil.Process().children(recursive=True)
    return [worker for daemon in children if _is_daemon(daemon) for worker in daemon.children()]


def _is_daemon(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        parent = process.parent()
        is_java = parent is not None and parent.name() == "java"
        return is_java and DAEMON_MODULE in process.cmdline()
    return False


def _processor_seconds() -> float:
    seconds = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def peak_bytes() -> int:
    """Return the highest resident memory of this process.

    getrusage would include the peak of the parent process.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def rotations(ways: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """Yield all ways in each round, each time starting with the next one."""
    for number in range(rounds):
        first = number % len(ways)
        yield [*ways[first:], *ways[:first]]


def pin_to_two_cores() -> None:
    """Restrict this process and its children to two cores, where the system can."""
    with suppress(AttributeError):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_CORES])
