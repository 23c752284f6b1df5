"""Sixty-four workers on one job: batches a second, overlaps and holes, beside a bare insert loop.

Four processes of sixteen threads acquire until a number of batches is reached; every range is kept
and checked afterwards. The bare loop inserts one row a transaction over as many connections, with
the flush that acquiring does without and without it.

Run `python -m batch_pipeline_tests.benchmarks.bench_workers`; it fails when ranges overlap or leave
a hole, never because of a time.
"""

import argparse
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import psycopg

from batch_pipeline.domain.job import JobTerms
from batch_pipeline.domain.planning import Limits
from batch_pipeline.inventory.database import open_database
from batch_pipeline.inventory.meta.ceilings.choose import choose_ceiling
from batch_pipeline.inventory.meta.column_roles import MetaColumns
from batch_pipeline.inventory.meta.meta_source import MetaSource
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.server.engine import open_engine
from batch_pipeline.inventory.work.acquire import Wish
from batch_pipeline_tests.benchmarks.bench_ceiling import milliseconds, say
from batch_pipeline_tests.benchmarks.server import server

PROCESSES = 4
THREADS = 16
BATCH = Limits(max_weight=100, max_count=1_000)


@dataclass(frozen=True, slots=True)
class Work:
    """What a process is to do: how many calls in all of its threads, in which job."""

    url: str
    calls: int
    threads: int = THREADS
    job: str = "bench"


Result = tuple[list[tuple[int, int]], list[tuple[float, float]]]  # ranges; start and end of calls


def acquire_batches(work: Work) -> Result:
    """Acquire in threads; give the ranges and the seconds of each call."""
    database = open_database(work.url, migrated=False)
    meta_engine = open_engine(work.url)
    table = ReflectedMetaTable.open(meta_engine, "public.meta", MetaColumns(uid="id"))

    def worker() -> Callable[[], tuple[int, int]]:
        source = MetaSource(table=table, choice=choose_ceiling(table))
        terms = JobTerms(name=work.job, meta_table=source.name)
        wish = Wish(terms=terms, limits=BATCH, config={})

        def call() -> tuple[int, int]:
            attempt = database.acquisitions.acquire(wish, source)
            assert attempt is not None
            return attempt.batch.id_range.first_id, attempt.batch.id_range.last_id

        return call

    result = _in_threads(work, worker)
    database.close()
    meta_engine.dispose()
    return result


def insert_rows(work: Work) -> Result:
    """Insert one row a transaction in threads, with the server's flush."""
    return _insert(work, "")


def insert_rows_unflushed(work: Work) -> Result:
    """Insert one row a transaction in threads, without waiting for the flush."""
    return _insert(work, "SET synchronous_commit = off")


def _insert(work: Work, setting: str) -> Result:
    def worker() -> Callable[[], tuple[int, int]]:
        connection = psycopg.connect(work.url, autocommit=True)
        if setting:
            connection.execute(setting)

        def call() -> tuple[int, int]:
            connection.execute("INSERT INTO bare (text) VALUES ('one row')")
            return 0, 0

        return call

    return _in_threads(work, worker)


def _in_threads(work: Work, worker: Callable[[], Callable[[], tuple[int, int]]]) -> Result:
    ranges: list[tuple[int, int]] = []
    seconds: list[tuple[float, float]] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call = worker()
            for _ in range(work.calls // work.threads):
                began = time.monotonic()
                ranges.append(call())
                seconds.append((began, time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(work.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return ranges, seconds


def measured(
    task: Callable[[Work], Result], work: Work, processes: int = PROCESSES
) -> tuple[list[tuple[int, int]], list[float], float]:
    """Run a task in processes; give ranges, the seconds of each call, and calls a second."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(_import, range(processes), chunksize=1)
        results = pool.map(task, [work] * processes, chunksize=1)
    ranges = [one for found, _ in results for one in found]
    ends = [end for _, found in results for _, end in found]
    starts = [start for _, found in results for start, _ in found]
    seconds = [end - start for _, found in results for start, end in found]
    return ranges, seconds, len(seconds) / (max(ends) - min(starts))


def _import(_number: int) -> None:
    time.sleep(0.2)  # so that each process takes one of these


def check(ranges: list[tuple[int, int]]) -> tuple[int, int]:
    """Count overlaps and holes between ranges."""
    ordered = sorted(ranges)
    overlaps = sum(right[0] <= left[1] for left, right in pairwise(ordered))
    holes = sum(right[0] > left[1] + 1 for left, right in pairwise(ordered))
    return overlaps, holes


def main() -> None:
    """Measure, print, and fail when ranges overlap or leave a hole."""
    parser = argparse.ArgumentParser(description="Sixty-four workers on one job.")
    parser.add_argument("--batches", type=int, default=20_480)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    with server() as url:
        _fill(url, given.batches * 12)
        say(f"{PROCESSES} processes of {THREADS} threads, {os.cpu_count()} cores\n")
        say(f"{'':34}{'calls':>9}{'calls/s':>10}{'p50 ms':>9}{'p99 ms':>9}")
        failures = [_round(url, given.batches, number) for number in range(given.rounds)]
    if any(failures):
        sys.exit(1)


def _round(url: str, batches: int, number: int) -> bool:
    """Measure everything once, and tell whether a range was wrong."""
    each = batches // PROCESSES
    work = Work(url, each, job=f"sixty-four {number}")
    ranges, acquire = _line("acquire, 64 workers", acquire_batches, work)
    alone = Work(url, min(1_000, each), threads=1, job=f"one {number}")
    _line("acquire, one worker", acquire_batches, alone, processes=1)
    _, insert = _line("insert a row, 64 workers", insert_rows, work)
    _, unflushed = _line("insert a row, no flush", insert_rows_unflushed, work)
    overlaps, holes = check(ranges)
    say(
        f"acquire / insert {acquire / insert:.2f}, / insert without flush {acquire / unflushed:.2f}"
    )
    say(f"{len(ranges):,} batches: {overlaps} overlaps, {holes} holes\n")
    return bool(overlaps or holes)


def _line(
    name: str, task: Callable[[Work], Result], work: Work, processes: int = PROCESSES
) -> tuple[list[tuple[int, int]], float]:
    ranges, seconds, rate = measured(task, work, processes)
    median, slowest = milliseconds(seconds)
    say(f"{name:34}{len(seconds):9,}{rate:10,.0f}{median:9.1f}{slowest:9.1f}")
    return ranges, rate


def _fill(url: str, rows: int) -> None:
    open_database(url, migrated=True).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bare (id bigserial PRIMARY KEY, text text)")
        connection.execute(
            "CREATE TABLE meta (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "item text NOT NULL, weight bigint NOT NULL)"
        )
        connection.execute(
            "INSERT INTO meta (item, weight) SELECT 'file-' || n, 10 "
            "FROM generate_series(1, %s) AS n",
            (rows,),
        )
        connection.execute("ANALYZE meta")


if __name__ == "__main__":
    main()
