"""Every operation of the inventory, for fault-injection tests to interrupt.

Each function prepares an operation and returns the call to interrupt, which must be safe to repeat.
`InventoryFixture.finish` then does the remaining work and checks what was published.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.jobs import ALL_IDS
from batch_pipeline.inventory.meta_tables.connection import open_meta_engine
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import MAX_ID, Attempt, AttemptStatus, Batch, IdRange
from batch_pipeline.model.errors import ConfigurationError, UnknownJobError
from batch_pipeline.model.item import ItemIdSet
from batch_pipeline.model.load import Loaded, Loading
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline_tests.concurrency import eventually
from batch_pipeline_tests.factories import encoded, found_file, item_report, limits, stream
from batch_pipeline_tests.inventory.audit_fixture import succeed
from batch_pipeline_tests.inventory.test_acquire import (
    ALL,
    CREATE,
    INSERT,
    ClientSideSource,
    FilesJob,
)
from batch_pipeline_tests.seeds import LEASE, ORDER_ID, execute, expire, query

Call = Callable[[], object]
SINGLE = Limits(max_weight=MAX_ID, max_count=1)
_PUBLISHED = """
SELECT j.name, a.seen FROM batch_pipeline.attempt a
  JOIN batch_pipeline.batch_state s ON s.batch_id = a.batch_id AND s.generation = a.generation
  JOIN batch_pipeline.job j ON j.id = s.job_id
"""
_WORKED_ON = """
SELECT FROM batch_pipeline.attempt
 WHERE status = 'running' AND lease_until > clock_timestamp() AND liveness_key <> :mine
   AND EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
                  AND classid::bigint << 32 | objid::bigint = liveness_key)
"""


@dataclass
class InventoryFixture:
    """An inventory with a stream `orders` and a user's table, both filled step by step."""

    database: Database
    files_job: FilesJob = field(init=False)
    held: list[Attempt] = field(default_factory=list)
    claims: list[AbstractContextManager[Attempt]] = field(default_factory=list)

    def __post_init__(self) -> None:
        with suppress(sa.exc.ProgrammingError):  # an earlier process has created it
            execute(self.database, CREATE)
        url = self.database.engine.url.render_as_string(hide_password=False)
        self.files_job = FilesJob(self.database, open_meta_engine(url))

    def close(self) -> None:
        """Close every session."""
        self.files_job.engine.dispose()
        self.database.close()

    def register(self) -> None:
        """Register two new files."""
        self.register_call()()

    def register_call(self) -> Call:
        """Return a call that registers two new files."""
        known = query(self.database, "SELECT count(*) FROM batch_pipeline.item")[0][0]
        files = [found_file(known + 1), found_file(known + 2)]
        table = self.database.meta_table("orders")
        return lambda: table.register(files, accept_changed=False)

    def plan_call(self) -> Call:
        """Return a call that plans all registered items."""
        table, bounds = self.database.meta_table("orders"), limits(max_count=2)
        return lambda: self.database.batches.plan(table, bounds, drain=True)

    def plan_batch(self) -> Batch:
        """Plan a new batch of two items of the stream."""
        self.register()
        self.plan_call()()
        self.database.schemas.widen("orders", [ORDER_ID], text_source=True)
        return self.database.batches.statuses("orders")[-1].batch

    def claim(self, batch: Batch) -> Attempt:
        """Claim a batch until `finish`."""
        claim = self.database.attempts.claim(batch, run_id="run-1", lease=LEASE)
        self.claims.append(claim)
        attempt = claim.__enter__()
        self.held.append(attempt)
        return attempt

    def insert_rows(self, number: int) -> list[int]:
        """Insert rows into the user's table, with gaps between their ids; return their ids."""
        statement = "SELECT coalesce(max(id), 0) FROM public.files"
        highest = query(self.database, statement)[0][0]
        ids = [highest + 2 * step for step in range(1, number + 1)]
        for uid in ids:
            self.insert_row(uid)
        return ids

    def insert_row(self, uid: int) -> None:
        """Insert a row of weight 1 into the user's table."""
        execute(self.database, INSERT, id=uid, weight=1)

    def acquire(
        self, bounds: Limits = SINGLE, window: IdRange = ALL_IDS, name: str = "job", **terms: Any
    ) -> Attempt | None:
        """Acquire from the user's table and keep the attempt until `finish`."""
        attempt = self.files_job.acquire(bounds, name, window, **terms)
        if attempt is not None:
            self.held.append(attempt)
        return attempt

    def acquire_new(self, number: int = 2) -> Attempt:
        """Acquire a batch of new rows."""
        self.insert_rows(number)
        attempt = self.acquire(Limits(max_weight=MAX_ID, max_count=number), max_attempts=1)
        assert attempt is not None
        return attempt

    def publish(self, attempt: Attempt) -> object:
        """Publish an attempt of the stream or of one of its backfills."""
        items = self.database.meta_table("orders").items(attempt.batch)
        reports = tuple(item_report(item.id) for item in items)
        what = encoded(attempt.stem, items=reports)
        return self.database.attempts.publish(attempt, what, stream())

    def succeed(self, attempt: Attempt) -> int:
        """Publish an attempt of the user's table and return its generation."""
        return succeed(self.database, self.files_job.source.table, attempt)[0]

    def finish(self) -> None:
        """Do all remaining work; check that each job published each item exactly once."""
        eventually(lambda: not query(self.database, _WORKED_ON, mine=self.liveness_key))
        for claim in self.claims:
            claim.__exit__(None, None, None)
        for attempt in self.held:
            self.database.attempts.fail(attempt, "left", AttemptStatus.ABANDONED)
        self._finish_stream()
        self.insert_rows(1)
        for name in self._jobs():
            self._finish_job(name)
        published: dict[str, Counter[int]] = {}
        for name, seen in query(self.database, _PUBLISHED):
            job = name.removesuffix(".late")
            published.setdefault(job, Counter()).update(ItemIdSet.from_json(seen))
        for name, expected in self._expected_items():
            found = published.get(name, Counter())
            assert found == Counter(expected), f"{name} published {found} of {expected}"

    def _expected_items(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield each job with the item ids that it has to publish."""
        for name in self._jobs():
            yield name, [uid for (uid,) in query(self.database, "SELECT id FROM public.files")]
        for name, kind in query(self.database, "SELECT name, kind FROM batch_pipeline.job"):
            if name.startswith("orders"):
                statement = "SELECT id FROM batch_pipeline.item"
                if kind == "backfill":
                    statement += " WHERE id BETWEEN 1 AND 2"
                yield name, [uid for (uid,) in query(self.database, statement)]

    @property
    def liveness_key(self) -> int:
        """The liveness key of this process."""
        return self.database.heartbeat.liveness_key

    def _finish_stream(self) -> None:
        self.register()
        self.plan_call()()
        self.database.schemas.widen("orders", [ORDER_ID], text_source=True)
        for report in self.database.jobs.jobs():
            self.database.jobs.resume(report.job.name)
            self.database.jobs.retry(report.job.name)
            for status in self.database.jobs.unfinished(report.job.name):
                if report.job.stream is not None:
                    self.publish(self.claim(status.batch))

    def _finish_job(self, name: str) -> None:
        while (attempt := self.acquire(ALL, name=name)) is not None:
            self.succeed(attempt)
        audit = self.database.late_arrivals.audit(name, self.files_job.source.table, since=None)
        if audit.late_batches:
            self._finish_job(name)

    def _jobs(self) -> set[str]:
        return {"job"} | {
            report.job.name
            for report in self.database.jobs.jobs()
            if report.job.stream is None and report.parent is None
        }


def _widening(inventory: InventoryFixture) -> Call:
    inventory.plan_batch()
    name = f"column{len(query(inventory.database, 'SELECT FROM batch_pipeline.schema_version'))}"
    column = Column(name=name, type=ColumnType.INTEGER)
    return lambda: inventory.database.schemas.widen("orders", [column], text_source=True)


def _planning(inventory: InventoryFixture) -> Call:
    inventory.register()
    return inventory.plan_call()


def _claiming(inventory: InventoryFixture) -> Call:
    batch = inventory.plan_batch()

    def call() -> None:
        with inventory.database.attempts.claim(batch, run_id="run-1", lease=LEASE):
            pass

    return call


def _publishing(inventory: InventoryFixture) -> Call:
    return partial(inventory.publish, inventory.claim(inventory.plan_batch()))


def _acquiring_client_side(inventory: InventoryFixture) -> Call:
    source = inventory.files_job.source
    inventory.files_job.source = ClientSideSource(table=source.table, choice=source.choice)
    inventory.insert_rows(2)
    return inventory.acquire


def _acquiring_server_side(inventory: InventoryFixture) -> Call:
    inventory.insert_rows(3)
    inventory.acquire()  # creates the job
    return inventory.acquire


def _acquiring_again(inventory: InventoryFixture) -> Call:
    attempt = inventory.acquire_new(1)
    inventory.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
    inventory.database.jobs.retry("job")
    return inventory.acquire


def _acquiring_halves(inventory: InventoryFixture) -> Call:
    inventory.database.attempts.fail(inventory.acquire_new(), "no", AttemptStatus.FAILED)
    return partial(inventory.acquire, max_attempts=1, bisect=True)


def _failing(inventory: InventoryFixture) -> Call:
    fail = inventory.database.attempts.fail
    return partial(fail, inventory.acquire_new(), "no", AttemptStatus.FAILED)


def _closing_dead(inventory: InventoryFixture) -> Call:
    expire(inventory.database, inventory.claim(inventory.plan_batch()))
    return partial(inventory.database.attempts.close_dead, "orders")


def _pausing(inventory: InventoryFixture) -> Call:
    _start_job(inventory)
    return partial(inventory.database.jobs.pause, "job", "inventory")


def _resuming(inventory: InventoryFixture) -> Call:
    _start_job(inventory)
    inventory.database.jobs.pause("job", "inventory")
    return partial(inventory.database.jobs.resume, "job")


def _start_job(inventory: InventoryFixture) -> None:
    with suppress(UnknownJobError):
        inventory.database.jobs.resume("job")
    inventory.acquire_new()


def _cancelling(inventory: InventoryFixture) -> Call:
    inventory.claim(inventory.plan_batch())
    inventory.plan_batch()
    return partial(inventory.database.jobs.cancel, "orders")


def _cancelling_batch(inventory: InventoryFixture) -> Call:
    batch = inventory.plan_batch()
    return partial(inventory.database.jobs.cancel, "orders", batch.id)


def _retrying(inventory: InventoryFixture) -> Call:
    inventory.plan_batch()
    inventory.database.jobs.cancel("orders")
    return partial(inventory.database.jobs.retry, "orders")


def _bisecting(inventory: InventoryFixture) -> Call:
    batch, table = inventory.plan_batch(), inventory.database.meta_table("orders").reflected()

    def call() -> None:
        with suppress(ConfigurationError):  # the first call has split it
            inventory.database.jobs.split("orders", batch.id, table)

    return call


def _backfilling(inventory: InventoryFixture, **selection: Any) -> Call:
    if not inventory.database.batches.statuses("orders"):
        inventory.plan_batch()
    name = f"backfill-{len(inventory.database.jobs.jobs())}"
    request = Backfill.of_stream("orders", name, Selection(**selection), limits(max_count=1))
    return partial(
        inventory.database.backfills.plan, request, inventory.database.meta_table("orders")
    )


def _auditing(inventory: InventoryFixture) -> Call:
    # A new job each time: audits re-read batches with late rows, so one job would gain them.
    name = f"audited-{len(inventory.database.jobs.jobs())}"
    first_id, last_id = inventory.insert_rows(2)
    attempt = inventory.acquire(ALL, IdRange(first_id=first_id, last_id=last_id), name)
    assert attempt is not None
    inventory.succeed(attempt)
    inventory.insert_row(first_id + 1)
    table = inventory.files_job.source.table
    return partial(inventory.database.late_arrivals.audit, name, table, since=None)


def _claiming_load(inventory: InventoryFixture) -> Call:
    loads, (target, loading) = inventory.database.loads, _due_load(inventory)

    def call() -> None:
        with loads.claim("orders", target, loading, run_id="run-1", lease=LEASE):
            pass

    return call


def _recording_load(inventory: InventoryFixture) -> Call:
    loads, (target, loading) = inventory.database.loads, _due_load(inventory)
    with loads.claim("orders", target, loading, run_id="run-1", lease=LEASE) as claim:
        assert claim is not None
    return partial(loads.succeed, claim.load, Loaded(records=5), None)


def _due_load(inventory: InventoryFixture) -> tuple[str, list[Loading]]:
    """Publish a batch and return it with a new target, for which nothing is claimed yet."""
    inventory.publish(inventory.claim(inventory.plan_batch()))
    (loading,) = list(inventory.database.loads.due(stream(), "any"))[-1:]
    return f"target-{loading.publish_number}", [loading]


OPERATIONS: dict[str, Callable[[InventoryFixture], Call]] = {
    "register": InventoryFixture.register_call,
    "plan": _planning,
    "widen a schema": _widening,
    "claim": _claiming,
    "publish": _publishing,
    "acquire server-side": _acquiring_server_side,
    "acquire client-side": _acquiring_client_side,
    "acquire again": _acquiring_again,
    "acquire halves": _acquiring_halves,
    "succeed": lambda inventory: partial(inventory.succeed, inventory.acquire_new()),
    "fail": _failing,
    "close dead attempts": _closing_dead,
    "pause": _pausing,
    "resume": _resuming,
    "cancel": _cancelling,
    "cancel a batch": _cancelling_batch,
    "retry": _retrying,
    "bisect": _bisecting,
    "plan a backfill": partial(_backfilling, ids=IdRange(first_id=1, last_id=2)),
    "plan a backfill of a list": partial(_backfilling, item_ids=(1, 2)),
    "audit": _auditing,
    "claim a load": _claiming_load,
    "record a load": _recording_load,
}
STARTS = {
    "claim",
    "acquire server-side",
    "acquire client-side",
    "acquire again",
    "acquire halves",
    "claim a load",
}


def main() -> None:
    """Run one operation in its own process."""
    url, name = sys.argv[1:]
    inventory = InventoryFixture(open_database(url, migrated=None))
    OPERATIONS[name](inventory)()
    inventory.close()
