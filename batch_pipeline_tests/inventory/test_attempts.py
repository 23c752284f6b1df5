"""Attempts: claims, leases, liveness, fencing, publishing and failing."""

import signal
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch, BatchState
from batch_pipeline.model.errors import ConflictError, FencedError
from batch_pipeline_tests.concurrency import eventually, next_line, python, together
from batch_pipeline_tests.factories import encoded, stream
from batch_pipeline_tests.seeds import (
    CLAIM_AND_WAIT,
    claimed,
    everything,
    execute,
    expire,
    has_lock_waiters,
    limit_lock_waits,
    publish,
    query,
    statuses,
)

INSERT_ATTEMPT = """
INSERT INTO batch_pipeline.attempt
       (batch_id, number, token, liveness_key, status, run_id, lease_until)
VALUES (:batch_id, 7, :token, :key, 'running', 'run-0', clock_timestamp() + interval '1 hour')
"""
SET_RUNNING = """
UPDATE batch_pipeline.batch_state SET state = 'running', attempts = 7 WHERE batch_id = :batch_id
"""
LIVENESS_LOCKS = """
SELECT pid FROM pg_locks JOIN batch_pipeline.attempt ON locktype = 'advisory' AND objsubid = 1
   AND classid::bigint << 32 | objid::bigint = liveness_key
 WHERE token = :token
"""


def _liveness_lock_pid(database: Database, attempt: Attempt) -> int | None:
    """Return the server process that holds the liveness lock of an attempt."""
    rows = query(database, LIVENESS_LOCKS, token=attempt.token)
    return rows[0][0] if rows else None


def _renewal(database: Database, attempt: Attempt) -> tuple[datetime, datetime]:
    times = "SELECT renewed_at, lease_until FROM batch_pipeline.attempt WHERE token = :token"
    [(renewed_at, lease_until)] = query(database, times, token=attempt.token)
    return renewed_at, lease_until


def test_claim_planned_batch_starts_attempt_one(database: Database, one: Batch) -> None:
    with claimed(database, one) as attempt:
        assert (attempt.number, attempt.batch) == (1, one)
        token = attempt.token.hex[:8]
        assert attempt.stem == f"orders-00000001-00000003-a1-{token}"
        lease = query(database, "SELECT lease_until - started_at FROM batch_pipeline.attempt")
        assert timedelta(minutes=5) <= lease[0][0] < timedelta(minutes=10)
        assert database.batches.statuses("orders")[0].state is BatchState.RUNNING


def test_claim_of_running_batch_raises_conflict(
    database: Database, rival: Database, one: Batch
) -> None:
    with claimed(database, one) as attempt:
        with pytest.raises(ConflictError, match="is running") as caught, claimed(rival, one):
            pass
        assert "attempt 1 of batch" in str(caught.value)
        assert "(run run-1)" in str(caught.value)
        assert database.attempts.publish(attempt, encoded(), stream()).generation == 1
    assert statuses(database) == ["succeeded"]


def test_one_of_two_concurrent_claims_wins(database: Database, rival: Database, one: Batch) -> None:
    ended: list[bool] = []

    def claim(inventory: Database) -> int:
        try:
            with claimed(inventory, one) as attempt:
                eventually(lambda: bool(ended))
                return attempt.number
        finally:
            ended.append(True)

    results = together(partial(claim, database), partial(claim, rival))
    assert sorted(type(result).__name__ for result in results) == ["ConflictError", "int"]
    assert statuses(database) == ["running"]


def test_claim_takes_over_from_killed_process_before_lease_expires(
    database: Database, database_url: str, one: Batch
) -> None:
    """Its liveness lock is free; a later publish of the killed attempt changes nothing."""
    with python(CLAIM_AND_WAIT, database_url, one.key) as child:
        attempt_id, number, token = next_line(child).split()
        zombie = Attempt(id=int(attempt_id), batch=one, number=int(number), token=UUID(token))
        with pytest.raises(ConflictError, match="is running"), claimed(database, one):
            pass
        child.send_signal(signal.SIGKILL)
        child.wait()
    eventually(lambda: _liveness_lock_pid(database, zombie) is None)
    with claimed(database, one) as attempt:
        assert attempt.number == 2
        assert statuses(database) == ["abandoned", "running"]
        before = everything(database)
        with pytest.raises(FencedError) as caught:
            database.attempts.publish(zombie, encoded("zombie"), stream())
        fenced = caught.value
        assert (fenced.stream, fenced.key, fenced.number) == ("orders", one.key, 1)
        assert everything(database) == before
        assert database.attempts.publish(attempt, encoded(), stream()).attempt == 2


def test_claim_takes_over_expired_lease_of_live_process(
    database: Database, rival: Database, one: Batch
) -> None:
    """The previous attempt is fenced."""
    with claimed(database, one) as stuck:
        expire(database, stuck)
        assert _liveness_lock_pid(database, stuck) is not None
        with claimed(rival, one) as attempt:
            assert attempt.number == 2
            with pytest.raises(FencedError):
                database.attempts.publish(stuck, encoded("stuck"), stream())
            assert database.attempts.fail(stuck, "too late", AttemptStatus.FAILED) is True
            assert statuses(database) == ["abandoned", "running"]


def test_heartbeat_reconnects_after_connection_is_cut(database: Database, one: Batch) -> None:
    with claimed(database, one, lease=timedelta(seconds=0.6)) as attempt:
        first = _liveness_lock_pid(database, attempt)
        query(database, "SELECT pg_terminate_backend(:pid)", pid=first)
        eventually(lambda: _liveness_lock_pid(database, attempt) not in {None, first})
        renewed_at, lease_until = _renewal(database, attempt)
        eventually(lambda: _renewal(database, attempt)[0] > renewed_at)
        assert _renewal(database, attempt)[1] > lease_until
        assert database.attempts.publish(attempt, encoded(), stream()).generation == 1


def test_leases_are_renewed_while_lost_session_holds_the_liveness_lock(
    database: Database, rival: Database, one: Batch
) -> None:
    """The server notices the loss of a client much later if the network failed."""
    key = database.heartbeat.liveness_key
    limit_lock_waits(database.engine, 100)
    with rival.engine.connect() as lost:
        lost.execute(sa.select(sa.func.pg_advisory_lock(key)))
        with claimed(database, one, lease=timedelta(minutes=5)) as attempt:
            assert rival.attempts.close_dead("orders") == 0
            renewed_at, _ = _renewal(database, attempt)
            lost.execute(sa.select(sa.func.pg_advisory_unlock(key)))
            database.heartbeat.expire_unconfirmed(UUID("f" * 32))
            assert _renewal(database, attempt)[0] > renewed_at
            assert _liveness_lock_pid(database, attempt) is not None
            assert database.attempts.publish(attempt, encoded(), stream()).generation == 1


def test_heartbeat_that_waits_too_long_for_a_lock_keeps_its_liveness_lock(
    database: Database, rival: Database, one: Batch
) -> None:
    with claimed(database, one, lease=timedelta(minutes=5)) as attempt:
        first = _liveness_lock_pid(database, attempt)
        database.heartbeat.take_lock().execute(sa.text("SET lock_timeout = '100ms'"))
        with rival.engine.begin() as other_session:
            other_session.execute(sa.text("LOCK batch_pipeline.attempt IN EXCLUSIVE MODE"))
            database.heartbeat.expire_unconfirmed(UUID("f" * 32))
        assert _liveness_lock_pid(database, attempt) == first
        renewed_at, _ = _renewal(database, attempt)
        database.heartbeat.expire_unconfirmed(UUID("f" * 32))
        assert _renewal(database, attempt)[0] > renewed_at


def test_liveness_lock_is_released_when_inventory_closes(
    database: Database, rival: Database, one: Batch
) -> None:
    """One lock covers all attempts of a process."""
    with claimed(rival, one) as attempt:
        assert _liveness_lock_pid(database, attempt) is not None
        rival.close()
        eventually(lambda: _liveness_lock_pid(database, attempt) is None)


@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1, -(2**63), 2**32])
def test_close_dead_sees_liveness_locks_of_any_key(
    database: Database, rival: Database, one: Batch, key: int
) -> None:
    execute(database, INSERT_ATTEMPT, batch_id=one.id, token=UUID("f" * 32), key=key)
    execute(database, SET_RUNNING, batch_id=one.id)
    with rival.engine.connect() as connection:
        connection.execute(sa.select(sa.func.pg_advisory_lock(key)))
        assert database.attempts.close_dead("orders") == 0
        connection.execute(sa.select(sa.func.pg_advisory_unlock(key)))
        assert database.attempts.close_dead("clicks") == 0
        assert database.attempts.close_dead("orders") == 1
    assert statuses(database) == ["abandoned"]


def test_close_dead_after_server_restart_relies_on_lease(database: Database, one: Batch) -> None:
    """An attempt last renewed before the server started has no lock but keeps its lease."""
    token = UUID("f" * 32)
    execute(database, INSERT_ATTEMPT, batch_id=one.id, token=token, key=17)
    execute(database, SET_RUNNING, batch_id=one.id)
    execute(
        database,
        "UPDATE batch_pipeline.attempt "
        "SET renewed_at = pg_postmaster_start_time() - interval '1 second'",
    )
    assert database.attempts.close_dead("orders") == 0
    execute(database, "UPDATE batch_pipeline.attempt SET lease_until = now() - interval '1 second'")
    assert database.attempts.close_dead("orders") == 1


def test_second_running_attempt_is_rejected_by_database(database: Database, one: Batch) -> None:
    token = UUID("f" * 32)
    violation = pytest.raises(sa.exc.IntegrityError, match="attempt_one_running_per_batch")
    with claimed(database, one), violation:
        execute(database, INSERT_ATTEMPT, batch_id=one.id, token=token, key=1)


@pytest.mark.guarantee("G5")
def test_publish_twice_returns_same_manifest(database: Database, one: Batch) -> None:
    """Even if the second call passes other files.

    An expired lease fences nothing, and a late failure changes nothing.
    """
    with claimed(database, one) as attempt:
        expire(database, attempt)
        first = database.attempts.publish(attempt, encoded(), stream())
        assert first.generation == 1
        before = everything(database)
        assert database.attempts.publish(attempt, encoded("other"), stream()) == first
        assert database.attempts.fail(attempt, "too late", AttemptStatus.FAILED) is False
        assert everything(database) == before


def test_publish_waits_for_open_publish(database: Database, rival: Database, one: Batch) -> None:
    """A publish number is assigned only when no smaller one can still commit."""

    def hold() -> None:
        with rival.engine.connect() as connection:
            count = "UPDATE batch_pipeline.job SET publish_count = publish_count + 1"
            connection.execute(sa.text(count))
            counted.append(True)
            eventually(lambda: has_lock_waiters(database))
            assert statuses(database) == ["running"]
            connection.rollback()

    def wait() -> None:
        with claimed(database, one) as attempt:
            eventually(lambda: bool(counted))
            database.attempts.publish(attempt, encoded(), stream())

    counted: list[bool] = []
    assert together(hold, wait) == [None, None]
    assert query(database, "SELECT publish_number FROM batch_pipeline.attempt") == [(1,)]


@pytest.mark.guarantee("G4")
def test_publish_after_fail_is_fenced(database: Database, one: Batch) -> None:
    with claimed(database, one) as attempt:
        database.attempts.fail(attempt, "broken", AttemptStatus.FAILED)
        with pytest.raises(FencedError):
            database.attempts.publish(attempt, encoded(), stream())
    assert statuses(database) == ["failed"]


def test_fail_stores_reason_as_postgres_can_store_it(database: Database, one: Batch) -> None:
    """Long reasons are truncated; NUL and lone surrogates are escaped."""
    for error, stored, state in (
        ("x" * 5_000, "x" * 4_000, BatchState.FAILED),
        ("a\0b", "a\\x00b", BatchState.FAILED),
        ("orders-\udcff.csv", "orders-\\udcff.csv", BatchState.DEAD),
    ):
        with claimed(database, one) as attempt:
            assert database.attempts.fail(attempt, error, AttemptStatus.FAILED) is True
        [status] = database.batches.statuses("orders")
        assert (status.state, status.error) == (state, stored)
        assert status.finished_at is not None
    assert publish(database, one).attempt == 4
