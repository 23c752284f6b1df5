"""Migrations: of empty and filled inventories, of earlier releases, and during work."""

import re
from collections import Counter
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
)
from batch_pipeline.model.batch import Attempt, AttemptStatus, BatchState
from batch_pipeline.model.errors import (
    ConfigurationError,
    PermissionDeniedError,
    RetryableError,
)
from batch_pipeline_tests.concurrency import eventually, together
from batch_pipeline_tests.factories import batch, limits
from batch_pipeline_tests.inventory.logins import create_login, database_name, run, url_for_login
from batch_pipeline_tests.regression.home_0_1_0 import restore_database
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
          FROM pg_class WHERE relnamespace = 'batch_pipeline'::regnamespace
         ORDER BY relname""",
    "views": """
        SELECT viewname, definition FROM pg_views WHERE schemaname = 'batch_pipeline'
         ORDER BY viewname""",
    "other objects": """
        SELECT extname FROM pg_extension UNION ALL
        SELECT proname FROM pg_proc WHERE pronamespace = 'batch_pipeline'::regnamespace
        UNION ALL SELECT tgname FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1""",
}


@pytest.fixture
def empty_database(empty_database_url: str) -> Iterator[Database]:
    """An open database without an inventory."""
    opened = open_database(empty_database_url, migrated=None)
    yield opened
    opened.close()


def _catalogue(database: Database) -> dict[str, list[tuple[object, ...]]]:
    """Describe the schema as the server sees it."""
    return {name: query(database, text) for name, text in CATALOGUE.items()}


def test_upgraded_schema_equals_new_schema(database: Database, old_inventory: Database) -> None:
    old_inventory.migrate()
    new, upgraded = _catalogue(database), _catalogue(old_inventory)
    assert len(new["constraints"]) > 20
    for name in CATALOGUE:
        assert upgraded[name] == new[name]


def test_concurrent_migrations_create_schema_once(empty_database_url: str) -> None:
    databases = [open_database(empty_database_url, migrated=None) for _ in range(4)]
    results = together(*(database.migrate for database in databases))
    for database in databases:
        database.close()
    assert Counter(results) == {(REVISION, REVISION): 3, ("none", REVISION): 1}


def test_open_database_without_inventory_requires_migrated(empty_database_url: str) -> None:
    with pytest.raises(ConfigurationError, match="has no inventory schema") as caught:
        open_database(empty_database_url, migrated=False)
    assert "Run `batch-pipeline migrate` (or install the release" in str(caught.value)
    open_database(empty_database_url, migrated=True).close()
    open_database(empty_database_url, migrated=False).close()


@pytest.mark.parametrize(
    ("revision", "step"),
    [
        ("9999", "Install the release that the schema belongs to, or a later one"),
        ("0005", "Install batch-pipeline 0.1.0 and run its `batch-pipeline migrate` first"),
    ],
)
def test_database_of_unknown_release_is_rejected_unchanged(
    database: Database, database_url: str, revision: str, step: str
) -> None:
    execute(database, "UPDATE batch_pipeline.alembic_version SET version_num = :new", new=revision)
    before = _catalogue(database)
    problem = f"at revision {revision}; this release works with revision {REVISION}"
    for migrated in (True, False):
        with pytest.raises(ConfigurationError, match="Nothing was changed") as caught:
            open_database(database_url, migrated=migrated)
        assert problem in str(caught.value)
        assert step in str(caught.value)
    assert _catalogue(database) == before
    assert query(database, VERSION) == [(revision,)]


def test_empty_version_table_counts_as_no_schema(empty_database: Database) -> None:
    execute(empty_database, "CREATE SCHEMA batch_pipeline")
    execute(empty_database, "CREATE TABLE batch_pipeline.alembic_version (version_num text)")
    with pytest.raises(ConfigurationError, match="this release works with revision") as caught:
        check_revision(empty_database.engine)
    assert "has no inventory schema;" in str(caught.value)
    assert empty_database.migrate() == ("none", REVISION)
    assert query(empty_database, VERSION) == [(REVISION,)]


def test_failed_creation_is_rolled_back(empty_database: Database) -> None:
    execute(empty_database, "CREATE SCHEMA batch_pipeline")
    execute(empty_database, "CREATE TABLE batch_pipeline.load ()")
    with pytest.raises(exc.ProgrammingError, match="already exists"):
        empty_database.migrate()
    assert query(empty_database, RELATIONS) == [("batch_pipeline.load",)]


def test_revision_constant_is_newest_migration() -> None:
    config = Config()
    folder = Path(migration.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    assert ScriptDirectory.from_config(config).get_heads() == [REVISION]


VERSION = "SELECT version_num FROM batch_pipeline.alembic_version"
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
    SELECT 3, n, n, 1, 1, '{}' FROM generate_series(101, 2100) n RETURNING id
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
 WHERE run_id = 'old-run' AND (status, state) IN (('succeeded', 'published'), ('failed', 'failed'))
 GROUP BY status ORDER BY status
"""
PUBLISHED = {"orders": 5, "orders.2023": 2}  # numbers of the old inventory
SOON = timedelta(milliseconds=200)


@pytest.fixture
def old_url(empty_database_url: str) -> str:
    """URL of a filled inventory of release 0.1.0."""
    restore_database(empty_database_url)
    return empty_database_url


@pytest.fixture
def old_inventory(old_url: str) -> Iterator[Database]:
    """That inventory, open and not migrated."""
    with closing(open_database(old_url, migrated=None)) as opened:
        yield opened


def test_upgraded_inventory_continues_planning_and_publishing(old_inventory: Database) -> None:
    old_inventory.migrate()
    assert plan(old_inventory, limits()) == []
    register(old_inventory, 2, first=8)
    (new,) = plan(old_inventory, limits())
    assert new.key == "000000000008-000000000009"
    batches = {status.batch.id: status.batch for status in old_inventory.batches.statuses("orders")}
    again = publish(old_inventory, batches[3])
    assert (again.attempt, again.generation) == (3, 3)
    for batch_id in (11, new.id):
        assert publish(old_inventory, batches[batch_id]).generation == 1
    published = old_inventory.manifests.published_after("orders", PUBLISHED)
    assert [(number, manifest.batch.id) for number, manifest in published] == [
        (6, 3),
        (7, 11),
        (8, new.id),
    ]


def test_failed_upgrade_is_rolled_back(old_inventory: Database) -> None:
    execute(old_inventory, "ALTER TABLE batch_pipeline.job ADD key_digits smallint")
    before = _catalogue(old_inventory)
    with pytest.raises(exc.ProgrammingError, match="already exists"):
        old_inventory.migrate()
    assert _catalogue(old_inventory) == before  # without the column of an earlier revision
    execute(old_inventory, "ALTER TABLE batch_pipeline.job DROP COLUMN key_digits")
    assert old_inventory.migrate() == ("0006", REVISION)


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
        assert query(old_inventory, VERSION) == [("0006",)]
    engine.dispose()
    assert migrate(old_inventory.engine) == ("0006", REVISION)


def test_upgrade_blocked_by_migration_names_session(old_inventory: Database, old_url: str) -> None:
    with closing(open_database(old_url, migrated=None)) as other, other.engine.begin() as held:
        lock_migration(held, SOON)
        pid = held.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        with pytest.raises(RetryableError, match=rf"pid {pid} \(batch-pipeline"):
            migrate(old_inventory.engine, patience=SOON)


def test_upgrade_during_work_loses_no_attempts(old_inventory: Database, old_url: str) -> None:
    """Workers of release 0.1.0 publish and fail attempts before and after the upgrade."""
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


@pytest.mark.parametrize(
    ("first", "held", "second"),
    [
        # A prepared publish may lock `attempt` before `job`.
        pytest.param("attempt", "batch", "job", id="worker"),
        # A reader locks the view first, then its tables.
        pytest.param(None, "part_file", "published", id="reader of view"),
    ],
)
def test_migrate_yields_to_other_session_instead_of_deadlock(
    old_inventory: Database, first: str | None, held: str, second: str
) -> None:
    """`migrate` locks the views, then each table in turn."""
    waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = CAST(:name AS regclass)"

    def is_awaited(relation: str) -> bool:
        return bool(query(old_inventory, waits, name=f"batch_pipeline.{relation}"))

    lock = "LOCK TABLE batch_pipeline.{} IN ROW EXCLUSIVE MODE"
    with (
        ThreadPoolExecutor(2) as pool,
        old_inventory.engine.connect() as session,
        old_inventory.engine.connect() as holder,
    ):
        if first is not None:
            session.exec_driver_sql(lock.format(first))
        holder.exec_driver_sql(lock.format(held))  # so that the session waits first
        migrated = pool.submit(migrate, old_inventory.engine)
        eventually(lambda: is_awaited(held))
        read = pool.submit(session.exec_driver_sql, f"SELECT FROM batch_pipeline.{second}")
        eventually(lambda: is_awaited(second))
        holder.rollback()
        read.result()
        session.rollback()
        assert migrated.result() == ("0006", REVISION)


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
        assert opened.migrate() == ("0006", REVISION)
    assert {owner for (owner,) in query(old_inventory, OWNERS)} == {group}
