"""Audits: what they compare, and that late rows are found and acquired exactly once."""

import signal
from collections import Counter
from datetime import timedelta

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory import late_arrivals
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.meta_tables.watermarks import SettleBy, choose_watermark
from batch_pipeline.inventory.planning import split_batch
from batch_pipeline.model.audit import Audit, CountedNames
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.errors import JobChangedError, UnknownJobError
from batch_pipeline.model.filter import Condition, Operator
from batch_pipeline.model.id_range import MIN_ID, IdRange
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.concurrency import run_python, together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.audit_fixture import Feed, lists, row_counts, taken_even_ids
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    FILES,
    MARIADB,
    delete,
    execute,
    insert,
)
from batch_pipeline_tests.seeds import claimed, query
from batch_pipeline_tests.seeds import execute as change

TABLES = ["files", "sqlite_files", *(["mariadb_files"] if MARIADB else [])]
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
    """A job that has taken the even ids from 2 to 18 of a Postgres table, three a batch."""
    return taken_even_ids(Feed(database, files))


@pytest.fixture(params=TABLES)
def either(request: pytest.FixtureRequest, database: Database) -> Feed:
    """The same feed, once in every database that there is."""
    return taken_even_ids(Feed(database, request.getfixturevalue(request.param)))


@pytest.mark.guarantee("G8")
def test_rows_that_appear_below_the_bookmark_are_handed_out_once(either: Feed) -> None:
    """Expect ids in gaps and below the first batch, cut by the job's limits, before new rows."""
    insert(either.table, dict.fromkeys((-7, 1, 3, 11, 17, 19), 10))
    audit = either.audit()
    assert (audit.late, audit.late_batches) == (CountedNames(count=5, first=(-7, 1, 3, 11, 17)), 2)
    assert either.drain() == [[-7, 1, 3], [11, 17], [19]]
    assert sorted(either.taken) == sorted({-7, 1, 3, 11, 17, 19, *range(2, 19, 2)})
    check_invariants(either.database)


def test_audit_again_knows_what_is_planned(either: Feed) -> None:
    """Expect the second audit to write nothing, before and after the late batch is done."""
    insert(either.table, {3: 10, 11: 10})
    assert either.audit().late.count == 2
    for _ in range(2):
        before = row_counts(either.database)
        audit = either.audit()
        assert (audit.late.count, audit.late_batches, audit.known) == (0, 0, 2)
        assert row_counts(either.database) == before
        either.drain()
    insert(either.table, {5: 10})
    assert (either.audit().late.first, either.drain()) == ((5,), [[5]])


def test_audit_without_late_rows_writes_nothing(either: Feed) -> None:
    """Expect no late job, no batch, and a clean report."""
    insert(either.table, {20: 10, 22: 10})  # above the bookmark
    before = row_counts(either.database)
    audit = either.audit()
    assert audit == Audit(job="job", late_job="job.late", batches=3)
    assert audit.is_clean
    assert row_counts(either.database) == before


def test_deleted_rows_are_reported_and_nothing_else(either: Feed) -> None:
    """Expect their ids, of a batch that lost some and of one that lost all."""
    delete(either.table, either.table.uid.in_([4, 8, 10, 12]))
    before = row_counts(either.database)
    audit = either.audit()
    assert audit.missing == CountedNames(count=4, first=(4, 8, 10, 12))
    assert (audit.late.count, audit.changed.count) == (0, 0)
    assert row_counts(either.database) == before


def test_row_that_replaced_another_is_found(either: Feed) -> None:
    """Expect a batch with as many rows of the same weight as before to be known by its ids."""
    delete(either.table, either.table.uid == 4)
    insert(either.table, {5: 10})
    audit = either.audit()
    assert (audit.missing.first, audit.late.first) == ((4,), (5,))


def test_changed_weights_are_reported_by_batch(either: Feed) -> None:
    """Expect the batch to be named, also beside a late row, whose weight does not count."""
    table = either.table
    with table.engine.begin() as connection:
        heavier = sa.update(table.table).values(size_in_bytes=11)
        connection.execute(heavier.where(table.uid.in_([2, 14])))
    insert(table, {3: 10, 9: 99})
    audit = either.audit()
    assert audit.changed.first == ("00000002-00000007", "00000014-00000018")
    assert (audit.late.first, audit.missing.count) == ((3, 9), 0)


def test_late_row_with_a_refused_weight_waits_until_it_is_corrected(either: Feed) -> None:
    """Expect the others to be planned meanwhile."""
    insert(either.table, {3: None, 5: 10})
    audit = either.audit()
    assert (audit.late.first, audit.refused.first) == ((5,), (3,))
    with either.table.engine.begin() as connection:
        corrected = sa.update(either.table.table).values(size_in_bytes=10)
        connection.execute(corrected.where(either.table.uid == 3))
    audit = either.audit()
    assert (audit.late.first, audit.refused.count) == ((3,), 0)


@pytest.mark.guarantee("G8")
def test_transaction_longer_than_the_settle_delay_is_found_late(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect the rows that a delay too short has passed over to be processed exactly once."""
    feed = Feed(database, files)
    settle_by = SettleBy("imported", timedelta(microseconds=1))
    choice = choose_watermark(files, Strategy.SETTLE, settle_by=settle_by)
    feed.source = MetaSource(table=files, choice=choice)
    row = "INSERT INTO ops.files (file_location, size_in_bytes) VALUES ('f', 1)"
    with files.engine.connect() as slow, slow.begin():
        slow.execute(sa.text(f"{row}, ('g', 1)"))
        execute(files.engine, row)
        assert feed.drain() == [[3]]
    assert feed.drain() == []
    assert feed.audit().late.first == (1, 2)
    assert feed.drain() == [[1, 2]]
    assert feed.audit().known == 2
    assert Counter(feed.taken) == {1: 1, 2: 1, 3: 1}


@pytest.mark.guarantee("G8")
def test_audits_at_once_plan_each_row_once(feed: Feed, rival: Database) -> None:
    """Expect four audits to share the late rows between them."""
    insert(feed.table, dict.fromkeys(range(3, 18, 2), 10))
    other = Feed(rival, feed.table)
    audits = together(feed.audit, other.audit, feed.audit, other.audit)
    found = [audit.late.count if isinstance(audit, Audit) else audit for audit in audits]
    assert sorted(found, key=str) == [0, 0, 0, 8]
    assert sorted(uid for ids in lists(feed.database) for uid in ids) == list(range(3, 18, 2))
    check_invariants(feed.database)


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize(
    ("failpoint", "planned"),
    [
        ("audit.found", 0),
        ("audit.locked", 0),
        ("audit.before_commit", 0),
        ("audit.after_commit", 3),
    ],
)
def test_audit_killed_in_between_leaves_all_or_nothing(
    feed: Feed, database_url: str, failpoint: str, planned: int
) -> None:
    """Expect the next audit to plan what the killed one had not."""
    insert(feed.table, {3: 10, 11: 10, 17: 10})
    meta_url = feed.table.engine.url.render_as_string(hide_password=False)
    killed = run_python(AUDIT, database_url, meta_url, failpoints=f"{failpoint}=kill")
    assert killed == -signal.SIGKILL
    assert sum(map(len, lists(feed.database))) == planned
    check_invariants(feed.database)
    assert feed.audit().late.count == 3 - planned
    assert sorted(uid for ids in lists(feed.database) for uid in ids) == [3, 11, 17]


def test_limits_of_the_late_batches_can_be_named(feed: Feed) -> None:
    """Expect lists of two items, and the limits to be kept with them."""
    insert(feed.table, dict.fromkeys((3, 5, 7, 9, 11), 10))
    assert feed.audit(limits=limits(max_weight=20)).late_batches == 3
    assert lists(feed.database) == [[3, 5], [7, 9], [11]]
    configs = query(
        feed.database,
        "SELECT DISTINCT config FROM batch_pipeline.batch WHERE item_ids IS NOT NULL",
    )
    assert [config["max_weight"] for (config,) in configs] == ["20"]


def test_audit_of_a_job_that_is_not_there_is_an_error(feed: Feed) -> None:
    """Expect the jobs of the table to be named."""
    with pytest.raises(UnknownJobError, match="job"):
        feed.database.late_arrivals.audit("jobs", feed.table)


def test_late_job_whose_name_is_taken_is_refused_and_nothing_is_written(feed: Feed) -> None:
    """Expect the job that has the name to stay as it is."""
    change(
        feed.database,
        "INSERT INTO batch_pipeline.job (name, meta_table) VALUES ('job.late', 'ops.files')",
    )
    insert(feed.table, {3: 10})
    before = row_counts(feed.database)
    with pytest.raises(JobChangedError, match=r"job\.late"):
        feed.audit()
    assert row_counts(feed.database) == before


def test_long_list_of_scattered_ids_is_read_whole(either: Feed) -> None:
    """Expect a list of more ids than are read at once, without the rows between and the deleted."""
    rows = [{"id": uid, "file_location": "f", "size_in_bytes": 1} for uid in range(100, 3_700)]
    with either.table.engine.begin() as connection:
        connection.execute(sa.insert(either.table.table), rows)
    asked = [2, *range(101, 3_700, 3)]
    delete(either.table, either.table.uid == 104)
    found = either.table.items_of([*reversed(asked), 2, 104])
    assert [item.id for item in found] == [uid for uid in asked if uid != 104]
    assert (found[0].item, found[0].weight) == ("file-2", 10)


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


def test_look_finds_what_an_audit_would_plan_and_writes_nothing(feed: Feed) -> None:
    """Expect late and missing items, the same rows as before, and the audit to find them still."""
    insert(feed.table, {3: 10, 11: 10})
    delete(feed.table, feed.table.uid == 18)
    before = row_counts(feed.database)
    seen = feed.database.late_arrivals.preview("job", feed.table)
    assert (seen.late, seen.late_batches, seen.known) == (
        CountedNames(count=2, first=(3, 11)),
        0,
        0,
    )
    assert seen.missing == CountedNames(count=1, first=(18,))
    assert row_counts(feed.database) == before
    assert feed.audit().late == seen.late


def test_items_that_an_audit_has_planned_are_known_to_a_look(feed: Feed) -> None:
    """Expect them not to count as late any more."""
    insert(feed.table, {3: 10})
    feed.audit()
    seen = feed.database.late_arrivals.preview("job", feed.table)
    assert (seen.late.count, seen.known) == (0, 1)
