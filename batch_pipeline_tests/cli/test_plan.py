"""The command `plan` and what `status` says of backfills, run in this process on a real server."""

import os
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, JobChangedError
from batch_pipeline_tests.cli.commands import Run, runs, told, write_stream
from batch_pipeline_tests.seeds import publish, query, register


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Run:
    """The command with a stream `orders` of at most four files a batch."""
    (tmp_path / "landing").mkdir()
    write_stream(tmp_path, "orders", batch={"max_weight": "1KiB", "max_count": 4})
    return runs(tmp_path, database_url)


def rows(database: Database) -> list[tuple[Any, ...]]:
    """All jobs and how many batches each has."""
    return query(
        database,
        "SELECT name, (SELECT count(*) FROM batch_pipeline.batch WHERE job_id = job.id) "
        "FROM batch_pipeline.job ORDER BY id",
    )


def test_plan_dry_run_tells_what_planning_then_does(database: Database, run: Run) -> None:
    """Expect the same number of batches, and nothing stored before they are planned."""
    register(database, 10)
    dry = told(run, "plan", "orders", "--dry-run")
    assert (dry["batches"], dry["items"], dry["weight_bytes"], dry["seconds"]) == (3, 10, 100, None)
    assert rows(database) == []
    assert len(told(run, "plan", "orders")["batches"]) == 3
    assert "batches that would be planned: 0" in run("plan", "orders", "--dry-run").stdout


def land(folder: Path, **files: str) -> None:
    """Let files land, long ago."""
    for name, text in files.items():
        path = folder / "landing" / f"{name}.csv"
        path.write_text(text)
        os.utime(path, (1_700_000_000, 1_700_000_000 + len(text)))


def test_plan_registers_new_files_and_dry_run_does_not(run: Run, tmp_path: Path) -> None:
    land(tmp_path, a="id\n1\n", b="id\n2\n")
    assert told(run, "plan", "orders", "--dry-run")["items"] == 0
    done = told(run, "plan", "orders")
    assert (done["files_found"], done["items_registered"]) == (2, 2)
    assert [one["batch_id"] for one in done["batches"]] == ["00000001-00000002"]
    land(tmp_path, c="id\n3\n")
    ended = run("plan", "orders")
    assert ended.stdout.splitlines()[:2] == [
        "orders: files found: 3, registered: 1.",
        "orders: batches planned: 1.",
    ]


def test_plan_names_changed_files_and_accepts_them_on_request(run: Run, tmp_path: Path) -> None:
    land(tmp_path, a="id\n1\n")
    run("plan", "orders")
    land(tmp_path, a="id\n1\n2\n")
    [changed] = told(run, "plan", "orders")["files_changed"]
    assert changed.endswith("/a.csv")
    assert "a.csv (see --accept-changed)" in run("plan", "orders").stdout
    assert told(run, "plan", "orders", "--accept-changed")["changes_accepted"] == 1
    assert told(run, "plan", "orders")["files_changed"] == []


def test_plan_backfill_cuts_the_window_by_its_own_limits(database: Database, run: Run) -> None:
    """Expect batches of the window, none the second time, and the stream as it was."""
    register(database, 10)
    run("plan", "orders")
    words = ("plan", "orders", "--backfill", "b", "--first-id", "2", "--last-id", "7")
    dry = told(run, *words, "--max-count", "5", "--dry-run")
    assert (dry["job"], dry["batches"], dry["items"]) == ("orders.b", 2, 6)
    done = told(run, *words, "--max-count", "5")
    batch_ids = [one["batch_id"] for one in done["batches"]]
    assert batch_ids == ["00000002-00000006", "00000007-00000007"]
    assert told(run, *words, "--max-count", "5")["batches"] == []
    assert rows(database) == [("orders", 3), ("orders.b", 2)]


def test_plan_backfill_takes_sizes_times_and_items(database: Database, run: Run) -> None:
    """Expect units, ISO times and repeated items to be understood."""
    register(database, 10)
    by_size = told(run, "plan", "orders", "--backfill", "size", "--max-weight", "20B")
    assert len(by_size["batches"]) == 5
    words = ("plan", "orders", "--backfill", "time", "--until", "2020-01-01T00:00:00+01:00")
    assert told(run, *words)["batches"] == []
    words = ("plan", "orders", "--backfill", "time", "--since", "2020-01-01")
    assert sum(one["items"] for one in told(run, *words)["batches"]) == 10
    by_item = told(run, "plan", "orders", "--backfill", "items", "--item", "9", "--item", "2")
    assert by_item["batches"] == [{"batch_id": "00000002-00000009", "items": 2, "weight_bytes": 20}]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--item", "11"), ConfigurationError),
        (("--item", "9223372036854775808"), InvalidValueError),
        (("--first-id", "9", "--last-id", "8"), InvalidValueError),
        (("--since", "yesterday"), InvalidValueError),
        (("--max-weight", "much"), InvalidValueError),
    ],
)
def test_plan_backfill_of_what_cannot_be_is_refused(
    database: Database, run: Run, words: tuple[str, ...], error: type[Exception]
) -> None:
    """Expect a domain error and no backfill."""
    register(database, 10)
    run("plan", "orders")
    ended = run("plan", "orders", "--backfill", "b", *words)
    assert isinstance(ended.exception, error)
    assert rows(database) == [("orders", 3)]


def test_plan_backfill_by_another_selection_is_refused(database: Database, run: Run) -> None:
    """Expect the name to stand for what it was planned with."""
    register(database, 10)
    run("plan", "orders", "--backfill", "b", "--last-id", "5")
    ended = run("plan", "orders", "--backfill", "b", "--last-id", "6")
    assert isinstance(ended.exception, JobChangedError)


def test_status_shows_backfills_beside_the_stream(database: Database, run: Run) -> None:
    """Expect their progress, and counts of the stream that do not have their batches."""
    register(database, 10)
    run("plan", "orders")
    run("plan", "orders", "--backfill", "b", "--max-count", "5")
    first = database.backfills.statuses("orders.b", database.meta_table("orders").name)[0].batch
    publish(database, first)
    (report,) = told(run, "status", "orders")["streams"]
    assert report["batches"]["planned"] == 3
    (backfill,) = report["backfills"]
    assert backfill["job"] == "orders.b"
    assert (backfill["batches"]["published"], backfill["batches"]["planned"]) == (1, 1)
    assert (backfill["items"], backfill["items_done"], backfill["weight_bytes_done"]) == (10, 5, 50)
    assert backfill["seconds_left"] is not None
    printed = run("status", "orders").stdout
    assert "backfill    orders.b: 1 planned, 1 published" in printed
    assert "items done: 5 of 10, 50 B of 100 B" in printed
    assert "orders.b" in run("messages", "orders").stdout
    assert "orders.b" not in run("messages", "orders", "--no-backfills").stdout
