"""Functions that bring an inventory into the state that a test needs."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.sources import StreamTable
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch
from batch_pipeline.model.encode_request import Encoded
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline_tests.factories import encoded, found_file, limits, stream
from batch_pipeline_tests.inventory.meta_tables.user_tables import in_public

CLAIM_AND_WAIT = """
import sys
from datetime import timedelta
from batch_pipeline.inventory.database import open_database
database = open_database(sys.argv[1], migrated=None)
one = database.batches.batch("orders", sys.argv[2])
with database.attempts.claim(one, run_id="run-0", lease=timedelta(minutes=5)) as attempt:
    print(attempt.id, attempt.number, attempt.token)
    sys.stdin.read()
"""
LEASE = timedelta(minutes=5)
ORDER_ID = Column(name="order_id", type=ColumnType.INTEGER)


def register(database: Database, count: int, *, first: int = 1, name: str = "orders") -> None:
    """Register some files of 10 bytes."""
    files = [found_file(number) for number in range(first, first + count)]
    database.meta_table(name).register(files, accept_changed=False)


def insert_item(database: Database, item_id: int, size_bytes: int = 10) -> None:
    """Insert an item of `orders` with any id, for example below the bookmark."""
    execute(
        database,
        "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
        "VALUES ('orders', :id, 'file:///landing/' || :id, :size_bytes, now())",
        id=item_id,
        size_bytes=size_bytes,
    )


def planned(database: Database, batches: int = 1, *, name: str = "orders") -> Sequence[Batch]:
    """Register and plan three files per batch, with a schema version 1 of `order_id`."""
    register(database, 3 * batches, name=name)
    found = plan(database, limits(max_count=3), name=name)
    database.schemas.widen(name, [ORDER_ID], text_source=True)
    return found


def plan(
    database: Database, bounds: Limits, *, drain: bool = True, name: str = "orders"
) -> list[Batch]:
    """Plan the registered files and return the new batches."""
    done = database.batches.plan(database.meta_table(name), bounds, drain=drain)
    return [] if done.ids is None else [s.batch for s in database.batches.statuses(name, done.ids)]


def planned_backfill(
    database: Database, name: str = "2023", *, max_count: int = 3, **selection: Any
) -> list[Batch]:
    """Plan a backfill of `orders` and return its batches."""
    bounds, table = limits(max_count=max_count), database.meta_table("orders")
    request = Backfill.of_stream("orders", name, Selection(**selection), bounds)
    database.backfills.plan(request, table)
    return [status.batch for status in database.backfills.statuses(request.name, table.name)]


def publish(database: Database, one: Batch, what: Encoded | None = None) -> Manifest:
    """Claim a batch and publish it."""
    with claimed(database, one) as attempt:
        return database.attempts.publish(attempt, what or encoded(attempt.stem), stream())


def fail(
    database: Database,
    one: Batch,
    error: str = "bad",
    status: AttemptStatus = AttemptStatus.FAILED,
    *,
    counts: bool = True,
) -> None:
    """Claim a batch and end the attempt without publishing it."""
    with claimed(database, one) as attempt:
        database.attempts.fail(attempt, error, status, counts=counts)


def claimed(
    database: Database, one: Batch, *, lease: timedelta = LEASE
) -> AbstractContextManager[Attempt]:
    """Claim a batch for run `run-1`."""
    return database.attempts.claim(one, run_id="run-1", lease=lease)


def expire(database: Database, attempt: Attempt) -> None:
    """Expire the lease of an attempt."""
    execute(
        database,
        "UPDATE batch_pipeline.attempt SET lease_until = clock_timestamp() - interval '1 second' "
        "WHERE token = :token",
        token=attempt.token,
    )


def limit_lock_waits(engine: sa.Engine, milliseconds: int) -> None:
    """Limit how long an engine's sessions wait for a lock, from their next use on."""

    def limit(connection: Any, *_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{milliseconds}ms'")
        connection.commit()

    sa.event.listen(engine, "checkout", limit)


def insert_batches(database: Database, job: str, count: int) -> None:
    """Insert published batches of one id each into a job that has no batches."""
    execute(
        database,
        "WITH inserted AS ("
        "INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config) "
        "SELECT id, n, n, 10, 1, '{}' FROM batch_pipeline.job, generate_series(1, :count) n "
        "WHERE name = :job RETURNING id, job_id) "
        "INSERT INTO batch_pipeline.batch_state (batch_id, job_id, state) "
        "SELECT id, job_id, 'published' FROM inserted",
        job=job,
        count=count,
    )


def execute(database: Database, statement: str, **values: object) -> None:
    """Execute and commit a statement. Tables without a schema are in `public`."""
    with database.engine.begin() as connection:
        in_public(connection)
        connection.execute(sa.text(statement), values)


def query(database: Database, statement: str, **values: object) -> list[tuple[Any, ...]]:
    """Read rows as tuples. Tables without a schema are in `public`."""
    with database.engine.begin() as connection:
        in_public(connection)
        return [tuple(row) for row in connection.execute(sa.text(statement), values)]


def has_lock_waiters(database: Database) -> bool:
    """Return whether a session of this database waits for a lock."""
    waiting = query(
        database,
        "SELECT FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
    return bool(waiting)


def statuses(database: Database) -> list[str]:
    """Read the statuses of all attempts, oldest first."""
    rows = query(database, "SELECT status FROM batch_pipeline.attempt ORDER BY id")
    return [status for (status,) in rows]


def everything(database: Database) -> list[list[tuple[object, ...]]]:
    """Read all rows that a publish may change."""
    tables = ("job", "attempt", "part_file", "attempt_item")
    return [query(database, f"SELECT * FROM batch_pipeline.{table} ORDER BY 1") for table in tables]  # noqa: S608 - names from the line above


def unplanned(database: Database, table: StreamTable) -> tuple[int, int]:
    """Return the number of a stream's items without a batch and their weight."""
    counts = database.work_counts.not_planned(table)
    return counts.items, counts.weight
