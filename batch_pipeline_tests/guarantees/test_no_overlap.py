"""Many workers acquire batches of one job, and SQL inserts an overlapping batch (G2).

The ids of the workers are compared with those of the inventory.
"""

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from batch_pipeline import client
from batch_pipeline.inventory.acquire import AcquireRequest
from batch_pipeline.inventory.connection import open_engine
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.model.job import JobTerms
from batch_pipeline_tests.client.client_tables import (
    CREATE_META_TABLE,
    acquire_or_none,
    delivered_ids,
    fill_evenly,
)
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import choose_watermark, meta_engine
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute as execute_in_meta
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import execute, plan, query, register

CREATE = """
CREATE TABLE public.meta (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL, weight bigint NOT NULL)
"""
FILL = (
    "INSERT INTO public.meta (item, weight) SELECT 'file-' || n, 10 "
    "FROM generate_series(1, CAST(:rows AS int)) n"
)
ITEMS = 10  # per batch
BATCH = limits(max_weight=10 * ITEMS, max_count=1_000)
WORKERS = 16  # per process, each with its own connection
PROCESSES = 4
THREADS = 64  # of a program that uses the Python library
OVERLAPPING = """
INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
SELECT id, 15, 25, 1, 1, '{}' FROM batch_pipeline.job
"""
RANGES = "SELECT first_id, last_id FROM batch_pipeline.batch ORDER BY first_id"
Ranges = list[tuple[int, int]]
_open_databases: list[Database] = []  # of a process in which only one call is made


def acquire_batches(database: Database, url: str, calls: int, threads: int) -> Ranges:
    """Acquire some batches in threads and return their ranges."""
    meta_engine = open_engine(url)
    table = ReflectedMetaTable.open(meta_engine, "public.meta", MetaColumns(uid="id"))
    ranges: Ranges = []

    def acquire(_thread: int) -> None:
        source = MetaSource(table=table, choice=choose_watermark(table))
        terms = JobTerms(name="bench", meta_table=source.name)
        request = AcquireRequest(terms=terms, limits=BATCH, config={})
        for _ in range(calls // threads):
            attempt = database.acquisitions.acquire(request, source)
            assert attempt is not None
            id_range = attempt.batch.id_range
            ranges.append((id_range.first_id, id_range.last_id))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(acquire, range(threads)))
    meta_engine.dispose()
    return ranges


def acquire_in_processes(
    url: str, calls: int, threads: int, processes: int
) -> tuple[Ranges, float]:
    """Acquire some batches in each of several processes; return ranges and batches per second."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(_import, range(processes), chunksize=1)
        began = time.monotonic()
        work = [(url, calls, threads)] * processes
        results = pool.starmap(_acquire_and_hold, work, chunksize=1)
        seconds = time.monotonic() - began
    ranges = [id_range for ranges in results for id_range in ranges]
    return ranges, len(ranges) / seconds


def _acquire_and_hold(url: str, calls: int, threads: int) -> Ranges:
    """Acquire batches, and own them until the process ends.

    If the process closed its connections, other processes would take over its batches.
    """
    _open_databases.append(open_database(url, migrated=False))
    return acquire_batches(_open_databases[0], url, calls, threads)


def _import(_number: int) -> None:
    time.sleep(0.2)  # so that each process takes one of these calls


@pytest.mark.guarantee("G2")
def test_concurrent_workers_acquire_each_id_once(
    database: Database, database_url: str, figures: Figures, *, long_form: bool
) -> None:
    """The short form has 16 workers in this process, the long form 16 in each of 4 processes."""
    workers = PROCESSES * WORKERS if long_form else WORKERS
    batches = 50_048 if long_form else 800
    execute(database, CREATE)
    execute(database, FILL, rows=batches * ITEMS)
    execute(database, "ANALYZE public.meta")
    if long_form:
        ranges, rate = acquire_in_processes(database_url, batches // PROCESSES, WORKERS, PROCESSES)
        figures(batches_per_second=rate)
    else:
        ranges = acquire_batches(database, database_url, batches, WORKERS)
    acquired = sorted(uid for first, last in ranges for uid in range(first, last + 1))
    holes = batches * ITEMS - len(set(acquired))
    figures(
        workers=float(workers),
        batches=len(ranges),
        overlaps=len(acquired) - len(set(acquired)),
        holes=holes,
    )
    assert acquired == list(range(1, batches * ITEMS + 1))
    assert sorted(ranges) == query(database, RANGES)
    check_invariants(database)


@pytest.mark.guarantee("G2")
def test_overlapping_batch_inserted_with_sql_is_rejected(
    database: Database, database_url: str, figures: Figures
) -> None:
    register(database, 20)
    plan(database, limits())
    before = query(database, RANGES)
    with (
        psycopg.connect(database_url) as owner,
        pytest.raises(psycopg.errors.ExclusionViolation) as caught,
    ):
        owner.execute(OVERLAPPING)
    assert caught.value.sqlstate == "23P01"
    assert caught.value.diag.constraint_name == "batch_ranges_do_not_overlap"
    assert query(database, RANGES) == before == [(1, 10), (11, 20)]
    figures(rejected_with_23P01=1)


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("separate", [False, True], ids=["one database", "two databases"])
def test_more_threads_than_connections_acquire_each_id_once(
    database: Database,
    database_url: str,
    empty_database_url: str,
    tmp_path: Path,
    figures: Figures,
    *,
    separate: bool,
    long_form: bool,
) -> None:
    """Waiting threads must leave the planner a second connection for the high watermark."""
    ids = 8_000 if long_form else 128
    meta_url = empty_database_url if separate else database_url
    with meta_engine(meta_url) as engine:
        execute_in_meta(engine, CREATE_META_TABLE)
        fill_evenly(engine, ids)
    settings = {"inventory_conn": database_url, "meta_conn": meta_url, "home": tmp_path}
    client.configure(settings=settings)

    def drain() -> int:
        batches = 0
        while (batch := acquire_or_none(batch_count=2)) is not None:
            batches += len(batch.items) == 2
            batch.succeeded()
        return batches

    try:
        results = together(*[drain] * THREADS)
    finally:
        client.close()
    assert [result for result in results if isinstance(result, Exception)] == []
    assert delivered_ids(database) == list(range(1, ids + 1))
    figures(batches=ids // 2, overlaps=0, holes=0, threads_of_library=float(THREADS))
