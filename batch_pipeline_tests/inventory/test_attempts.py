"""Attempts: claims, leases, liveness, fencing; publishing and failing, once and in commit order."""

import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch, BatchState
from batch_pipeline.model.errors import ConflictError, FencedError
from batch_pipeline.model.manifest import Manifest
from batch_pipeline_tests.concurrency import eventually, python, said, together
from batch_pipeline_tests.factories import encoded, stream
from batch_pipeline_tests.seeds import (
    CLAIM_AND_WAIT,
    claimed,
    everything,
    execute,
    expire,
    planned,
    publish,
    query,
    somebody_waits,
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


@pytest.mark.guarantee("G5")
def test_publish_twice_gives_the_same_manifest(database: Database, one: Batch) -> None:
    """Expect the second call to change nothing, also with other files in its hands."""
    with claimed(database, one) as attempt:
        first = database.attempts.publish(attempt, encoded(), stream())
        before = everything(database)
        assert database.attempts.publish(attempt, encoded("other"), stream()) == first
        assert everything(database) == before


def test_publish_of_a_second_attempt_counts_the_generation_up(
    database: Database, one: Batch
) -> None:
    """Expect generations 1 and 2 for one batch and 1 for another."""
    other = planned(database, 2)[0]
    generations = [publish(database, one).generation for one in (one, one, other)]
    assert generations == [1, 2, 1]


def test_publish_numbers_of_concurrent_attempts_follow_their_commits(database: Database) -> None:
    """Expect numbers 1..6 without gaps, in the order in which the attempts ended."""
    calls: list[Callable[[], Manifest]] = [
        partial(publish, database, one) for one in planned(database, 6)
    ]
    assert all(isinstance(result, Manifest) for result in together(*calls))
    numbers = query(
        database, "SELECT publish_number FROM batch_pipeline.attempt ORDER BY finished_at"
    )
    assert numbers == [(number,) for number in range(1, 7)]


def test_publish_behind_an_open_publish_waits_for_its_end(
    database: Database, rival: Database, one: Batch
) -> None:
    """Expect a number to be given only when nobody can still commit a smaller one."""

    def hold() -> None:
        with rival.engine.connect() as connection:
            count = "UPDATE batch_pipeline.job SET publish_count = publish_count + 1"
            connection.execute(sa.text(count))
            counted.append(True)
            eventually(lambda: somebody_waits(database))
            assert statuses(database) == ["running"]
            connection.rollback()

    def wait() -> None:
        with claimed(database, one) as attempt:
            eventually(lambda: bool(counted))
            database.attempts.publish(attempt, encoded(), stream())

    counted: list[bool] = []
    assert together(hold, wait) == [None, None]
    assert query(database, "SELECT publish_number FROM batch_pipeline.attempt") == [(1,)]


def test_fail_closes_the_attempt_with_its_reason(database: Database, one: Batch) -> None:
    """Expect status, reason and time to be kept, and the next attempt to be number 2."""
    with claimed(database, one) as attempt:
        assert database.attempts.fail(attempt, "line 3 is broken", AttemptStatus.FAILED) is True
    status = database.batches.statuses("orders")[0]
    assert (status.state, status.error) == (BatchState.FAILED, "line 3 is broken")
    assert status.finished_at is not None
    assert publish(database, one).attempt == 2


def test_fail_cancelled_leaves_the_batch_cancelled(database: Database, one: Batch) -> None:
    """Expect a cancelled attempt to be told apart from a failed one."""
    with claimed(database, one) as attempt:
        assert database.attempts.fail(attempt, "cancelled", AttemptStatus.CANCELLED) is True
    assert statuses(database) == ["cancelled"]
    assert database.batches.statuses("orders")[0].state is BatchState.CANCELLED


def test_fail_after_publish_says_that_it_is_published(database: Database, one: Batch) -> None:
    """Expect a published attempt to stay so."""
    with claimed(database, one) as attempt:
        database.attempts.publish(attempt, encoded(), stream())
        assert database.attempts.fail(attempt, "too late", AttemptStatus.FAILED) is False
    assert statuses(database) == ["succeeded"]


@pytest.mark.guarantee("G4")
def test_publish_after_fail_is_fenced(database: Database, one: Batch) -> None:
    """Expect a closed attempt to publish nothing."""
    with claimed(database, one) as attempt:
        database.attempts.fail(attempt, "broken", AttemptStatus.FAILED)
        with pytest.raises(FencedError):
            database.attempts.publish(attempt, encoded(), stream())
    assert statuses(database) == ["failed"]


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("x" * 5_000, "x" * 4_000),
        ("a\0b", "a\\x00b"),
        ("orders-\udcff.csv", "orders-\\udcff.csv"),
    ],
)
def test_fail_with_text_that_postgres_refuses_keeps_what_can_be_kept(
    database: Database, one: Batch, error: str, kept: str
) -> None:
    """Expect long reasons to be cut, and NUL and lone surrogates to be spelled out."""
    with claimed(database, one) as attempt:
        assert database.attempts.fail(attempt, error, AttemptStatus.FAILED) is True
    assert database.batches.statuses("orders")[0].error == kept


def test_batch_with_a_failed_later_attempt_stays_published(database: Database, one: Batch) -> None:
    """Expect the newest generation to count, with the later attempt's error beside it."""
    publish(database, one)
    with claimed(database, one) as attempt:
        database.attempts.fail(attempt, "broken", AttemptStatus.FAILED)
    status = database.batches.statuses("orders")[0]
    assert (status.state, status.generation, status.attempts, status.error) == (
        BatchState.PUBLISHED,
        1,
        2,
        "broken",
    )
