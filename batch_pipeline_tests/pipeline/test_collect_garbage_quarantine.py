"""Quarantine files whose time is over: they go, their generation stays, and all are told."""

from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.checks import Check
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.garbage import Reason
from batch_pipeline.model.job import JobKind
from batch_pipeline.pipeline.verify import of_files, verify
from batch_pipeline.storage.verification import manifest_file_problem, size_problem
from batch_pipeline_tests.pipeline.garbage_fixture import DAY, GarbageScene, open_garbage_scene
from batch_pipeline_tests.seeds import execute, query

MARKS = (
    "SELECT facts ? 'quarantine_removed_at', facts ? 'files_removed_at' FROM batch_pipeline.attempt"
)


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> GarbageScene:
    """A published batch with a part file and a quarantine file, which is kept for a week."""
    opened = open_garbage_scene(database, tmp_path / "batches")
    opened.published()
    return opened.loading_into(keep_quarantine=7 * DAY)


def folders(scene: GarbageScene) -> list[str]:
    """Name the folders that have files; the root is a dot."""
    return sorted({str(Path(name).parent) for name in scene.there()})


def test_quarantine_goes_and_its_generation_stays(scene: GarbageScene) -> None:
    """Expect a dry run to tell so, part file and pointer to stay, and the mark to be told apart."""
    scene.age(6 * DAY)
    assert scene.collect().garbage == ()
    scene.age(2 * DAY)
    told = scene.collect(dry_run=True)
    assert told.files(Reason.QUARANTINED) == len(told.garbage) == 1
    assert folders(scene) == [".", "manifests", "quarantine"]
    assert scene.collect().removed_files == 1
    assert folders(scene) == [".", "manifests"]
    assert query(scene.database, MARKS) == [(True, False)]
    assert scene.collect().garbage == ()


def test_verification_does_not_miss_quarantine_that_was_given_up(scene: GarbageScene) -> None:
    """Expect the part file to be looked at, and the manifest file to be right as it is."""
    scene.age(8 * DAY)
    scene.collect()
    execute(scene.database, "UPDATE batch_pipeline.part_file SET size_bytes = 10")
    published = scene.database.published.of_stream("orders", [JobKind.INCREMENTAL], newest=None)
    found = verify(published, {Check.PART_FILES: of_files(size_problem)})[Check.PART_FILES]
    assert (found.passed, found.numbers["files_checked"]) == (True, 1)


def test_pointer_file_names_quarantine_that_was_given_up(scene: GarbageScene) -> None:
    """Expect no difference to the inventory, whose rows stay."""
    scene.age(8 * DAY)
    scene.collect()
    [one] = scene.database.published.of_stream("orders", [JobKind.INCREMENTAL], newest=None)
    assert one.quarantine_removed
    manifest = scene.database.manifests.of_batch(scene.batches[0])
    assert manifest is not None
    removal = scene.database.manifests.quarantine_removal(manifest)
    assert removal is not None
    assert scene.database.manifests.removal(manifest) is None
    assert len(one.quarantine_files) == 1
    assert manifest_file_problem(one) is None


def test_collector_that_was_stopped_after_the_mark_is_gone_on_from(
    scene: GarbageScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the file to go although the stream file says otherwise by now."""
    scene.age(8 * DAY)
    monkeypatch.setenv(VARIABLE, "collect.marked=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        scene.collect()
    monkeypatch.delenv(VARIABLE)
    assert folders(scene) == [".", "manifests", "quarantine"]
    changed = scene.loading_into(keep_quarantine=timedelta(days=365))
    assert changed.collect().files(Reason.QUARANTINED) == 1
    assert folders(scene) == [".", "manifests"]
