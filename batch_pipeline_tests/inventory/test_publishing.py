"""Publishing and failing on Postgres: all or nothing, once, in commit order."""

import signal
from collections.abc import Callable
from functools import partial

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import AttemptStatus, Batch, BatchState
from batch_pipeline.model.errors import FencedError
from batch_pipeline.model.manifest import Manifest
from batch_pipeline_tests.concurrency import eventually, run_python, together
from batch_pipeline_tests.factories import encoded, stream
from batch_pipeline_tests.seeds import (
    CLAIM_AND_PUBLISH,
    claimed,
    everything,
    planned,
    publish,
    query,
    somebody_waits,
    statuses,
)


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


@pytest.mark.parametrize(
    ("failpoint", "published"), [("publish.before_commit", 0), ("publish.after_commit", 1)]
)
def test_publish_killed_around_its_commit_is_all_or_nothing(
    database: Database, database_url: str, one: Batch, failpoint: str, published: int
) -> None:
    """Expect no trace before the commit and the whole manifest after it, and no number burnt."""
    killed = run_python(CLAIM_AND_PUBLISH, database_url, one.key, failpoints=f"{failpoint}=kill")
    assert killed == -signal.SIGKILL
    rows = query(database, "SELECT FROM batch_pipeline.part_file, batch_pipeline.attempt_item")
    assert len(rows) == published
    eventually(lambda: database.attempts.close_dead("orders") == 1 - published)
    again = publish(database, one)
    assert (again.attempt, again.generation) == (2, published + 1)
    numbers = query(database, "SELECT publish_number FROM batch_pipeline.attempt ORDER BY id")
    assert numbers == ([(1,), (2,)] if published else [(None,), (1,)])


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
