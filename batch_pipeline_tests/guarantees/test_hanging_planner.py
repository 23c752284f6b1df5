"""A planner that hangs in the middle of its transaction makes no other session wait (G12).

The planner is a process of its own, stopped by SIGSTOP. Sessions that write to the meta table wait
for no lock at all; other planners get an error that names its session.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.connection import LockClass
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.model.errors import RetryableError
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline_tests.concurrency import eventually, python
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.operations_fixture import InventoryFixture
from batch_pipeline_tests.inventory.test_acquire import ALL, WORKER
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import query

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
FAR_ABOVE = 1_000_000  # ids that no other part of the test uses
HANGING = """
SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE a.datname = current_database() AND a.state = 'idle in transaction'
   AND clock_timestamp() - a.state_change > interval '0.2 s'
   AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid::bigint = :planning
"""
ON_META_TABLE = "SELECT FROM pg_locks WHERE relation = 'public.files'::regclass"


@pytest.fixture
def stage(database: Database, database_url: str) -> Iterator[InventoryFixture]:
    """A stream and a user's table, with rows to plan in each and an attempt running in each."""
    with closing(InventoryFixture(open_database(database_url, migrated=None))) as stage:
        stage.insert_rows(2)
        stage.acquire(ALL)
        stage.claim(stage.plan_batch())
        stage.insert_rows(3)
        stage.register()
        yield stage


def hanging(database: Database) -> list[int]:
    """Return the sessions that hold a planning lock and do nothing."""
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


def write(url: str, stage: InventoryFixture, first_id: int, times: int) -> list[float]:
    """Insert rows and register files; return the seconds of each insert.

    Nobody else writes, so a statement that has to wait for a lock at all waits for the planner.
    """
    seconds = []
    with psycopg.connect(url, autocommit=True) as writer:
        writer.execute("SET lock_timeout = '1ms'")
        for uid in range(first_id, first_id + times):
            began = time.monotonic()
            writer.execute(INSERT, [uid])
            seconds.append(time.monotonic() - began)
    for _ in range(3):
        stage.register()
    return seconds


@contextmanager
def rival(url: str, milliseconds: int) -> Iterator[InventoryFixture]:
    """Open the inventory again, with a limit on waiting for locks."""

    def limit(raw: Any, _record: object) -> None:
        raw.execute(f"SET lock_timeout = '{milliseconds}ms'")
        raw.commit()

    with closing(InventoryFixture(open_database(url, migrated=None))) as stage:
        sa.event.listen(stage.database.engine, "connect", limit)
        stage.database.engine.dispose()
        yield stage


def refused(stage: InventoryFixture, name: str, pid: int) -> int:
    """Try to plan beside the stopped planner, in each way; return how often it was named."""
    # The second acquisition of a job runs inside of the server.
    ways = [stage.plan_call()] if name == "planning" else [stage.acquire, stage.acquire]
    for way in ways:
        with pytest.raises(RetryableError, match="Another session holds a lock") as caught:
            way()
        message = str(caught.value)
        assert f"blocked by: pid {pid} (batch-pipeline, in a transaction for " in message
        assert "Nothing was changed." in message
    return len(ways)


def slowest(seconds: Sequence[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return 1_000 * sorted(seconds)[len(seconds) * 99 // 100]


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("name", PLANNERS)
def test_planner_that_hangs_makes_no_writer_wait_and_is_named_to_other_planners(
    database: Database,
    database_url: str,
    stage: InventoryFixture,
    name: str,
    figures: Figures,
    monkeypatch: pytest.MonkeyPatch,
    *,
    long_form: bool,
) -> None:
    """In the long form the planner is not killed: the server ends its session after a minute."""
    times = 5_000 if long_form else 100
    alone = write(database_url, stage, FAR_ABOVE, times)
    with stopped(database, database_url, name, monkeypatch) as pid:
        beside = write(database_url, stage, FAR_ABOVE + times, times)
        assert query(database, ON_META_TABLE) == []
        in_table, in_stream = stage.held
        assert stage.succeed(in_table) == 1
        assert stage.publish(in_stream)
        with rival(database_url, 5_000 if long_form else 50) as other:
            refusals = refused(other, name, pid)
        assert hanging(database) == [pid]
        began = time.monotonic()
        if long_form:
            eventually(lambda: not hanging(database))
            figures(seconds_until_the_server_ends_it=time.monotonic() - began)
    eventually(lambda: not hanging(database))
    stage.finish()
    check_invariants(database)
    figures(
        inserts_beside=len(beside),
        waits=0,
        planners_told=refusals,
        ms_p99_of_inserts_alone=slowest(alone),
        ms_p99_of_inserts_beside=slowest(beside),
    )
