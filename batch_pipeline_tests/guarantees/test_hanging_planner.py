"""A planner that hangs inside its transaction blocks no writer (G12).

The planner is a separate process, stopped by SIGSTOP. Sessions that write to the meta table wait
for no lock. Other planners get an error that names the session of the stopped one.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import psycopg
import pytest

from batch_pipeline.inventory.connection import LockClass
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.model.errors import RetryableError
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline_tests.concurrency import eventually, python
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.operations_fixture import InventoryFixture
from batch_pipeline_tests.inventory.test_acquire import ALL, WORKER
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import limit_lock_waits, query

PLAN = """
import sys
from batch_pipeline.model.planning import Limits
from batch_pipeline.inventory.database import open_database
database = open_database(sys.argv[1], migrated=None)
database.batches.plan(
    database.meta_table("orders"), Limits(max_weight=60, max_count=10), drain=True
)
"""
PLANNERS = {
    "acquiring": (WORKER, ("client", "1"), "acquire.before_commit"),
    "planning": (PLAN, (), "plan.before_commit"),
}
INSERT = "INSERT INTO public.files (id, item, weight) VALUES (%s, 'file', 1)"
FAR_ABOVE = 1_000_000  # ids that nothing else in the test uses
HANGING = """
SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE a.datname = current_database() AND a.state = 'idle in transaction'
   AND clock_timestamp() - a.state_change > interval '0.2 s'
   AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid::bigint = :planning
"""
ON_META_TABLE = "SELECT FROM pg_locks WHERE relation = 'public.files'::regclass"


@pytest.fixture
def inventory(database: Database, database_url: str) -> Iterator[InventoryFixture]:
    """A stream and a user's table, each with rows to plan and a running attempt."""
    with closing(InventoryFixture(open_database(database_url, migrated=None))) as inventory:
        inventory.insert_rows(2)
        inventory.acquire(ALL)
        inventory.claim(inventory.plan_batch())
        inventory.insert_rows(3)
        inventory.register()
        yield inventory


def hanging(database: Database) -> list[int]:
    """Return the pids of idle sessions that hold a planning lock."""
    return [pid for (pid,) in query(database, HANGING, planning=int(LockClass.PLAN))]


@contextmanager
def stopped(
    database: Database, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    """Stop a planner right before its commit, yield the pid of its session, and kill it."""
    script, arguments, point = PLANNERS[name]
    monkeypatch.setenv(VARIABLE, f"{point}=sleep:3600")
    with python(script, url, *arguments) as child:
        monkeypatch.delenv(VARIABLE)
        eventually(lambda: bool(hanging(database)))
        os.kill(child.pid, signal.SIGSTOP)
        [pid] = hanging(database)
        yield pid


def write(url: str, inventory: InventoryFixture, first_id: int, times: int) -> list[float]:
    """Insert rows and register files; return the seconds of each insert.

    There is no other writer, so any wait for a lock is a wait for the planner.
    """
    seconds = []
    with psycopg.connect(url, autocommit=True) as writer:
        writer.execute("SET lock_timeout = '1ms'")
        for uid in range(first_id, first_id + times):
            began = time.monotonic()
            writer.execute(INSERT, [uid])
            seconds.append(time.monotonic() - began)
    for _ in range(3):
        inventory.register()
    return seconds


@contextmanager
def other_session(url: str, milliseconds: int) -> Iterator[InventoryFixture]:
    """Open the inventory again, with a limit on waiting for locks."""
    with closing(InventoryFixture(open_database(url, migrated=None))) as inventory:
        limit_lock_waits(inventory.database.engine, milliseconds)
        yield inventory


def count_refusals(inventory: InventoryFixture, name: str, pid: int) -> int:
    """Try to plan while the planner is stopped, and return the number of errors that name it."""
    # The second acquisition of a job runs inside of the server.
    operations = (
        [inventory.plan_call()] if name == "planning" else [inventory.acquire, inventory.acquire]
    )
    for operation in operations:
        with pytest.raises(RetryableError, match="Another session holds a lock") as caught:
            operation()
        message = str(caught.value)
        assert f"blocked by: pid {pid} (batch-pipeline, in a transaction for " in message
        assert "Nothing was changed." in message
    return len(operations)


def p99_milliseconds(seconds: Sequence[float]) -> float:
    """Return the 99th percentile of some seconds in milliseconds."""
    return 1_000 * sorted(seconds)[len(seconds) * 99 // 100]


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("name", PLANNERS)
def test_hanging_planner_blocks_no_writer_and_is_named_in_errors(
    database: Database,
    database_url: str,
    inventory: InventoryFixture,
    name: str,
    figures: Figures,
    monkeypatch: pytest.MonkeyPatch,
    *,
    long_form: bool,
) -> None:
    """In the long form, the server ends the session of the planner after a minute."""
    times = 5_000 if long_form else 100
    without_planner = write(database_url, inventory, FAR_ABOVE, times)
    with stopped(database, database_url, name, monkeypatch) as pid:
        with_planner = write(database_url, inventory, FAR_ABOVE + times, times)
        assert query(database, ON_META_TABLE) == []
        in_table, in_stream = inventory.held
        assert inventory.succeed(in_table) == 1
        assert inventory.publish(in_stream)
        with other_session(database_url, 5_000 if long_form else 50) as other_stage:
            refusals = count_refusals(other_stage, name, pid)
        assert hanging(database) == [pid]
        began = time.monotonic()
        if long_form:
            eventually(lambda: not hanging(database))
            figures(seconds_until_server_ends_session=time.monotonic() - began)
    eventually(lambda: not hanging(database))
    inventory.finish()
    check_invariants(database)
    figures(
        inserts=len(with_planner),
        waits=0,
        planners_refused=refusals,
        p99_ms_without_planner=p99_milliseconds(without_planner),
        p99_ms_with_planner=p99_milliseconds(with_planner),
    )
