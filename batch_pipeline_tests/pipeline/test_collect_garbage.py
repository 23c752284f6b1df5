"""Garbage collection with a real storage root and a real inventory, also concurrent or killed."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline import acquire_batch, cancel_job, plan_backfill, retry_job
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.errors import FilesRemovedError, GarbageLeftError
from batch_pipeline.model.garbage import Reason, StoredFile
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Storage
from batch_pipeline.pipeline.reconcile import reconcile
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline.storage.verification import manifest_file_problem
from batch_pipeline_tests.concurrency import run_python, together
from batch_pipeline_tests.factories import stream
from batch_pipeline_tests.pipeline.garbage_fixture import (
    DAY,
    MARKS,
    GarbageHarness,
    open_bucket_harness,
    open_garbage_harness,
    paths,
)
from batch_pipeline_tests.seeds import (
    LEASE,
    claimed,
    execute,
    has_lock_waiters,
    planned,
    planned_backfill,
    query,
)

HEX = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def disk(database: Database, tmp_path: Path) -> GarbageHarness:
    """Two planned batches and an empty storage root; superseded generations are kept for a day."""
    return open_garbage_harness(database, tmp_path / "batches").keeping(DAY)


# Without `--long`, storage/test_part_storage.py collects garbage in a bucket.
@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.long)])
def harness(request: pytest.FixtureRequest, database: Database) -> GarbageHarness:
    """Two planned batches and an empty storage root, on a disk and in a bucket."""
    if request.param == "s3":
        bucket: str = request.getfixturevalue("bucket")
        return open_bucket_harness(database, f"{bucket}/deep/batches").keeping(DAY)
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
    assert harness.keeping(None).collect().garbage == ()
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
    [batch] = planned_backfill(disk.database, max_count=10)
    left = disk.failed(batch)
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


FIRST = "00000001-00000003"


@pytest.fixture
def loading(database: Database, tmp_path: Path) -> GarbageHarness:
    """A stream with one published batch and a target; loaded files are kept for a week."""
    opened = open_garbage_harness(database, tmp_path / "batches")
    opened.published()
    return opened.loading_into("warehouse", keep_loaded=7 * DAY)


def test_loaded_generation_is_deleted_after_keep_loaded(loading: GarbageHarness) -> None:
    """The manifest file is deleted first; the inventory rows stay."""
    loading.load_all("warehouse")
    before = loading.there()
    loading.age(6 * DAY)
    assert loading.collect().garbage == ()
    loading.age(2 * DAY)
    dry_run = loading.collect(dry_run=True)
    assert (dry_run.files(Reason.LOADED), loading.there()) == (3, before)
    assert query(loading.database, MARKS) == []
    assert loading.loading_into("warehouse").collect().garbage == dry_run.garbage
    assert paths(dry_run) == sorted(before, key=lambda name: "manifests" not in name)
    assert loading.there() == []
    assert query(loading.database, MARKS) == [(1,)]
    assert query(loading.database, "SELECT count(*) FROM batch_pipeline.part_file") == [(2,)]


def test_generation_not_loaded_into_every_target_is_kept(loading: GarbageHarness) -> None:
    both = loading.loading_into("warehouse", "lake")
    both.load_all("warehouse")
    loading.age()
    assert both.collect().garbage == ()
    both.load_all("lake")
    assert both.collect().garbage == ()  # the last load counts
    loading.age(8 * DAY)
    assert loading.loading_into("warehouse", "lake", "late").collect().garbage == ()
    assert len(both.collect(dry_run=True).garbage) == 3


def void(loading: GarbageHarness) -> None:
    """Request that the batch is loaded again."""
    assert loading.database.loads.void("orders", "warehouse", [FIRST])


def pause(loading: GarbageHarness) -> None:
    """Pause the job of the stream."""
    loading.database.jobs.pause("orders")


@pytest.mark.parametrize("hold", [void, pause])
def test_generation_that_may_be_loaded_again_is_kept(
    loading: GarbageHarness, hold: Callable[[GarbageHarness], None]
) -> None:
    """Marking the files as deleted checks this again."""
    loading.load_all("warehouse")
    loading.age()
    hold(loading)
    assert loading.collect().garbage == ()
    assert loading.database.stored_attempts.mark_loaded([1], {"warehouse"}) == set()
    assert query(loading.database, MARKS) == []


def test_generation_with_a_running_load_is_kept(loading: GarbageHarness) -> None:
    """The load may be into any target; an expired load does not count."""
    loading.load_all("warehouse")
    loading.age()
    loads = loading.database.loads
    due = list(loads.due(loading.stream, "elsewhere"))
    with loads.claim("orders", "elsewhere", due, run_id="load-2", lease=LEASE):
        assert loading.collect().garbage == ()
    execute(loading.database, "UPDATE batch_pipeline.load SET lease_until = now() - interval '1 s'")
    assert len(loading.collect().garbage) == 3


def test_superseded_generation_is_deleted_once_it_is_loaded(loading: GarbageHarness) -> None:
    loading.load_all("warehouse")
    first = loading.there()
    loading.published()
    loading.age()
    assert sorted(paths(loading.collect())) == first
    assert len(loading.there()) == 3


def test_next_generation_of_a_deleted_one_is_due_and_kept_until_loaded(
    loading: GarbageHarness,
) -> None:
    loading.load_all("warehouse")
    loading.age()
    loading.collect()
    assert list(loading.database.loads.due(loading.stream, "warehouse")) == []
    loading.published()
    loading.age()
    [due] = loading.database.loads.due(loading.stream, "warehouse")
    assert due.manifest.generation == 2
    assert loading.collect().garbage == ()
    loading.load_all("warehouse")
    loading.age()
    assert len(loading.collect().garbage) == 3


def test_marked_generation_is_deleted_even_if_the_targets_change(loading: GarbageHarness) -> None:
    """The collector that marked it was killed."""
    loading.load_all("warehouse")
    loading.age()
    before = loading.there()
    assert loading.database.stored_attempts.mark_loaded([1], ["warehouse"]) == {1}
    assert sorted(paths(loading.loading_into("lake").collect())) == before
    assert loading.there() == []


@dataclass(frozen=True)
class Undeletable(PartFileStorage):
    """A storage in which one file cannot be deleted."""

    path: str

    def remove(self, file: StoredFile) -> bool:
        if file.path == self.path:
            raise GarbageLeftError("file:///batches", f"{file.path} is read-only")
        return super().remove(file)


def test_undeletable_manifest_file_keeps_its_part_files(loading: GarbageHarness) -> None:
    loading.load_all("warehouse")
    live = loading.there()
    loading.failed(loading.batches[1])
    loading.age()
    [pointer] = (name for name in live if "manifests" in name)
    storage = Undeletable(loading.stream.storage, pointer)
    with pytest.raises(GarbageLeftError, match="read-only"):
        loading.loading_into("warehouse").collect(storage=storage)
    assert loading.there() == live


def test_readers_skip_a_generation_with_deleted_files(loading: GarbageHarness) -> None:
    loading.load_all("warehouse")
    loading.age()
    assert len(loading.collect().garbage) == 3
    database = loading.database
    assert list(database.manifests.published_after("orders", {})) == []
    assert list(database.loads.due(loading.stream, "lake")) == []
    batches = list(database.published.of_stream("orders", [JobKind.INCREMENTAL], newest=None))
    assert [batch.files_removed for batch in batches] == [True]
    execute(database, "UPDATE batch_pipeline.attempt SET pointer_uri = NULL")
    assert reconcile("orders", database.attempts, database.manifests, loading.storage).pointers == 0
    assert loading.there() == []
    warehouse, lake = database.loads.target_statuses("orders", ["warehouse", "lake"])
    assert (warehouse.loaded, warehouse.due, warehouse.gone) == (1, 0, 0)
    assert (lake.loaded, lake.due, lake.gone) == (0, 0, 1)
    deleted = (
        rf"batch {FIRST}, generation 1, were deleted on 2\d+-\d+-\d+.*Materialize its partition"
    )
    with pytest.raises(FilesRemovedError, match=deleted):
        database.loads.void("orders", "lake", [FIRST])


def test_reload_request_waits_for_marking_and_is_rejected(
    loading: GarbageHarness, rival: Database
) -> None:
    """A batch is never both due for a load and marked as deleted."""
    loading.load_all("warehouse")
    loading.age()
    with ThreadPoolExecutor(1) as threads:
        requests = []

        def request_reload(_connection: sa.Connection) -> None:
            requests.append(threads.submit(rival.loads.void, "orders", "warehouse", [FIRST]))
            while not has_lock_waiters(loading.database):
                assert not requests[0].done()

        sa.event.listen(loading.database.engine, "commit", request_reload, once=True)
        marked = loading.database.stored_attempts.mark_loaded([1], ["warehouse"])
        assert marked == {1}
        assert isinstance(requests[0].exception(), FilesRemovedError)


COLLECT = """
import sys
from datetime import timedelta
from batch_pipeline.inventory.database import open_database
from batch_pipeline.model.stream import Storage
from batch_pipeline.pipeline.collect_garbage import collect_garbage
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.factories import stream
database = open_database(sys.argv[1], migrated=None)
storage = Storage(root=sys.argv[2], keep_superseded=timedelta(days=1))
orders = stream(storage=storage)
collect_garbage(orders, [], database.stored_attempts, PartFileStorage(storage))
"""


@dataclass(frozen=True)
class StorageWithHooks(PartFileStorage):
    """A storage that calls functions at the start and the end of a listing."""

    inner: PartFileStorage
    at_start: Callable[[], object] = lambda: None
    at_end: Callable[[], object] = lambda: None

    def files(self) -> Iterator[StoredFile]:
        """List the files."""
        self.at_start()
        yield from self.inner.files()
        self.at_end()


def live_files(harness: GarbageHarness) -> list[str]:
    """List the files of the newest generations."""
    rows = query(
        harness.database,
        "SELECT uri FROM batch_pipeline.part_file p JOIN batch_pipeline.attempt a "
        "ON a.id = p.attempt_id JOIN batch_pipeline.batch_state s USING (batch_id) "
        "WHERE s.generation = a.generation",
    )
    return [uri.removeprefix(f"{harness.stream.storage.root}/") for (uri,) in rows]


def test_files_published_during_the_listing_are_kept(harness: GarbageHarness) -> None:
    """The inventory is queried after the listing, so that the publish is seen."""
    with claimed(harness.database, harness.batches[0]) as attempt:
        harness.publish(attempt)
        harness.age()
    with claimed(harness.database, harness.batches[0]) as next_attempt:
        storage = StorageWithHooks(
            harness.stream.storage,
            harness.storage,
            at_start=lambda: harness.publish(next_attempt),
            at_end=harness.age,
        )
        collected = harness.collect(storage=storage)
    assert {*live_files(harness)} <= {*harness.there()}
    assert not {*paths(collected)} & {*live_files(harness)}


@pytest.mark.parametrize("moment", ["at_start", "at_end"])
def test_files_written_during_the_listing_are_kept(harness: GarbageHarness, moment: str) -> None:
    """The files of a running attempt are not taken for files of an unknown one."""
    with claimed(harness.database, harness.batches[1]) as attempt:

        def write() -> None:
            harness.write(attempt)
            harness.age()

        storage = StorageWithHooks(harness.stream.storage, harness.storage, **{moment: write})
        collected = harness.collect(storage=storage, with_unknown=True)
    assert collected.garbage == ()
    assert len(harness.there()) == 4


def test_newest_generation_cannot_be_marked_as_superseded(disk: GarbageHarness) -> None:
    """Marking a generation again keeps the time of the first mark."""
    disk.published()
    disk.published()
    assert disk.database.stored_attempts.mark_superseded([1, 2]) == {1}
    mark = "SELECT facts ->> 'files_removed_at' FROM batch_pipeline.attempt WHERE id = 1"
    before = query(disk.database, mark)
    assert disk.database.stored_attempts.mark_superseded([1]) == {1}
    assert query(disk.database, mark) == before


def test_concurrent_collectors_delete_each_file_once(disk: GarbageHarness) -> None:
    for batch in disk.batches:
        disk.failed(batch)
        disk.published(batch)
        disk.published(batch)
    disk.age()
    assert len(disk.collect(dry_run=True).garbage) == 14
    results: list[Any] = together(*[disk.collect] * 4)
    assert sum(collected.removed_files for collected in results) == 14
    assert disk.there() == sorted(
        [*live_files(disk), *(f"manifests/orders-{batch.key}.g2.json" for batch in disk.batches)]
    )


def test_collecting_while_publishing_keeps_live_files(harness: GarbageHarness) -> None:
    harness.published()
    harness.published()

    def publish() -> None:
        for _ in range(5):
            harness.published(harness.batches[1])
            harness.age()

    def collect() -> None:
        for _ in range(10):
            harness.collect()

    results = together(publish, collect, collect)
    assert results == [None] * 3
    assert {*live_files(harness)} <= {*harness.there()}


@pytest.mark.parametrize(
    ("failpoint", "marks"),
    [
        ("collect.listed", []),
        ("collect.judged", []),
        ("collect.marked", [(1,)]),
        ("collect.before_remove", [(1,)]),
    ],
)
def test_killed_collector_is_completed_by_the_next(
    disk: GarbageHarness, database_url: str, failpoint: str, marks: list[tuple[int]]
) -> None:
    disk.failed()
    disk.published()
    disk.published()
    disk.age()
    garbage, before = paths(disk.collect(dry_run=True)), disk.there()
    arguments = (database_url, disk.stream.storage.root)
    killed = run_python(COLLECT, *arguments, failpoints=f"{failpoint}=kill")
    assert killed == -signal.SIGKILL
    assert (disk.there(), query(disk.database, MARKS)) == (before, marks)
    assert paths(disk.collect()) == garbage
    assert disk.there() == sorted({*before} - {*garbage})


def test_generation_not_yet_read_by_a_chained_job_is_kept(
    disk: GarbageHarness, configured: None
) -> None:
    disk.published()
    disk.published()
    where = [{"column": "job", "operator": "=", "value": "orders"}]
    batch = acquire_batch("reader", "inventory", where=where, batch_count=1)
    assert batch is not None
    disk.age()
    assert disk.collect().garbage == ()
    batch.succeeded()
    assert len(disk.collect().garbage) == 3


def test_generation_is_kept_only_for_the_chained_backfill_that_contains_it(
    disk: GarbageHarness, configured: None
) -> None:
    disk.published()
    disk.published()
    where = [{"column": "job", "operator": "=", "value": "orders"}]
    plan_backfill("with it", "inventory", batch_id_max=1, where=where)
    plan_backfill("without it", "inventory", batch_id_min=2, where=where)
    cancel_job("with it")
    disk.age()
    assert disk.collect().garbage == ()  # cancelled batches may be retried
    retry_job("with it")
    assert disk.collect().garbage == ()
    batch = acquire_batch("with it", "inventory", where=where)
    assert batch is not None
    batch.succeeded()
    assert len(disk.collect().garbage) == 3
