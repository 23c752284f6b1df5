"""Connections lost at every statement of every operation (G10), and lost replies (G11).

Points are counted while an operation runs, so new statements are covered automatically.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import pytest

from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.model.errors import RetryableError
from batch_pipeline_tests.inventory.connection_cuts import ConnectionCutter, cutting_connections
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.lost_replies import LostReplies, losing_replies
from batch_pipeline_tests.inventory.operations_fixture import OPERATIONS, STARTS, InventoryFixture
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import query

Snapshot = dict[str, set[tuple[Any, ...]]]
SNAPSHOT = {
    "job": "id, name, config::text, max_attempts, bisect, paused_at IS NULL, publish_count",
    "bookmark": "job_id, first_id, last_id",
    "batch": "id, job_id, first_id, last_id, weight, item_count, superseded_at IS NULL, item_ids",
    "batch_state": "batch_id, state, attempts, forgiven, generation",
    "attempt": "id, batch_id, number, token, status, generation, publish_number, seen::text",
    "part_file": "attempt_id, uri",
    "attempt_item": "attempt_id, item_id",
    "item": "stream, id, location",
    "load": "attempt_id, target, number, status, token",
    "schema_version": "job_id, version, columns::text",
}
# The main steps of a batch; the other operations are run with --long.
BY_DEFAULT = {"publish", "acquire server-side", "succeed", "claim a load"}
_OWNED = """
SELECT token FROM batch_pipeline.attempt
 WHERE status = 'running' AND lease_until > clock_timestamp()
UNION ALL
SELECT token FROM batch_pipeline.load
 WHERE status = 'running' AND lease_until > clock_timestamp()
"""


@pytest.fixture(
    params=[
        pytest.param("cut", marks=pytest.mark.guarantee("G10")),
        pytest.param("reply lost", marks=pytest.mark.guarantee("G11")),
    ]
)
def fault(
    request: pytest.FixtureRequest, database: Database, database_url: str
) -> Iterator[tuple[str, ConnectionCutter | LostReplies]]:
    """A URL of the inventory, and the fault that its connections suffer."""
    if request.param == "cut":
        with cutting_connections(database) as cutter:
            yield database_url, cutter
    else:
        with losing_replies(database_url) as (url, replies):
            yield url, replies


@pytest.fixture
def inventory(fault: tuple[str, ConnectionCutter | LostReplies]) -> Iterator[InventoryFixture]:
    """An inventory whose connections suffer the fault."""
    opened = InventoryFixture(open_database(fault[0], migrated=None))
    yield opened
    opened.close()
    gc.collect()  # collect objects here whose finalizers warn, where warnings are expected


def _snapshot(database: Database) -> Snapshot:
    rows = {}
    with database.engine.connect() as connection:
        for table, columns in SNAPSHOT.items():
            select = f"SELECT {columns} FROM batch_pipeline.{table}"  # noqa: S608 - names from above
            rows[table] = set(map(_hashable, connection.exec_driver_sql(select)))
    return rows


def _hashable(row: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)


# A streaming cursor cannot be closed on a lost connection.
@pytest.mark.filterwarnings("ignore:<psycopg.ServerCursor:ResourceWarning")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.long)
        for name in OPERATIONS
    ],
)
def test_operation_with_lost_connection_is_atomic(
    database: Database,
    inventory: InventoryFixture,
    fault: tuple[str, ConnectionCutter | LostReplies],
    name: str,
    figures: Figures,
    *,
    long_form: bool,
) -> None:
    """The error is retryable, no intermediate state remains, and every item is published once."""
    lost = 0
    for point in count(1) if long_form else _some_points(inventory, fault[1], name):
        call = OPERATIONS[name](inventory)
        before = _snapshot(database)
        fault[1].arm(point)
        try:
            call()
        except RetryableError:
            assert fault[1].disarm()
            lost += 1
            _check_before_or_after(database, inventory, name, before, call)
        else:
            if not fault[1].disarm():
                break
    # A statement in the server commits itself, so it can be lost only once.
    assert lost >= (3 if long_form and name != "acquire server-side" else 1)
    inventory.finish()
    check_invariants(database)
    figures(operations=1, connections_lost=lost, states_between=0)


def _some_points(
    inventory: InventoryFixture, fault: ConnectionCutter | LostReplies, name: str
) -> Iterator[int]:
    if isinstance(fault, ConnectionCutter):
        return count(1, step=3)  # every transaction has three points: its statement and its commit
    for _ in range(2):  # the first operation may send more requests than later ones
        call = OPERATIONS[name](inventory)
        fault.arm(sys.maxsize)
        call()
        fault.disarm()
    return count(fault.requests // 2 if fault.requests > 8 else 1)  # includes the commits


def _check_before_or_after(
    database: Database,
    inventory: InventoryFixture,
    name: str,
    before: Snapshot,
    call: Callable[[], object],
) -> None:
    check_invariants(database)
    after = _snapshot(database)
    if name in STARTS and after != before:
        loads = len(after["load"]) - len(before["load"])
        assert len(after["attempt"] - before["attempt"]) + loads == 1
    unowned = {token for (token,) in query(database, _OWNED)} - {
        attempt.token for attempt in inventory.held
    }
    assert not unowned, "an attempt without an owner keeps its batch"
    call()
    if name not in STARTS:
        assert after in (before, _snapshot(database))
