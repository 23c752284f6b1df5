"""What an audit looks at, and what it leaves to others."""

from datetime import timedelta

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory import late_arrivals
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.planning import split_batch
from batch_pipeline.model.audit import Audit
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.filter import Condition, Operator
from batch_pipeline.model.id_range import MIN_ID, IdRange
from batch_pipeline.model.job import JobKind
from batch_pipeline_tests.inventory.audit_fixture import Feed, lists, taken_even_ids
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import FILES, insert
from batch_pipeline_tests.seeds import claimed, query
from batch_pipeline_tests.seeds import execute as change


@pytest.fixture
def feed(database: Database, files: ReflectedMetaTable) -> Feed:
    """A job that has taken the even ids from 2 to 18 of a Postgres table, three a batch."""
    return taken_even_ids(Feed(database, files))


def test_batches_that_are_not_published_are_not_audited(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect rows that come while a batch waits or runs to be late once it is published."""
    feed = Feed(database, files)
    insert(files, dict.fromkeys((2, 4, 6, 8, 10, 12), 10))
    failed, running = feed.acquire(), feed.acquire()
    assert failed is not None
    assert running is not None
    database.attempts.fail(failed, "bad", AttemptStatus.FAILED)
    insert(files, {3: 10, 9: 10})
    assert feed.audit() == Audit(job="job", late_job="job.late")
    assert feed.succeed(running) == [8, 10, 12]
    assert feed.drain() == [[2, 4, 6]]
    assert feed.audit().late.first == (3, 9)
    assert feed.drain() == [[3, 9]]


@pytest.mark.parametrize("is_dead", [True, False])
def test_rows_in_gaps_of_a_batch_that_is_set_aside_are_late(
    database: Database, files: ReflectedMetaTable, *, is_dead: bool
) -> None:
    feed = Feed(database, files)
    insert(files, dict.fromkeys((2, 4, 6), 10))
    while is_dead and (attempt := feed.acquire()) is not None:
        database.attempts.fail(attempt, "bad", AttemptStatus.FAILED)
    if not is_dead:
        assert feed.acquire() is not None
        database.jobs.cancel("job")
    insert(files, {3: 10, 5: 10})
    assert feed.audit().late.first == (3, 5)
    assert feed.drain() == [[3, 5]]
    database.jobs.retry("job")
    assert feed.drain() == [[2, 4, 6]]
    again = feed.audit()
    assert (again.late.count, again.known) == (0, 2)
    check_invariants(database)


def test_halves_of_a_split_batch_are_audited_in_its_place(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect one late row in one of both halves."""
    feed = Feed(database, files)
    insert(files, {2: 10, 4: 10, 6: 10})
    failed = feed.acquire()
    assert failed is not None
    database.attempts.fail(failed, "bad", AttemptStatus.FAILED)
    split_batch(database.engine, failed.batch, files)
    assert feed.drain() == [[2, 4], [6]]
    insert(files, {3: 10})
    audit = feed.audit()
    assert (audit.batches, audit.late.first) == (2, (3,))
    check_invariants(database)


def test_published_batch_that_runs_again_is_left_out(feed: Feed) -> None:
    """Expect its late row to be found once it is published again, if it was not seen then."""
    insert(feed.table, {9: 10})
    with claimed(feed.database, feed.batch(8)) as attempt:
        audit = feed.audit()
        assert (audit.batches, audit.left_out, audit.late.count) == (2, 1, 0)
        feed.database.attempts.fail(attempt, "bad", AttemptStatus.FAILED)
    assert feed.audit().late.first == (9,)


def test_batch_that_starts_again_during_the_audit_is_left_to_the_next_one(feed: Feed) -> None:
    """Expect nothing to be planned of it, since the new attempt sees the row itself.

    Only batches without a record of their planned ids read rows that came later.
    """
    change(feed.database, "UPDATE batch_pipeline.batch SET id_runs = NULL")
    insert(feed.table, {9: 10})

    def run_again(*_: object) -> None:
        statements.append("on the meta table")
        # The first looks below the first batch, then the batches are read from the inventory.
        if len(statements) == 2:
            with claimed(feed.database, feed.batch(8)) as attempt:
                assert feed.succeed(attempt) == [8, 9, 10, 12]

    statements: list[str] = []
    sa.event.listen(feed.table.engine, "before_cursor_execute", run_again)
    audit = feed.audit()
    assert (audit.late.count, lists(feed.database)) == (0, [])
    assert feed.audit().is_clean


def test_batch_that_told_nothing_of_its_items_is_left_out(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect a success without reading the items to be counted apart."""
    feed = Feed(database, files)
    insert(files, {2: 10})
    attempt = feed.acquire()
    assert attempt is not None
    database.attempts.succeed(attempt, logging=None, seen=None)
    audit = feed.audit()
    assert (audit.batches, audit.left_out) == (0, 1)


def test_rows_between_windows_are_not_late(database: Database, files: ReflectedMetaTable) -> None:
    """Expect ids that no window has reached to be left to whoever asks for them."""
    feed = Feed(database, files)
    insert(files, dict.fromkeys((2, 4, 12, 14), 10))
    low, high = IdRange(first_id=2, last_id=5), IdRange(first_id=11, last_id=15)
    assert (feed.drain(low), feed.drain(high)) == ([[2, 4]], [[12, 14]])
    insert(files, dict.fromkeys((1, 7, 16), 10))
    assert feed.audit().is_clean


def test_late_rows_of_a_window_are_for_those_who_ask_within_it(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect a list for each window, though one batch could hold all."""
    feed = Feed(database, files)
    insert(files, dict.fromkeys((2, 4, 12, 14), 10))
    low, high = IdRange(first_id=2, last_id=5), IdRange(first_id=11, last_id=15)
    assert (feed.drain(low), feed.drain(high)) == ([[2, 4]], [[12, 14]])
    insert(files, {3: 10, 13: 10})
    assert feed.audit().late_batches == 2
    assert (feed.drain(high), feed.drain(low)) == ([[13]], [[3]])


def test_rows_that_the_filter_leaves_out_are_not_late(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect the late job to have the job's filter, and a row that stopped fitting to be gone."""
    where = Condition("size_in_bytes", Operator.LESS, 50)
    table = ReflectedMetaTable.open(files.engine, "ops.files", FILES, where)
    feed = Feed(database, table)
    insert(files, {2: 10, 3: 99, 4: 10, 6: 10})
    assert feed.drain() == [[2, 4, 6]]
    insert(files, {1: 99, 5: 10})
    with files.engine.begin() as connection:
        connection.execute(sa.update(files.table).values(size_in_bytes=60).where(files.uid == 4))
    audit = feed.audit()
    assert (audit.late.first, audit.missing.first) == ((5,), (4,))
    facts = query(database, "SELECT name, kind, config FROM batch_pipeline.job WHERE kind = 'late'")
    assert facts == [("job.late", JobKind.LATE, {"where": where.to_json()})]
    assert feed.drain() == [[5]]


def test_only_batches_of_the_last_days_are_audited_unless_all_are_asked_for(feed: Feed) -> None:
    """Expect a batch that was published nine days ago to be looked at on request."""
    change(
        feed.database,
        "UPDATE batch_pipeline.attempt SET finished_at = finished_at - interval '9 days' "
        "WHERE batch_id = :batch",
        batch=feed.batch(8).id,
    )
    insert(feed.table, {3: 10, 9: 10})
    audit = feed.audit()
    assert (audit.batches, audit.late.first) == (2, (3,))
    assert feed.audit(since=timedelta(days=8)).batches == 2
    audit = feed.audit(since=None)
    assert (audit.batches, audit.late.first, audit.known) == (3, (9,), 1)


def test_many_batches_are_audited_page_by_page(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect the same over pages of two batches."""
    monkeypatch.setattr(late_arrivals, "_PAGE", 2)
    insert(feed.table, {3: 10, 9: 10, 17: 10})
    audit = feed.audit()
    assert (audit.batches, audit.late.first, audit.late_batches) == (3, (3, 9, 17), 1)


def test_ids_below_a_job_that_began_with_a_window_are_not_audited(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect the lowest ids to count only for a job that looks at all of them."""
    feed = Feed(database, files)
    insert(files, {5: 10})
    assert feed.drain(IdRange(first_id=MIN_ID + 1, last_id=9)) == [[5]]
    insert(files, {-5: 10})
    assert feed.audit().late.first == (-5,)
