"""Migrations: of empty and filled inventories, of earlier releases, and during work."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import exc

from batch_pipeline.inventory import migrate as migration
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.migrate import (
    REVISION,
    check_revision,
    lock_migration,
    migrate,
    upgrade,
)
from batch_pipeline.inventory.tables import SCHEMA, metadata
from batch_pipeline.model.batch import MIN_ID, Attempt, AttemptStatus, BatchState
from batch_pipeline.model.errors import (
    ConfigurationError,
    PermissionDeniedError,
    RetryableError,
)
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline_tests.concurrency import eventually, together
from batch_pipeline_tests.factories import batch, limits
from batch_pipeline_tests.inventory.logins import create_login, database_name, run, url_for_login
from batch_pipeline_tests.seeds import claimed, execute, plan, publish, query, register

CATALOGUE = {
    "columns": """
        SELECT table_name, column_name, data_type, is_nullable, column_default,
               is_identity, identity_generation
          FROM information_schema.columns JOIN information_schema.tables
               USING (table_catalog, table_schema, table_name)
         WHERE table_schema = 'batch_pipeline' AND table_type = 'BASE TABLE'
         ORDER BY table_name, ordinal_position""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
          FROM pg_constraint WHERE connamespace = 'batch_pipeline'::regnamespace ORDER BY 1, 2""",
    "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'batch_pipeline' ORDER BY 1",
    "comments": """
        SELECT relname, obj_description(oid, 'pg_class')
          FROM pg_class WHERE relnamespace = 'batch_pipeline'::regnamespace AND relkind = 'r'
         ORDER BY relname""",
}


@pytest.fixture
def empty_database(empty_database_url: str) -> Iterator[Database]:
    """An open database without an inventory."""
    opened = open_database(empty_database_url, migrated=None)
    yield opened
    opened.close()


def _catalogue(database: Database) -> dict[str, list[tuple[object, ...]]]:
    """Describe all tables as the server sees them, except Alembic's own."""
    return {
        name: [row for row in query(database, text) if "alembic_version" not in str(row)]
        for name, text in CATALOGUE.items()
    }


def test_migrated_schema_matches_table_metadata(
    database: Database, empty_database: Database
) -> None:
    with empty_database.engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(SCHEMA))
        metadata.create_all(connection)
    declared, migrated = _catalogue(empty_database), _catalogue(database)
    assert len(migrated["constraints"]) > 20
    for name in CATALOGUE:
        assert migrated[name] == declared[name]


def test_migrate_returns_old_and_new_revision(empty_database: Database) -> None:
    assert empty_database.migrate() == ("none", REVISION)
    assert empty_database.migrate() == (REVISION, REVISION)
    assert empty_database.batches.statuses("orders") == []


def test_concurrent_migrations_create_schema_once(empty_database_url: str) -> None:
    databases = [open_database(empty_database_url, migrated=None) for _ in range(4)]
    results = together(*(database.migrate for database in databases))
    for database in databases:
        database.close()
    assert sorted(map(str, results)) == sorted(
        [str((REVISION, REVISION))] * 3 + [str(("none", REVISION))]
    )


def test_open_database_without_inventory_requires_migrated(empty_database_url: str) -> None:
    with pytest.raises(ConfigurationError, match="has no inventory schema"):
        open_database(empty_database_url, migrated=False)
    open_database(empty_database_url, migrated=True).close()
    open_database(empty_database_url, migrated=False).close()


def test_database_of_later_release_is_rejected_unchanged(
    database: Database, database_url: str
) -> None:
    execute(database, "UPDATE batch_pipeline.alembic_version SET version_num = '9999'")
    before = _catalogue(database)
    for migrated in (True, False):
        with pytest.raises(ConfigurationError, match="this release works with revision") as caught:
            open_database(database_url, migrated=migrated)
        assert f"at revision 9999; this release works with revision {REVISION}" in str(caught.value)
    assert _catalogue(database) == before
    assert query(database, "SELECT version_num FROM batch_pipeline.alembic_version") == [("9999",)]


def test_empty_version_table_counts_as_no_schema(empty_database: Database) -> None:
    execute(empty_database, "CREATE SCHEMA batch_pipeline")
    execute(empty_database, "CREATE TABLE batch_pipeline.alembic_version (version_num text)")
    with pytest.raises(ConfigurationError, match="this release works with revision") as caught:
        check_revision(empty_database.engine)
    assert "has no inventory schema;" in str(caught.value)


def test_revision_constant_is_newest_migration() -> None:
    config = Config()
    folder = Path(migration.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    assert ScriptDirectory.from_config(config).get_heads() == [REVISION]


STATES = """
SELECT batch_id, state, attempts, generation FROM batch_pipeline.batch_state ORDER BY batch_id
"""
ATTEMPTS = "SELECT id, batch_id, number, status, generation FROM batch_pipeline.attempt ORDER BY id"
RELATIONS = """
SELECT oid::regclass::text FROM pg_class
 WHERE relnamespace = 'batch_pipeline'::regnamespace AND relkind IN ('r', 'v')
"""
OWNERS = """
SELECT pg_get_userbyid(relowner) FROM pg_class
 WHERE relnamespace = 'batch_pipeline'::regnamespace AND relkind IN ('r', 'v', 'S')
"""
RUNNING_BATCHES = """
WITH planned AS (
    INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
    SELECT 3, n, n, 1, 1, '{}' FROM generate_series(1, 2000) n RETURNING id
), states AS (
    INSERT INTO batch_pipeline.batch_state (batch_id, job_id, state, attempts)
    SELECT id, 3, 'running', 1 FROM planned
)
INSERT INTO batch_pipeline.attempt
       (batch_id, number, token, liveness_key, status, run_id, lease_until)
SELECT id, 1, gen_random_uuid(), 1, 'running', 'old-run', clock_timestamp() + interval '1 hour'
  FROM planned
"""
ENDED = """
SELECT status, count(*) FROM batch_pipeline.attempt JOIN batch_pipeline.batch_state USING (batch_id)
 WHERE job_id = 3 AND (status, state) IN (('succeeded', 'published'), ('failed', 'failed'))
 GROUP BY status ORDER BY status
"""
# 13 items of `orders`, of which twelve are in batches 1 to 6, and five of `clicks` in batch 7.
# Batches: 1 planned, 2 running, 3 published twice, 4 failed, 5 abandoned, 6 cancelled,
# 7 published, with a later attempt that failed.
FILL = """
INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at)
SELECT stream, n, 'file:///landing/' || stream || n, 10, '2026-03-01'::timestamptz
  FROM (VALUES ('orders', 13), ('clicks', 5)) AS landed (stream, files),
       generate_series(1, files) n;

INSERT INTO batch_pipeline.job (name, meta_table, last_id, publish_count)
VALUES ('orders', 'batch_pipeline.item', 12, 2), ('clicks', 'batch_pipeline.item', 5, 1),
       ('views', 'batch_pipeline.item', 0, 0);

INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
SELECT 1, 2 * n - 1, 2 * n, 20, 2, '{"max_weight": "20"}'::jsonb FROM generate_series(1, 6) n
UNION ALL
SELECT 2, 1, 5, 50, 5, '{}';

INSERT INTO batch_pipeline.schema_version (job_id, version, columns)
VALUES (1, 1, '[["order_id", "integer"]]');

INSERT INTO batch_pipeline.attempt (batch_id, number, token, liveness_key, status, run_id,
    lease_until, finished_at, error, generation, publish_number, schema_version, encoding,
    key_properties, facts)
SELECT batch_id, number, gen_random_uuid(), 1, status, 'run-' || number,
       clock_timestamp() + interval '1 hour',
       CASE WHEN status <> 'running' THEN clock_timestamp() END, error, generation, publish_number,
       CASE WHEN status = 'succeeded' THEN 1 END,
       CASE WHEN status = 'succeeded' THEN '{"format": "jsonl", "compression": "gzip"}'::jsonb END,
       CASE WHEN status = 'succeeded' THEN '["order_id"]'::jsonb END,
       CASE WHEN status = 'succeeded'
            THEN '{"items": 2, "read": 5, "filtered": 0, "quarantined": 0}'::jsonb END
  FROM (VALUES (2, 1, 'failed', 'bad line', NULL, NULL), (2, 2, 'running', NULL, NULL, NULL),
               (3, 1, 'succeeded', NULL, 1, 1), (3, 2, 'succeeded', NULL, 2, 2),
               (4, 1, 'failed', 'bad line', NULL, NULL),
               (5, 1, 'abandoned', 'its process ended', NULL, NULL),
               (6, 1, 'cancelled', 'cancelled', NULL, NULL),
               (7, 1, 'succeeded', NULL, 1, 1), (7, 2, 'failed', 'bad line', NULL, NULL))
       AS made (batch_id, number, status, error, generation, publish_number);

INSERT INTO batch_pipeline.part_file (attempt_id, quarantine, position, uri, records, size_bytes,
    sha256)
SELECT id, false, 0, 'file:///batches/' || id, 5, 100, repeat('ab', 32)
  FROM batch_pipeline.attempt WHERE status = 'succeeded';
"""
SOON = timedelta(milliseconds=200)


@pytest.fixture
def old_url(empty_database_url: str) -> str:
    """URL of a filled inventory at revision 0001."""
    with closing(open_database(empty_database_url, migrated=None)) as database:
        with database.engine.begin() as connection:
            upgrade(connection, "0001")
        with database.engine.begin() as connection:
            connection.exec_driver_sql(FILL)
    return empty_database_url


@pytest.fixture
def old_inventory(old_url: str) -> Iterator[Database]:
    """That inventory, open and not migrated."""
    with closing(open_database(old_url, migrated=None)) as opened:
        yield opened


def test_upgrade_derives_bookmarks_and_states_from_attempts(old_inventory: Database) -> None:
    """A cancelled or abandoned batch stays due, as before. A dead attempt is closed."""
    attempts = query(old_inventory, ATTEMPTS)
    assert old_inventory.migrate() == ("0001", REVISION)
    assert query(old_inventory, STATES) == [
        (1, "planned", 0, None),
        (2, "running", 2, None),
        (3, "published", 2, 2),
        (4, "failed", 1, None),
        (5, "interrupted", 1, None),
        (6, "interrupted", 1, None),
        (7, "published", 2, 1),
    ]
    bookmarks = "SELECT job_id, first_id, last_id FROM batch_pipeline.bookmark ORDER BY job_id"
    assert query(old_inventory, bookmarks) == [(1, MIN_ID, 12), (2, MIN_ID, 5)]
    jobs = "SELECT name, stream, kind, publish_count FROM batch_pipeline.job ORDER BY id"
    assert query(old_inventory, jobs) == [
        ("orders", "orders", "incremental", 2),
        ("clicks", "clicks", "incremental", 1),
        ("views", "views", "incremental", 0),
    ]
    assert query(old_inventory, ATTEMPTS) == attempts
    view = (
        "SELECT job_result_item, logging, batch_id "
        "FROM batch_pipeline.inventory WHERE batch_id_start = 5"
    )
    assert query(old_inventory, view) == [
        (["file:///batches/3"], None, 3),
        (["file:///batches/4"], None, 3),
    ]
    assert old_inventory.attempts.close_dead("orders") == 1  # no process holds its lock
    assert query(old_inventory, STATES)[1] == (2, "interrupted", 2, None)
    assert old_inventory.attempts.close_dead("orders") == 0


def test_upgraded_inventory_continues_planning_and_publishing(old_inventory: Database) -> None:
    old_inventory.migrate()
    (new,) = plan(old_inventory, limits())
    assert str(new.id_range) == "13..13"
    assert plan(old_inventory, limits()) == []
    register(old_inventory, 2, first=101, name="views")
    assert [str(batch.id_range) for batch in plan(old_inventory, limits(), name="views")] == [
        "1..2"
    ]
    batches = {status.batch.id: status.batch for status in old_inventory.batches.statuses("orders")}
    again = publish(old_inventory, batches[3])
    assert (again.attempt, again.generation) == (3, 3)
    published = old_inventory.manifests.published_after("orders", {})
    assert [(number, manifest.batch.id) for number, manifest in published] == [(3, 3)]
    for batch_id in (1, 4, 5, 6):
        assert publish(old_inventory, batches[batch_id]).generation == 1
    numbers = [
        number for number, _ in old_inventory.manifests.published_after("orders", {"orders": 3})
    ]
    assert numbers == [4, 5, 6, 7]


def test_failed_upgrade_is_rolled_back(old_inventory: Database) -> None:
    execute(old_inventory, "CREATE TABLE batch_pipeline.ceiling_candidate ()")
    with pytest.raises(exc.ProgrammingError, match="already exists"):
        old_inventory.migrate()
    assert query(old_inventory, "SELECT to_regclass('batch_pipeline.batch_state')") == [(None,)]
    assert query(old_inventory, "SELECT sum(last_id) FROM batch_pipeline.job") == [(17,)]
    execute(old_inventory, "DROP TABLE batch_pipeline.ceiling_candidate")
    assert old_inventory.migrate() == ("0001", REVISION)


def test_upgrade_blocked_by_transaction_names_session(
    old_inventory: Database, old_url: str
) -> None:
    url = old_url.replace("postgresql:", "postgresql+psycopg:")
    engine = sa.create_engine(url, connect_args={"application_name": "long report"})
    with engine.begin() as connection:
        pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        connection.execute(sa.text("SELECT FROM batch_pipeline.part_file"))
        with pytest.raises(RetryableError, match="Another session holds a lock") as caught:
            migrate(old_inventory.engine, patience=SOON)
        named = rf"pid {pid} \(long report, in a transaction for \d+ s\)"
        assert re.search(named, str(caught.value))
        assert query(old_inventory, "SELECT version_num FROM batch_pipeline.alembic_version") == [
            ("0001",)
        ]
    engine.dispose()
    assert migrate(old_inventory.engine) == ("0001", REVISION)


def test_upgrade_blocked_by_migration_names_session(old_inventory: Database, old_url: str) -> None:
    with closing(open_database(old_url, migrated=None)) as other, other.engine.begin() as held:
        lock_migration(held, SOON)
        pid = held.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        with pytest.raises(RetryableError, match=rf"pid {pid} \(batch-pipeline"):
            migrate(old_inventory.engine, patience=SOON)


def test_upgrade_during_work_loses_no_attempts(old_inventory: Database, old_url: str) -> None:
    """Workers of release 0.1.0 publish and fail attempts before and after the upgrade."""
    with old_inventory.engine.begin() as connection:
        upgrade(connection, "0006")
    execute(old_inventory, RUNNING_BATCHES)
    running = "SELECT id, batch_id, token FROM batch_pipeline.attempt WHERE run_id = 'old-run'"
    attempts = [
        Attempt(id=attempt_id, batch=batch(id=batch_id), number=1, token=token)
        for attempt_id, batch_id, token in query(old_inventory, running)
    ]
    upgraded = Event()

    def work(own_attempts: Sequence[Attempt], *, fails: bool) -> int:
        ended = 0
        with closing(open_database(old_url, migrated=None)) as worker:
            for attempt in own_attempts:
                if fails:
                    worker.attempts.fail(attempt, "bad line", AttemptStatus.FAILED)
                else:
                    worker.attempts.succeed(attempt, logging=None, seen=None)
                ended += 1
                if upgraded.wait(0.05):
                    break
        return ended

    def migrates() -> int:
        eventually(lambda: sum(count for _, count in query(old_inventory, ENDED)) >= 20)
        old_inventory.migrate()
        upgraded.set()
        return 0

    failing, *publishing = (partial(work, attempts[n::4], fails=n == 0) for n in range(4))
    migrated, failed, *published = together(migrates, failing, *publishing)
    assert migrated == 0
    counts = [("failed", failed), ("succeeded", sum(int(str(count)) for count in published))]
    assert query(old_inventory, ENDED) == counts


def test_migrate_yields_to_worker_instead_of_deadlock(old_inventory: Database) -> None:
    """A prepared publish may lock `attempt` before `job`; `migrate` locks each in turn."""
    lock = "LOCK TABLE batch_pipeline.{} IN ROW EXCLUSIVE MODE"
    waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = CAST(:table AS regclass)"

    def is_awaited(table: str) -> bool:
        return bool(query(old_inventory, waits, table=f"batch_pipeline.{table}"))

    with (
        ThreadPoolExecutor(2) as pool,
        old_inventory.engine.connect() as worker,
        old_inventory.engine.connect() as other,
    ):
        worker.exec_driver_sql(lock.format("attempt"))
        other.exec_driver_sql(lock.format("batch"))  # so that the worker waits first
        migrated = pool.submit(migrate, old_inventory.engine)
        eventually(lambda: is_awaited("batch"))
        read = pool.submit(worker.exec_driver_sql, "SELECT FROM batch_pipeline.job")
        eventually(lambda: is_awaited("job"))
        other.rollback()
        read.result()
        worker.rollback()
        assert migrated.result() == ("0001", REVISION)


def test_open_inventory_detects_upgrade(database: Database, rival: Database) -> None:
    """Running attempts can end; nothing new is planned or claimed."""
    register(database, 3)
    (batch,) = plan(database, limits())
    with claimed(database, batch) as attempt:
        execute(rival, "UPDATE batch_pipeline.alembic_version SET version_num = '9999'")
        for new_work in (
            lambda: plan(database, limits()),
            claimed(database, batch).__enter__,
            lambda: database.attempts.close_dead("orders"),  # which acquisitions call regularly
        ):
            problem = f"revision 9999; this release works with revision {REVISION}"
            with pytest.raises(ConfigurationError, match=problem):
                new_work()
        assert database.attempts.fail(attempt, "stopped", AttemptStatus.CANCELLED)
    assert database.batches.statuses("orders")[0].state is BatchState.CANCELLED


def test_upgrade_by_group_member_keeps_owner(old_inventory: Database, old_url: str) -> None:
    """Members of the owner group can migrate, others cannot."""
    group, dev, guest = (f"{name}_{database_name(old_url)}" for name in ("group", "dev", "guest"))
    run(old_url, f"CREATE ROLE {group} NOLOGIN")
    create_login(old_url, dev, [group])
    create_login(old_url, guest)
    run(old_url, f"GRANT USAGE ON SCHEMA batch_pipeline TO {guest}")
    run(old_url, f"GRANT SELECT ON batch_pipeline.alembic_version TO {guest}")
    for (relation,) in query(old_inventory, RELATIONS):
        run(old_url, f"ALTER TABLE {relation} OWNER TO {group}")
    run(old_url, f"ALTER SCHEMA batch_pipeline OWNER TO {group}")
    guests = closing(open_database(url_for_login(old_url, guest), migrated=None))
    with guests as opened, pytest.raises(PermissionDeniedError):
        opened.migrate()
    with closing(open_database(url_for_login(old_url, dev), migrated=None)) as opened:
        assert opened.migrate() == ("0001", REVISION)
    assert {owner for (owner,) in query(old_inventory, OWNERS)} == {group}


def test_upgrade_from_revision_0002_keeps_schema_versions(old_inventory: Database) -> None:
    """Old versions have no origin, and can be widened."""
    with old_inventory.engine.begin() as connection:
        upgrade(connection, "0002")
    version_1 = (1, RecordSchema.from_json([("order_id", "integer")]))

    assert old_inventory.migrate() == ("0002", REVISION)

    assert old_inventory.schemas.latest("orders") == version_1
    stored = "SELECT item_id, location, line, changes, declared FROM batch_pipeline.schema_version"
    assert query(old_inventory, stored) == [(None,) * 5]
    assert old_inventory.schemas.declare("orders", version_1[1]) == version_1
    column = Column(name="amount", type=ColumnType.NUMBER)
    assert old_inventory.schemas.widen("orders", [column], text_source=False)[0] == 2
