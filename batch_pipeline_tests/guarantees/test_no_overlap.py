"""Many workers acquire batches of one job, and SQL inserts an overlapping batch (G2).

The ids of the workers are compared with those of the inventory.
"""

from pathlib import Path

import psycopg
import pytest

from batch_pipeline import client
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.client.client_tables import (
    CREATE_META_TABLE,
    acquire_or_none,
    delivered_ids,
    fill_evenly,
)
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.guarantees.many_workers import (
    CREATE,
    FILL,
    ITEMS,
    Work,
    acquire_batches,
    measured,
)
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute as execute_in_meta
from batch_pipeline_tests.inventory.meta_tables.user_tables import meta_engine
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import execute, plan, query, register

WORKERS = 16  # per process, each with its own connection
PROCESSES = 4
THREADS = 64  # of a program that uses the Python library
OVERLAPPING = """
INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
SELECT id, 15, 25, 1, 1, '{}' FROM batch_pipeline.job
"""
RANGES = "SELECT first_id, last_id FROM batch_pipeline.batch ORDER BY first_id"


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
        work = Work(database_url, batches // PROCESSES, threads=WORKERS)
        ranges, rate = measured(work, PROCESSES)
        figures(batches_per_second=rate)
    else:
        ranges = acquire_batches(Work(database_url, batches, threads=WORKERS))
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
    ids = 8_000 if long_form else 200
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
