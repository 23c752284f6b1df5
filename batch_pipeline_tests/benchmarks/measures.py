"""Costs of a run: seconds and peak memory; and their table on the page."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from batch_pipeline.spark.driver import DAEMON_MODULE

MB = 1_000_000
_CORES = 2
_SAMPLE_SECONDS = 0.05
_GROWTH = 1.01  # of the resident memory, above which shared pages are counted again
PAGE_WAYS = {
    "ours": "ours",
    "pyspark": "PySpark",
    "polars": "Polars",
    "duckdb": "DuckDB",
}
PAGE_HEADER = f"| work | measured | {' | '.join(PAGE_WAYS.values())} |\n|---|---|---|---|---|---|"


def page_row(work: str, measured: str, results: Mapping[str, tuple[float, float] | None]) -> str:
    """Return a line of the table of the page: seconds and peak MB by way, the fastest bold.

    None is a way that failed; ways that do not do this work, or have no column, are left out.
    """
    fastest = min((result[0] for way in PAGE_WAYS if (result := results.get(way))), default=0.0)
    cells = []
    for way in PAGE_WAYS:
        result = results.get(way)
        if result is None:
            cells.append("failed" if way in results else "")
            continue
        seconds = f"{result[0]:.1f}" if result[0] >= 1 else f"{result[0]:.2f}"
        shown = f"**{seconds}**" if result[0] == fastest else seconds
        cells.append(f"{shown} ({result[1]:,.0f})")
    return f"| {work} | {measured} | {' | '.join(cells)} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The costs of a run; `peak_bytes` is of all its processes, `worker_bytes` of one worker."""

    seconds: float
    peak_bytes: int
    worker_bytes: int = 0


class PeakMemory:
    """Samples the memory of processes until it is stopped; shared pages count once."""

    def __init__(self, processes: Callable[[], Sequence[psutil.Process]]) -> None:
        self._processes = processes
        self._peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Stop and return the peak in bytes."""
        self._ended.set()
        self._thread.join()
        return self._peak_bytes

    def _watch(self) -> None:
        resident = 0
        while not self._ended.wait(_SAMPLE_SECONDS):
            processes = self._processes()
            resident_now = _bytes(processes, "memory_info", "rss")
            if resident_now > resident * _GROWTH:  # counting shared pages takes milliseconds
                resident = resident_now
                peak = _bytes(processes, "memory_full_info", "pss")
                self._peak_bytes = max(self._peak_bytes, peak)


def tree(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and all that it started; nothing if it has ended."""
    with suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return []


def _bytes(processes: Sequence[psutil.Process], method: str, kind: str) -> int:
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            total += getattr(getattr(process, method)(), kind)
    return total


class SparkMeter:
    """Watches the memory of this process and its children."""

    def __init__(self) -> None:
        self._workers: list[psutil.Process] = []
        self._worker_bytes = 0
        self._started = time.perf_counter()
        self._memory = PeakMemory(self._sample)

    def stop(self) -> Cost:
        """Stop watching and return the cost."""
        seconds = time.perf_counter() - self._started
        return Cost(
            seconds=seconds,
            peak_bytes=self._memory.stop(),
            worker_bytes=self._worker_bytes,
        )

    def _sample(self) -> list[psutil.Process]:
        """Return all processes, and note the memory of the largest worker."""
        self._workers = self._workers or _workers()
        for worker in self._workers:
            with suppress(psutil.NoSuchProcess):
                self._worker_bytes = max(self._worker_bytes, worker.memory_info().rss)
        return tree(psutil.Process())


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
