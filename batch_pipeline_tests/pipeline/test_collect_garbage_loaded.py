"""Files of generations that all targets have: when they are deleted and how readers see that."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.checks import Check
from batch_pipeline.model.errors import FilesRemovedError, GarbageLeftError
from batch_pipeline.model.garbage import Reason, StoredFile
from batch_pipeline.model.job import JobKind
from batch_pipeline.pipeline.reconcile import pointer_of, reconcile
from batch_pipeline.pipeline.verify import of_files, verify
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline.storage.verification import size_problem
from batch_pipeline_tests.concurrency import run_python
from batch_pipeline_tests.pipeline.garbage_fixture import (
    COLLECT,
    DAY,
    GarbageScene,
    open_garbage_scene,
    paths,
)
from batch_pipeline_tests.seeds import LEASE, execute, query

FIRST = "00000001-00000003"
MARKS = "SELECT generation FROM batch_pipeline.attempt WHERE facts ? 'files_removed_at' ORDER BY id"


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> GarbageScene:
    """A stream with a target whose loaded files are kept for a week; one batch is published."""
    opened = open_garbage_scene(database, tmp_path / "batches")
    opened.published()
    return opened.loading_into("warehouse", keep_loaded=7 * DAY)


def test_loaded_generation_goes_when_the_stream_says_so(scene: GarbageScene) -> None:
    """Expect part, quarantine and manifest file, the pointer first, and the rows to stay."""
    scene.loaded("warehouse")
    before = scene.there()
    scene.age(6 * DAY)
    assert scene.collect().garbage == ()
    scene.age(2 * DAY)
    told = scene.collect(dry_run=True)
    assert (told.files(Reason.LOADED), scene.there()) == (3, before)
    assert query(scene.database, MARKS) == []
    assert scene.loading_into("warehouse").collect().garbage == told.garbage
    assert paths(told) == sorted(before, key=lambda name: "manifests" not in name)
    assert scene.there() == []
    assert query(scene.database, MARKS) == [(1,)]
    assert query(scene.database, "SELECT count(*) FROM batch_pipeline.part_file") == [(2,)]


def test_generation_that_a_target_lacks_stays(scene: GarbageScene) -> None:
    """Expect every target of the stream to count, also one that came later, and no other."""
    both = scene.loading_into("warehouse", "lake")
    both.loaded("warehouse")
    scene.age()
    assert both.collect().garbage == ()
    both.loaded("lake")
    assert both.collect().garbage == ()  # since this moment counts
    scene.age(8 * DAY)
    assert scene.loading_into("warehouse", "lake", "late").collect().garbage == ()
    assert len(both.collect(dry_run=True).garbage) == 3


def void(scene: GarbageScene) -> None:
    """Ask for the batch to be loaded again."""
    assert scene.database.loads.void("orders", "warehouse", [FIRST])


def pause(scene: GarbageScene) -> None:
    """Pause the job of the stream."""
    scene.database.jobs.pause("orders")


@pytest.mark.parametrize("hold", [void, pause])
def test_generation_that_may_be_loaded_again_stays(
    scene: GarbageScene, hold: Callable[[GarbageScene], None]
) -> None:
    """Expect it to stay, also when that happens between the judgement and the mark."""
    scene.loaded("warehouse")
    scene.age()
    hold(scene)
    assert scene.collect().garbage == ()
    [(attempt_id,)] = query(scene.database, "SELECT id FROM batch_pipeline.attempt")
    assert scene.database.stored_attempts.mark_loaded([attempt_id], {"warehouse"}) == set()
    assert query(scene.database, MARKS) == []


def test_generation_that_is_being_loaded_stays(scene: GarbageScene) -> None:
    """Expect a load that runs, into whatever target, to keep the files, and a dead one not to."""
    scene.loaded("warehouse")
    scene.age()
    loads = scene.database.loads
    due = list(loads.due(scene.stream, "elsewhere"))
    with loads.claim("orders", "elsewhere", due, run_id="load-2", lease=LEASE):
        assert scene.collect().garbage == ()
    execute(scene.database, "UPDATE batch_pipeline.load SET lease_until = now() - interval '1 s'")
    assert len(scene.collect().garbage) == 3


def test_replaced_generation_goes_once_one_of_the_reasons_is_there(scene: GarbageScene) -> None:
    """Expect a loaded one to go although replaced ones are kept for ever, and the newer to stay."""
    scene.loaded("warehouse")
    first = scene.there()
    scene.published()
    scene.age()
    assert sorted(paths(scene.collect())) == first
    assert len(scene.there()) == 3


def test_next_generation_of_a_batch_whose_files_went_is_loaded(scene: GarbageScene) -> None:
    """Expect it to be due for every target, and its files to stay until it is loaded."""
    scene.loaded("warehouse")
    scene.age()
    scene.collect()
    assert list(scene.database.loads.due(scene.stream, "warehouse")) == []
    scene.published()
    scene.age()
    [due] = scene.database.loads.due(scene.stream, "warehouse")
    assert due.manifest.generation == 2
    assert scene.collect().garbage == ()
    scene.loaded("warehouse")
    scene.age()
    assert len(scene.collect().garbage) == 3


@pytest.mark.parametrize("failpoint", ["collect.marked", "collect.before_remove"])
def test_collector_killed_after_the_mark_is_finished_by_the_next(
    scene: GarbageScene, database_url: str, tmp_path: Path, failpoint: str
) -> None:
    """Expect the files to be deleted even if the targets changed since."""
    scene.loaded("warehouse")
    scene.age()
    there = scene.there()
    arguments = (database_url, scene.stream.storage.root)
    assert run_python(COLLECT, *arguments, failpoints=f"{failpoint}=kill") == -signal.SIGKILL
    assert (scene.there(), query(scene.database, MARKS)) == (there, [(1,)])
    changed = scene.loading_into("lake")
    assert sorted(paths(changed.collect())) == there
    assert scene.there() == []


@dataclass(frozen=True)
class Undeletable(PartFileStorage):
    """A storage in which one file cannot be deleted."""

    path: str

    def remove(self, file: StoredFile) -> bool:
        if file.path == self.path:
            raise GarbageLeftError("file:///batches", f"{file.path} is read-only")
        return super().remove(file)


def test_pointer_file_that_cannot_go_keeps_what_it_names(scene: GarbageScene) -> None:
    """Expect all files of its generation to stay, and garbage of others to go."""
    scene.loaded("warehouse")
    live = scene.there()
    scene.failed(scene.batches[1])
    scene.age()
    [pointer] = (name for name in live if "manifests" in name)
    storage = Undeletable(scene.stream.storage, pointer)
    with pytest.raises(GarbageLeftError, match="read-only"):
        scene.loading_into("warehouse").collect(storage=storage)
    assert scene.there() == live


def removed(scene: GarbageScene, **storage: Any) -> GarbageScene:
    """Let the batch be loaded and its files go."""
    kept = replace(scene.stream.storage, **storage)
    keeping = replace(scene, stream=replace(scene.stream, storage=kept))
    scene.loaded("warehouse")
    scene.age()
    assert len(keeping.collect().garbage) == 3
    return keeping


def test_readers_leave_out_a_generation_whose_files_went(scene: GarbageScene) -> None:
    """Expect no message, nothing due, nothing missing, no pointer again, and it still loaded."""
    removed(scene)
    database = scene.database
    assert list(database.manifests.published_after("orders", {})) == []
    assert list(database.loads.due(scene.stream, "lake")) == []
    batches = list(database.published.of_stream("orders", [JobKind.INCREMENTAL], newest=None))
    assert [one.files_removed for one in batches] == [True]
    verdict = verify(batches, {Check.PART_FILES: of_files(size_problem)})[Check.PART_FILES]
    assert verdict.passed
    assert verdict.numbers["batches_removed"] == 1
    execute(database, "UPDATE batch_pipeline.attempt SET pointer_uri = NULL")
    assert reconcile("orders", database.attempts, database.manifests, scene.storage).pointers == 0
    manifest = database.manifests.of_batch(scene.batches[0])
    assert manifest is not None
    pointer = pointer_of(manifest, database.manifests, scene.storage)
    assert (pointer.endswith(f"manifests/orders-{FIRST}.g1.json"), scene.there()) == (True, [])
    warehouse, lake = database.loads.target_statuses("orders", ["warehouse", "lake"])
    assert (warehouse.loaded, warehouse.due, warehouse.gone) == (1, 0, 0)
    assert (lake.loaded, lake.due, lake.gone) == (0, 0, 1)


@pytest.mark.parametrize("target", ["warehouse", "lake"])
def test_batch_whose_files_went_cannot_be_loaded_again(scene: GarbageScene, target: str) -> None:
    """Expect the day and what to do, and the load to count as before."""
    removed(scene)
    said = rf"batch {FIRST}, generation 1, were deleted on 2\d+-\d+-\d+.*Materialize its partition"
    with pytest.raises(FilesRemovedError, match=said):
        scene.database.loads.void("orders", target, [FIRST])
    assert query(scene.database, "SELECT voided_at FROM batch_pipeline.load") == [(None,)]


def test_asking_for_a_load_while_files_are_marked_waits_and_is_refused(
    scene: GarbageScene, rival: Database
) -> None:
    """Expect a batch never to be promised and given up at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    from batch_pipeline_tests.seeds import somebody_waits

    scene.loaded("warehouse")
    scene.age()
    [(attempt_id,)] = query(scene.database, "SELECT id FROM batch_pipeline.attempt")
    with ThreadPoolExecutor(1) as threads:
        asked = []

        def void_beside(_connection: sa.Connection) -> None:
            asked.append(threads.submit(rival.loads.void, "orders", "warehouse", [FIRST]))
            while not somebody_waits(scene.database):
                assert not asked[0].done()

        sa.event.listen(scene.database.engine, "commit", void_beside, once=True)
        marked = scene.database.stored_attempts.mark_loaded([attempt_id], ["warehouse"])
        assert marked == {attempt_id}
        assert isinstance(asked[0].exception(), FilesRemovedError)
