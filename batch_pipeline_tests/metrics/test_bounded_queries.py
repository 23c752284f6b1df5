"""Queries of a scrape read only recent rows, independent of the length of the history."""

from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.status import AttemptCursor
from batch_pipeline.model.batch import Attempt
from batch_pipeline_tests.inventory.logins import Logins
from batch_pipeline_tests.inventory.meta_tables.user_tables import record_statements, rows_scanned
from batch_pipeline_tests.seeds import claimed, planned, publish

BATCHES = 8_000
INSERT_HISTORY = """
INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
  SELECT j.id, 1000 + n, 1000 + n, 10, 1, '{}'
    FROM batch_pipeline.job j, generate_series(1, 8000) n WHERE j.name = 'orders';
INSERT INTO batch_pipeline.batch_state (batch_id, job_id, state, attempts, generation)
  SELECT id, job_id, 'published', 1, 1 FROM batch_pipeline.batch WHERE first_id > 1000;
INSERT INTO batch_pipeline.attempt (batch_id, number, token, liveness_key, status, run_id,
    lease_until, finished_at, generation, publish_number, encoding, facts)
  SELECT id, 1, gen_random_uuid(), id, 'succeeded', 'run', now(), now(), 1, first_id - 1000, '{}',
         '{"read": 5, "written": 5, "filtered": 0, "quarantined": 0}'
    FROM batch_pipeline.batch WHERE first_id > 1000;
INSERT INTO batch_pipeline.part_file (attempt_id, quarantine, position, uri, records, size_bytes,
    sha256)
  SELECT id, false, 0, 'file:///' || id, 5, 100, 'ab' FROM batch_pipeline.attempt;
UPDATE batch_pipeline.job SET publish_count = 8000 WHERE name = 'orders';
ANALYZE batch_pipeline.batch, batch_pipeline.batch_state, batch_pipeline.attempt,
    batch_pipeline.part_file, batch_pipeline.job;
"""


@pytest.fixture
def long_history(database: Database) -> Database:
    """An inventory with 8,001 published batches and two planned ones."""
    planned(database, 3)
    with database.engine.begin() as connection:
        connection.exec_driver_sql(INSERT_HISTORY)
    publish(database, database.batches.statuses("orders")[0].batch)
    return database


def test_scrape_reads_unfinished_batches_and_new_attempts_only(long_history: Database) -> None:
    cursor = long_history.work_counts.start_cursor()
    publish(long_history, long_history.batches.statuses("orders")[1].batch)
    with record_statements(long_history.engine) as statements:
        ended = long_history.work_counts.ended(cursor, ["orders"])
        unfinished = long_history.work_counts.unfinished(["orders"])
        published = long_history.work_counts.published(["orders"])
    assert len(ended) == 1
    assert sum(row.batches for row in unfinished) == 1
    assert set(published.values()) == {BATCHES + 2}
    assert (
        rows_scanned(long_history.engine, statements) < 2_100
    )  # an index and its table count each


def test_ended_attempts_are_read_in_pages(long_history: Database) -> None:
    cursor = AttemptCursor()
    pages = [len(long_history.work_counts.ended(cursor, ["orders"])) for _ in range(3)]
    assert pages == [5_000, BATCHES + 1 - 5_000, 0]


def test_attempt_that_starts_during_start_cursor_is_not_skipped(
    database: Database, rival: Database
) -> None:
    (batch,) = planned(database, 1)
    selects: list[str] = []
    started: list[Attempt] = []

    def start(_connection: object, _cursor: object, sql: str, *_rest: object) -> None:
        selects.append(sql)
        if len(selects) == 2:
            started.append(held.enter_context(claimed(rival, batch)))

    with ExitStack() as held:
        sa.event.listen(database.engine, "after_cursor_execute", start)
        cursor = database.work_counts.start_cursor()
    assert (cursor.ended, cursor.running) == (set(), {started[0].id})


def test_read_only_role_can_run_all_queries(logins: Logins) -> None:
    publish(logins.of("lib"), planned(logins.of("lib"), 2)[0])
    reader = logins.of("rita")
    assert len(reader.work_counts.ended(AttemptCursor(), ["orders"])) == 1
    assert reader.work_counts.not_planned(reader.meta_table("orders")).items == 0
    assert reader.stream_statuses.status("orders", reader.meta_table("orders")).waiting.batches == 1
