"""Watches processes of Spark below this one while they work. What they do is known elsewhere."""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

from batch_pipeline.spark.sessions.launch import DAEMON_MODULE

SAMPLE_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a run took: `peak_bytes` is of the largest single process that handled records."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


class Meter:
    """Watches the Spark processes below this one: processor time, and memory of the workers."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._before = _processor_seconds()
        self._started = time.perf_counter()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def spent(self) -> Spent:
        """Stop watching and tell."""
        seconds = time.perf_counter() - self._started
        processor_seconds = _processor_seconds() - self._before
        self._ended.set()
        self._thread.join()
        return Spent(
            seconds=seconds, processor_seconds=processor_seconds, peak_bytes=self.peak_bytes
        )

    def _watch(self) -> None:
        found: list[psutil.Process] = []
        while not self._ended.wait(SAMPLE_SECONDS):
            found = found or workers()
            for worker in found:
                with suppress(psutil.NoSuchProcess):
                    self.peak_bytes = max(self.peak_bytes, worker.memory_info().rss)


def workers() -> list[psutil.Process]:
    """Find Spark's Python workers: the children of its daemon."""
    below = psutil.Process().children(recursive=True)
    return [worker for daemon in below if _is_daemon(daemon) for worker in daemon.children()]


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
