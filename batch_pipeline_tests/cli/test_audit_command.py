"""The audit of `reconcile`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.location import to_path
from batch_pipeline_tests.cli.commands import Run, make_runner, run_json, write_stream
from batch_pipeline_tests.factories import encoded, item_report, stream
from batch_pipeline_tests.seeds import claimed, execute, insert_item, planned, query


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Run:
    """A runner with two streams; `idle` has no files."""
    for name in ("orders", "idle"):
        write_stream(tmp_path, name, batch={"max_weight": "1KiB", "max_count": 3})
    return make_runner(tmp_path, database_url)


@pytest.fixture
def gap(database: Database) -> Database:
    """A published batch of `orders` that contains the ids 1 and 3."""
    [batch] = planned(database)
    execute(database, "DELETE FROM batch_pipeline.item WHERE id = 2")
    with claimed(database, batch) as attempt:
        reports = (item_report(1), item_report(3))
        database.attempts.publish(attempt, encoded(attempt.stem, items=reports), stream())
    execute(database, """UPDATE batch_pipeline.attempt SET seen = seen || '{"weight": 20}'""")
    return database


def test_audit_without_differences_exits_0(gap: Database, run: Run) -> None:
    result = run("reconcile")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "idle",
        "  attempts closed: 0, manifest files written: 0",
        "orders",
        "  attempts closed: 0, manifest files written: 1",
        "  Published batches compared with the meta table: 1.",
        "  No late, deleted or changed items.",
    ]


def test_audit_follows_a_manifest_file_that_cannot_be_written(gap: Database, run: Run) -> None:
    run("reconcile", "orders")
    [(uri,)] = query(gap, "SELECT pointer_uri FROM batch_pipeline.attempt")
    Path(to_path(uri)).write_text("mine")
    execute(gap, "UPDATE batch_pipeline.attempt SET pointer_uri = NULL")
    result = run("reconcile", "orders")
    assert (result.exit_code, uri in result.stderr) == (1, True)
    assert result.stdout.splitlines()[-2:] == [
        "  No late, deleted or changed items.",
        "  some manifest files could not be written (see below)",
    ]


def test_late_item_is_in_the_json_of_its_audit_and_planned_once(gap: Database, run: Run) -> None:
    insert_item(gap, 2)
    execute(gap, "DELETE FROM batch_pipeline.item WHERE id = 3")
    [idle, orders] = run_json(run, "reconcile")["streams"]
    assert idle["audit"] is None
    assert orders["audit"] == {
        "job": "orders",
        "clean": False,
        "late_job": "orders.late",
        "batches": 1,
        "left_out": 0,
        "late": {"count": 1, "first": [2]},
        "late_batches": 1,
        "known": 0,
        "refused": {"count": 0, "first": []},
        "missing": {"count": 1, "first": [3]},
        "changed": {"count": 0, "first": []},
        "other_table": [],
    }
    lists = query(gap, "SELECT item_ids FROM batch_pipeline.batch WHERE item_ids IS NOT NULL")
    assert lists == [([2],)]
    assert "Late items planned by earlier audits: 1." in run("reconcile", "orders").stdout


def test_since_and_all_include_batches_that_are_skipped_by_default(gap: Database, run: Run) -> None:
    execute(gap, "UPDATE batch_pipeline.attempt SET finished_at = finished_at - interval '9 days'")
    ten_days_ago = (datetime.now(UTC) - timedelta(days=10)).isoformat()
    compared = [
        run_json(run, "reconcile", "orders", *option)["streams"][0]["audit"]["batches"]
        for option in ([], ["--since", ten_days_ago], ["--all"])
    ]
    assert compared == [0, 1, 1]
    [orders] = run_json(run, "reconcile", "orders", "--no-audit")["streams"]
    assert orders["audit"] is None
