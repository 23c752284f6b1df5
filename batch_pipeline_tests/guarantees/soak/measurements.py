"""Measurements during a soak: resources of processes, and backlog."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import psutil
import psycopg

from batch_pipeline_tests.acceptance.live_dev import SERVICES, LiveDev
from batch_pipeline_tests.acceptance.sandbox import Sandbox

_START_UP = 0.1  # the share of its life in which a process initializes itself
_MIN_SERIES = 8
_MEBIBYTE = 2**20
_GUARDIAN = "run_while_parent_lives.py"  # its command line includes its child's
_LIVE = """
batch_pipeline.batch b
JOIN batch_pipeline.batch_state s ON s.batch_id = b.id
JOIN batch_pipeline.job j ON j.id = b.job_id AND j.kind = 'incremental'
"""
_DATABASE = {
    "items": "SELECT count(*) FROM batch_pipeline.item",
    "published items": f"SELECT coalesce(sum(b.item_count), 0)::bigint FROM {_LIVE} "  # noqa: S608
    "WHERE s.state = 'published'",
    "generations not loaded": f"""
        SELECT count(*) FROM {_LIVE} JOIN batch_pipeline.attempt a
            ON a.batch_id = b.id AND a.generation = s.generation
         WHERE j.name = %s AND s.state = 'published' AND NOT EXISTS (
            SELECT FROM batch_pipeline.load l
             WHERE l.attempt_id = a.id AND l.status = 'succeeded' AND l.voided_at IS NULL)
    """,  # noqa: S608 - only the text above is inserted
    "unfinished runs": "SELECT count(*) FROM runs "
    "WHERE status NOT IN ('SUCCESS', 'FAILURE', 'CANCELED')",
    "connections": "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'",
}

Process = tuple[str, int, float]  # part, pid and start time
Numbers = dict[str, float]
Series = Sequence[tuple[float, float]]  # seconds since the start, and a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All numbers at one time. `database` is empty while the server is down."""

    seconds: float
    landed: int
    processes: dict[Process, Numbers]
    database: Numbers

    @classmethod
    def take(cls, dev: LiveDev, seconds: float, landed: int, loaded: str) -> "Sample":
        """Measure everything once. `loaded` is the stream with a target."""
        return cls(
            seconds=seconds,
            landed=landed,
            processes=dict(_measure_processes(dev.sandbox)),
            database=_measure_database(dev, loaded),
        )


def _measure_processes(sandbox: Sandbox) -> Iterator[tuple[Process, Numbers]]:
    for process in sandbox.processes():
        with suppress(psutil.Error, OSError):
            line = " ".join(process.cmdline())
            parts = (
                name for name, words in SERVICES.items() if all(word in line for word in words)
            )
            part = next(parts, None)
            if part is None or _GUARDIAN in line:
                continue
            numbers: Numbers = {
                "MiB": process.memory_full_info().pss / _MEBIBYTE,  # shared memory in proportion
                "files": process.num_fds(),
                "threads": process.num_threads(),
            }
            yield (part, process.pid, process.create_time()), numbers


def _measure_database(dev: LiveDev, loaded: str) -> Numbers:
    query = ", ".join(f"({statement})" for statement in _DATABASE.values())
    with suppress(psycopg.Error, OSError, IndexError):
        [row] = dev.query(f"SELECT {query}", loaded)
        numbers = dict(zip(_DATABASE, map(float, row), strict=True))
        return numbers | {"waiting items": numbers["items"] - numbers["published items"]}
    return {}


def growth(series: Series) -> tuple[float, float]:
    """Return the medians of the numbers in the first and the last quarter of a series."""
    quarter = max(len(series) // 4, 1)
    first, last = (
        median([number for _, number in part] or [0.0])
        for part in (series[:quarter], series[-quarter:])
    )
    return first, last


def of_database(samples: Sequence[Sample], name: str) -> Series:
    """Return a number of the database, without the times at which it was down."""
    return [(sample.seconds, sample.database[name]) for sample in samples if sample.database]


def of_oldest(samples: Sequence[Sample], part: str, name: str) -> Series:
    """Return a number for the process of a part that has the most samples.

    The first tenth of its life is left out. The series is empty if the process ended too early.
    """
    seen: dict[Process, list[tuple[float, float]]] = {}
    for sample in samples:
        for key, numbers in sample.processes.items():
            if key[0] == part:
                seen.setdefault(key, []).append((sample.seconds, numbers[name]))
    longest = max(seen.values(), key=len, default=[])
    series = longest[round(_START_UP * len(longest)) :]
    return series if len(series) >= _MIN_SERIES else []


def max_backlog(samples: Sequence[Sample]) -> float:
    """Return the largest number of files that had landed and were not published."""
    published = of_database(samples, "published items")
    landed = [sample.landed for sample in samples if sample.database]
    return max(
        (files - done for files, (_, done) in zip(landed, published, strict=True)), default=0
    )
