"""Attempts on Postgres: claims, leases, liveness, fencing, and what kills and races leave."""

import signal
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch, BatchState
from batch_pipeline.model.errors import ConflictError, FencedError
from batch_pipeline_tests.concurrency import eventually, python, run_python, said, together
from batch_pipeline_tests.factories import encoded, stream
from batch_pipeline_tests.seeds import (
    CLAIM_AND_PUBLISH,
    CLAIM_AND_WAIT,
    claimed,
    everything,
    execute,
    expire,
    publish,
    query,
    statuses,
)

INSERT_ATTEMPT = """
INSERT INTO batch_pipeline.attempt
       (batch_id, number, token, liveness_key, status, run_id, lease_until)
VALUES (:batch_id, 7, :token, :key, 'running', 'run-0', clock_timestamp() + interval '1 hour')
"""
RUNNING = """
UPDATE batch_pipeline.batch_state SET state = 'running', attempts = 7 WHERE batch_id = :batch_id
"""
HOLDERS = """
SELECT pid FROM pg_locks JOIN batch_pipeline.attempt ON locktype = 'advisory' AND objsubid = 1
   AND classid::bigint << 32 | objid::bigint = liveness_key
 WHERE token = :token
"""


def _holder(database: Database, attempt: Attempt) -> int | None:
    """Give the server process that holds the liveness lock of an attempt."""
    rows = query(database, HOLDERS, token=attempt.token)
    return rows[0][0] if rows else None


def _renewal(database: Database, attempt: Attempt) -> tuple[datetime, datetime]:
    rows = query(
        database,
        "SELECT renewed_at, lease_until FROM batch_pipeline.attempt WHERE token = :token",
        token=attempt.token,
    )
    return rows[0][0], rows[0][1]


def test_claim_of_a_planned_batch_starts_attempt_one(database: Database, one: Batch) -> None:
    """Expect number 1, a lease of five minutes by the database clock and a name stem."""
    with claimed(database, one) as attempt:
        assert (attempt.number, attempt.batch) == (1, one)
        token = attempt.token.hex[:8]
        assert attempt.stem == f"orders-00000001-00000003-a1-{token}"
        lease = query(database, "SELECT lease_until - started_at FROM batch_pipeline.attempt")
        assert timedelta(minutes=5) <= lease[0][0] < timedelta(minutes=10)
        assert database.batches.statuses("orders")[0].state is BatchState.RUNNING


def test_claim_beside_a_live_attempt_is_refused(
    database: Database, rival: Database, one: Batch
) -> None:
    """Expect the second claim to name the first, and to leave it alone."""
    with claimed(database, one) as attempt:
        with pytest.raises(ConflictError, match="is running") as caught, claimed(rival, one):
            pass
        assert "attempt 1 of batch" in str(caught.value)
        assert "(run run-1)" in str(caught.value)
        assert database.attempts.publish(attempt, encoded(), stream()).generation == 1
    assert statuses(database) == ["succeeded"]


def test_claim_by_two_at_once_is_won_by_one(
    database: Database, rival: Database, one: Batch
) -> None:
    """Expect exactly one of two claims that start together to get the batch."""
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


def test_claim_after_a_killed_process_takes_over_without_waiting_for_the_lease(
    database: Database, database_url: str, one: Batch
) -> None:
    """Expect the liveness lock to give the batch free, and the zombie's publish to do nothing."""
    with python(CLAIM_AND_WAIT, database_url, one.key) as child:
        attempt_id, number, token = said(child).split()
        zombie = Attempt(id=int(attempt_id), batch=one, number=int(number), token=UUID(token))
        with pytest.raises(ConflictError, match="is running"), claimed(database, one):
            pass
        child.send_signal(signal.SIGKILL)
        child.wait()
    eventually(lambda: _holder(database, zombie) is None)
    with claimed(database, one) as attempt:
        assert attempt.number == 2
        assert statuses(database) == ["abandoned", "running"]
        before = everything(database)
        with pytest.raises(FencedError) as caught:
            database.attempts.publish(zombie, encoded("zombie"), stream())
        assert (caught.value.stream, caught.value.key, caught.value.number) == (
            "orders",
            one.key,
            1,
        )
        assert everything(database) == before
        assert database.attempts.publish(attempt, encoded(), stream()).attempt == 2


def test_claim_after_an_expired_lease_takes_over_though_the_process_lives(
    database: Database, rival: Database, one: Batch
) -> None:
    """Expect a lease that ran out to suffice, and its holder to be fenced from then on."""
    with claimed(database, one) as stuck:
        expire(database, stuck)
        assert _holder(database, stuck) is not None
        with claimed(rival, one) as attempt:
            assert attempt.number == 2
            with pytest.raises(FencedError):
                database.attempts.publish(stuck, encoded("stuck"), stream())
            assert database.attempts.fail(stuck, "too late", AttemptStatus.FAILED) is True
            assert statuses(database) == ["abandoned", "running"]


def test_publish_with_an_expired_lease_counts_while_nobody_took_over(
    database: Database, one: Batch
) -> None:
    """Expect only a newer claim, not the clock, to fence an attempt."""
    with claimed(database, one) as attempt:
        expire(database, attempt)
        assert database.attempts.publish(attempt, encoded(), stream()).generation == 1


def test_claim_left_open_by_its_block_is_taken_over(database: Database, one: Batch) -> None:
    """Expect a block that exited without reporting to count as a process that is gone."""
    with claimed(database, one):
        pass
    with claimed(database, one) as second:
        assert second.number == 2
        assert statuses(database) == ["abandoned", "running"]


@pytest.mark.parametrize(
    ("failpoint", "left"),
    [("claim.before_commit", []), ("claim.after_commit", ["running"])],
)
def test_claim_killed_around_its_commit_blocks_nobody(
    database: Database, database_url: str, one: Batch, failpoint: str, left: list[str]
) -> None:
    """Expect the next claim to succeed at once, wherever the first one died."""
    killed = run_python(CLAIM_AND_PUBLISH, database_url, one.key, failpoints=f"{failpoint}=kill")
    assert killed == -signal.SIGKILL
    assert statuses(database) == left
    eventually(lambda: database.attempts.close_dead("orders") == len(left))
    assert publish(database, one).attempt == len(left) + 1


def test_heartbeat_renews_the_lease(database: Database, one: Batch) -> None:
    """Expect a lease of 0.6 s to be moved on while the block lasts."""
    with claimed(database, one, lease=timedelta(seconds=0.6)) as attempt:
        renewed_at, lease_until = _renewal(database, attempt)
        eventually(lambda: _renewal(database, attempt)[0] > renewed_at)
        assert _renewal(database, attempt)[1] > lease_until


def test_heartbeat_whose_connection_is_cut_takes_a_new_one(database: Database, one: Batch) -> None:
    """Expect lock and renewals to be back after the server ended the session."""
    with claimed(database, one, lease=timedelta(seconds=0.6)) as attempt:
        first = _holder(database, attempt)
        query(database, "SELECT pg_terminate_backend(:pid)", pid=first)
        eventually(lambda: _holder(database, attempt) not in {None, first})
        renewed_at, _ = _renewal(database, attempt)
        eventually(lambda: _renewal(database, attempt)[0] > renewed_at)
        assert database.attempts.publish(attempt, encoded(), stream()).generation == 1


def test_liveness_lock_ends_with_its_inventory(
    database: Database, rival: Database, one: Batch
) -> None:
    """Expect one lock for all attempts of a process, dropped when it closes the inventory."""
    with claimed(rival, one) as attempt:
        assert _holder(database, attempt) is not None
        rival.close()
        eventually(lambda: _holder(database, attempt) is None)


@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1, -(2**63), 2**32])
def test_close_dead_sees_liveness_locks_of_any_key(
    database: Database, rival: Database, one: Batch, key: int
) -> None:
    """Expect keys that are zero, negative and largest to be found while held, and only then."""
    execute(database, INSERT_ATTEMPT, batch_id=one.id, token=UUID("f" * 32), key=key)
    execute(database, RUNNING, batch_id=one.id)
    with rival.engine.connect() as connection:
        connection.execute(sa.select(sa.func.pg_advisory_lock(key)))
        assert database.attempts.close_dead("orders") == 0
        connection.execute(sa.select(sa.func.pg_advisory_unlock(key)))
        assert database.attempts.close_dead("clicks") == 0
        assert database.attempts.close_dead("orders") == 1
    assert statuses(database) == ["abandoned"]


def test_close_dead_after_a_server_restart_trusts_the_lease_until_a_renewal(
    database: Database, one: Batch
) -> None:
    """Expect an attempt last renewed before the server started to keep its lease without a lock."""
    token = UUID("f" * 32)
    execute(database, INSERT_ATTEMPT, batch_id=one.id, token=token, key=17)
    execute(database, RUNNING, batch_id=one.id)
    execute(
        database,
        "UPDATE batch_pipeline.attempt "
        "SET renewed_at = pg_postmaster_start_time() - interval '1 second'",
    )
    assert database.attempts.close_dead("orders") == 0
    execute(database, "UPDATE batch_pipeline.attempt SET lease_until = now() - interval '1 second'")
    assert database.attempts.close_dead("orders") == 1


def test_second_running_attempt_of_a_batch_is_refused_by_the_database(
    database: Database, one: Batch
) -> None:
    """Expect the partial unique index to hold whatever the code does."""
    token = UUID("f" * 32)
    refused = pytest.raises(sa.exc.IntegrityError, match="attempt_one_running_per_batch")
    with claimed(database, one), refused:
        execute(database, INSERT_ATTEMPT, batch_id=one.id, token=token, key=1)
