"""Many workers on one job: several processes with several threads each acquire batches."""

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from batch_pipeline.inventory.acquire import AcquireRequest
from batch_pipeline.inventory.connection import open_engine
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.model.job import JobTerms
from batch_pipeline.model.planning import Limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import choose_watermark

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
    """The work of one process: the number of calls of all of its threads."""

    url: str
    calls: int
    threads: int


Ranges = list[tuple[int, int]]
_open_databases: list[Database] = []  # of a process in which only one call is made


def acquire_batches(work: Work) -> Ranges:
    """Acquire batches in threads and return their ranges."""
    with closing(open_database(work.url, migrated=False)) as database:
        return _acquire(work, database)


def _acquire_and_hold(work: Work) -> tuple[Ranges, float, float]:
    """Acquire batches, and own them until the process ends; return ranges, start and end.

    If the process closed its connections, other processes would take over its batches.
    """
    database = open_database(work.url, migrated=False)
    _open_databases.append(database)
    began = time.monotonic()
    ranges = _acquire(work, database)
    return ranges, began, time.monotonic()


def _acquire(work: Work, database: Database) -> Ranges:
    meta_engine = open_engine(work.url)
    table = ReflectedMetaTable.open(meta_engine, "public.meta", MetaColumns(uid="id"))
    ranges: Ranges = []

    def acquire(_thread: int) -> None:
        source = MetaSource(table=table, choice=choose_watermark(table))
        terms = JobTerms(name="bench", meta_table=source.name)
        request = AcquireRequest(terms=terms, limits=_BATCH, config={})
        for _ in range(work.calls // work.threads):
            attempt = database.acquisitions.acquire(request, source)
            assert attempt is not None
            id_range = attempt.batch.id_range
            ranges.append((id_range.first_id, id_range.last_id))

    with ThreadPoolExecutor(work.threads) as threads:
        list(threads.map(acquire, range(work.threads)))
    meta_engine.dispose()
    return ranges


def measured(work: Work, processes: int) -> tuple[Ranges, float]:
    """Acquire in several processes; return ranges and calls per second."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(_import, range(processes), chunksize=1)
        results = pool.map(_acquire_and_hold, [work] * processes, chunksize=1)
    ranges = [id_range for ranges, _, _ in results for id_range in ranges]
    seconds = max(end for _, _, end in results) - min(began for _, began, _ in results)
    return ranges, len(ranges) / seconds


def _import(_number: int) -> None:
    time.sleep(0.2)  # so that each process takes one of these calls
