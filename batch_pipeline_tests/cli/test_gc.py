"""The command `gc`."""

import json
import re
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import SettingError
from batch_pipeline_tests.cli.commands import Run, make_runner, run_json, write_stream
from batch_pipeline_tests.pipeline.garbage_fixture import DAY, GarbageHarness, open_garbage_harness

UNKNOWN = "orders-00000001-00000003-a9-0badf00d-00000000-abcdef01.jsonl.gz"


@pytest.fixture
def storage(database: Database, tmp_path: Path) -> GarbageHarness:
    """A failed attempt of 30 days ago that left four files of 10 bytes, and two generations."""
    opened = open_garbage_harness(database, tmp_path / "batches", batches=1)
    opened.failed()
    opened.published()
    opened.published()
    opened.age()
    return opened


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Run:
    """A runner with two streams; the storage root of `broken` is a file."""
    (tmp_path / "file").write_text("")
    for name, root in (("orders", "batches"), ("broken", "file")):
        write_stream(tmp_path, name, storage={"root": str(tmp_path / root)})
    return make_runner(tmp_path, database_url)


def set_keep_superseded(tmp_path: Path, text: str) -> None:
    """Set how long superseded generations are kept."""
    storage = {"root": str(tmp_path / "batches"), "keep_superseded": text}
    targets = {"warehouse": {"postgres": {"conn": "$DW"}}}
    write_stream(tmp_path, "orders", storage=storage, targets=targets)


def test_dry_run_lists_files_and_deletes_none(storage: GarbageHarness, run: Run) -> None:
    before = storage.there()
    result = run("gc", "orders", "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "orders",
        "  Files that would be deleted: 4, 40 B; nothing was (dry run):",
        "       4 of attempts that ended without publishing",
    ]
    assert len(lines) == 7
    assert all((storage.root / line.strip()).exists() for line in lines[3:])
    [dry_run] = run_json(run, "gc", "orders", "--dry-run")["streams"]
    assert (dry_run["dry_run"], dry_run["removed_files"]) == (True, 0)
    assert storage.there() == before
    [done] = run_json(run, "gc", "orders")["streams"]
    assert done["garbage"] == dry_run["garbage"]
    assert (done["dry_run"], done["removed_files"], done["removed_bytes"]) == (False, 4, 40)
    assert not {entry["path"] for entry in done["garbage"]} & {*storage.there()}


def test_generations_older_than_keep_superseded_are_deleted(
    storage: GarbageHarness, run: Run, tmp_path: Path
) -> None:
    set_keep_superseded(tmp_path, "31d")
    assert len(run_json(run, "gc", "orders", "--dry-run")["streams"][0]["garbage"]) == 4
    set_keep_superseded(tmp_path, "29d")
    lines = run("gc", "orders").stdout.splitlines()
    assert re.fullmatch(r"  Files deleted: 7, .*:", lines[1])
    assert lines[2:] == [
        "       4 of attempts that ended without publishing",
        "       3 of generations that newer ones replaced",
    ]
    assert len(storage.there()) == 3


def test_unknown_files_are_listed_and_deleted_only_with_unknown(
    storage: GarbageHarness, run: Run
) -> None:
    run("gc", "orders")
    storage.put(UNKNOWN)
    storage.age(8 * DAY)
    lines = run("gc", "orders").stdout.splitlines()
    assert lines == [
        "orders",
        "  Nothing to delete.",
        "  Files kept, of attempts that the inventory does not know: 1, 10 B.",
        "  If no other inventory's files are stored here, delete them with",
        "  `batch-pipeline gc orders --unknown`:",
        f"    {UNKNOWN}",
    ]
    assert UNKNOWN in storage.there()
    result = run("gc", "orders", "--unknown")
    assert "1 of attempts that the inventory does not know" in result.stdout
    assert UNKNOWN not in storage.there()


def test_unreadable_storage_does_not_stop_other_streams(storage: GarbageHarness, run: Run) -> None:
    result = run("gc")
    assert result.exit_code == 1
    assert "Files deleted: 4, 40 B" in result.stdout
    assert "Error: broken: Garbage in the storage" in result.stderr
    assert "not a directory" in result.stderr
    reports = json.loads(run("gc", "--json").stdout)["streams"]
    assert [(entry["stream"], "error" in entry) for entry in reports] == [
        ("orders", False),
        ("broken", True),
    ]


def test_removed_setting_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_KEEP_LOGS", "29d")
    with pytest.raises(SettingError, match=r"BATCH_PIPELINE_KEEP_LOGS.*was removed.*Remove it"):
        raise run("gc").exception or AssertionError
