"""Backfills, audits and job control from Python."""

from collections.abc import Callable
from datetime import datetime, timedelta
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
)
from batch_pipeline_tests.seeds import execute, query

PUBLIC = "public.meta_table"


def test_backfill_of_an_id_window_has_its_own_batches(
    hundred_files: Database,
) -> None:
    """The parent job continues independently."""
    parent_batch = acquired("orders", batch_count=90)
    options: dict[str, Any] = {"batch_id_min": 20, "batch_id_max": 80, "batch_count": 25}
    estimate = estimate_backfill("orders.2023", "meta_table", COLUMNS, parent="orders", **options)
    assert (estimate.batches, estimate.items, estimate.weight) == (3, 61, 610)
    assert estimate.seconds is None
    assert query(hundred_files, "SELECT count(*) FROM batch_pipeline.batch") == [(1,)]
    planned = plan_backfill("orders.2023", "meta_table", COLUMNS, parent="orders", **options)
    assert (planned.batches, planned.items) == (3, 61)
    assert list(drained("orders.2023")) == [(20, 44), (45, 69), (70, 80)]
    parent_batch.succeeded()
    assert acquired("orders").items == files(91, 100)


def test_backfill_of_ids_takes_exactly_those(hundred_files: Database) -> None:
    plan_backfill("three", "meta_table", COLUMNS, items=[7, 3, 99], batch_count=2)
    assert acquired("three").process(list) == ["file-3", "file-7"]
    assert acquired("three").process(list) == ["file-99"]
    assert acquire_or_none("three") is None
    with pytest.raises(ConfigurationError, match="101"):
        plan_backfill("more", "meta_table", COLUMNS, items=[1, 101])


def test_invalid_backfill_options_are_refused(hundred_files: Database) -> None:
    invalid: list[dict[str, Any]] = [
        {"since": "2026-03-01"},
        {"since": datetime(2026, 3, 1)},  # noqa: DTZ001 - refused because it has no zone
        {"items": ["1"]},
        {"items": []},
        {"failed_only": True},
        {"batch_count": 0},
        {"max_attempts": 0},
    ]
    for options in invalid:
        for call in (plan_backfill, estimate_backfill):
            with pytest.raises(InvalidValueError):
                call("bad", "meta_table", COLUMNS, **options)
    assert jobs() == []


def test_audit_adds_late_rows_to_the_job(meta_table: Database) -> None:
    """A late row is acquired before new ones."""
    fill(meta_table.engine, {1: 10, 2: 10, 4: 10})
    batch = acquired("orders", batch_count=3)
    assert len(batch.items) == 3
    batch.succeeded()
    fill(meta_table.engine, {3: 10, 5: 10})
    audit = audit_job("orders")
    assert (audit.late.count, audit.late.first, audit.late_job) == (1, (3,), "orders.late")
    assert audit_job("orders", "meta_table", since=None).known == 1
    pause_job("orders.late")
    assert acquired("orders").items == ["file-5"]
    fill(meta_table.engine, {6: 10, 7: 10})
    assert acquired("orders", batch_count=1).items == ["file-6"]
    resume_job("orders.late")
    assert acquired("orders").items == ["file-3"]
    invalid: list[Any] = [timedelta(0), timedelta.max, 7]
    for since in invalid:
        with pytest.raises(InvalidValueError, match="expected a positive timedelta"):
            audit_job("orders", since=since)


def test_audit_uses_the_stored_filter_and_columns(meta_table: Database) -> None:
    fill(meta_table.engine, {1: 10, 2: 500, 3: 10})
    light = [{"column": "size_in_mib", "operator": "<", "value": 100}]
    batch = acquired("light", where=light)
    assert batch.items == ["file-1", "file-3"]
    batch.succeeded()
    assert audit_job("light").is_clean


def test_status_counts_batches_and_unplanned_items(hundred_files: Database) -> None:
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
    assert [(batch.state, batch.attempts, batch.error) for batch in status.unfinished] == [
        (BatchState.FAILED, 1, "no"),
        (BatchState.RUNNING, 1, None),
    ]
    assert (status.items_not_planned, status.weight_not_planned, status.paused) == (70, 700, None)
    held.succeeded()
    with pytest.raises(JobChangedError):
        job_status("orders", "meta_table", COLUMNS, [{"column": "id", "operator": ">", "value": 1}])


def test_status_counts_items_around_windows_but_not_around_backfills(
    hundred_files: Database,
) -> None:
    acquired("orders", batch_id_min=40, batch_id_max=60).succeeded()
    assert job_status("orders", "meta_table", COLUMNS).items_not_planned == 79
    plan_backfill("past", "meta_table", COLUMNS, batch_id_max=10)
    status = job_status("past", "meta_table", COLUMNS)
    assert (status.items_not_planned, status.batches) == (0, {BatchState.PLANNED: 1})


def test_paused_job_can_be_acquired_only_after_resume(hundred_files: Database) -> None:
    """A batch acquired before the pause can still be released."""
    held = acquired("orders", batch_count=1)
    pause_job("orders", "nightly load")
    with pytest.raises(JobPausedError, match="nightly load"):
        acquire_or_none("orders")
    assert job_status("orders", "meta_table", COLUMNS).paused == "nightly load"
    held.succeeded()
    resume_job("orders", "meta_table")
    assert acquired("orders", batch_count=1).items == ["file-2"]


def test_cancelled_batch_is_fenced_and_acquired_again_after_retry(hundred_files: Database) -> None:
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


def test_retry_accepts_one_or_several_batches(hundred_files: Database) -> None:
    accepted: list[Any] = ["1..50", 1, ["1..50", 2], ()]
    for retried, batches in zip((1, 1, 2, 0), accepted, strict=True):
        while (batch := acquire_or_none("orders", batch_count=50, max_attempts=1)) is not None:
            batch.failed("no")
        assert retry_job("orders", batches=batches) == retried
    invalid: list[Any] = [2.5, [2.5], True, [None]]
    for batches in invalid:
        with pytest.raises(InvalidValueError, match="batches is"):
            retry_job("orders", batches)


def test_backfill_of_failed_batches_omits_rows_inserted_later(hundred_files: Database) -> None:
    execute(hundred_files, "DELETE FROM meta_table WHERE id = 50")
    batch = acquired("orders")
    execute(hundred_files, "INSERT INTO meta_table (id, file, size_in_mib) VALUES (50, 'late', 1)")
    batch.failed("no")
    plan_backfill("again", "meta_table", COLUMNS, parent="orders", failed_only=True)
    again = acquired("again")
    assert (again.count, "late" in again.items) == (99, False)


def test_unknown_job_error_lists_jobs(hundred_files: Database) -> None:
    calls: list[Callable[[str], object]] = [
        *(audit_job, cancel_job, pause_job, resume_job, retry_job),
        lambda job: retry_job(job, meta_table_name="meta_table"),
    ]
    acquired("orders").succeeded()
    for call in calls:
        with pytest.raises(UnknownJobError, match=r"jobs: orders"):
            call("order")
    with pytest.raises(UnknownBatchError):
        cancel_job("orders", "1..2")


def test_chained_job_has_status_audit_and_backfill(hundred_files: Database) -> None:
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
