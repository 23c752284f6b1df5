"""Audits: what they compare, and that late rows are found and acquired exactly once."""

import signal
from datetime import timedelta

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory import late_arrivals
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.audit import Audit, CountedNames
from batch_pipeline.model.batch import MIN_ID, AttemptStatus, Batch, IdRange
from batch_pipeline.model.errors import JobChangedError, UnknownJobError
from batch_pipeline.model.filter import Condition, Operator
from batch_pipeline.model.job import JobKind
from batch_pipeline_tests.concurrency import run_python, together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.audit_fixture import (
    Feed,
    consume_even_ids,
    late_item_ids,
    row_counts,
)
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    FILES,
    delete,
    insert,
)
from batch_pipeline_tests.seeds import claimed, query
from batch_pipeline_tests.seeds import execute as change

AUDIT = """
import sys
import sqlalchemy as sa
from batch_pipeline.inventory.database import open_database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline_tests.inventory.meta_tables.user_tables import FILES
database = open_database(sys.argv[1], migrated=None)
table = ReflectedMetaTable.open(sa.create_engine(sys.argv[2]), "ops.files", FILES)
database.late_arrivals.audit("job", table)
"""


@pytest.fixture
def feed(database: Database, files: ReflectedMetaTable) -> Feed:
    """A job that has processed the even ids 2 to 18 of a Postgres table, three a batch."""
    return consume_even_ids(Feed(database, files))


@pytest.fixture
def any_feed(database: Database, any_table: ReflectedMetaTable) -> Feed:
    """The same job in each available database."""
    return consume_even_ids(Feed(database, any_table))


@pytest.mark.guarantee("G8")
def test_rows_below_bookmark_are_acquired_once(any_feed: Feed) -> None:
    """Late rows in gaps and below the first batch are acquired before new rows.

    A second audit knows them, before and after they are acquired.
    """
    insert(any_feed.table, dict.fromkeys((-7, 1, 3, 11, 17, 19), 10))
    audit = any_feed.audit()
    assert (audit.late, audit.late_batches) == (CountedNames(count=5, first=(-7, 1, 3, 11, 17)), 2)
    for drained in ([[-7, 1, 3], [11, 17], [19]], []):
        before = row_counts(any_feed.database)
        audit = any_feed.audit()
        assert (audit.late.count, audit.late_batches, audit.known) == (0, 0, 5)
        assert row_counts(any_feed.database) == before
        assert any_feed.drain() == drained
    assert sorted(any_feed.taken) == sorted({-7, 1, 3, 11, 17, 19, *range(2, 19, 2)})
    insert(any_feed.table, {5: 10})
    assert (any_feed.audit().late.first, any_feed.drain()) == ((5,), [[5]])
    check_invariants(any_feed.database)


def test_audit_without_late_rows_writes_nothing(any_feed: Feed) -> None:
    insert(any_feed.table, {20: 10, 22: 10})  # above the bookmark
    before = row_counts(any_feed.database)
    audit = any_feed.audit()
    assert audit == Audit(job="job", late_job="job.late", batches=3)
    assert audit.is_clean
    assert row_counts(any_feed.database) == before


def test_deleted_and_replaced_rows_are_detected(any_feed: Feed) -> None:
    """Even if a batch has as many rows of the same weight as before."""
    delete(any_feed.table, any_feed.table.uid.in_([4, 8, 10, 12]))
    before = row_counts(any_feed.database)
    audit = any_feed.audit()
    assert audit.missing == CountedNames(count=4, first=(4, 8, 10, 12))
    assert (audit.late.count, audit.changed.count) == (0, 0)
    assert row_counts(any_feed.database) == before
    insert(any_feed.table, {5: 10})
    audit = any_feed.audit()
    assert (audit.missing.first, audit.late.first) == ((4, 8, 10, 12), (5,))


def test_changed_weights_are_reported_by_batch(any_feed: Feed) -> None:
    """The weight of a late row in the batch does not count."""
    table = any_feed.table
    with table.engine.begin() as connection:
        heavier = sa.update(table.table).values(size_in_bytes=11)
        connection.execute(heavier.where(table.uid.in_([2, 14])))
    insert(table, {3: 10, 9: 99})
    audit = any_feed.audit()
    assert audit.changed.first == ("00000002-00000007", "00000014-00000018")
    assert (audit.late.first, audit.missing.count) == ((3, 9), 0)


def test_late_row_with_bad_weight_waits_until_corrected(any_feed: Feed) -> None:
    """Other late rows are planned."""
    insert(any_feed.table, {3: None, 5: 10})
    audit = any_feed.audit()
    assert (audit.late.first, audit.refused.first) == ((5,), (3,))
    with any_feed.table.engine.begin() as connection:
        corrected = sa.update(any_feed.table.table).values(size_in_bytes=10)
        connection.execute(corrected.where(any_feed.table.uid == 3))
    audit = any_feed.audit()
    assert (audit.late.first, audit.refused.count) == ((3,), 0)


@pytest.mark.guarantee("G8")
def test_concurrent_audits_plan_each_row_once(feed: Feed, rival: Database) -> None:
    insert(feed.table, dict.fromkeys(range(3, 18, 2), 10))
    other = Feed(rival, feed.table)
    audits = together(feed.audit, other.audit, feed.audit, other.audit)
    counts = [audit.late.count if isinstance(audit, Audit) else audit for audit in audits]
    assert sorted(counts, key=str) == [0, 0, 0, 8]
    planned = sorted(uid for ids in late_item_ids(feed.database) for uid in ids)
    assert planned == list(range(3, 18, 2))
    check_invariants(feed.database)


@pytest.mark.guarantee("G3", "G8")
@pytest.mark.parametrize(
    ("failpoint", "planned"),
    [
        ("audit.found", 0),
        ("audit.locked", 0),
        ("audit.before_commit", 0),
        ("audit.after_commit", 3),
    ],
)
def test_killed_audit_plans_all_or_nothing(
    feed: Feed, database_url: str, failpoint: str, planned: int
) -> None:
    insert(feed.table, {3: 10, 11: 10, 17: 10})
    meta_url = feed.table.engine.url.render_as_string(hide_password=False)
    killed = run_python(AUDIT, database_url, meta_url, failpoints=f"{failpoint}=kill")
    assert killed == -signal.SIGKILL
    assert sum(map(len, late_item_ids(feed.database))) == planned
    check_invariants(feed.database)
    assert feed.audit().late.count == 3 - planned
    assert sorted(uid for ids in late_item_ids(feed.database) for uid in ids) == [3, 11, 17]


def test_audit_of_unknown_job_raises(feed: Feed) -> None:
    with pytest.raises(UnknownJobError, match="job"):
        feed.database.late_arrivals.audit("jobs", feed.table)


def test_audit_with_late_job_name_in_use_writes_nothing(feed: Feed) -> None:
    change(
        feed.database,
        "INSERT INTO batch_pipeline.job (name, meta_table) VALUES ('job.late', 'ops.files')",
    )
    insert(feed.table, {3: 10})
    before = row_counts(feed.database)
    with pytest.raises(JobChangedError, match=r"job\.late"):
        feed.audit()
    assert row_counts(feed.database) == before


def test_items_of_long_scattered_list_are_read(any_feed: Feed) -> None:
    """The list has more ids than are read at once; one row was deleted."""
    rows = [{"id": uid, "file_location": "f", "size_in_bytes": 1} for uid in range(100, 3_200)]
    with any_feed.table.engine.begin() as connection:
        connection.execute(sa.insert(any_feed.table.table), rows)
    requested = [2, *range(101, 3_200, 3)]
    delete(any_feed.table, any_feed.table.uid == 104)
    ids = IdRange(first_id=2, last_id=3_200)
    listed = Batch(id=1, job="job", id_range=ids, weight=0, count=0, item_ids=tuple(requested))
    items = any_feed.table.items_of_batch(listed, None)
    assert [item.id for item in items] == [uid for uid in requested if uid != 104]
    assert (items[0].item, items[0].weight) == ("file-2", 10)


def test_unpublished_batches_are_not_audited(database: Database, files: ReflectedMetaTable) -> None:
    """Rows that appear while a batch waits or runs are late once it is published."""
    feed = Feed(database, files)
    insert(files, dict.fromkeys((2, 4, 6, 8, 10, 12), 10))
    failed, running = feed.acquired(), feed.acquired()
    database.attempts.fail(failed, "bad", AttemptStatus.FAILED)
    insert(files, {3: 10, 9: 10})
    assert feed.audit() == Audit(job="job", late_job="job.late")
    assert feed.succeed(running) == [8, 10, 12]
    assert feed.drain() == [[2, 4, 6]]
    assert feed.audit().late.first == (3, 9)
    assert feed.drain() == [[3, 9]]


@pytest.mark.parametrize("is_dead", [True, False])
def test_rows_in_gaps_of_dead_or_cancelled_batch_are_late(
    database: Database, files: ReflectedMetaTable, *, is_dead: bool
) -> None:
    feed = Feed(database, files)
    insert(files, dict.fromkeys((2, 4, 6), 10))
    while is_dead and (attempt := feed.acquire()) is not None:
        database.attempts.fail(attempt, "bad", AttemptStatus.FAILED)
    if not is_dead:
        feed.acquired()
        database.jobs.cancel("job")
    insert(files, {3: 10, 5: 10})
    assert feed.audit().late.first == (3, 5)
    assert feed.drain() == [[3, 5]]
    database.jobs.retry("job")
    assert feed.drain() == [[2, 4, 6]]
    again = feed.audit()
    assert (again.late.count, again.known) == (0, 2)
    check_invariants(database)


def test_batch_restarted_during_audit_is_left_to_next_audit(feed: Feed) -> None:
    """No row of the batch is planned, because the new attempt reads the late row itself.

    Only batches without a record of their planned ids read rows that came later.
    """
    change(feed.database, "UPDATE batch_pipeline.batch SET id_runs = NULL")
    insert(feed.table, {9: 10})

    def run_again(*_: object) -> None:
        statements.append("on the meta table")
        # The first statement checks below the first batch; then the inventory's batches are read.
        if len(statements) == 2:
            with claimed(feed.database, feed.database.jobs.batch("job", "8..13")) as attempt:
                assert feed.succeed(attempt) == [8, 9, 10, 12]

    statements: list[str] = []
    sa.event.listen(feed.table.engine, "before_cursor_execute", run_again)
    audit = feed.audit()
    assert (audit.late.count, late_item_ids(feed.database)) == (0, [])
    assert feed.audit().is_clean


def test_batch_without_recorded_items_is_left_out(
    database: Database, files: ReflectedMetaTable
) -> None:
    feed = Feed(database, files)
    insert(files, {2: 10})
    database.attempts.succeed(feed.acquired(), logging=None, seen=None)
    audit = feed.audit()
    assert (audit.batches, audit.left_out) == (0, 1)


def test_late_rows_are_batched_per_window(database: Database, files: ReflectedMetaTable) -> None:
    """Even if one batch could contain all of them. Rows between windows are not late."""
    feed = Feed(database, files)
    insert(files, dict.fromkeys((2, 4, 12, 14), 10))
    low, high = IdRange(first_id=2, last_id=5), IdRange(first_id=11, last_id=15)
    assert (feed.drain(low), feed.drain(high)) == ([[2, 4]], [[12, 14]])
    insert(files, dict.fromkeys((1, 7, 16), 10))
    assert feed.audit().is_clean
    insert(files, {3: 10, 13: 10})
    assert feed.audit().late_batches == 2
    assert (feed.drain(high), feed.drain(low)) == ([[13]], [[3]])


def test_rows_excluded_by_filter_are_not_late(
    database: Database, files: ReflectedMetaTable
) -> None:
    """A row that no longer matches is missing."""
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


def test_audit_is_limited_to_recent_batches_by_default(feed: Feed) -> None:
    change(
        feed.database,
        "UPDATE batch_pipeline.attempt SET finished_at = finished_at - interval '9 days' "
        "WHERE batch_id = :batch",
        batch=feed.database.jobs.batch("job", "8..13").id,
    )
    insert(feed.table, {3: 10, 9: 10})
    audit = feed.audit()
    assert (audit.batches, audit.late.first) == (2, (3,))
    assert feed.audit(since=timedelta(days=8)).batches == 2
    audit = feed.audit(since=None)
    assert (audit.batches, audit.late.first, audit.known) == (3, (9,), 1)


def test_audit_spans_pages_and_accepts_limits(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_arrivals, "_PAGE", 2)
    insert(feed.table, {3: 10, 9: 10, 17: 10})
    audit = feed.audit(limits=limits(max_weight=20))
    assert (audit.batches, audit.late.first, audit.late_batches) == (3, (3, 9, 17), 2)
    assert late_item_ids(feed.database) == [[3, 9], [17]]
    assert query(
        feed.database,
        "SELECT DISTINCT config ->> 'max_weight' FROM batch_pipeline.batch "
        "WHERE item_ids IS NOT NULL",
    ) == [("20",)]


def test_row_below_first_row_within_window_is_late(
    database: Database, files: ReflectedMetaTable
) -> None:
    feed = Feed(database, files)
    insert(files, {5: 10})
    assert feed.drain(IdRange(first_id=MIN_ID + 1, last_id=9)) == [[5]]
    insert(files, {-5: 10})
    assert feed.audit().late.first == (-5,)


def test_late_row_of_stream_with_negative_id_is_refused(
    database: Database, files: ReflectedMetaTable
) -> None:
    """A batch of it would have no key, and its attempts would end the runs that contain it."""
    feed = Feed(database, files, job="orders", terms={"stream": "orders"})
    insert(files, {5: 10})
    assert feed.drain() == [[5]]
    insert(files, {-5: 10, 2: 10})
    for known in (0, 1):
        audit = feed.audit()
        assert (audit.late.count, audit.known, audit.refused.first) == (1 - known, known, (-5,))


def test_preview_matches_audit_and_writes_nothing(feed: Feed) -> None:
    insert(feed.table, {3: 10, 11: 10})
    delete(feed.table, feed.table.uid == 18)
    before = row_counts(feed.database)
    preview = feed.database.late_arrivals.audit("job", feed.table, dry_run=True)
    assert preview.late == CountedNames(count=2, first=(3, 11))
    assert preview.missing == CountedNames(count=1, first=(18,))
    assert (preview.late_batches, preview.known) == (0, 0)
    assert row_counts(feed.database) == before
    assert feed.audit().late == preview.late
    again = feed.database.late_arrivals.audit("job", feed.table, dry_run=True)
    assert (again.late.count, again.known) == (0, 2)
