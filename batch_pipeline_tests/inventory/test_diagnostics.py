"""Looks at the server and at what stands still: each trouble is told with what ends it."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.diagnostics import check_dagster, check_server, check_work
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.checks import Finding
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.seeds import claimed, execute, insert_batches, planned

OFF = ("fsync", "full_page_writes", "autovacuum")
DAEMONS = """
CREATE TABLE daemon_heartbeats (daemon_type text, timestamp timestamp);
CREATE TABLE runs (status text);
INSERT INTO daemon_heartbeats SELECT name, timezone('UTC', now()) - interval ':seconds s'
  FROM unnest(ARRAY['SENSOR', 'SCHEDULER', 'QUEUED_RUN_COORDINATOR']) name
"""


def told(found: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Give what was found as plain tuples."""
    return [(one.level.value, one.subject, one.text) for one in found]


@contextmanager
def open_transaction(database: Database) -> Iterator[None]:
    """Keep a transaction of another program open, begun longer ago than is usual."""
    with database.engine.connect() as other, other.begin():
        other.exec_driver_sql("SET application_name = 'a notebook'")
        other.exec_driver_sql("SELECT 1")
        yield


def beside_settings(found: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Leave out what is off on the server of the tests, so that it is fast."""
    return [one for one in told(found) if not one[2].startswith(OFF)]


def test_settings_that_may_lose_commits_are_told(database: Database) -> None:
    """Expect each of those that the server of the tests has, what may happen, and what to do."""
    found = told(check_server(database.engine))
    assert [text.partition(" is off: ")[0] for _, _, text in found] == list(OFF)
    assert {level for level, _, _ in found} == {"warn"}
    assert all(text.endswith("Turn it on.") for _, _, text in found)


def test_index_that_is_not_valid_fails_with_the_statement_that_mends_it(
    database: Database,
) -> None:
    """Expect its name; a `CREATE INDEX CONCURRENTLY` that was cancelled leaves such a one."""
    execute(
        database,
        "UPDATE pg_index SET indisvalid = false "
        "WHERE indexrelid = 'batch_pipeline.load_stream_id_idx'::regclass",
    )
    [(level, _, text)] = beside_settings(check_server(database.engine))
    assert level == "fail"
    assert "REINDEX INDEX CONCURRENTLY batch_pipeline.load_stream_id_idx;" in text
    execute(database, "REINDEX INDEX batch_pipeline.load_stream_id_idx")
    assert beside_settings(check_server(database.engine)) == []


def test_transaction_that_was_left_open_is_named(database: Database) -> None:
    """Expect the program and its pid, once it counts as long."""
    with open_transaction(database):
        assert beside_settings(check_server(database.engine)) == []
        found = beside_settings(check_server(database.engine, long=timedelta(0)))
    [(level, _, text)] = found
    assert level == "warn"
    assert text.startswith("a notebook (pid ")
    assert "SELECT pg_terminate_backend(" in text


def test_paused_job_is_told_with_reason_and_command(database: Database) -> None:
    """Expect since when, why, and what resumes it."""
    planned(database)
    assert told(check_work(database.engine)) == []
    database.jobs.pause("orders", "the target is being moved")
    [(level, subject, text)] = told(check_work(database.engine))
    assert (level, subject) == ("warn", "orders")
    assert "UTC: the target is being moved." in text
    assert text.endswith("Run `batch-pipeline jobs resume orders` to resume it.")


def test_attempt_that_nobody_closed_is_told(database: Database) -> None:
    """Expect it ten minutes after its lease, since sensors and `reconcile` close such at once."""
    [one] = planned(database)
    lapse = "UPDATE batch_pipeline.attempt SET lease_until = clock_timestamp() - interval '{} min'"
    with claimed(database, one):
        execute(database, lapse.format(9))
        assert told(check_work(database.engine)) == []
        execute(database, lapse.format(11))
        [(level, subject, text)] = told(check_work(database.engine))
    assert (level, subject) == ("warn", "orders")
    assert text.startswith("running attempts whose lease expired more than ten minutes ago: 1")
    assert text.endswith("Run `batch-pipeline reconcile`.")


def test_asset_with_50000_partitions_is_warned_of_and_with_fewer_not(database: Database) -> None:
    one_batch = Backfill.of_stream("orders", "again", Selection(), limits(max_count=3))
    planned(database)
    database.backfills.plan(one_batch, database.meta_table("orders"))
    execute(database, "DELETE FROM batch_pipeline.batch_state")
    execute(database, "DELETE FROM batch_pipeline.batch")
    insert_batches(database, "orders.again", 49_999)
    assert told(check_work(database.engine)) == []
    insert_batches(database, "orders", 50_000)
    [(level, subject, text)] = told(check_work(database.engine))
    assert (level, subject) == ("warn", "orders")
    assert text.startswith("orders/batches has 50,000 partitions. Dagster advises at most 100,000")
    assert "Choose a larger `batch.max_weight` and `batch.max_count` for orders;" in text
    execute(
        database,
        "UPDATE batch_pipeline.batch_state SET state = 'superseded' WHERE batch_id = "
        "(SELECT max(batch_id) FROM batch_pipeline.batch_state)",
    )
    assert told(check_work(database.engine)) == []


def test_daemon_of_dagster_is_looked_for_where_there_is_one(database: Database) -> None:
    """Expect no finding to be bad before Dagster was ever started, and while its daemon is up."""
    engine = database.engine
    assert told(check_dagster(engine, is_own=False)) == [
        ("ok", "dagster", "was never started on this database.")
    ]
    execute(database, DAEMONS.replace(":seconds", "20"))
    assert told(check_dagster(engine, is_own=False)) == [
        ("ok", "dagster", "its daemon is up; runs in the queue: 0.")
    ]


@pytest.mark.parametrize(
    ("is_own", "queued", "level"),
    [
        (False, 0, "warn"),
        (True, 0, "ok"),
        (True, 1, "warn"),
    ],
)
def test_daemon_that_is_silent_is_told(
    database: Database, is_own: bool, queued: int, level: str
) -> None:
    """Expect it to matter for a service, and on our own server only when runs wait for it."""
    execute(database, DAEMONS.replace(":seconds", "400"))
    for _ in range(queued):
        execute(database, "INSERT INTO runs VALUES ('QUEUED')")
    [(found, _, text)] = told(check_dagster(database.engine, is_own=is_own))
    assert found == level
    assert text.startswith("its daemon sent its last heartbeat at ")
    runs = f"queued runs ({queued})"
    told_more = f"{runs} do not start. Start `batch-pipeline dev`" in text
    assert told_more is (level == "warn")
