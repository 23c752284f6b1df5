"""Deleting expired quarantine files while their generation stays."""

from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.garbage import Reason
from batch_pipeline.model.job import JobKind
from batch_pipeline.storage.verification import manifest_file_problem
from batch_pipeline_tests.pipeline.garbage_fixture import DAY, GarbageHarness, open_garbage_harness


@pytest.fixture
def harness(database: Database, tmp_path: Path) -> GarbageHarness:
    """A published batch with a part file and a quarantine file that is kept for a week."""
    opened = open_garbage_harness(database, tmp_path / "batches")
    opened.published()
    return opened.loading_into(keep_quarantine=7 * DAY)


def folders(harness: GarbageHarness) -> list[str]:
    """List the folders that contain files; the root is a dot."""
    return sorted({str(Path(name).parent) for name in harness.there()})


def test_expired_quarantine_file_is_deleted_and_its_generation_stays(
    harness: GarbageHarness,
) -> None:
    harness.age(6 * DAY)
    assert harness.collect().garbage == ()
    harness.age(2 * DAY)
    dry_run = harness.collect(dry_run=True)
    assert dry_run.files(Reason.QUARANTINED) == len(dry_run.garbage) == 1
    assert folders(harness) == [".", "manifests", "quarantine"]
    assert harness.collect().removed_files == 1
    assert folders(harness) == [".", "manifests"]
    assert harness.collect().garbage == ()
    manifests = harness.database.manifests
    manifest = manifests.of_batch(harness.batches[0])
    assert manifest is not None
    assert manifests.quarantine_removal(manifest) is not None
    assert manifests.removal(manifest) is None
    [published] = harness.database.published.of_stream("orders", [JobKind.INCREMENTAL], newest=None)
    assert (published.quarantine_removed, len(published.quarantine_files)) == (True, 1)
    assert manifest_file_problem(published) is None  # it still lists the deleted file


def test_collector_stopped_after_marking_is_completed_by_the_next(
    harness: GarbageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is deleted even if `keep_quarantine` changed in the meantime."""
    harness.age(8 * DAY)
    monkeypatch.setenv(VARIABLE, "collect.marked=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        harness.collect()
    monkeypatch.delenv(VARIABLE)
    assert folders(harness) == [".", "manifests", "quarantine"]
    changed = harness.loading_into(keep_quarantine=timedelta(days=365))
    assert changed.collect().files(Reason.QUARANTINED) == 1
    assert folders(harness) == [".", "manifests"]
