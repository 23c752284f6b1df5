"""The command `gc`, run in this process on a real server and a real folder."""

import json
import re
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import SettingError
from batch_pipeline_tests.cli.commands import Run, runs, told, write_stream
from batch_pipeline_tests.pipeline.garbage_fixture import DAY, GarbageScene, open_garbage_scene

UNKNOWN = "orders-00000001-00000003-a9-0badf00d-00000000-abcdef01.jsonl.gz"


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> GarbageScene:
    """A failed attempt of 30 days ago that left four files of 10 bytes, and two generations."""
    opened = open_garbage_scene(database, tmp_path / "batches", batches=1)
    opened.failed()
    opened.published()
    opened.published()
    opened.age()
    return opened


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Run:
    """The command with two streams, of which `broken` has a file as its storage root."""
    (tmp_path / "file").write_text("")
    for name, root in (("orders", "batches"), ("broken", "file")):
        write_stream(tmp_path, name, storage={"root": str(tmp_path / root)})
    return runs(tmp_path, database_url)


def keep(tmp_path: Path, text: str) -> None:
    """Set how long superseded generations are kept."""
    storage = {"root": str(tmp_path / "batches"), "keep_superseded": text}
    targets = {"warehouse": {"postgres": {"conn": "$DW"}}}
    write_stream(tmp_path, "orders", storage=storage, targets=targets)


def test_dry_run_lists_files_and_deletes_none(scene: GarbageScene, run: Run) -> None:
    """Expect what would go, why, and where it is."""
    before = scene.there()
    ended = run("gc", "orders", "--dry-run")
    assert (ended.exit_code, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[:3] == [
        "orders",
        "  Files that would be deleted: 4, 40 B; nothing was (dry run):",
        "       4 of attempts that ended without publishing",
    ]
    assert len(lines) == 7
    assert all((scene.root / line.strip()).exists() for line in lines[3:])
    assert scene.there() == before


def test_gc_deletes_what_the_dry_run_told(scene: GarbageScene, run: Run) -> None:
    """Expect the same list in JSON, the files gone, and nothing to delete afterwards."""
    [dry] = told(run, "gc", "orders", "--dry-run")["streams"]
    [done] = told(run, "gc", "orders")["streams"]
    assert done["garbage"] == dry["garbage"]
    assert (dry["dry_run"], dry["removed_files"]) == (True, 0)
    assert (done["dry_run"], done["removed_files"], done["removed_bytes"]) == (False, 4, 40)
    assert not {one["path"] for one in done["garbage"]} & {*scene.there()}
    assert run("gc", "orders").stdout.splitlines() == ["orders", "  Nothing to delete."]


def test_keep_superseded_of_the_stream_file_lets_generations_go(
    scene: GarbageScene, run: Run, tmp_path: Path
) -> None:
    """Expect files and pointer of generation 1 with the rest once they are old enough."""
    keep(tmp_path, "31d")
    assert len(told(run, "gc", "orders", "--dry-run")["streams"][0]["garbage"]) == 4
    keep(tmp_path, "29d")
    lines = run("gc", "orders").stdout.splitlines()
    assert re.fullmatch(r"  Files deleted: 7, .*:", lines[1])
    assert lines[2:] == [
        "       4 of attempts that ended without publishing",
        "       3 of generations that newer ones replaced",
    ]
    assert len(scene.there()) == 3


def test_unknown_files_are_told_with_what_deletes_them(scene: GarbageScene, run: Run) -> None:
    """Expect them left alone, named, and deleted when one insists."""
    run("gc", "orders")
    scene.put(UNKNOWN)
    scene.age(8 * DAY)
    lines = run("gc", "orders").stdout.splitlines()
    assert lines == [
        "orders",
        "  Nothing to delete.",
        "  Files left alone, of attempts that the inventory does not know: 1, 10 B.",
        "  If no other inventory's files are stored here, delete them with",
        "  `batch-pipeline gc orders --unknown`:",
        f"    {UNKNOWN}",
    ]
    assert UNKNOWN in scene.there()
    ended = run("gc", "orders", "--unknown")
    assert "1 of attempts that the inventory does not know" in ended.stdout
    assert UNKNOWN not in scene.there()


def test_stream_whose_storage_cannot_be_listed_does_not_stop_the_others(
    scene: GarbageScene, run: Run
) -> None:
    """Expect the others to be collected, and exit code 1 with what is wrong."""
    ended = run("gc")
    assert ended.exit_code == 1
    assert "Files deleted: 4, 40 B" in ended.stdout
    assert "Error: broken: Garbage in the storage" in ended.stderr
    assert "not a directory" in ended.stderr
    reports = json.loads(run("gc", "--json").stdout)["streams"]
    assert [(one["stream"], "error" in one) for one in reports] == [
        ("orders", False),
        ("broken", True),
    ]


def test_removed_setting_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_KEEP_LOGS", "29d")
    with pytest.raises(SettingError, match=r"BATCH_PIPELINE_KEEP_LOGS.*was removed.*Remove it"):
        raise run("gc").exception or AssertionError
