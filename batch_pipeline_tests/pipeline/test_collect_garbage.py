"""Garbage collection with a real storage root and a real inventory."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.garbage import Reason
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Storage
from batch_pipeline_tests.factories import limits, stream
from batch_pipeline_tests.pipeline.garbage_fixture import (
    DAY,
    GarbageHarness,
    open_bucket_harness,
    open_garbage_harness,
    paths,
)
from batch_pipeline_tests.seeds import claimed, planned, query

HEX = "0123456789abcdef0123456789abcdef"
REMOVED = "SELECT generation FROM batch_pipeline.attempt WHERE facts ? 'files_removed_at'"


@pytest.fixture
def disk(database: Database, tmp_path: Path) -> GarbageHarness:
    """Two planned batches and an empty storage root on a disk."""
    return open_garbage_harness(database, tmp_path / "batches")


@pytest.fixture(params=["disk", "s3"])
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
    assert query(harness.database, REMOVED) == [(1,)]
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


def test_files_of_unknown_attempts_are_only_deleted_on_request(harness: GarbageHarness) -> None:
    stem = "orders-00000001-00000003-a1-0badf00d"
    mine = [f"{stem}-00000000-abcdef01.jsonl.gz", "manifests/orders-00000001-00000003.g9.json"]
    other = f"clicks{stem.removeprefix('orders')}-00000000-abcdef01.jsonl.gz"
    for name in (*mine, other):
        harness.put(name)
    harness.age(6 * DAY)
    assert harness.collect() == replace(harness.collect(), unknown=())
    harness.age(2 * DAY)
    collected = harness.collect()
    assert collected.garbage == ()
    assert [unknown.file.path for unknown in collected.unknown] == mine[::-1]
    assert len(harness.there()) == 3
    assert harness.collect(with_unknown=True).removed_files == 2
    assert harness.there() == [other]


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


@pytest.mark.parametrize("prefixes", [("", ""), ("eu-", "us-"), ("", "x")])
def test_streams_with_a_common_root_only_delete_their_own_files(
    disk: GarbageHarness, prefixes: tuple[str, str]
) -> None:
    name = "xorders" if prefixes[1] == "x" else "clicks"
    first, second = (replace(disk.stream.storage, prefix=prefix) for prefix in prefixes)
    if name == "xorders":  # prefix `x` and name `orders` look like no prefix and name `xorders`
        orders, other = stream(storage=second), stream(name=name, storage=first)
    else:
        orders, other = stream(storage=first), stream(name=name, storage=second)
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
