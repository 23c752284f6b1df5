"""An acquisition reads as many rows for a large table and a long history as for small ones (G14).

The server's statistics count the rows read from all tables of the database, including those of the
inventory. The history is made of copies of one batch that the product processed.
"""

from contextlib import closing

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.model.item import ItemIdSet
from batch_pipeline_tests.concurrency import eventually
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import meta_engine
from batch_pipeline_tests.inventory.test_acquire import CREATE, FilesJob, weight_limit
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import execute, query

ITEMS = 100  # per batch
OLD_ITEMS = 5  # per batch of the history
COPIED_COLUMNS = {
    "batch": "'id', n + 1, 'first_id', n * :items + 1, 'last_id', (n + 1) * :items",
    "batch_state": "'batch_id', n + 1",
    "attempt": "'id', n + 1, 'batch_id', n + 1, 'token', gen_random_uuid(), "
    "'publish_number', n + 1, 'seen', jsonb_set(one.row -> 'seen', '{runs}', "
    "jsonb_build_array(jsonb_build_array(n * :items + 1, (n + 1) * :items)))",
}
COPY = """
WITH one AS (SELECT to_jsonb(t) AS row FROM batch_pipeline.{table} t)
INSERT INTO batch_pipeline.{table} {overriding}
SELECT made.* FROM one, generate_series(1, CAST(:batches AS bigint) - 1) n,
       jsonb_populate_record(NULL::batch_pipeline.{table},
                             one.row || jsonb_build_object({columns})) made
"""
ADVANCE = (
    "UPDATE batch_pipeline.bookmark SET last_id = (SELECT max(last_id) FROM batch_pipeline.batch)",
    "UPDATE batch_pipeline.job SET publish_count = (SELECT max(id) FROM batch_pipeline.batch)",
    """
    SELECT setval(pg_get_serial_sequence('batch_pipeline.' || name, 'id'), max(id))
      FROM batch_pipeline.batch, unnest(ARRAY['batch', 'attempt']) name GROUP BY name
    """,
    "VACUUM ANALYZE",
)
FILL = (
    "INSERT INTO public.files (id, item, weight) "
    "SELECT n, 'file-' || n, 1 FROM generate_series(1, CAST(:rows AS int)) n"
)
ROWS_READ = """
SELECT coalesce(sum(seq_tup_read), 0)
       + (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes)
  FROM pg_stat_user_tables
"""
OTHER_SESSIONS = """
SELECT FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def acquire(url: str, calls: int, *, items: int = ITEMS, short: bool = True) -> None:
    """Acquire and complete some batches, and close the sessions, which then report statistics."""
    database = open_database(url, migrated=None)
    with closing(database), meta_engine(url) as engine:
        harness = FilesJob(database, engine, server_side=short)
        for _ in range(calls):
            attempt = harness.acquire(weight_limit(items))
            assert attempt is not None
            assert attempt.batch.count == items
            first_id, last_id = attempt.batch.id_range.first_id, attempt.batch.id_range.last_id
            seen = ItemIdSet.of(range(first_id, last_id + 1), weight=items)
            database.attempts.succeed(attempt, logging=None, seen=seen)


def fill(database: Database, url: str, rows: int) -> None:
    """Fill a table, and put three fifths of its rows into small batches."""
    batches = rows * 3 // 5 // OLD_ITEMS
    execute(database, "TRUNCATE public.files")
    execute(database, "TRUNCATE batch_pipeline.job RESTART IDENTITY CASCADE")
    execute(database, FILL, rows=rows)
    acquire(url, 1, items=OLD_ITEMS)
    for table, columns in COPIED_COLUMNS.items():
        overriding = "" if table == "batch_state" else "OVERRIDING SYSTEM VALUE"
        statement = COPY.format(table=table, columns=columns, overriding=overriding)
        values = {"items": OLD_ITEMS} if ":items" in columns else {}
        execute(
            database,
            statement.replace(":items", "CAST(:items AS bigint)"),
            batches=batches,
            **values,
        )
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in ADVANCE:
            connection.execute(sa.text(statement))


def rows_read(database: Database) -> int:
    """Wait until all other sessions have ended, and return how many rows were read so far."""
    database.engine.dispose()
    eventually(lambda: not query(database, OTHER_SESSIONS))
    return int(query(database, ROWS_READ)[0][0])


def rows_read_per_acquisition(database: Database, url: str, calls: int, *, short: bool) -> float:
    """Return the rows read per acquisition, from the difference between many calls and one."""
    counts = []
    for number in (1, calls + 1):
        before = rows_read(database)
        acquire(url, number, short=short)
        counts.append(rows_read(database) - before)
    return (counts[1] - counts[0]) / calls


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("short", [True, False], ids=["one round trip", "several"])
def test_rows_read_by_acquisition_do_not_depend_on_table_size(
    database: Database, database_url: str, figures: Figures, *, short: bool, long_form: bool
) -> None:
    rows_per_call, calls = [], 20 if long_form else 10
    execute(database, CREATE)
    for rows in (10_000, 1_000_000 if long_form else 20_000):
        fill(database, database_url, rows)
        rows_per_call.append(rows_read_per_acquisition(database, database_url, calls, short=short))
        if rows < 100_000:
            check_invariants(database)
    few, many = rows_per_call
    figures(
        rows_of_the_large_table=float(rows),
        batches_before=float(rows * 3 // 5 // OLD_ITEMS),
        rows_read_of_10_000=few,
        rows_read_of_the_large_one=many,
    )
    assert ITEMS < few < 2 * ITEMS
    assert abs(many - few) <= 10
