"""The audit of `reconcile`, run in this process on a real server."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.cli.commands import Run, runs, told, write_stream
from batch_pipeline_tests.factories import encoded, item_report, stream
from batch_pipeline_tests.seeds import claimed, execute, planned, query

ROW = (
    "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
    "VALUES ('orders', :id, 'file:///landing/late.csv', 10, now())"
)


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Run:
    """The command with two streams, of which `idle` has no files."""
    for name in ("orders", "idle"):
        write_stream(tmp_path, name, batch={"max_weight": "1KiB", "max_count": 3})
    return runs(tmp_path, database_url)


@pytest.fixture
def gap(database: Database) -> Database:
    """A published batch of `orders` that saw the ids 1 and 3."""
    [one] = planned(database)
    execute(database, "DELETE FROM batch_pipeline.item WHERE id = 2")
    with claimed(database, one) as attempt:
        reports = (item_report(1), item_report(3))
        database.attempts.publish(attempt, encoded(attempt.stem, items=reports), stream())
    execute(database, """UPDATE batch_pipeline.attempt SET seen = seen || '{"weight": 20}'""")
    return database


def test_audit_of_all_streams_finds_nothing_and_ends_well(gap: Database, run: Run) -> None:
    ended = run("reconcile")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        "idle",
        "  attempts closed: 0, manifest files written: 0",
        "orders",
        "  attempts closed: 0, manifest files written: 1",
        "  Published batches compared with the meta table: 1.",
        "  Nothing is late, gone or changed.",
    ]


def test_audit_plans_a_late_item_and_says_so(gap: Database, run: Run) -> None:
    """Expect exit code 0, the id, and the job that has it now; then that it is known."""
    execute(gap, ROW, id=2)
    ended = run("reconcile", "orders")
    assert ended.exit_code == 0
    assert (
        "Items that arrived late: 1 (ids: 2). Batches of job 'orders.late' planned for them: 1."
        in (ended.stdout)
    )
    lists = query(gap, "SELECT item_ids FROM batch_pipeline.batch WHERE item_ids IS NOT NULL")
    assert lists == [([2],)]
    assert "Late items planned by earlier audits: 1." in run("reconcile", "orders").stdout


def test_audit_tells_programs_what_it_found(gap: Database, run: Run) -> None:
    """Expect counts and first ids as JSON."""
    execute(gap, ROW, id=2)
    execute(gap, "DELETE FROM batch_pipeline.item WHERE id = 3")
    [idle, orders] = told(run, "reconcile")["streams"]
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


def test_audit_looks_back_as_far_as_it_is_asked_to(gap: Database, run: Run) -> None:
    """Expect a batch of nine days ago to be left out, unless an earlier time or all is asked."""
    execute(gap, "UPDATE batch_pipeline.attempt SET finished_at = finished_at - interval '9 days'")
    ten_days_ago = (datetime.now(UTC) - timedelta(days=10)).isoformat()
    compared = [
        told(run, "reconcile", "orders", *option)["streams"][0]["audit"]["batches"]
        for option in ([], ["--since", ten_days_ago], ["--all"])
    ]
    assert compared == [0, 1, 1]


def test_reconcile_without_an_audit_reports_none(gap: Database, run: Run) -> None:
    [orders] = told(run, "reconcile", "orders", "--no-audit")["streams"]
    assert orders["audit"] is None
