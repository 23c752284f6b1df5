"""Measurements during a soak: resources of processes, backlog, and size of the database."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import psutil
import psycopg

from batch_pipeline_tests.acceptance.live_dev import LiveDev
from batch_pipeline_tests.acceptance.sandbox import Sandbox

_HOUR_SECONDS = 3_600.0
_START_UP = 0.1  # the share of its life in which a process initializes itself
_MIN_SERIES = 8
_MEBIBYTE = 2**20
# A process has the first entry whose words are all in its command line. The command line of a
# guardian includes that of its child.
_PARTS = (
    ("guardians", ("run_while_parent_lives.py",)),
    ("daemon", ("dagster._daemon",)),
    ("webserver", ("dagster_webserver",)),
    ("code server", ("code-server", "start")),
    ("definitions", ("api", "grpc")),
    ("runs", ("spawn_main", "--multiprocessing-fork")),
    ("definitions", ("multiprocessing.resource_tracker",)),
    ("Spark", ("SparkConnectServer",)),
    ("Python workers", ("worker_daemon",)),
    ("dev", ("batch_pipeline", "dev", "--port")),
    ("runs", ("watch_orphans.py",)),  # with `tail`, captures the output of a run
    ("runs", ("tail", "compute_logs")),
    ("class data archive", ("batch_pipeline.spark.class_data_archive",)),
    ("class data archive", ("org.apache.spark.deploy.SparkSubmit", "pyspark-shell")),
)
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
    "dead rows": "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables",
    "live rows": "SELECT coalesce(sum(n_live_tup), 0)::bigint FROM pg_stat_user_tables",
    "MiB": f"SELECT pg_database_size(current_database()) / {_MEBIBYTE}",
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
    folders: Numbers

    @classmethod
    def take(cls, dev: LiveDev, seconds: float, landed: int, loaded: str) -> "Sample":
        """Measure everything once. `loaded` is the stream with a target."""
        folder = dev.sandbox.folder
        return cls(
            seconds=seconds,
            landed=landed,
            processes=dict(_measure_processes(dev.sandbox)),
            database=_measure_database(dev, loaded),
            folders={
                "temporary files": _count_files(folder / "tmp"),
                "files of the home": _count_files(dev.sandbox.home),
                "load of the machine": os.getloadavg()[0],
            },
        )


def _measure_processes(sandbox: Sandbox) -> Iterator[tuple[Process, Numbers]]:
    for process in sandbox.processes():
        with suppress(psutil.Error, OSError):
            numbers: Numbers = {
                "MiB": process.memory_full_info().pss / _MEBIBYTE,  # shared memory in proportion
                "files": process.num_fds(),
                "threads": process.num_threads(),
                "processes": 1,
            }
            yield (_part_of(process), process.pid, process.create_time()), numbers


def _part_of(process: psutil.Process) -> str:
    if process.name().startswith("postgres"):
        return "PostgreSQL"
    line = " ".join(process.cmdline())
    parts = (name for name, words in _PARTS if all(word in line for word in words))
    return next(parts, "other")


def _measure_database(dev: LiveDev, loaded: str) -> Numbers:
    query = ", ".join(f"({statement})" for statement in _DATABASE.values())
    with suppress(psycopg.Error, OSError, IndexError):
        [row] = dev.query(f"SELECT {query}", loaded)
        numbers = dict(zip(_DATABASE, map(float, row), strict=True))
        return numbers | {"waiting items": numbers["items"] - numbers["published items"]}
    return {}


def _count_files(folder: "os.PathLike[str]") -> int:
    """Count files and folders, except those of the database. Some may vanish during the count."""
    count = 0
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "postgres"]
        count += len(folders) + len(files)
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The medians of a number in the first and the last quarter of the time."""

    first: float
    last: float
    hours: float

    @property
    def per_hour(self) -> float:
        """The growth per hour. The middles of these quarters are ¾ of the time apart."""
        return (self.last - self.first) / (0.75 * self.hours)

    def __str__(self) -> str:
        return f"{self.first:.0f} → {self.last:.0f} ({self.per_hour:+.0f} per hour)"


def growth(series: Series) -> Growth:
    """Compare the first and the last quarter of a series."""
    quarter = max(len(series) // 4, 1)
    seconds = max(series[-1][0] - series[0][0], 1.0) if series else 1.0
    return Growth(
        first=median([number for _, number in series[:quarter]] or [0.0]),
        last=median([number for _, number in series[-quarter:]] or [0.0]),
        hours=seconds / _HOUR_SECONDS,
    )


def of_database(samples: Sequence[Sample], name: str) -> Series:
    """Return a number of the database, without the times at which it was down."""
    return [(sample.seconds, sample.database[name]) for sample in samples if sample.database]


def of_part(samples: Sequence[Sample], part: str, name: str) -> Series:
    """Return the sum of a number over the processes of a part."""
    return [
        (
            sample.seconds,
            sum(numbers[name] for key, numbers in sample.processes.items() if key[0] == part),
        )
        for sample in samples
    ]


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


def max_age_seconds(samples: Sequence[Sample]) -> float:
    """Return the longest time until all files that had landed by then were published."""
    longest, published = 0.0, of_database(samples, "published items")
    for sample in samples:
        later = (at for at, done in published if at >= sample.seconds and done >= sample.landed)
        longest = max(longest, next(later, sample.seconds) - sample.seconds)
    return longest


def report_growth(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield a line for each number of each part, of the database and of the folders."""
    for part in sorted({key[0] for sample in samples for key in sample.processes}):
        for name in ("MiB", "files", "threads", "processes"):
            oldest = of_oldest(samples, part, name)
            text = f", of the oldest {growth(oldest)}" if oldest else ""
            yield f"{part}, {name}: {growth(of_part(samples, part, name))}{text}"
    for name in (*_DATABASE, "waiting items"):
        yield f"database, {name}: {growth(of_database(samples, name))}"
    for name in samples[0].folders if samples else ():
        yield f"{name}: {growth([(sample.seconds, sample.folders[name]) for sample in samples])}"
