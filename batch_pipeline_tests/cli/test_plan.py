"""The command `plan`, and backfills in `status`."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError
from batch_pipeline_tests.cli.commands import Run, make_runner, run_json, write_stream
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.seeds import ORDER_ID, execute, plan, publish, query, register


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Run:
    """A runner with a stream `orders` of at most four files per batch."""
    (tmp_path / "landing").mkdir()
    write_stream(tmp_path, "orders", batch={"max_weight": "1KiB", "max_count": 4})
    return make_runner(tmp_path, database_url)


def jobs_with_batch_counts(database: Database) -> list[tuple[Any, ...]]:
    """Return all jobs and their numbers of batches."""
    return query(
        database,
        "SELECT name, (SELECT count(*) FROM batch_pipeline.batch WHERE job_id = job.id) "
        "FROM batch_pipeline.job ORDER BY id",
    )


def test_dry_run_reports_the_plan_and_stores_nothing(database: Database, run: Run) -> None:
    register(database, 10)
    dry_run = run_json(run, "plan", "orders", "--dry-run")
    assert (dry_run["batches"], dry_run["items"]) == (3, 10)
    assert (dry_run["weight_bytes"], dry_run["seconds"]) == (100, None)
    assert jobs_with_batch_counts(database) == []
    assert len(run_json(run, "plan", "orders")["batches"]) == 3
    assert "batches that would be planned: 0" in run("plan", "orders", "--dry-run").stdout


def land(folder: Path, **files: str) -> None:
    """Create files that were modified long ago."""
    for name, text in files.items():
        path = folder / "landing" / f"{name}.csv"
        path.write_text(text)
        os.utime(path, (1_700_000_000, 1_700_000_000 + len(text)))


def test_plan_registers_new_files_and_dry_run_does_not(run: Run, tmp_path: Path) -> None:
    land(tmp_path, a="id\n1\n", b="id\n2\n")
    assert run_json(run, "plan", "orders", "--dry-run")["items"] == 0
    done = run_json(run, "plan", "orders")
    assert (done["files_found"], done["items_registered"]) == (2, 2)
    assert [batch["batch_id"] for batch in done["batches"]] == ["00000001-00000002"]
    land(tmp_path, c="id\n3\n")
    result = run("plan", "orders")
    assert result.stdout.splitlines()[:2] == [
        "orders: files found: 3, registered: 1.",
        "orders: batches planned: 1.",
    ]


def test_changed_files_are_listed_and_accepted_on_request(run: Run, tmp_path: Path) -> None:
    land(tmp_path, a="id\n1\n")
    run("plan", "orders")
    land(tmp_path, a="id\n1\n2\n")
    [changed] = run_json(run, "plan", "orders")["files_changed"]
    assert changed.endswith("/a.csv")
    assert "a.csv (see --accept-changed)" in run("plan", "orders").stdout
    assert run_json(run, "plan", "orders", "--accept-changed")["changes_accepted"] == 1
    assert run_json(run, "plan", "orders")["files_changed"] == []


def test_plan_of_a_paused_stream_prints_what_it_registered(run: Run, tmp_path: Path) -> None:
    land(tmp_path, a="id\n1\n")
    run("plan", "orders")
    run("jobs", "pause", "orders")
    land(tmp_path, a="id\n1\n2\n", b="id\n3\n")
    result = run("plan", "orders", "--accept-changed")
    assert "files found: 2, registered: 1." in result.stdout
    assert "Changed files accepted: 1." in result.stdout
    assert (result.exit_code, "Job 'orders' is paused" in result.stderr) == (75, True)
    (tmp_path / "landing/link.csv").symlink_to("../streams/orders/defs.yaml")  # refused
    result = run("plan", "orders")
    assert (result.exit_code, result.stderr.count("Error: ")) == (1, 2)


def test_large_file_becomes_items_whose_ranges_explain_shows(run: Run, tmp_path: Path) -> None:
    source = {"uri": str(tmp_path / "landing"), "format": "csv", "max_item_size": "64KiB"}
    write_stream(tmp_path, "orders", source, batch={"max_weight": "64KiB", "max_count": 1})
    land(tmp_path, big="id\n" + "".join(f"{number:015}\n" for number in range(10_000)))
    run("plan", "orders")
    items = run_json(run, "explain", "big.csv")["items"]
    ends = [item["range"]["last"] for item in items]
    assert [item["range"]["first"] for item in items] == [0, *(last + 1 for last in ends[:-1])]
    assert (len(items), ends[-1]) == (3, 160_002)
    output = run("explain", "1").stdout
    assert f"bytes 0 to {ends[0]} of 156.3 KiB" in output
    assert "unchanged since" in output


def test_explain_notes_omitted_items_of_a_stream(run: Run, tmp_path: Path) -> None:
    source = {"uri": str(tmp_path / "landing"), "format": "csv", "max_item_size": "64KiB"}
    for name, items in {"few": 12, "many": 22}.items():
        land(tmp_path, **{name: f"{'x' * 1023}\n" * 64 * items})
    for stream in ("orders", "copies"):
        write_stream(tmp_path, stream, source)
        run("plan", stream)
    for name, has_more in {"few": False, "many": True}.items():
        assert ("At most 20 items" in run("explain", f"{name}.csv").stderr) is has_more


def test_backfill_uses_its_own_window_and_limits(database: Database, run: Run) -> None:
    register(database, 10)
    run("plan", "orders")
    words = ("plan", "orders", "--backfill", "b", "--first-id", "2", "--last-id", "7")
    dry_run = run_json(run, *words, "--max-count", "5", "--dry-run")
    assert (dry_run["job"], dry_run["batches"], dry_run["items"]) == ("orders.b", 2, 6)
    done = run_json(run, *words, "--max-count", "5")
    batch_ids = [batch["batch_id"] for batch in done["batches"]]
    assert batch_ids == ["b:00000002-00000006", "b:00000007-00000007"]
    assert run_json(run, *words, "--max-count", "5")["batches"] == []
    assert jobs_with_batch_counts(database) == [("orders", 3), ("orders.b", 2)]


def test_backfill_accepts_sizes_times_and_items(database: Database, run: Run) -> None:
    register(database, 10)
    by_size = run_json(
        run, "plan", "orders", "--backfill", "size", "--max-weight", "20B", "--first-id", "0"
    )
    assert len(by_size["batches"]) == 5
    words = ("plan", "orders", "--backfill", "time", "--until", "2020-01-01T00:00:00+01:00")
    assert run_json(run, *words)["batches"] == []
    words = ("plan", "orders", "--backfill", "time", "--since", "2020-01-01")
    assert sum(batch["items"] for batch in run_json(run, *words)["batches"]) == 10
    by_item = run_json(run, "plan", "orders", "--backfill", "items", "--item", "9", "--item", "2")
    assert by_item["batches"] == [
        {"batch_id": "items:00000002-00000009", "items": 2, "weight_bytes": 20}
    ]


def test_invalid_backfill_options_are_refused(database: Database, run: Run) -> None:
    register(database, 10)
    run("plan", "orders")
    invalid: list[tuple[tuple[str, ...], type[Exception]]] = [
        (("--item", "11"), ConfigurationError),
        (("--item", "9223372036854775808"), InvalidValueError),
        (("--first-id", "9", "--last-id", "8"), InvalidValueError),
        (("--since", "yesterday"), InvalidValueError),
        (("--max-weight", "much"), InvalidValueError),
    ]
    for words, error in invalid:
        assert isinstance(run("plan", "orders", "--backfill", "b", *words).exception, error), words
    assert jobs_with_batch_counts(database) == [("orders", 3)]


def test_status_shows_backfills_separately(database: Database, run: Run) -> None:
    register(database, 10)
    run("plan", "orders")
    run("plan", "orders", "--backfill", "b", "--max-count", "5")
    first = database.backfills.statuses("orders.b", database.meta_table("orders").name)[0].batch
    publish(database, first)
    (report,) = run_json(run, "status", "orders")["streams"]
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


# The limits that an earlier release learned.
LEARNED = {
    "max_weight": "800",
    "max_count": "10000",
    "min_weight": "0",
    "max_wait": "0:05:00",
    "target_seconds": "60.0",
    "most_weight": "1600",
    "weight_per_second": "nan",
    "learned_from": "5",
}


def test_plan_continues_with_configured_limits_after_learned_ones(
    database: Database, run: Run, tmp_path: Path
) -> None:
    write_stream(tmp_path, "orders", batch={"max_weight": 1_600, "max_count": 10_000})
    register(database, 80)
    (old,) = plan(database, limits(max_weight=800, max_count=10_000))
    execute(
        database, "UPDATE batch_pipeline.batch SET config = :config", config=json.dumps(LEARNED)
    )
    database.schemas.widen("orders", [ORDER_ID], text_source=True)
    publish(database, old)
    register(database, 160, first=81)

    (new,) = run_json(run, "plan", "orders")["batches"]
    assert new["weight_bytes"] == 1_600
    (report,) = run_json(run, "status")["streams"]
    assert (report["batches"]["published"], report["batches"]["planned"]) == (1, 1)
    (item,) = run_json(run, "explain", "1")["items"]
    assert (item["generation"], item["batch_weight_bytes"]) == (1, 800)
    late = database.late_arrivals.audit("orders", database.meta_table("orders").reflected())
    assert late.late_batches
    configs = query(database, "SELECT config FROM batch_pipeline.batch ORDER BY id")
    assert [config["max_weight"] for (config,) in configs][:2] == ["800", "1600"]
