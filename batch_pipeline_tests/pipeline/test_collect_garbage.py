"""Garbage collection with a real storage root and a real inventory."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.garbage import Reason
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Storage
from batch_pipeline.storage.verification import manifest_file_problem
from batch_pipeline_tests.factories import limits, stream
from batch_pipeline_tests.pipeline.garbage_fixture import (
    DAY,
    MARKS,
    GarbageHarness,
    open_bucket_harness,
    open_garbage_harness,
    paths,
)
from batch_pipeline_tests.seeds import claimed, planned, query

HEX = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def disk(database: Database, tmp_path: Path) -> GarbageHarness:
    """Two planned batches and an empty storage root on a disk."""
    return open_garbage_harness(database, tmp_path / "batches")


# Without `--long`, storage/test_part_storage.py collects garbage in a bucket.
@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.long)])
def harness(request: pytest.FixtureRequest, database: Database) -> GarbageHarness:
    """Two planned batches and an empty storage root, on a disk and in a bucket."""
    if request.param == "s3":
        bucket: str = request.getfixturevalue("bucket")
        return open_bucket_harness(database, f"{bucket}/deep/batches")
    disk: GarbageHarness = request.getfixturevalue("disk")
    return disk


def test_files_of_failed_attempts_are_deleted(harness: GarbageHarness) -> None:
    """Published files and unrelated files stay."""
    left = harness.failed()
    harness.published()
    unrelated = ["orders.csv", "quarantine/notes.txt", "manifests/notes.json", "deep/orders.csv"]
    for name in unrelated:
        harness.put(name)
    before = harness.there()
    assert harness.collect().garbage == ()
    harness.age()
    collected = harness.collect()
    assert sorted(paths(collected)) == sorted(left)
    assert collected.files(Reason.UNPUBLISHED) == 4
    assert (collected.removed_files, collected.removed_bytes, collected.size_bytes) == (4, 40, 40)
    assert harness.there() == [name for name in before if name not in left]
    assert harness.collect() == replace(collected, garbage=(), removed_files=0, removed_bytes=0)


def test_superseded_generation_is_deleted_after_keep_superseded(harness: GarbageHarness) -> None:
    """Its manifest file is deleted first; its inventory row stays and is marked."""
    harness.published()
    first = harness.there()
    harness.published()
    live = [name for name in harness.there() if name not in first]
    harness.age()
    assert harness.collect().garbage == ()
    assert harness.keeping(31 * DAY).collect().garbage == ()
    collected = harness.keeping(29 * DAY).collect()
    assert paths(collected) == sorted(first, key=lambda name: "manifests" not in name)
    assert collected.files(Reason.SUPERSEDED) == 3
    assert harness.there() == live
    assert query(harness.database, MARKS) == [(1,)]
    assert query(harness.database, "SELECT count(*) FROM batch_pipeline.part_file") == [(4,)]


def test_unlisted_files_of_a_published_attempt_are_deleted(disk: GarbageHarness) -> None:
    """A retried Spark task may leave them; their names differ from those of the published files."""
    with claimed(disk.database, disk.batches[0]) as attempt:
        left = disk.put(f"{attempt.stem}-00000000-0badf00d.jsonl.gz")
        disk.publish(attempt)
    disk.age()
    collected = disk.collect()
    assert (paths(collected), collected.files(Reason.UNLISTED)) == ([left.name], 1)
    assert len(disk.there()) == 2


def test_live_files_are_recognized_after_the_storage_moved(
    disk: GarbageHarness, tmp_path: Path
) -> None:
    """Files are recognized by name, because the inventory has the former paths."""
    disk.published()
    disk.age()
    disk.root.rename(tmp_path / "moved")
    storage = Storage(root=to_uri(tmp_path / "moved"))
    moved = replace(disk, root=tmp_path / "moved", stream=replace(disk.stream, storage=storage))
    assert moved.collect(with_unknown=True).garbage == ()


def test_files_of_unknown_attempts_are_only_deleted_on_request(disk: GarbageHarness) -> None:
    stem = "orders-00000001-00000003-a1-0badf00d"
    mine = [f"{stem}-00000000-abcdef01.jsonl.gz", "manifests/orders-00000001-00000003.g9.json"]
    other = f"clicks{stem.removeprefix('orders')}-00000000-abcdef01.jsonl.gz"
    for name in (*mine, other):
        disk.put(name)
    disk.age(6 * DAY)
    assert disk.collect() == replace(disk.collect(), unknown=())
    disk.age(2 * DAY)
    collected = disk.collect()
    assert collected.garbage == ()
    assert [unknown.file.path for unknown in collected.unknown] == mine[::-1]
    assert len(disk.there()) == 3
    assert disk.collect(with_unknown=True).removed_files == 2
    assert disk.there() == [other]


def test_temporary_files_are_deleted_after_a_day(harness: GarbageHarness) -> None:
    pointer = "manifests/.orders-00000001-00000003.g1.json-"
    harness.put(f".probe-{HEX}", b"")
    harness.put(f"{pointer}{HEX}.tmp")
    harness.put(f"manifests/.clicks-00000001-00000003.g1.json-{HEX}.tmp")
    harness.age(timedelta(hours=23))
    assert harness.collect().garbage == ()
    harness.age(timedelta(hours=2))
    collected = harness.collect()
    assert paths(collected) == [f"{pointer}{HEX}.tmp", f".probe-{HEX}"]
    assert collected.files(Reason.TEMPORARY) == 2


@pytest.mark.parametrize(
    ("prefix", "name", "other_prefix"),
    [("", "clicks", ""), ("eu-", "clicks", "us-"), ("x", "xorders", "")],
)
def test_streams_with_a_common_root_only_delete_their_own_files(
    disk: GarbageHarness, prefix: str, name: str, other_prefix: str
) -> None:
    orders = stream(storage=replace(disk.stream.storage, prefix=prefix))
    other = stream(name=name, storage=replace(disk.stream.storage, prefix=other_prefix))
    [other_batch] = planned(disk.database, name=name)
    left: dict[str, list[str]] = {}
    for batch, owner in ((disk.batches[0], orders), (other_batch, other)):
        with claimed(disk.database, batch) as attempt:
            stem = f"{owner.storage.prefix}{attempt.stem}"
            part = disk.put(f"{stem}-00000000-abcdef01.jsonl.gz")
            disk.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
        left[owner.name] = [part.name]
    disk.age()
    for owner, neighbour in ((orders, other), (other, orders)):
        collected = replace(disk, stream=owner, others=[neighbour]).collect(with_unknown=True)
        assert paths(collected) == left[owner.name]
    assert disk.there() == []


def test_files_of_backfills_are_collected_with_their_stream(disk: GarbageHarness) -> None:
    request = Backfill.of_stream("orders", "2023", Selection(), limits())
    disk.database.backfills.plan(request, disk.database.meta_table("orders"))
    [status] = disk.database.backfills.of_all("orders")
    left = disk.failed(status.batch)
    disk.age()
    assert sorted(paths(disk.collect())) == sorted(left)
    assert left[0].startswith("orders.2023-")


def test_missing_storage_root_has_no_garbage(disk: GarbageHarness, tmp_path: Path) -> None:
    storage = Storage(root=to_uri(tmp_path / "nowhere"))
    assert replace(disk, stream=replace(disk.stream, storage=storage)).collect().garbage == ()


def test_symbolic_link_in_the_storage_root_is_ignored(disk: GarbageHarness, tmp_path: Path) -> None:
    left = disk.failed()
    disk.age()
    target = tmp_path / "elsewhere"
    (disk.root / left[0]).rename(target)
    (disk.root / left[0]).symlink_to(target)
    assert left[0] not in paths(disk.collect())
    assert target.exists()


def folders(harness: GarbageHarness) -> list[str]:
    """List the folders that contain files; the root is a dot."""
    return sorted({str(Path(name).parent) for name in harness.there()})


def test_expired_quarantine_file_is_deleted_and_its_generation_stays(disk: GarbageHarness) -> None:
    disk.published()
    harness = disk.loading_into(keep_quarantine=7 * DAY)
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


def test_marked_quarantine_file_is_deleted_even_if_keep_quarantine_changes(
    disk: GarbageHarness,
) -> None:
    """The collector that marked it was killed."""
    disk.published()
    disk.age(8 * DAY)
    assert disk.database.stored_attempts.mark_quarantine([1]) == {1}
    changed = disk.loading_into(keep_quarantine=timedelta(days=365))
    assert changed.collect().files(Reason.QUARANTINED) == 1
    assert folders(disk) == [".", "manifests"]
