"""Deleting expired quarantine files while their generation stays."""

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
    """A published batch with a part file and a quarantine file that is kept for a week."""
    opened = open_garbage_scene(database, tmp_path / "batches")
    opened.published()
    return opened.loading_into(keep_quarantine=7 * DAY)


def folders(scene: GarbageScene) -> list[str]:
    """List the folders that contain files; the root is a dot."""
    return sorted({str(Path(name).parent) for name in scene.there()})


def test_expired_quarantine_file_is_deleted_and_its_generation_stays(scene: GarbageScene) -> None:
    scene.age(6 * DAY)
    assert scene.collect().garbage == ()
    scene.age(2 * DAY)
    dry_run = scene.collect(dry_run=True)
    assert dry_run.files(Reason.QUARANTINED) == len(dry_run.garbage) == 1
    assert folders(scene) == [".", "manifests", "quarantine"]
    assert scene.collect().removed_files == 1
    assert folders(scene) == [".", "manifests"]
    assert query(scene.database, MARKS) == [(True, False)]
    assert scene.collect().garbage == ()


def test_verification_skips_deleted_quarantine_files(scene: GarbageScene) -> None:
    scene.age(8 * DAY)
    scene.collect()
    execute(scene.database, "UPDATE batch_pipeline.part_file SET size_bytes = 10")
    published = scene.database.published.of_stream("orders", [JobKind.INCREMENTAL], newest=None)
    result = verify(published, {Check.PART_FILES: of_files(size_problem)})[Check.PART_FILES]
    assert (result.passed, result.numbers["files_checked"]) == (True, 1)


def test_manifest_file_still_lists_deleted_quarantine_files(scene: GarbageScene) -> None:
    scene.age(8 * DAY)
    scene.collect()
    [published] = scene.database.published.of_stream("orders", [JobKind.INCREMENTAL], newest=None)
    assert published.quarantine_removed
    manifest = scene.database.manifests.of_batch(scene.batches[0])
    assert manifest is not None
    removal = scene.database.manifests.quarantine_removal(manifest)
    assert removal is not None
    assert scene.database.manifests.removal(manifest) is None
    assert len(published.quarantine_files) == 1
    assert manifest_file_problem(published) is None


def test_collector_stopped_after_marking_is_completed_by_the_next(
    scene: GarbageScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is deleted even if `keep_quarantine` changed in the meantime."""
    scene.age(8 * DAY)
    monkeypatch.setenv(VARIABLE, "collect.marked=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        scene.collect()
    monkeypatch.delenv(VARIABLE)
    assert folders(scene) == [".", "manifests", "quarantine"]
    changed = scene.loading_into(keep_quarantine=timedelta(days=365))
    assert changed.collect().files(Reason.QUARANTINED) == 1
    assert folders(scene) == [".", "manifests"]
