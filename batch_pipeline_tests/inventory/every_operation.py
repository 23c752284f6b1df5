"""Every operation of the inventory, for fault-injection tests to interrupt.

Each function prepares an operation and returns the call to interrupt, which must be safe to repeat.
`InventoryFixture.finish` then does the remaining work and checks what was published.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from batch_pipeline.inventory.database import open_database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import AttemptStatus, IdRange
from batch_pipeline.model.errors import ConfigurationError, UnknownJobError
from batch_pipeline.model.load import Loaded, Loading
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline_tests.factories import limits, stream
from batch_pipeline_tests.inventory.operations_fixture import Call, InventoryFixture
from batch_pipeline_tests.inventory.test_acquire import ALL, ClientSideSource
from batch_pipeline_tests.seeds import LEASE, expire, query


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
    table = inventory.files_job.source.table
    inventory.files_job.source = ClientSideSource(
        table=table, choice=inventory.files_job.source.choice
    )
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


def _succeeding(inventory: InventoryFixture) -> Call:
    return partial(inventory.succeed, inventory.acquire_new())


def _failing(inventory: InventoryFixture) -> Call:
    return partial(
        inventory.database.attempts.fail, inventory.acquire_new(), "no", AttemptStatus.FAILED
    )


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
    return partial(inventory.database.jobs.cancel_batch, "orders", batch.id)


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


def _backfilling(inventory: InventoryFixture) -> Call:
    return _backfill(inventory, Selection(ids=IdRange(first_id=1, last_id=2)))


def _backfilling_list(inventory: InventoryFixture) -> Call:
    return _backfill(inventory, Selection(item_ids=(1, 2)))


def _backfill(inventory: InventoryFixture, selection: Selection) -> Call:
    if not inventory.database.batches.statuses("orders"):
        inventory.plan_batch()
    name = f"backfill-{len(inventory.database.jobs.jobs())}"
    request = Backfill.of_stream("orders", name, selection, limits(max_count=1))
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
    "succeed": _succeeding,
    "fail": _failing,
    "close dead attempts": _closing_dead,
    "pause": _pausing,
    "resume": _resuming,
    "cancel": _cancelling,
    "cancel a batch": _cancelling_batch,
    "retry": _retrying,
    "bisect": _bisecting,
    "plan a backfill": _backfilling,
    "plan a backfill of a list": _backfilling_list,
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
