"""Many workers on one job: several processes with several threads each acquire batches."""

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

from batch_pipeline.inventory.acquire import AcquireRequest
from batch_pipeline.inventory.connection import open_engine
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.meta_tables.watermarks import choose_watermark
from batch_pipeline.model.job import JobTerms
from batch_pipeline.model.planning import Limits

CREATE = """
CREATE TABLE public.meta (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL, weight bigint NOT NULL)
"""
FILL = (
    "INSERT INTO public.meta (item, weight) SELECT 'file-' || n, 10 "
    "FROM generate_series(1, CAST(:rows AS int)) n"
)
ITEMS = 10  # per batch
_BATCH = Limits(max_weight=10 * ITEMS, max_count=1_000)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one process: the number of calls of all of its threads, and the job."""

    url: str
    calls: int
    threads: int
    job: str = "bench"


Result = tuple[list[tuple[int, int]], list[tuple[float, float]]]  # ranges; start and end of calls


_open_databases: list[Database] = []  # of a process in which only one call is made


def acquire_batches(work: Work) -> Result:
    """Acquire batches in threads and return their ranges and the times of each call."""
    with closing(open_database(work.url, migrated=False)) as database:
        return _acquire(work, database)


def _acquire_and_hold(work: Work) -> Result:
    """Acquire batches, and own them until the process ends.

    If the process closed its connections, other processes would take over its batches.
    """
    database = open_database(work.url, migrated=False)
    _open_databases.append(database)
    return _acquire(work, database)


def _acquire(work: Work, database: Database) -> Result:
    meta_engine = open_engine(work.url)
    table = ReflectedMetaTable.open(meta_engine, "public.meta", MetaColumns(uid="id"))
    ranges: list[tuple[int, int]] = []
    times: list[tuple[float, float]] = []

    def acquire(_thread: int) -> None:
        source = MetaSource(table=table, choice=choose_watermark(table))
        terms = JobTerms(name=work.job, meta_table=source.name)
        request = AcquireRequest(terms=terms, limits=_BATCH, config={})
        for _ in range(work.calls // work.threads):
            began = time.monotonic()
            attempt = database.acquisitions.acquire(request, source)
            times.append((began, time.monotonic()))
            assert attempt is not None
            id_range = attempt.batch.id_range
            ranges.append((id_range.first_id, id_range.last_id))

    with ThreadPoolExecutor(work.threads) as threads:
        list(threads.map(acquire, range(work.threads)))
    meta_engine.dispose()
    return ranges, times


def measured(work: Work, processes: int) -> tuple[list[tuple[int, int]], list[float], float]:
    """Acquire in several processes; return ranges, seconds of each call, and calls per second."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(_import, range(processes), chunksize=1)
        results = pool.map(_acquire_and_hold, [work] * processes, chunksize=1)
    ranges = list(chain.from_iterable(ranges for ranges, _ in results))
    times = list(chain.from_iterable(times for _, times in results))
    seconds = max(end for _, end in times) - min(start for start, _ in times)
    return ranges, [end - start for start, end in times], len(times) / seconds


def _import(_number: int) -> None:
    time.sleep(0.2)  # so that each process takes one of these calls
