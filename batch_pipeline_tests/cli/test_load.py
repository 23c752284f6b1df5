"""The command `load`, with programs as targets."""

import json
from pathlib import Path

import psycopg
import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import FilesRemovedError, PipelineError
from batch_pipeline_tests.cli.commands import Run, make_runner, run_json, write_stream
from batch_pipeline_tests.factories import encoded, item_report, limits
from batch_pipeline_tests.load.target_scripts import GOOD, SILENT, read, script
from batch_pipeline_tests.pipeline.load_fixture import (
    FIRST,
    LEASE,
    SECOND,
    THIRD,
    due,
    publish_file,
    published,
)
from batch_pipeline_tests.seeds import execute, planned, planned_backfill, publish

AGAIN, LATE = f"2023:{FIRST}", "late-00000002"


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Run:
    """A runner with the streams `orders`, with two targets, and `bare`, with none."""
    targets = {}
    for name, body in (("good", GOOD), ("silent", SILENT)):
        folder = tmp_path / name
        folder.mkdir()
        config = {"out": str(folder / "read"), "password": "$TARGET_PASSWORD"}
        targets[name] = {"command": list(script(folder, body)), "config": config}
    write_stream(tmp_path, "orders", targets=targets)
    write_stream(tmp_path, "bare")
    return make_runner(tmp_path, database_url, TARGET_PASSWORD="hunter2!")  # noqa: S106


def test_load_prints_a_line_per_batch(run: Run, database: Database, tmp_path: Path) -> None:
    published(database, tmp_path, 2)
    result = run("load", "orders", "--target", "good")
    assert (result.exit_code, result.stdout) == (
        0,
        (
            "orders into good\n"
            f"  {FIRST} generation 1: records loaded by RECORD messages: 2\n"
            f"  {SECOND} generation 1: records loaded by RECORD messages: 2\n"
        ),
    )
    again = run("load", "orders", "--target", "good")
    assert again.stdout == (
        "orders into good\n  Nothing to load: the target has all published batches.\n"
    )


def test_failing_target_does_not_stop_the_other(
    run: Run, database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    result = run("load", "orders", "--json")
    assert result.exit_code == 3
    good, silent = json.loads(result.stdout)["targets"]
    assert [batch["loaded"] for batch in good["batches"]] == [True]
    assert [batch["loaded"] for batch in silent["batches"]] == [False]
    assert "did not print the STATE of this batch" in silent["batches"][0]["error"]
    assert (good["error"], silent["error"]) == (None, None)
    assert "hunter2" not in result.stdout


def test_load_during_another_load_exits_75_and_names_its_run(
    run: Run, database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    due_batches = due(database, "good")
    with database.loads.claim("orders", "good", due_batches, run_id="load-7", lease=LEASE):
        result = run("load", "orders", "--target", "good")
        assert run("load", "orders").exit_code == 3  # the other target fails
    assert result.exit_code == 75
    assert "run load-7 is loading this stream into the target" in result.stderr


def test_load_of_unknown_or_unpublished_names_is_refused(run: Run, database: Database) -> None:
    planned(database)
    unknown = [
        (("bare",), "The stream bare has no target (targets of its stream file: none)"),
        (("orders", "--target", "lake"), "The stream orders has no target 'lake'"),
        (("orders", "--batch", FIRST), f"no published batch '{FIRST}'. Nothing was loaded."),
        (("orders", "--batch", "again:1-2"), "no published batch 'again:1-2'"),
        (("nowhere",), "No stream 'nowhere'"),
        (("order",), "Did you mean 'orders'? Nothing was done."),
    ]
    for words, problem in unknown:
        error = run("load", *words).exception
        assert isinstance(error, PipelineError), words
        assert problem in str(error)


def test_batch_option_reloads_only_that_batch(run: Run, database: Database, tmp_path: Path) -> None:
    published(database, tmp_path, 3)
    assert _loaded(run, "--batch", f"{FIRST},4..6") == [FIRST, SECOND]
    assert _loaded(run, "--batch", "2") == [SECOND]
    states = [line for line in read(tmp_path / "good") if line["type"] == "STATE"]
    assert len(states) == 3


def test_load_accepts_names_of_late_and_backfill_batches(
    run: Run, database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    publish_late_and_backfill(database, tmp_path)
    assert _loaded(run) == [FIRST, LATE, AGAIN]
    assert _loaded(run, "--batch", LATE) == [LATE]
    assert _loaded(run, "--batch", f"2..3,{AGAIN}") == [LATE, AGAIN]
    assert _loaded(run, "--batch", "2023:000000000001-000000000003") == [AGAIN]  # of release 0.1
    assert _loaded(run, "--batch", FIRST) == [FIRST, AGAIN]  # the backfill has newer records


def publish_late_and_backfill(database: Database, folder: Path) -> None:
    """Plan and publish the items that the first batch left out, and a backfill of it."""
    table = database.meta_table("orders")
    execute(database, """UPDATE batch_pipeline.attempt SET seen = seen || '{"weight": 10}'""")
    database.late_arrivals.audit("orders", table.reflected(), limits=limits(), since=None)
    publish_file(database, database.jobs.batch("orders", "2..3"), folder)
    [again] = planned_backfill(database)
    publish_file(database, again, folder)


def _loaded(run: Run, *words: str) -> list[str]:
    """Return the names of the batches that a load into `good` sends."""
    (report,) = run_json(run, "load", "orders", "--target", "good", *words)["targets"]
    return [batch["batch_id"] for batch in report["batches"]]


def test_batch_that_cannot_be_loaded_in_a_list_loads_nothing(
    run: Run, database: Database, tmp_path: Path
) -> None:
    """It does not exist, or its files were deleted."""
    published(database, tmp_path, 2)
    run("load", "orders", "--target", "good")
    load = ("load", "orders", "--target", "good", "--batch")
    assert f"no published batch '{THIRD}'" in str(run(*load, f"{FIRST},{THIRD}").exception)
    assert database.stored_attempts.mark_loaded([1], ["good"]) == {1}
    assert isinstance(run(*load, f"{SECOND},{FIRST}").exception, FilesRemovedError)
    assert due(database, "good") == []


def test_load_into_postgres_is_recorded(
    run: Run, database: Database, empty_database_url: str, tmp_path: Path
) -> None:
    published(database, tmp_path, 2)
    write_stream(tmp_path, "orders", targets={"dw": {"postgres": {"conn": "$DW"}}})
    unset = run("load", "orders")
    assert unset.exit_code == 1
    assert "DW (targets.dw.postgres.conn" in unset.stderr
    result = run("load", "orders", "--json", DW=empty_database_url)
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)["targets"]
    assert [batch["loaded"] for batch in report["batches"]] == [True, True]
    with psycopg.connect(empty_database_url) as connection:
        rows = connection.execute("SELECT order_id FROM orders ORDER BY 1").fetchall()
    assert rows == [(1,), (2,), (4,), (5,)]
    assert due(database, "dw") == []


def test_status_shows_loaded_due_and_failed_batches_per_target(
    run: Run, database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 2)
    run("load", "orders")
    (report,) = run_json(run, "status", "orders")["streams"]
    good, silent = report["targets"]
    assert (good["loaded"], good["due"], good["error"]) == (2, 0, None)
    assert (silent["loaded"], silent["due"], silent["failed"]) == (0, 2, 2)
    output = run("status", "orders").stdout
    assert "\n  now         2 not loaded into silent; last published just now\n" in output
    assert "\n  next        `batch-pipeline load orders` retries failed loads\n" in output
    assert "  target      good: 2 loaded, last just now, 0 pending\n" in output
    assert (
        "  target      silent: 0 loaded, 2 pending, 2 of them failed\n              orders: batch"
    ) in output


def test_explain_shows_the_object_version_that_was_read(run: Run, database: Database) -> None:
    (batch,) = planned(database)
    empty = {"read": 0, "written": 0}
    items = (
        item_report(1, etag="9a0364b9", version="v1"),
        item_report(2, etag="9a0364b9", **empty),
        item_report(3, **empty),
    )
    publish(database, batch, encoded(items=items))
    read_from = "              from the object with etag 9a0364b9"
    assert f"{read_from}, version v1\n" in run("explain", "1").stdout
    assert f"{read_from}\n" in run("explain", "2").stdout
    assert "etag" not in run("explain", "3").stdout
    (item,) = run_json(run, "explain", "1")["items"]
    (attempt,) = item["attempts"]
    assert (attempt["read_etag"], attempt["read_version"]) == ("9a0364b9", "v1")


def test_explain_shows_the_load_step_per_target(
    run: Run, database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    before = run("explain", "1").stdout
    assert "  9 load      good: pending; `batch-pipeline load orders` loads it\n" in before
    run("load", "orders")
    after = run("explain", "1").stdout
    assert "  9 load      good: records: 2, loaded 20" in after
    assert (
        "  9 load      silent: pending, failed, attempts: 3\n              orders: batch" in after
    )
    (item,) = run_json(run, "explain", "1")["items"]
    good, silent = item["targets"]
    assert (good["loaded"], good["records"], good["messages"]) == (True, 2, "record")
    assert (silent["loaded"], silent["status"], silent["tries"]) == (False, "failed", 3)


def test_deleted_files_are_reported_and_not_loaded(
    run: Run, database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    run("load", "orders", "--target", "good")
    marked = database.stored_attempts.mark_loaded([1], ["good"])
    assert marked == {1}

    error = run("load", "orders", "--target", "good", "--batch", FIRST).exception
    assert isinstance(error, FilesRemovedError)
    assert f"the files of batch {FIRST}, generation 1, were deleted on 2" in str(error)
    assert "Materialize its partition again" in str(error)

    output = run("explain", "1").stdout
    assert "              these files were deleted 2" in output
    assert "`batch-pipeline messages orders` omits it" in output
    assert "  9 load      good: records: 2, loaded 20" in output
    (item,) = run_json(run, "explain", "1")["items"]
    assert item["files_removed"]["at"].startswith("2")

    output = run("status", "orders").stdout
    assert "  target      good: 1 loaded, last just now" in output
    assert (
        "  target      silent: 0 loaded, 0 pending\n              1 were never loaded, and their"
    ) in output
    result = run("load", "orders", "--target", "silent")
    assert (result.exit_code, result.stdout) == (
        0,
        (
            "orders into silent\n"
            "  Nothing to load. Batches that were never loaded and whose files are deleted: 1;\n"
            "  materialize their partitions again to load them.\n"
        ),
    )
