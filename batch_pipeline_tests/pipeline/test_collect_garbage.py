"""Collecting garbage of a real storage root by a real inventory: what goes, and what never does."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
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
    found: GarbageScene = request.getfixturevalue("disk")
    return found


def test_collecting_takes_what_failed_attempts_left(scene: GarbageScene) -> None:
    """Expect files of every kind to go, those of what is published and of others to stay."""
    left = scene.failed()
    scene.published()
    strangers = ["orders.csv", "quarantine/notes.txt", "manifests/notes.json", "deep/orders.csv"]
    for name in strangers:
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


def test_dry_run_tells_what_is_deleted_then(scene: GarbageScene) -> None:
    """Expect the same list, nothing deleted and nothing noted."""
    scene = scene.keeping(DAY)
    scene.failed()
    scene.published()
    scene.published()
    scene.age()
    before = scene.there()
    told = scene.collect(dry_run=True)
    assert (told.removed_files, scene.there()) == (0, before)
    assert query(scene.database, REMOVED) == []
    done = scene.collect()
    assert done.garbage == told.garbage
    assert scene.there() == sorted({*before} - {*paths(told)})


REMOVED = "SELECT generation FROM batch_pipeline.attempt WHERE facts ? 'files_removed_at'"


def test_superseded_generation_is_kept_unless_the_stream_says_how_long(scene: GarbageScene) -> None:
    """Expect its pointer to go first, its row to stay and to be marked, the live one to stay."""
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


def test_pointer_of_a_generation_that_is_gone_is_not_written_again(scene: GarbageScene) -> None:
    """Expect reconcile to leave out what was collected, even if its pointer was never noted."""
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


def test_collecting_beside_a_running_attempt_leaves_its_files(scene: GarbageScene) -> None:
    """Expect nothing of it to be touched, however old its files look."""
    with claimed(scene.database, scene.batches[0]) as attempt:
        left = scene.write(attempt)
        scene.age()
        assert scene.collect(with_unknown=True).garbage == ()
        assert scene.there() == sorted(left)


def test_files_that_no_manifest_lists_go_and_those_of_the_attempt_stay(scene: GarbageScene) -> None:
    """Expect what a lost task left beside its second run to be told apart by its name."""
    with claimed(scene.database, scene.batches[0]) as attempt:
        left = scene.put(f"{attempt.stem}-00000000-0badf00d.jsonl.gz")
        scene.publish(attempt)
    scene.age()
    collected = scene.collect()
    assert (paths(collected), collected.files(Reason.UNLISTED)) == ([left.name], 1)
    assert len(scene.there()) == 2


def test_storage_that_moved_still_knows_its_live_files(disk: GarbageScene, tmp_path: Path) -> None:
    """Expect files to be told by their names, for the inventory has the folders they were in."""
    disk.published()
    disk.age()
    disk.root.rename(tmp_path / "moved")
    storage = Storage(root=to_uri(tmp_path / "moved"))
    moved = replace(disk, root=tmp_path / "moved", stream=replace(disk.stream, storage=storage))
    assert moved.collect(with_unknown=True).garbage == ()


def test_files_of_unknown_attempts_are_told_and_deleted_on_request(scene: GarbageScene) -> None:
    """Expect files of another inventory's attempts to be left alone unless one insists."""
    stem = "orders-00000001-00000003-a1-0badf00d"
    mine = [f"{stem}-00000000-abcdef01.jsonl.gz", "manifests/orders-00000001-00000003.g9.json"]
    other = f"clicks{stem.removeprefix('orders')}-00000000-abcdef01.jsonl.gz"
    for name in (*mine, other):
        scene.put(name)
    scene.age(6 * DAY)
    assert scene.collect() == replace(scene.collect(), unknown=())
    scene.age(2 * DAY)
    told = scene.collect()
    assert (told.garbage, [one.file.path for one in told.unknown]) == ((), mine[::-1])
    assert len(scene.there()) == 3
    assert scene.collect(with_unknown=True).removed_files == 2
    assert scene.there() == [other]


def test_temporary_files_of_processes_that_are_gone_go_after_a_day(scene: GarbageScene) -> None:
    """Expect probes and unfinished manifest files to be judged by their age."""
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
def test_streams_that_share_a_root_keep_to_their_own(
    scene: GarbageScene, prefixes: tuple[str, str]
) -> None:
    """Expect each stream to take its files and no others, whatever names and prefixes spell."""
    name = "xorders" if prefixes[1] == "x" else "clicks"
    mine = replace(scene.stream.storage, prefix=prefixes[1])
    theirs = replace(scene.stream.storage, prefix=prefixes[0])
    if name == "xorders":  # `x` and `orders` spell what no prefix and `xorders` spell
        ours, other = stream(storage=mine), stream(name=name, storage=theirs)
    else:
        ours, other = stream(storage=theirs), stream(name=name, storage=mine)
    [rival] = planned(scene.database, name=name)
    left: dict[str, list[str]] = {}
    for one, of in ((scene.batches[0], ours), (rival, other)):
        with claimed(scene.database, one) as attempt:
            stem = f"{of.storage.prefix}{attempt.stem}"
            part = scene.put(f"{stem}-00000000-abcdef01.jsonl.gz")
        left[of.name] = [part.name]
        execute(
            scene.database,
            "UPDATE batch_pipeline.attempt SET status = 'failed', finished_at = now() "
            "WHERE token = :token",
            token=attempt.token,
        )
    scene.age()
    for of, beside in ((ours, other), (other, ours)):
        found = replace(scene, stream=of, others=[beside]).collect(with_unknown=True)
        assert paths(found) == left[of.name]
    assert scene.there() == []


def test_backfills_and_late_arrivals_are_the_streams_own(scene: GarbageScene) -> None:
    """Expect files of all jobs of a stream to be collected with it."""
    from batch_pipeline.model.backfill import Backfill, Selection

    request = Backfill.of_stream("orders", "2023", Selection(), limits())
    scene.database.backfills.plan(request, scene.database.meta_table("orders"))
    [status] = scene.database.backfills.of_all("orders")
    left = scene.failed(status.batch)
    scene.age()
    assert sorted(paths(scene.collect())) == sorted(left)
    assert left[0].startswith("orders.2023-")


def test_storage_root_that_is_gone_holds_no_garbage(disk: GarbageScene, tmp_path: Path) -> None:
    """Expect a stream that never wrote anything to have nothing to collect."""
    storage = Storage(root=to_uri(tmp_path / "nowhere"))
    assert replace(disk, stream=replace(disk.stream, storage=storage)).collect().garbage == ()


def test_link_in_the_storage_root_is_left_alone(disk: GarbageScene, tmp_path: Path) -> None:
    """Expect only files themselves to be looked at."""
    left = disk.failed()
    disk.age()
    target = tmp_path / "elsewhere"
    (disk.root / left[0]).rename(target)
    (disk.root / left[0]).symlink_to(target)
    assert left[0] not in paths(disk.collect())
    assert target.exists()


def test_storage_root_that_cannot_be_listed_is_told(disk: GarbageScene, tmp_path: Path) -> None:
    """Expect the root, the reason, what is left and what to do."""
    (tmp_path / "file").write_text("")
    storage = Storage(root=to_uri(tmp_path / "file"))
    with pytest.raises(GarbageLeftError, match=r"not a directory.*batch-pipeline gc"):
        replace(disk, stream=replace(disk.stream, storage=storage)).collect()
