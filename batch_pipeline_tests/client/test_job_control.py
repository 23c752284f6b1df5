"""Backfills, audits and what steers jobs, from Python."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batch_pipeline import (
    acquire_batch,
    audit_job,
    cancel_job,
    estimate_backfill,
    job_status,
    jobs,
    pause_job,
    plan_backfill,
    resume_job,
    retry_job,
)
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.errors import (
    AmbiguousJobError,
    ConfigurationError,
    FencedError,
    InvalidValueError,
    JobChangedError,
    JobPausedError,
    UnknownBatchError,
    UnknownJobError,
)
from batch_pipeline_tests.client.client_tables import (
    COLUMNS,
    acquire_or_none,
    acquired,
    drained,
    files,
    fill,
    fill_evenly,
)
from batch_pipeline_tests.seeds import execute, query

PUBLIC = "public.meta_table"


@pytest.fixture
def hundred(meta_table: Database) -> Database:
    """A hundred files of 10 MiB."""
    fill_evenly(meta_table.engine, 100)
    return meta_table


def backfill(name: str, **asked: Any) -> list[list[str]]:
    """Plan a backfill of `meta_table`, then take all its batches."""
    plan_backfill(name, "meta_table", COLUMNS, **asked)
    taken = []
    while (batch := acquire_or_none(name)) is not None:
        taken.append(batch.items)
        batch.succeeded()
    return taken


def test_backfill_of_a_window_is_planned_at_once_and_acquired_by_its_name(
    hundred: Database,
) -> None:
    """Expect ids 20 to 80 in batches of the backfill's own size, beside the job that goes on."""
    ahead = acquired("orders", batch_count=90)
    asked: dict[str, Any] = {"batch_id_min": 20, "batch_id_max": 80, "batch_count": 25}
    estimate = estimate_backfill("orders.2023", "meta_table", COLUMNS, parent="orders", **asked)
    assert (estimate.batches, estimate.items, estimate.weight) == (3, 61, 610)
    assert estimate.seconds is None
    assert query(hundred, "SELECT count(*) FROM batch_pipeline.batch") == [(1,)]
    planned = plan_backfill("orders.2023", "meta_table", COLUMNS, parent="orders", **asked)
    assert (planned.batches, planned.items) == (3, 61)
    assert list(drained("orders.2023")) == [(20, 44), (45, 69), (70, 80)]
    ahead.succeeded()
    assert acquired("orders").items == files(91, 100)


def test_backfill_takes_items_one_by_one(hundred: Database) -> None:
    """Expect exactly the ids that were named, and one that is not there to be told."""
    assert backfill("three", items=[7, 3, 99], batch_count=2) == [["file-3", "file-7"], ["file-99"]]
    with pytest.raises(ConfigurationError, match="101"):
        plan_backfill("more", "meta_table", COLUMNS, items=[1, 101])


def test_backfill_takes_times_of_a_column(hundred: Database) -> None:
    """Expect the first moment to be in and the last one to be out."""
    execute(hundred, "ALTER TABLE meta_table ADD imported timestamptz")
    execute(
        hundred,
        "UPDATE meta_table SET imported = timestamptz '2026-03-01 00:00Z' + id * interval '1h'",
    )
    since = datetime(2026, 3, 1, 2, tzinfo=UTC)
    times = {"since": since, "until": since + timedelta(hours=3), "time_column": "imported"}
    assert backfill("march", **times) == [files(2, 4)]


def test_backfill_takes_what_has_failed(hundred: Database) -> None:
    """Expect the items of the parent's failed batches alone."""
    for outcome in ("succeeded", "failed", "succeeded"):
        getattr(acquired("orders", batch_count=2), outcome)()
    assert backfill("again", parent="orders", failed_only=True) == [files(3, 4)]


@pytest.mark.parametrize(
    "asked",
    [
        {"since": "2026-03-01"},
        {"since": datetime(2026, 3, 1)},  # noqa: DTZ001 - what is refused
        {"items": ["1"]},
        {"items": []},
        {"items": [1], "batch_id_min": 1},
        {"failed_only": True},
        {"batch_count": 0},
        {"max_attempts": 0},
    ],
)
def test_backfill_that_cannot_be_meant_is_refused(hundred: Database, asked: dict[str, Any]) -> None:
    """Expect the argument to be named and no job to be made."""
    for call in (plan_backfill, estimate_backfill):
        with pytest.raises(InvalidValueError):
            call("bad", "meta_table", COLUMNS, **asked)
    assert jobs() == []


def test_backfill_keeps_to_its_name(hundred: Database) -> None:
    """Expect the same call to add nothing, and another one of the name to be refused."""
    assert plan_backfill("once", "meta_table", COLUMNS, batch_id_max=3).items == 3
    assert plan_backfill("once", "meta_table", COLUMNS, batch_id_max=3).items == 0
    with pytest.raises(JobChangedError):
        plan_backfill("once", "meta_table", COLUMNS, batch_id_max=4)


def test_audit_hands_late_rows_to_the_job(meta_table: Database) -> None:
    """Expect a row below the bookmark to be found, and acquired before new ones."""
    fill(meta_table.engine, {1: 10, 2: 10, 4: 10})
    batch = acquired("orders", batch_count=3)
    assert len(batch.items) == 3
    batch.succeeded()
    fill(meta_table.engine, {3: 10, 5: 10})
    audit = audit_job("orders")
    assert (audit.late.count, audit.late.first, audit.late_job) == (1, (3,), "orders.late")
    assert audit_job("orders", "meta_table", since=None).known == 1
    assert acquired("orders").items == ["file-3"]
    with pytest.raises(InvalidValueError, match="since"):
        audit_job("orders", since=timedelta(0))


def test_audit_keeps_to_the_filter_and_columns_of_the_job(meta_table: Database) -> None:
    """Expect rows that the job's filter hides not to be late, without naming them once more."""
    fill(meta_table.engine, {1: 10, 2: 500, 3: 10})
    light = [{"column": "size_in_mib", "operator": "<", "value": 100}]
    batch = acquired("light", where=light)
    assert batch.items == ["file-1", "file-3"]
    batch.succeeded()
    assert audit_job("light").is_clean


def test_status_counts_batches_and_what_is_not_planned(hundred: Database) -> None:
    """Expect the same facts before anything was acquired, meanwhile, and after a failure."""
    before = job_status("orders", "meta_table", COLUMNS)
    assert (before.batches, before.items_not_planned, before.weight_not_planned) == ({}, 100, 1000)
    assert before.ceiling.startswith("high watermark 100 (locks); nothing holds it back")
    acquired("orders", batch_count=10).succeeded()
    acquired("orders", batch_count=10).failed("no")
    held = acquired("orders", batch_count=10)
    status = job_status("orders", PUBLIC, COLUMNS)
    assert status.batches == {
        BatchState.PUBLISHED: 1,
        BatchState.FAILED: 1,
        BatchState.RUNNING: 1,
    }
    assert [(one.state, one.attempts, one.error) for one in status.unfinished] == [
        (BatchState.FAILED, 1, "no"),
        (BatchState.RUNNING, 1, None),
    ]
    assert (status.items_not_planned, status.weight_not_planned, status.paused) == (70, 700, None)
    held.succeeded()
    with pytest.raises(JobChangedError):
        job_status("orders", "meta_table", COLUMNS, [{"column": "id", "operator": ">", "value": 1}])


def test_status_of_windows_counts_the_gaps_and_of_backfills_nothing(hundred: Database) -> None:
    """Expect what lies around a window to be left, and a backfill to be complete as planned."""
    acquired("orders", batch_id_min=40, batch_id_max=60).succeeded()
    assert job_status("orders", "meta_table", COLUMNS).items_not_planned == 79
    plan_backfill("past", "meta_table", COLUMNS, batch_id_max=10)
    status = job_status("past", "meta_table", COLUMNS)
    assert (status.items_not_planned, status.batches) == (0, {BatchState.PLANNED: 1})


def test_paused_job_hands_out_nothing_until_it_is_resumed(hundred: Database) -> None:
    """Expect the reason to reach who acquires, and batches that are held to go on."""
    held = acquired("orders", batch_count=1)
    pause_job("orders", "nightly load")
    with pytest.raises(JobPausedError, match="nightly load"):
        acquire_or_none("orders")
    assert job_status("orders", "meta_table", COLUMNS).paused == "nightly load"
    held.succeeded()
    resume_job("orders", "meta_table")
    assert acquired("orders", batch_count=1).items == ["file-2"]


def test_cancelled_batches_are_lost_to_their_holders_until_tried_again(hundred: Database) -> None:
    """Expect the release to be fenced, and the batch to come again after `retry_job`."""
    first, second = (acquired("orders", batch_count=1) for _ in range(2))
    assert cancel_job("orders", first.id).attempts == 1
    with pytest.raises(FencedError):
        first.succeeded()
    assert cancel_job("orders").batches == 1
    with pytest.raises(FencedError):
        second.succeeded()
    assert acquired("orders", batch_count=1).items == ["file-3"]
    assert retry_job("orders", [second.id]) == 1
    assert retry_job("orders") == 1
    assert [acquired("orders").items for _ in range(2)] == [["file-1"], ["file-2"]]


@pytest.mark.parametrize(("named", "again"), [("1..50", 1), (1, 1), (["1..50", 2], 2), ((), 0)])
def test_retry_of_batches_by_name_takes_one_or_several(
    hundred: Database, named: Any, again: int
) -> None:
    for _ in range(2):
        acquired("orders", batch_count=50, max_attempts=1).failed("no")
    assert retry_job("orders", batches=named) == again


@pytest.mark.parametrize("named", [2.5, [2.5], True, [None]])
def test_retry_of_what_names_no_batch_is_refused(hundred: Database, named: Any) -> None:
    acquired("orders").failed("no")
    with pytest.raises(InvalidValueError, match="batches is"):
        retry_job("orders", named)


def test_backfill_of_failed_batches_takes_what_they_were_planned_with(hundred: Database) -> None:
    execute(hundred, "DELETE FROM meta_table WHERE id = 50")
    batch = acquired("orders")
    execute(hundred, "INSERT INTO meta_table (id, file, size_in_mib) VALUES (50, 'late', 1)")
    batch.failed("no")
    plan_backfill("again", "meta_table", COLUMNS, parent="orders", failed_only=True)
    again = acquired("again")
    assert (again.count, "late" in again.items) == (99, False)


def test_jobs_lists_all_with_what_waits(hundred: Database) -> None:
    """Expect jobs in the order of their names."""
    plan_backfill("past", "meta_table", COLUMNS, batch_id_max=10, batch_count=5)
    acquired("orders").succeeded()
    told = [(one.job.name, one.waiting_batches, one.waiting_items) for one in jobs()]
    assert told == [("orders", 0, 0), ("past", 2, 10)]


@pytest.mark.parametrize(
    "call",
    [
        audit_job,
        cancel_job,
        pause_job,
        resume_job,
        retry_job,
        lambda job: retry_job(job, meta_table_name="meta_table"),
    ],
)
def test_job_that_is_not_there_is_told(hundred: Database, call: Callable[[str], object]) -> None:
    """Expect the jobs that are there to be listed."""
    acquired("orders").succeeded()
    with pytest.raises(UnknownJobError, match=r"jobs: orders"):
        call("order")
    with pytest.raises(UnknownBatchError):
        cancel_job("orders", "1..2")


def test_job_of_two_tables_is_steered_by_its_table(hundred: Database) -> None:
    """Expect the table to be asked for, and to be found however it is written."""
    execute(hundred, "CREATE TABLE other (uid bigint PRIMARY KEY, item text)")
    acquired("orders").succeeded()
    assert acquire_batch("orders", "other", {"weight": None}, ceiling="registrar") is None
    with pytest.raises(AmbiguousJobError):
        pause_job("orders")
    pause_job("orders", meta_table_name='"public".Other')
    assert {one.job.meta_table: one.job.paused for one in jobs()} == {
        PUBLIC: None,
        "public.other": "",
    }


def test_chained_job_is_looked_at_as_any_other(hundred: Database) -> None:
    """Expect status, audit and backfill of what another job has published."""
    up = [{"column": "job", "operator": "=", "value": "up"}]
    for number in range(3):
        acquired("up", batch_count=1).succeeded(result=number)
    first = acquire_batch("down", "inventory", batch_count=1, where=up)
    assert first is not None
    assert first.items == [0]
    first.succeeded()
    status = job_status("down", "inventory", where=up)
    assert (status.items_not_planned, status.ceiling) == (
        2,
        "high watermark 3 (registrar); nothing holds it back",
    )
    assert audit_job("down", "inventory").is_clean
    planned = plan_backfill("down again", "inventory", batch_id_max=2, where=up)
    assert (planned.batches, planned.items) == (1, 2)
    again = acquire_batch("down again", "inventory", where=up)
    assert again is not None
    assert again.items == [0, 1]
    pause_job("down", meta_table_name="inventory")
