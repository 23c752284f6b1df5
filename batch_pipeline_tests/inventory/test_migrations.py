"""Migrations: of empty and filled inventories, of an earlier release's, and beside workers."""

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
from batch_pipeline.model.batch import Attempt, AttemptStatus, BatchState
from batch_pipeline.model.errors import (
    ConfigurationError,
    PermissionDeniedError,
    RetryableError,
)
from batch_pipeline.model.id_range import MIN_ID
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline_tests.concurrency import eventually, together
from batch_pipeline_tests.factories import batch, limits
from batch_pipeline_tests.inventory.logins import create_login, name_of, run, url_of
from batch_pipeline_tests.seeds import claimed, execute, plan, planned, publish, query, register

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
def empty(empty_database_url: str) -> Iterator[Database]:
    """An open database without an inventory."""
    opened = open_database(empty_database_url, migrated=None)
    yield opened
    opened.close()


def _catalogue(database: Database) -> dict[str, list[tuple[object, ...]]]:
    """Describe all tables as the server sees them, Alembic's own left out."""
    return {
        name: [row for row in query(database, text) if "alembic_version" not in str(row)]
        for name, text in CATALOGUE.items()
    }


def test_migrations_make_what_the_tables_say(database: Database, empty: Database) -> None:
    """Expect columns, defaults, constraints, indexes and comments to be the same both ways."""
    with empty.engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(SCHEMA))
        metadata.create_all(connection)
    declared, migrated = _catalogue(empty), _catalogue(database)
    assert len(migrated["constraints"]) > 20
    for name in CATALOGUE:
        assert migrated[name] == declared[name]


def test_migrate_from_empty_tells_what_it_did(empty: Database) -> None:
    """Expect the first migration to come from nothing and the second one from where it is."""
    assert empty.migrate() == ("none", REVISION)
    assert empty.migrate() == (REVISION, REVISION)
    assert empty.batches.statuses("orders") == []


def test_migrate_filled_database_keeps_its_rows(database: Database) -> None:
    """Expect published batches to be there after another migration."""
    manifest = publish(database, planned(database)[0])
    assert database.migrate() == (REVISION, REVISION)
    assert database.manifests.of_batch(manifest.batch) == manifest


def test_migrate_by_four_at_once_ends_well(empty_database_url: str) -> None:
    """Expect one to make the schema and the others to find it."""

    def run(opened: Database) -> tuple[str, str]:
        return opened.migrate()

    databases = [open_database(empty_database_url, migrated=None) for _ in range(4)]
    results = together(*(partial(run, one) for one in databases))
    for one in databases:
        one.close()
    assert sorted(map(str, results)) == sorted(
        [str((REVISION, REVISION))] * 3 + [str(("none", REVISION))]
    )


def test_open_database_without_inventory_is_refused_unless_migrated(
    empty_database_url: str,
) -> None:
    """Expect a database without a schema to be named as such, and to be filled on demand."""
    with pytest.raises(ConfigurationError, match="has no inventory schema"):
        open_database(empty_database_url, migrated=False)
    open_database(empty_database_url, migrated=True).close()
    open_database(empty_database_url, migrated=False).close()


def test_database_of_a_later_release_is_refused_and_left_alone(
    database: Database, database_url: str
) -> None:
    """Expect neither checking nor migrating to touch a schema from the future."""
    execute(database, "UPDATE batch_pipeline.alembic_version SET version_num = '9999'")
    before = _catalogue(database)
    for migrated in (True, False):
        with pytest.raises(ConfigurationError, match="this release works with revision") as caught:
            open_database(database_url, migrated=migrated)
        assert f"at revision 9999; this release works with revision {REVISION}" in str(caught.value)
    assert _catalogue(database) == before
    assert query(database, "SELECT version_num FROM batch_pipeline.alembic_version") == [("9999",)]


def test_check_revision_of_an_interrupted_schema_finds_none(empty: Database) -> None:
    """Expect an empty version table, which only a foreign hand leaves, to count as no schema."""
    execute(empty, "CREATE SCHEMA batch_pipeline")
    execute(empty, "CREATE TABLE batch_pipeline.alembic_version (version_num text)")
    with pytest.raises(ConfigurationError, match="this release works with revision") as caught:
        check_revision(empty.engine)
    assert "has no inventory schema;" in str(caught.value)


def test_revision_of_the_release_is_the_newest_migration() -> None:
    """Expect the constant that costs no import of Alembic to agree with Alembic."""
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
# Batches: 1 planned, 2 being tried, 3 published twice, 4 failed, 5 abandoned, 6 cancelled,
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
    """URL of an inventory at revision 0001 that its release has filled."""
    with closing(open_database(empty_database_url, migrated=None)) as database:
        with database.engine.begin() as connection:
            upgrade(connection, "0001")
        with database.engine.begin() as connection:
            connection.exec_driver_sql(FILL)
    return empty_database_url


@pytest.fixture
def old(old_url: str) -> Iterator[Database]:
    """That inventory, open and not migrated."""
    with closing(open_database(old_url, migrated=None)) as opened:
        yield opened


def test_upgrade_of_a_filled_inventory_says_where_every_batch_stands(old: Database) -> None:
    """Expect bookmarks and states to say what the attempts say, and the attempts to be as before.

    A cancelled or abandoned batch stays due, as it was.
    """
    attempts = query(old, ATTEMPTS)
    assert old.migrate() == ("0001", REVISION)
    assert query(old, STATES) == [
        (1, "planned", 0, None),
        (2, "running", 2, None),
        (3, "published", 2, 2),
        (4, "failed", 1, None),
        (5, "interrupted", 1, None),
        (6, "interrupted", 1, None),
        (7, "published", 2, 1),
    ]
    bookmarks = "SELECT job_id, first_id, last_id FROM batch_pipeline.bookmark ORDER BY job_id"
    assert query(old, bookmarks) == [(1, MIN_ID, 12), (2, MIN_ID, 5)]
    jobs = "SELECT name, stream, kind, publish_count FROM batch_pipeline.job ORDER BY id"
    assert query(old, jobs) == [
        ("orders", "orders", "incremental", 2),
        ("clicks", "clicks", "incremental", 1),
        ("views", "views", "incremental", 0),
    ]
    assert query(old, ATTEMPTS) == attempts
    view = (
        "SELECT job_result_item, logging, batch_id "
        "FROM batch_pipeline.inventory WHERE batch_id_start = 5"
    )
    assert query(old, view) == [(["file:///batches/3"], None, 3), (["file:///batches/4"], None, 3)]


def test_upgraded_inventory_goes_on_where_it_was(old: Database) -> None:
    """Expect the next batch to start at the next id, nothing twice, and numbers to go on."""
    old.migrate()
    (new,) = plan(old, limits())
    assert str(new.id_range) == "13..13"
    assert plan(old, limits()) == []
    register(old, 2, first=101, name="views")
    assert [str(one.id_range) for one in plan(old, limits(), name="views")] == ["1..2"]
    batches = {one.batch.id: one.batch for one in old.batches.statuses("orders")}
    again = publish(old, batches[3])
    assert (again.attempt, again.generation) == (3, 3)
    published = old.manifests.published_after("orders", {})
    assert [(number, one.batch.id) for number, one in published] == [(3, 3)]
    for batch_id in (1, 4, 5, 6):
        assert publish(old, batches[batch_id]).generation == 1
    numbers = [number for number, _ in old.manifests.published_after("orders", {"orders": 3})]
    assert numbers == [4, 5, 6, 7]


def test_upgraded_inventory_takes_a_dead_old_attempt_over(old: Database) -> None:
    """Expect an attempt whose process is gone, since nobody holds its lock, to be closed."""
    old.migrate()
    assert old.attempts.close_dead("orders") == 1
    assert query(old, STATES)[1] == (2, "interrupted", 2, None)
    assert old.attempts.close_dead("orders") == 0


def test_upgrade_that_fails_leaves_the_old_inventory(old: Database) -> None:
    """Expect no step of the upgrade to stay when a later one fails."""
    execute(old, "CREATE TABLE batch_pipeline.ceiling_candidate ()")
    with pytest.raises(exc.ProgrammingError, match="already exists"):
        old.migrate()
    assert query(old, "SELECT to_regclass('batch_pipeline.batch_state')") == [(None,)]
    assert query(old, "SELECT sum(last_id) FROM batch_pipeline.job") == [(17,)]
    execute(old, "DROP TABLE batch_pipeline.ceiling_candidate")
    assert old.migrate() == ("0001", REVISION)


def test_upgrade_beside_an_open_transaction_names_its_session(old: Database, old_url: str) -> None:
    """Expect the one who is in the way to be named by pid and application, and nothing changed."""
    url = old_url.replace("postgresql:", "postgresql+psycopg:")
    engine = sa.create_engine(url, connect_args={"application_name": "long report"})
    with engine.begin() as connection:
        pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        connection.execute(sa.text("SELECT FROM batch_pipeline.part_file"))
        with pytest.raises(RetryableError, match="Another session holds a lock") as caught:
            migrate(old.engine, patience=SOON)
        named = rf"pid {pid} \(long report, in a transaction for \d+ s\)"
        assert re.search(named, str(caught.value))
        assert query(old, "SELECT version_num FROM batch_pipeline.alembic_version") == [("0001",)]
    engine.dispose()
    assert migrate(old.engine) == ("0001", REVISION)


def test_upgrade_beside_another_one_names_its_session(old: Database, old_url: str) -> None:
    """Expect a migration that does not end to be named as well."""
    with closing(open_database(old_url, migrated=None)) as other, other.engine.begin() as held:
        lock_migration(held, SOON)
        pid = held.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        with pytest.raises(RetryableError, match=rf"pid {pid} \(batch-pipeline"):
            migrate(old.engine, patience=SOON)


def test_upgrade_beside_busy_workers_loses_nothing_of_theirs(old: Database, old_url: str) -> None:
    """Attempts that release 0.1.0 started are published and failed before and after the upgrade."""
    with old.engine.begin() as connection:
        upgrade(connection, "0006")
    execute(old, RUNNING_BATCHES)
    running = "SELECT id, batch_id, token FROM batch_pipeline.attempt WHERE run_id = 'old-run'"
    attempts = [
        Attempt(id=attempt_id, batch=batch(id=batch_id), number=1, token=token)
        for attempt_id, batch_id, token in query(old, running)
    ]
    upgraded = Event()

    def work(mine: Sequence[Attempt], *, fails: bool) -> int:
        ended = 0
        with closing(open_database(old_url, migrated=None)) as worker:
            for attempt in mine:
                if fails:
                    worker.attempts.fail(attempt, "bad line", AttemptStatus.FAILED)
                else:
                    worker.attempts.succeed(attempt, logging=None, seen=None)
                ended += 1
                if upgraded.wait(0.05):
                    break
        return ended

    def migrates() -> int:
        eventually(lambda: sum(count for _, count in query(old, ENDED)) >= 20)
        old.migrate()
        upgraded.set()
        return 0

    failing, *publishing = (partial(work, attempts[n::4], fails=n == 0) for n in range(4))
    migrated, failed, *published = together(migrates, failing, *publishing)
    assert migrated == 0
    counts = [("failed", failed), ("succeeded", sum(int(str(one)) for one in published))]
    assert query(old, ENDED) == counts


def test_migrate_gives_way_to_a_worker_before_the_server_ends_a_deadlock(old: Database) -> None:
    """A prepared publish may lock `attempt` before `job`; `migrate` locks them in turn."""
    lock = "LOCK TABLE batch_pipeline.{} IN ROW EXCLUSIVE MODE"
    waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = CAST(:table AS regclass)"

    def is_awaited(table: str) -> bool:
        return bool(query(old, waits, table=f"batch_pipeline.{table}"))

    with (
        ThreadPoolExecutor(2) as pool,
        old.engine.connect() as worker,
        old.engine.connect() as other,
    ):
        worker.exec_driver_sql(lock.format("attempt"))
        other.exec_driver_sql(lock.format("batch"))  # so that the worker is the first to wait
        migrated = pool.submit(migrate, old.engine)
        eventually(lambda: is_awaited("batch"))
        read = pool.submit(worker.exec_driver_sql, "SELECT FROM batch_pipeline.job")
        eventually(lambda: is_awaited("job"))
        other.rollback()
        read.result()
        worker.rollback()
        assert migrated.result() == ("0001", REVISION)


def test_open_inventory_notices_an_upgrade(database: Database, rival: Database) -> None:
    """Expect what is running to end, and nothing new to be planned or claimed by this release."""
    register(database, 3)
    (one,) = plan(database, limits())
    with claimed(database, one) as attempt:
        execute(rival, "UPDATE batch_pipeline.alembic_version SET version_num = '9999'")
        for new_work in (
            lambda: plan(database, limits()),
            claimed(database, one).__enter__,
            lambda: database.attempts.close_dead(
                "orders"
            ),  # as every acquisition does now and then
        ):
            with pytest.raises(
                ConfigurationError, match="this release works with revision"
            ) as caught:
                new_work()
            assert f"revision 9999; this release works with revision {REVISION}" in str(
                caught.value
            )
        assert database.attempts.fail(attempt, "stopped", AttemptStatus.CANCELLED)
    assert database.batches.statuses("orders")[0].state is BatchState.CANCELLED


def test_upgrade_by_a_member_of_the_owner_belongs_to_the_owner(old: Database, old_url: str) -> None:
    """Expect new tables to be the owner group's whoever migrates, and others to be refused."""
    group, dev, guest = (f"{who}_{name_of(old_url)}" for who in ("group", "dev", "guest"))
    run(old_url, f"CREATE ROLE {group} NOLOGIN")
    create_login(old_url, dev, [group])
    create_login(old_url, guest)
    run(old_url, f"GRANT USAGE ON SCHEMA batch_pipeline TO {guest}")
    run(old_url, f"GRANT SELECT ON batch_pipeline.alembic_version TO {guest}")
    for (relation,) in query(old, RELATIONS):
        run(old_url, f"ALTER TABLE {relation} OWNER TO {group}")
    run(old_url, f"ALTER SCHEMA batch_pipeline OWNER TO {group}")
    guests = closing(open_database(url_of(old_url, guest), migrated=None))
    with guests as opened, pytest.raises(PermissionDeniedError):
        opened.migrate()
    with closing(open_database(url_of(old_url, dev), migrated=None)) as opened:
        assert opened.migrate() == ("0001", REVISION)
    assert {owner for (owner,) in query(old, OWNERS)} == {group}


def test_upgrade_from_revision_0002_keeps_the_schema_versions(old: Database) -> None:
    """Expect versions of before to say nothing of where they come from, and to widen as ever."""
    with old.engine.begin() as connection:
        upgrade(connection, "0002")
    known = (1, RecordSchema.from_json([("order_id", "integer")]))

    assert old.migrate() == ("0002", REVISION)

    assert old.schemas.latest("orders") == known
    kept = "SELECT item_id, location, line, changes, declared FROM batch_pipeline.schema_version"
    assert query(old, kept) == [(None,) * 5]
    assert old.schemas.declare("orders", known[1]) == known
    seen = Column(name="amount", type=ColumnType.NUMBER)
    assert old.schemas.widen("orders", [seen], text_source=False)[0] == 2
