"""Deleting the files of generations that are loaded into all targets."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import FilesRemovedError, GarbageLeftError
from batch_pipeline.model.garbage import Reason, StoredFile
from batch_pipeline.model.job import JobKind
from batch_pipeline.pipeline.reconcile import reconcile
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.pipeline.garbage_fixture import (
    DAY,
    MARKS,
    GarbageHarness,
    open_garbage_harness,
    paths,
)
from batch_pipeline_tests.seeds import LEASE, execute, has_lock_waiters, query

FIRST = "00000001-00000003"


@pytest.fixture
def harness(database: Database, tmp_path: Path) -> GarbageHarness:
    """A stream with one published batch and a target; loaded files are kept for a week."""
    opened = open_garbage_harness(database, tmp_path / "batches")
    opened.published()
    return opened.loading_into("warehouse", keep_loaded=7 * DAY)


def test_loaded_generation_is_deleted_after_keep_loaded(harness: GarbageHarness) -> None:
    """The manifest file is deleted first; the inventory rows stay."""
    harness.load_all("warehouse")
    before = harness.there()
    harness.age(6 * DAY)
    assert harness.collect().garbage == ()
    harness.age(2 * DAY)
    dry_run = harness.collect(dry_run=True)
    assert (dry_run.files(Reason.LOADED), harness.there()) == (3, before)
    assert query(harness.database, MARKS) == []
    assert harness.loading_into("warehouse").collect().garbage == dry_run.garbage
    assert paths(dry_run) == sorted(before, key=lambda name: "manifests" not in name)
    assert harness.there() == []
    assert query(harness.database, MARKS) == [(1,)]
    assert query(harness.database, "SELECT count(*) FROM batch_pipeline.part_file") == [(2,)]


def test_generation_not_loaded_into_every_target_is_kept(harness: GarbageHarness) -> None:
    both = harness.loading_into("warehouse", "lake")
    both.load_all("warehouse")
    harness.age()
    assert both.collect().garbage == ()
    both.load_all("lake")
    assert both.collect().garbage == ()  # the last load counts
    harness.age(8 * DAY)
    assert harness.loading_into("warehouse", "lake", "late").collect().garbage == ()
    assert len(both.collect(dry_run=True).garbage) == 3


def void(harness: GarbageHarness) -> None:
    """Request that the batch is loaded again."""
    assert harness.database.loads.void("orders", "warehouse", [FIRST])


def pause(harness: GarbageHarness) -> None:
    """Pause the job of the stream."""
    harness.database.jobs.pause("orders")


@pytest.mark.parametrize("hold", [void, pause])
def test_generation_that_may_be_loaded_again_is_kept(
    harness: GarbageHarness, hold: Callable[[GarbageHarness], None]
) -> None:
    """Marking the files as deleted checks this again."""
    harness.load_all("warehouse")
    harness.age()
    hold(harness)
    assert harness.collect().garbage == ()
    assert harness.database.stored_attempts.mark_loaded([1], {"warehouse"}) == set()
    assert query(harness.database, MARKS) == []


def test_generation_with_a_running_load_is_kept(harness: GarbageHarness) -> None:
    """The load may be into any target; an expired load does not count."""
    harness.load_all("warehouse")
    harness.age()
    loads = harness.database.loads
    due = list(loads.due(harness.stream, "elsewhere"))
    with loads.claim("orders", "elsewhere", due, run_id="load-2", lease=LEASE):
        assert harness.collect().garbage == ()
    execute(harness.database, "UPDATE batch_pipeline.load SET lease_until = now() - interval '1 s'")
    assert len(harness.collect().garbage) == 3


def test_superseded_generation_is_deleted_once_it_is_loaded(harness: GarbageHarness) -> None:
    harness.load_all("warehouse")
    first = harness.there()
    harness.published()
    harness.age()
    assert sorted(paths(harness.collect())) == first
    assert len(harness.there()) == 3


def test_next_generation_of_a_deleted_one_is_due_and_kept_until_loaded(
    harness: GarbageHarness,
) -> None:
    harness.load_all("warehouse")
    harness.age()
    harness.collect()
    assert list(harness.database.loads.due(harness.stream, "warehouse")) == []
    harness.published()
    harness.age()
    [due] = harness.database.loads.due(harness.stream, "warehouse")
    assert due.manifest.generation == 2
    assert harness.collect().garbage == ()
    harness.load_all("warehouse")
    harness.age()
    assert len(harness.collect().garbage) == 3


def test_marked_generation_is_deleted_even_if_the_targets_change(harness: GarbageHarness) -> None:
    """The collector that marked it was killed."""
    harness.load_all("warehouse")
    harness.age()
    before = harness.there()
    assert harness.database.stored_attempts.mark_loaded([1], ["warehouse"]) == {1}
    assert sorted(paths(harness.loading_into("lake").collect())) == before
    assert harness.there() == []


@dataclass(frozen=True)
class Undeletable(PartFileStorage):
    """A storage in which one file cannot be deleted."""

    path: str

    def remove(self, file: StoredFile) -> bool:
        if file.path == self.path:
            raise GarbageLeftError("file:///batches", f"{file.path} is read-only")
        return super().remove(file)


def test_undeletable_manifest_file_keeps_its_part_files(harness: GarbageHarness) -> None:
    harness.load_all("warehouse")
    live = harness.there()
    harness.failed(harness.batches[1])
    harness.age()
    [pointer] = (name for name in live if "manifests" in name)
    storage = Undeletable(harness.stream.storage, pointer)
    with pytest.raises(GarbageLeftError, match="read-only"):
        harness.loading_into("warehouse").collect(storage=storage)
    assert harness.there() == live


def test_readers_skip_a_generation_with_deleted_files(harness: GarbageHarness) -> None:
    harness.load_all("warehouse")
    harness.age()
    assert len(harness.collect().garbage) == 3
    database = harness.database
    assert list(database.manifests.published_after("orders", {})) == []
    assert list(database.loads.due(harness.stream, "lake")) == []
    batches = list(database.published.of_stream("orders", [JobKind.INCREMENTAL], newest=None))
    assert [batch.files_removed for batch in batches] == [True]
    execute(database, "UPDATE batch_pipeline.attempt SET pointer_uri = NULL")
    assert reconcile("orders", database.attempts, database.manifests, harness.storage).pointers == 0
    assert harness.there() == []
    warehouse, lake = database.loads.target_statuses("orders", ["warehouse", "lake"])
    assert (warehouse.loaded, warehouse.due, warehouse.gone) == (1, 0, 0)
    assert (lake.loaded, lake.due, lake.gone) == (0, 0, 1)
    deleted = (
        rf"batch {FIRST}, generation 1, were deleted on 2\d+-\d+-\d+.*Materialize its partition"
    )
    with pytest.raises(FilesRemovedError, match=deleted):
        database.loads.void("orders", "lake", [FIRST])


def test_reload_request_waits_for_marking_and_is_rejected(
    harness: GarbageHarness, rival: Database
) -> None:
    """A batch is never both due for a load and marked as deleted."""
    harness.load_all("warehouse")
    harness.age()
    with ThreadPoolExecutor(1) as threads:
        requests = []

        def request_reload(_connection: sa.Connection) -> None:
            requests.append(threads.submit(rival.loads.void, "orders", "warehouse", [FIRST]))
            while not has_lock_waiters(harness.database):
                assert not requests[0].done()

        sa.event.listen(harness.database.engine, "commit", request_reload, once=True)
        marked = harness.database.stored_attempts.mark_loaded([1], ["warehouse"])
        assert marked == {1}
        assert isinstance(requests[0].exception(), FilesRemovedError)
