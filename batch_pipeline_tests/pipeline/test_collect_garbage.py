"""Garbage collection with a real storage root and a real inventory."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.errors import GarbageLeftError
from batch_pipeline.model.garbage import Reason
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Storage
from batch_pipeline.pipeline.reconcile import reconcile
from batch_pipeline_tests.factories import limits, stream
from batch_pipeline_tests.pipeline.garbage_fixture import (
    DAY,
    GarbageScene,
    open_bucket_scene,
    open_garbage_scene,
    paths,
)
from batch_pipeline_tests.seeds import claimed, execute, planned, query

HEX = "0123456789abcdef0123456789abcdef"
REMOVED = "SELECT generation FROM batch_pipeline.attempt WHERE facts ? 'files_removed_at'"


@pytest.fixture
def disk(database: Database, tmp_path: Path) -> GarbageScene:
    """Two planned batches and an empty storage root on a disk."""
    return open_garbage_scene(database, tmp_path / "batches")


@pytest.fixture(params=["disk", "s3"])
def scene(request: pytest.FixtureRequest, database: Database) -> GarbageScene:
    """Two planned batches and an empty storage root, on a disk and in a bucket."""
    if request.param == "s3":
        bucket: str = request.getfixturevalue("bucket")
        return open_bucket_scene(database, f"{bucket}/deep/batches")
    disk: GarbageScene = request.getfixturevalue("disk")
    return disk


def test_files_of_failed_attempts_are_deleted(scene: GarbageScene) -> None:
    """Published files and unrelated files stay."""
    left = scene.failed()
    scene.published()
    unrelated = ["orders.csv", "quarantine/notes.txt", "manifests/notes.json", "deep/orders.csv"]
    for name in unrelated:
        scene.put(name)
    before = scene.there()
    assert scene.collect().garbage == ()
    scene.age()
    collected = scene.collect()
    assert sorted(paths(collected)) == sorted(left)
    assert collected.files(Reason.UNPUBLISHED) == 4
    assert (collected.removed_files, collected.removed_bytes, collected.size_bytes) == (4, 40, 40)
    assert scene.there() == [name for name in before if name not in left]
    assert scene.collect() == replace(collected, garbage=(), removed_files=0, removed_bytes=0)


def test_dry_run_lists_the_same_garbage_and_deletes_nothing(scene: GarbageScene) -> None:
    scene = scene.keeping(DAY)
    scene.failed()
    scene.published()
    scene.published()
    scene.age()
    before = scene.there()
    dry_run = scene.collect(dry_run=True)
    assert (dry_run.removed_files, scene.there()) == (0, before)
    assert query(scene.database, REMOVED) == []
    assert scene.collect().garbage == dry_run.garbage
    assert scene.there() == sorted({*before} - {*paths(dry_run)})


def test_superseded_generation_is_deleted_after_keep_superseded(scene: GarbageScene) -> None:
    """Its manifest file is deleted first; its inventory row stays and is marked."""
    scene.published()
    first = scene.there()
    scene.published()
    live = [name for name in scene.there() if name not in first]
    scene.age()
    assert scene.collect().garbage == ()
    assert scene.keeping(31 * DAY).collect().garbage == ()
    collected = scene.keeping(29 * DAY).collect()
    assert paths(collected) == sorted(first, key=lambda name: "manifests" not in name)
    assert collected.files(Reason.SUPERSEDED) == 3
    assert scene.there() == live
    assert query(scene.database, REMOVED) == [(1,)]
    assert query(scene.database, "SELECT count(*) FROM batch_pipeline.part_file") == [(4,)]


def test_reconcile_skips_manifest_files_of_collected_generations(scene: GarbageScene) -> None:
    scene.published()
    scene.published()
    scene.age()
    scene.keeping(DAY).collect()
    execute(scene.database, "UPDATE batch_pipeline.attempt SET pointer_uri = NULL")
    attempts, manifests = scene.database.attempts, scene.database.manifests
    assert reconcile("orders", attempts, manifests, scene.storage).pointers == 1
    assert [name for name in scene.there() if "manifests" in name] == [
        "manifests/orders-00000001-00000003.g2.json"
    ]


def test_files_of_a_running_attempt_are_kept(scene: GarbageScene) -> None:
    with claimed(scene.database, scene.batches[0]) as attempt:
        left = scene.write(attempt)
        scene.age()
        assert scene.collect(with_unknown=True).garbage == ()
        assert scene.there() == sorted(left)


def test_unlisted_files_of_a_published_attempt_are_deleted(scene: GarbageScene) -> None:
    """A retried Spark task may leave them; their names differ from those of the published files."""
    with claimed(scene.database, scene.batches[0]) as attempt:
        left = scene.put(f"{attempt.stem}-00000000-0badf00d.jsonl.gz")
        scene.publish(attempt)
    scene.age()
    collected = scene.collect()
    assert (paths(collected), collected.files(Reason.UNLISTED)) == ([left.name], 1)
    assert len(scene.there()) == 2


def test_live_files_are_recognized_after_the_storage_moved(
    disk: GarbageScene, tmp_path: Path
) -> None:
    """Files are recognized by name, because the inventory has the former paths."""
    disk.published()
    disk.age()
    disk.root.rename(tmp_path / "moved")
    storage = Storage(root=to_uri(tmp_path / "moved"))
    moved = replace(disk, root=tmp_path / "moved", stream=replace(disk.stream, storage=storage))
    assert moved.collect(with_unknown=True).garbage == ()


def test_files_of_unknown_attempts_are_only_deleted_on_request(scene: GarbageScene) -> None:
    stem = "orders-00000001-00000003-a1-0badf00d"
    mine = [f"{stem}-00000000-abcdef01.jsonl.gz", "manifests/orders-00000001-00000003.g9.json"]
    other = f"clicks{stem.removeprefix('orders')}-00000000-abcdef01.jsonl.gz"
    for name in (*mine, other):
        scene.put(name)
    scene.age(6 * DAY)
    assert scene.collect() == replace(scene.collect(), unknown=())
    scene.age(2 * DAY)
    collected = scene.collect()
    assert collected.garbage == ()
    assert [unknown.file.path for unknown in collected.unknown] == mine[::-1]
    assert len(scene.there()) == 3
    assert scene.collect(with_unknown=True).removed_files == 2
    assert scene.there() == [other]


def test_temporary_files_are_deleted_after_a_day(scene: GarbageScene) -> None:
    pointer = "manifests/.orders-00000001-00000003.g1.json-"
    scene.put(f".probe-{HEX}", b"")
    scene.put(f"{pointer}{HEX}.tmp")
    scene.put(f"manifests/.clicks-00000001-00000003.g1.json-{HEX}.tmp")
    scene.age(timedelta(hours=23))
    assert scene.collect().garbage == ()
    scene.age(timedelta(hours=2))
    collected = scene.collect()
    assert paths(collected) == [f"{pointer}{HEX}.tmp", f".probe-{HEX}"]
    assert collected.files(Reason.TEMPORARY) == 2


@pytest.mark.parametrize("prefixes", [("", ""), ("eu-", "us-"), ("", "x")])
def test_streams_with_a_common_root_only_delete_their_own_files(
    scene: GarbageScene, prefixes: tuple[str, str]
) -> None:
    name = "xorders" if prefixes[1] == "x" else "clicks"
    first, second = (replace(scene.stream.storage, prefix=prefix) for prefix in prefixes)
    if name == "xorders":  # prefix `x` and name `orders` look like no prefix and name `xorders`
        orders, other = stream(storage=second), stream(name=name, storage=first)
    else:
        orders, other = stream(storage=first), stream(name=name, storage=second)
    [other_batch] = planned(scene.database, name=name)
    left: dict[str, list[str]] = {}
    for batch, owner in ((scene.batches[0], orders), (other_batch, other)):
        with claimed(scene.database, batch) as attempt:
            stem = f"{owner.storage.prefix}{attempt.stem}"
            part = scene.put(f"{stem}-00000000-abcdef01.jsonl.gz")
        left[owner.name] = [part.name]
        execute(
            scene.database,
            "UPDATE batch_pipeline.attempt SET status = 'failed', finished_at = now() "
            "WHERE token = :token",
            token=attempt.token,
        )
    scene.age()
    for owner, neighbour in ((orders, other), (other, orders)):
        collected = replace(scene, stream=owner, others=[neighbour]).collect(with_unknown=True)
        assert paths(collected) == left[owner.name]
    assert scene.there() == []


def test_files_of_backfills_are_collected_with_their_stream(scene: GarbageScene) -> None:
    request = Backfill.of_stream("orders", "2023", Selection(), limits())
    scene.database.backfills.plan(request, scene.database.meta_table("orders"))
    [status] = scene.database.backfills.of_all("orders")
    left = scene.failed(status.batch)
    scene.age()
    assert sorted(paths(scene.collect())) == sorted(left)
    assert left[0].startswith("orders.2023-")


def test_missing_storage_root_has_no_garbage(disk: GarbageScene, tmp_path: Path) -> None:
    storage = Storage(root=to_uri(tmp_path / "nowhere"))
    assert replace(disk, stream=replace(disk.stream, storage=storage)).collect().garbage == ()


def test_symbolic_link_in_the_storage_root_is_ignored(disk: GarbageScene, tmp_path: Path) -> None:
    left = disk.failed()
    disk.age()
    target = tmp_path / "elsewhere"
    (disk.root / left[0]).rename(target)
    (disk.root / left[0]).symlink_to(target)
    assert left[0] not in paths(disk.collect())
    assert target.exists()


def test_storage_root_that_cannot_be_listed_is_reported(disk: GarbageScene, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    storage = Storage(root=to_uri(tmp_path / "file"))
    with pytest.raises(GarbageLeftError, match=r"not a directory.*batch-pipeline gc"):
        replace(disk, stream=replace(disk.stream, storage=storage)).collect()
