"""The command `load`, run in this process with programs as targets."""

import json
from pathlib import Path

import psycopg
import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.errors import FilesRemovedError, PipelineError
from batch_pipeline_tests.cli.commands import Run, runs, told, write_stream
from batch_pipeline_tests.factories import encoded, item_report, limits
from batch_pipeline_tests.load.target_scripts import GOOD, SILENT, read, script
from batch_pipeline_tests.pipeline.load_fixture import (
    FIRST,
    LEASE,
    SECOND,
    due,
    publish_file,
    published,
)
from batch_pipeline_tests.seeds import execute, planned, publish

AGAIN, LATE = f"2023:{FIRST}", "late-00000002"


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Run:
    """The command with the streams `orders`, of two targets, and `bare`, of none."""
    targets = {}
    for name, body in (("good", GOOD), ("silent", SILENT)):
        folder = tmp_path / name
        folder.mkdir()
        config = {"out": str(folder / "read"), "password": "$TARGET_PASSWORD"}
        targets[name] = {"command": list(script(folder, body)), "config": config}
    write_stream(tmp_path, "orders", targets=targets)
    write_stream(tmp_path, "bare")
    return runs(tmp_path, database_url, TARGET_PASSWORD="hunter2!")  # noqa: S106 - of nobody


def test_load_tells_each_batch_in_a_line(run: Run, database: Database, tmp_path: Path) -> None:
    """Expect the batches of one target, and that there is nothing left the second time."""
    published(database, tmp_path, 2)
    ended = run("load", "orders", "--target", "good")
    assert (ended.exit_code, ended.stdout) == (
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


def test_load_of_a_target_that_fails_leaves_the_other_done(
    run: Run, database: Database, tmp_path: Path
) -> None:
    """Expect exit code 3, and the reason where it failed."""
    published(database, tmp_path, 1)
    ended = run("load", "orders", "--json")
    assert ended.exit_code == 3
    good, silent = json.loads(ended.stdout)["targets"]
    assert [one["loaded"] for one in good["batches"]] == [True]
    assert [one["loaded"] for one in silent["batches"]] == [False]
    assert "did not print the STATE of this batch" in silent["batches"][0]["error"]
    assert (good["error"], silent["error"]) == (None, None)
    assert "hunter2" not in ended.stdout


def test_load_without_a_password_stops_each_target_and_says_why(
    run: Run, database: Database, tmp_path: Path
) -> None:
    """Expect exit code 1 and the name of the variable."""
    published(database, tmp_path, 1)
    ended = run("load", "orders", "--target", "good", TARGET_PASSWORD=None)
    assert ended.exit_code == 1
    assert "TARGET_PASSWORD" in ended.stderr
    assert "targets.good.config" in ended.stderr


def test_load_while_another_one_loads_is_to_be_tried_later(
    run: Run, database: Database, tmp_path: Path
) -> None:
    """Expect exit code 75 and the run that loads."""
    published(database, tmp_path, 1)
    wanted = due(database, "good")
    with database.loads.claim("orders", "good", wanted, run_id="load-7", lease=LEASE):
        ended = run("load", "orders", "--target", "good")
    assert ended.exit_code == 75
    assert "run load-7 is loading this stream into the target" in ended.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("bare",), "The stream bare has no target (targets of its stream file: none)"),
        (("orders", "--target", "lake"), "The stream orders has no target 'lake'"),
        (("orders", "--batch", FIRST), f"no published batch '{FIRST}'"),
        (("orders", "--batch", "again:1-2"), "no published batch 'again:1-2'"),
        (("nowhere",), "No stream 'nowhere'"),
        (("order",), "Did you mean 'orders'? Nothing was done."),
    ],
)
def test_load_of_what_is_not_there_is_refused(
    run: Run, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    """Expect what there is, and that nothing was loaded."""
    error = run("load", *words).exception
    assert isinstance(error, PipelineError)
    assert problem in str(error)


def test_load_of_a_batch_again_sends_it_and_no_other(
    run: Run, database: Database, tmp_path: Path
) -> None:
    """Expect one batch more for the target, and the records of both loads to be kept."""
    published(database, tmp_path, 3)
    run("load", "orders", "--target", "good", "--batch", f"{FIRST},{SECOND}")
    assert _loaded(run, "--batch", SECOND) == [SECOND]
    states = [one for one in read(tmp_path / "good") if one["type"] == "STATE"]
    assert len(states) == 3


@pytest.mark.parametrize("name", [SECOND, "4..6", "2"])
def test_load_takes_a_batch_by_all_its_names(
    run: Run, database: Database, tmp_path: Path, name: str
) -> None:
    published(database, tmp_path, 2)
    assert _loaded(run, "--batch", name) == [SECOND]


def test_load_of_late_items_and_backfills_takes_the_names_that_load_prints(
    run: Run, database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    publish_late_and_backfill(database, tmp_path)
    assert _loaded(run) == [FIRST, LATE, AGAIN]
    assert _loaded(run, "--batch", LATE) == [LATE]
    assert _loaded(run, "--batch", "2..3") == [LATE]
    assert _loaded(run, "--batch", f"{AGAIN},{FIRST}") == [FIRST, AGAIN]


def publish_late_and_backfill(database: Database, folder: Path) -> None:
    """Plan and publish the items that the first batch left out, and a backfill of it."""
    table = database.meta_table("orders")
    execute(database, """UPDATE batch_pipeline.attempt SET seen = seen || '{"weight": 10}'""")
    database.late_arrivals.audit("orders", table.reflected(), limits=limits(), since=None)
    publish_file(database, database.jobs.batch("orders", "2..3"), folder)
    request = Backfill.of_stream("orders", "2023", Selection(), limits())
    database.backfills.plan(request, table)
    publish_file(database, database.batches.batch("orders", AGAIN), folder)


def _loaded(run: Run, *words: str) -> list[str]:
    """Return the names of the batches that a load into `good` sends."""
    (report,) = told(run, "load", "orders", "--target", "good", *words)["targets"]
    return [one["batch_id"] for one in report["batches"]]


def test_load_of_batches_of_which_one_is_unknown_changes_nothing(
    run: Run, database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    run("load", "orders", "--target", "good")
    error = run("load", "orders", "--target", "good", "--batch", f"{FIRST},{SECOND}").exception
    assert f"no published batch '{SECOND}'" in str(error)
    assert due(database, "good") == []


def test_load_of_batches_of_which_one_lost_its_files_changes_nothing(
    run: Run, database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 2)
    run("load", "orders", "--target", "good")
    assert database.stored_attempts.mark_loaded([1], ["good"]) == {1}
    error = run("load", "orders", "--target", "good", "--batch", f"{SECOND},{FIRST}").exception
    assert isinstance(error, FilesRemovedError)
    assert due(database, "good") == []


def test_load_into_a_postgres_table_is_recorded_like_any_other(
    run: Run, database: Database, empty_database_url: str, tmp_path: Path
) -> None:
    """Expect rows, books and the standing of a target that is no program."""
    published(database, tmp_path, 2)
    write_stream(tmp_path, "orders", targets={"dw": {"postgres": {"conn": "$DW"}}})
    refused = run("load", "orders")
    assert (refused.exit_code, "targets.dw.postgres.conn" in refused.stderr) == (1, True)
    ended = run("load", "orders", "--json", DW=empty_database_url)
    assert ended.exit_code == 0, ended.output
    (report,) = json.loads(ended.stdout)["targets"]
    assert [one["loaded"] for one in report["batches"]] == [True, True]
    with psycopg.connect(empty_database_url) as connection:
        found = connection.execute("SELECT order_id FROM orders ORDER BY 1").fetchall()
    assert found == [(1,), (2,), (4,), (5,)]
    assert due(database, "dw") == []


def test_status_tells_how_far_each_target_is(run: Run, database: Database, tmp_path: Path) -> None:
    """Expect loaded, due and failed, and the last error."""
    published(database, tmp_path, 2)
    run("load", "orders")
    (report,) = told(run, "status", "orders")["streams"]
    good, silent = report["targets"]
    assert (good["loaded"], good["due"], good["error"]) == (2, 0, None)
    assert (silent["loaded"], silent["due"], silent["failed"]) == (0, 2, 2)
    shown = run("status", "orders").stdout
    assert "\n  now         2 not loaded into silent; last published just now\n" in shown
    assert "\n  next        `batch-pipeline load orders` retries failed loads\n" in shown
    assert "  target      good: 2 loaded, last just now, 0 due\n" in shown
    assert (
        "  target      silent: 0 loaded, 2 due, 2 of them failed\n              orders: batch"
    ) in shown


@pytest.mark.parametrize(
    ("version", "told_version"), [(None, ""), ("v1", ", version v1")], ids=["plain", "versioned"]
)
def test_explain_tells_which_version_of_an_object_was_read(
    run: Run, database: Database, version: str | None, told_version: str
) -> None:
    """Expect one line more for an item that was read from a store."""
    (one,) = planned(database)
    items = (item_report(1, etag="9a0364b9", version=version), item_report(2, read=0, written=0))
    publish(database, one, encoded(items=items))
    told_line = f"              from the object with etag 9a0364b9{told_version}\n"
    assert told_line in run("explain", "1").stdout
    assert "etag" not in run("explain", "2").stdout
    (story,) = told(run, "explain", "1")["items"]
    (attempt,) = story["attempts"]
    assert (attempt["read_etag"], attempt["read_version"]) == ("9a0364b9", version)


def test_explain_tells_station_nine(run: Run, database: Database, tmp_path: Path) -> None:
    """Expect a file to be due, then loaded in one target and failed in the other."""
    published(database, tmp_path, 1)
    before = run("explain", "1").stdout
    assert "  9 load      good: due; `batch-pipeline load` loads it\n" in before
    run("load", "orders")
    after = run("explain", "1").stdout
    assert "  9 load      good: records: 2, loaded 20" in after
    assert "  9 load      silent: due, failed, tries: 3\n              orders: batch" in after
    (story,) = told(run, "explain", "1")["items"]
    good, silent = story["targets"]
    assert (good["loaded"], good["records"], good["messages"]) == (True, 2, "record")
    assert (silent["loaded"], silent["status"], silent["tries"]) == (False, "failed", 3)


def test_batch_whose_files_went_is_told_and_not_loaded_again(
    run: Run, database: Database, tmp_path: Path
) -> None:
    """Expect `--batch`, `explain` and `status` to say when they went and what to do."""
    published(database, tmp_path, 1)
    run("load", "orders", "--target", "good")
    marked = database.stored_attempts.mark_loaded([1], ["good"])
    assert marked == {1}

    error = run("load", "orders", "--target", "good", "--batch", FIRST).exception
    assert isinstance(error, FilesRemovedError)
    assert f"the files of batch {FIRST}, generation 1, were deleted on 2" in str(error)
    assert "Materialize its partition again" in str(error)

    shown = run("explain", "1").stdout
    assert "              these files were deleted 2" in shown
    assert "`batch-pipeline messages orders` omits it" in shown
    assert "  9 load      good: records: 2, loaded 20" in shown
    (story,) = told(run, "explain", "1")["items"]
    assert story["files_removed"]["at"].startswith("2")

    shown = run("status", "orders").stdout
    assert "  target      good: 1 loaded, last just now" in shown
    assert (
        "  target      silent: 0 loaded, 0 due\n              1 were never loaded, and their files"
    ) in shown
    ended = run("load", "orders", "--target", "silent")
    assert (ended.exit_code, ended.stdout) == (
        0,
        (
            "orders into silent\n"
            "  Nothing to load. Batches that were never loaded and whose files are deleted: 1;\n"
            "  materialize their partitions again to load them.\n"
        ),
    )
