"""Upgrading a filled inventory of an earlier release, alone and beside its workers."""

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from threading import Event

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.migrate import REVISION, lock_migration, migrate, upgrade
from batch_pipeline.model.batch import AttemptStatus, BatchState
from batch_pipeline.model.errors import (
    ConfigurationError,
    ConflictError,
    PermissionDeniedError,
    RetryableError,
)
from batch_pipeline.model.id_range import MIN_ID
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline_tests.concurrency import eventually, together
from batch_pipeline_tests.factories import encoded, limits, stream
from batch_pipeline_tests.inventory.logins import create_login, name_of, run, url_of
from batch_pipeline_tests.inventory.release_0001 import FILL, OldWorker
from batch_pipeline_tests.seeds import claimed, execute, plan, publish, query, register

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
MANY_BATCHES = """
INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
SELECT 3, n, n, 1, 1, '{}' FROM generate_series(1, 20000) n
"""
PUBLISHED = """
SELECT count(*), count(part_file), max(publish_number) FROM batch_pipeline.attempt
  LEFT JOIN batch_pipeline.part_file ON part_file.attempt_id = attempt.id
 WHERE attempt.batch_id > 7 AND status = 'succeeded'
"""
COUNTED = """
SELECT count(*), (SELECT publish_count FROM batch_pipeline.job WHERE name = 'views')
  FROM batch_pipeline.batch_state WHERE job_id = 3 AND state = 'published' AND generation = 1
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


@pytest.fixture
def old_worker(old_url: str) -> Iterator[OldWorker]:
    """A worker of that release."""
    with closing(_old_worker(old_url)) as worker:
        yield worker


def _old_worker(url: str) -> OldWorker:
    return OldWorker(sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:")))


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


def test_upgrade_beside_an_idle_worker_lets_its_attempt_end(
    old: Database, old_worker: OldWorker
) -> None:
    """Expect an attempt of the earlier release to be renewed and published across the upgrade."""
    attempt_id = old_worker.claim(1)
    migrate(old.engine)
    assert query(old, STATES)[0] == (1, "running", 1, None)
    assert old_worker.renew(attempt_id)
    assert old.attempts.close_dead("orders") == 1  # of batch 2, whose process is gone
    assert old_worker.publish(attempt_id, 1)
    old.attempts.close_dead("orders")
    assert query(old, STATES)[0] == (1, "published", 1, 1)
    one = old.batches.statuses("orders")[0].batch
    manifest = old.manifests.of_batch(one)
    assert manifest is not None
    assert (manifest.generation, len(manifest.part_files)) == (1, 1)
    again = publish(old, one)
    assert (again.attempt, again.generation) == (2, 2)


def test_upgrade_beside_an_idle_worker_lets_its_attempt_fail(
    old: Database, old_worker: OldWorker
) -> None:
    """Expect the batch to be due again once reconcile has looked."""
    attempt_id = old_worker.claim(1)
    old.migrate()
    old_worker.fail(attempt_id)
    old.attempts.close_dead("orders")
    assert query(old, STATES)[0] == (1, "failed", 1, None)


def test_upgrade_beside_busy_workers_loses_nothing_of_theirs(old: Database, old_url: str) -> None:
    """Expect each publish of four old workers to be there afterwards, in its transaction whole."""
    execute(old, MANY_BATCHES)
    upgraded = Event()

    def work(batch_ids: range) -> int:
        published = 0
        with closing(_old_worker(old_url)) as worker:
            for batch_id in batch_ids:
                published += worker.publish(worker.claim(batch_id), batch_id, "views")
                if upgraded.is_set():
                    return published
        return published

    def migrates() -> int:
        eventually(lambda: query(old, PUBLISHED)[0][0] >= 20)
        old.migrate()
        upgraded.set()
        return 0

    workers = (partial(work, range(first, first + 5_000)) for first in range(8, 20_008, 5_000))
    published = sum(int(str(done)) for done in together(migrates, *workers))
    old.attempts.close_dead("views")
    assert query(old, PUBLISHED) == [(published, published, published)]
    assert query(old, COUNTED) == [(published, published)]


def test_old_worker_is_fenced_by_whom_took_over(old: Database, old_worker: OldWorker) -> None:
    """Expect an old attempt whose batch is tried anew to publish nothing at all."""
    attempt_id = old_worker.claim(1)
    old.migrate()
    execute(old, "UPDATE batch_pipeline.attempt SET lease_until = now() - interval '1 minute'")
    with claimed(old, old.batches.statuses("orders")[0].batch) as attempt:
        assert not old_worker.renew(attempt_id)
        assert not old_worker.publish(attempt_id, 1)
        assert old.attempts.publish(attempt, encoded(), stream()).attempt == 2
    files = "SELECT FROM batch_pipeline.part_file WHERE attempt_id = :id"
    assert query(old, files, id=attempt_id) == []


def test_old_worker_that_claims_after_the_upgrade_is_seen(
    old: Database, old_worker: OldWorker
) -> None:
    """Expect its attempt to keep others out, though it knows nothing of states."""
    old.migrate()
    one = old.batches.statuses("orders")[0].batch
    attempt_id = old_worker.claim(1)
    assert query(old, STATES)[0] == (1, "planned", 0, None)
    with pytest.raises(ConflictError, match="is running"), claimed(old, one):
        pass
    old.attempts.close_dead("orders")
    assert query(old, STATES)[0] == (1, "running", 1, None)
    assert old_worker.publish(attempt_id, 1)
    assert publish(old, one).generation == 2
    assert query(old, STATES)[0] == (1, "published", 2, 2)


def test_old_worker_that_claims_and_publishes_unseen_is_counted(
    old: Database, old_worker: OldWorker
) -> None:
    """Expect reconcile to find what was done between two of its looks."""
    old.migrate()
    old_worker.publish(old_worker.claim(1), 1)
    old_worker.fail(old_worker.claim(4))
    old.attempts.close_dead("orders")
    assert [row for row in query(old, STATES) if row[0] in {1, 4}] == [
        (1, "published", 1, 1),
        (4, "failed", 2, None),
    ]


def test_old_worker_that_plans_after_the_upgrade_is_refused(
    old: Database, old_worker: OldWorker
) -> None:
    """Expect planning by a bookmark that is gone to be impossible."""
    assert old_worker.plan() == (1, 12)
    old.migrate()
    with pytest.raises(exc.ProgrammingError, match="last_id does not exist"):
        old_worker.plan()


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
