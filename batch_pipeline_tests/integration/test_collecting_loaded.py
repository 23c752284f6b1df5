"""Files of generations that all targets have: when they go, where to, and who is told of it."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline import acquire_batch
from batch_pipeline.domain.errors import FilesRemovedError, NotArchivedError
from batch_pipeline.domain.garbage import Reason
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.location import to_uri
from batch_pipeline.domain.verdict import Check
from batch_pipeline.files.looks import size_problem
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.work.removals import mark_loaded
from batch_pipeline.steps.reconcile import pointer_of, reconcile
from batch_pipeline.steps.verify import verify
from batch_pipeline_tests.concurrency import run_python, together
from batch_pipeline_tests.integration.garbage_scene import (
    DAY,
    GarbageScene,
    open_garbage_scene,
    paths,
)
from batch_pipeline_tests.integration.seeds import LEASE, execute, query

FIRST = "000000000001-000000000003"
MARKS = (
    "SELECT generation, facts ->> 'files_archived_in' FROM batch_pipeline.attempt "
    "WHERE facts ? 'files_removed_at' ORDER BY id"
)
COLLECT = """
import sys
from datetime import timedelta
from pathlib import Path
from batch_pipeline.domain.location import to_path
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.integration.garbage_scene import GarbageScene
from batch_pipeline_tests.factories import stream
from batch_pipeline.domain.stream import Storage
database = open_database(sys.argv[1], migrated=None)
scene = GarbageScene(
    database=database,
    root=Path(to_path(sys.argv[2])),
    batches=(),
    stream=stream(storage=Storage(root=sys.argv[2])),
)
archive = sys.argv[3] or None
scene.loading_into("warehouse", keep_loaded=timedelta(days=7), archive=archive).collect()
"""


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> GarbageScene:
    """A stream with a target whose loaded files are kept for a week; one batch is published."""
    opened = open_garbage_scene(database, tmp_path / "batches")
    opened.published()
    return opened.loading_into("warehouse", keep_loaded=7 * DAY)


def test_loaded_generation_goes_when_the_stream_says_so(scene: GarbageScene) -> None:
    """Expect part, quarantine and pointer file, the pointer first, and the rows to stay."""
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
    assert query(scene.database, MARKS) == [(1, None)]
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


def test_stream_without_the_key_keeps_what_is_loaded(scene: GarbageScene) -> None:
    """Expect nothing to go for being loaded unless the stream file says so."""
    scene.loaded("warehouse")
    scene.age()
    assert scene.loading_into("warehouse", keep_loaded=None).collect().garbage == ()


def void(scene: GarbageScene) -> None:
    """Ask for the batch to be loaded again."""
    assert scene.database.loads.void("orders", "warehouse", FIRST)


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
    assert scene.database.stored_attempts.mark_loaded([attempt_id], {"warehouse"}, None) == {}
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


def test_backfill_counts_like_the_streams_own(scene: GarbageScene) -> None:
    """Expect files of every job of the stream to go once they are loaded."""
    from batch_pipeline.domain.backfill import Backfill, Selection
    from batch_pipeline_tests.factories import limits

    request = Backfill.of_stream("orders", "2023", Selection(), limits())
    scene.database.backfills.plan(request, scene.database.meta_table("orders"))
    [status] = scene.database.backfills.of_all("orders")
    scene.published(status.batch)
    scene.loaded("warehouse")
    scene.age()
    collected = scene.collect()
    assert sum("orders.2023" in path for path in paths(collected)) == 3
    assert scene.there() == []


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


@pytest.mark.parametrize("archive", ["", "archive"])
@pytest.mark.parametrize("failpoint", ["collect.marked", "collect.before_remove"])
def test_collector_killed_after_the_mark_is_finished_by_the_next(
    scene: GarbageScene, database_url: str, tmp_path: Path, failpoint: str, archive: str
) -> None:
    """Expect files to go where the mark says, even if targets and archive changed since."""
    scene.loaded("warehouse")
    scene.age()
    there = scene.there()
    place = to_uri(tmp_path / archive) if archive else ""
    arguments = (database_url, scene.stream.storage.root, place)
    assert run_python(COLLECT, *arguments, failpoints=f"{failpoint}=kill") == -signal.SIGKILL
    assert (scene.there(), query(scene.database, MARKS)) == (there, [(1, place or None)])
    changed = scene.loading_into("lake", archive=to_uri(tmp_path / "other"))
    assert sorted(paths(changed.collect())) == there
    assert scene.there() == []
    assert below(tmp_path / "archive") == (there if archive else [])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("failpoint", ["archive.copied", "archive.before_unlink"])
def test_collector_killed_while_archiving_loses_nothing(
    scene: GarbageScene, database_url: str, tmp_path: Path, failpoint: str
) -> None:
    """Expect each file in one place at least, whole, and all in the archive after the next run."""
    scene.loaded("warehouse")
    scene.age()
    there, place = scene.there(), to_uri(tmp_path / "archive")
    script = COLLECT
    if failpoint == "archive.copied":
        script = NO_LINKS + COLLECT
    arguments = (database_url, scene.stream.storage.root, place)
    assert run_python(script, *arguments, failpoints=f"{failpoint}=kill") == -signal.SIGKILL
    assert {*scene.there(), *below(tmp_path / "archive")} >= {*there}
    scene.loading_into("warehouse", archive=place).collect()
    assert scene.there() == []
    assert {*there} <= {*below(tmp_path / "archive")}


NO_LINKS = """
import errno, os
def link(*_, **__):
    raise OSError(errno.EXDEV, "another file system")
os.link = link
"""


def below(folder: Path) -> list[str]:
    """List all files below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_archive_takes_generations_and_no_other_garbage(
    scene: GarbageScene, tmp_path: Path
) -> None:
    """Expect loaded and superseded ones with their pointers, and what failed to be deleted."""
    archive = to_uri(tmp_path / "archive")
    keeping = scene.loading_into("warehouse", archive=archive, keep_superseded=DAY)
    first = scene.there()
    keeping.published()
    keeping.loaded("warehouse")
    both = scene.there()
    keeping.failed(keeping.batches[1])
    scene.age()
    told = keeping.collect(dry_run=True)
    assert (told.to_archive, told.archived_files) == (6, 0)
    done = keeping.collect()
    assert (done.removed_files, done.archived_files) == (10, 6)
    assert (done.files(Reason.SUPERSEDED), done.files(Reason.LOADED)) == (3, 3)
    assert (scene.there(), below(tmp_path / "archive")) == ([], both)
    assert {*first} <= {*both}
    assert query(scene.database, MARKS) == [(1, archive), (2, archive)]


def test_archive_that_has_another_file_of_a_name_keeps_it(
    scene: GarbageScene, tmp_path: Path
) -> None:
    """Expect neither file to be touched, the others to go, and this one once the way is free."""
    scene.loaded("warehouse")
    scene.age()
    [part] = (tmp_path / "batches").glob("*.jsonl.gz")
    other = tmp_path / "archive" / part.name
    other.parent.mkdir()
    other.write_bytes(b"something else")
    keeping = scene.loading_into("warehouse", archive=to_uri(other.parent))
    with pytest.raises(NotArchivedError, match=r"another file has its name there.*gc` again"):
        keeping.collect()
    assert (part.read_bytes(), other.read_bytes()) == (b"ten bytes.", b"something else")
    assert scene.there() == [part.name]
    other.unlink()
    keeping.collect()
    assert (scene.there(), other.read_bytes()) == ([], b"ten bytes.")


def test_archive_that_has_other_files_of_several_names_tells_how_many(
    scene: GarbageScene, tmp_path: Path
) -> None:
    """Expect the first one to be named, and the pointer file, which goes first, to be gone."""
    scene.loaded("warehouse")
    scene.age()
    part, quarantined = (name for name in scene.there() if "manifests" not in name)
    archive = replace(scene, root=tmp_path / "archive")
    for name in (part, quarantined):
        archive.put(name, b"something else")
    keeping = scene.loading_into("warehouse", archive=to_uri(archive.root))
    with pytest.raises(NotArchivedError) as raised:
        keeping.collect()
    assert str(raised.value).startswith(f"{part} of the storage")
    assert "; 1 more file cannot go either)" in str(raised.value)
    assert scene.there() == [part, quarantined]


def test_pointer_file_that_cannot_go_keeps_what_it_names(
    scene: GarbageScene, tmp_path: Path
) -> None:
    """Expect all files of its generation to stay, and garbage of others to go."""
    scene.loaded("warehouse")
    live = scene.there()
    scene.failed(scene.batches[1])
    scene.age()
    [pointer] = (name for name in live if "manifests" in name)
    archive = replace(scene, root=tmp_path / "archive")
    archive.put(pointer, b"something else")
    with pytest.raises(NotArchivedError, match="manifests"):
        scene.loading_into("warehouse", archive=to_uri(archive.root)).collect()
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
    verdict = verify(batches, {Check.PART_FILES: size_problem})[Check.PART_FILES]
    assert verdict.passed
    assert verdict.numbers["batches_removed"] == 1
    execute(database, "UPDATE batch_pipeline.attempt SET pointer_uri = NULL")
    assert reconcile("orders", database.attempts, database.manifests, scene.storage).pointers == 0
    manifest = database.manifests.of_batch(scene.batches[0])
    assert manifest is not None
    pointer = pointer_of(manifest, database.manifests, scene.storage)
    assert (pointer.endswith(f"manifests/orders-{FIRST}.g1.json"), scene.there()) == (True, [])
    warehouse, lake = database.loads.standing("orders", ["warehouse", "lake"])
    assert (warehouse.loaded, warehouse.due, warehouse.gone) == (1, 0, 0)
    assert (lake.loaded, lake.due, lake.gone) == (0, 0, 1)


@pytest.mark.parametrize("target", ["warehouse", "lake"])
@pytest.mark.parametrize("archive", [None, "file:///x/archive"])
def test_batch_whose_files_went_cannot_be_loaded_again(
    scene: GarbageScene, tmp_path: Path, target: str, archive: str | None
) -> None:
    """Expect the day, where the files are, and what to do, and the load to count as before."""
    place = None if archive is None else to_uri(tmp_path / "archive")
    removed(scene, archive=place)
    went = "deleted" if place is None else rf"moved to the archive {place}"
    said = rf"batch {FIRST}, generation 1, were {went} on 2\d+-\d+-\d+.*Materialize its partition"
    with pytest.raises(FilesRemovedError, match=said):
        scene.database.loads.void("orders", target, FIRST)
    assert query(scene.database, "SELECT voided_at FROM batch_pipeline.load") == [(None,)]


def test_asking_for_a_load_while_files_are_marked_waits_and_is_refused(
    scene: GarbageScene, rival: Database
) -> None:
    """Expect a batch never to be promised and given up at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    from batch_pipeline_tests.integration.seeds import somebody_waits

    scene.loaded("warehouse")
    scene.age()
    [(attempt_id,)] = query(scene.database, "SELECT id FROM batch_pipeline.attempt")
    with ThreadPoolExecutor(1) as threads:
        with scene.database.engine.begin() as connection:
            marked = mark_loaded(connection, [attempt_id], ["warehouse"], None)
            asking = threads.submit(rival.loads.void, "orders", "warehouse", FIRST)
            while not somebody_waits(scene.database):
                assert not asking.done()
        assert marked == {attempt_id: None}
        assert isinstance(asking.exception(), FilesRemovedError)


def test_loaded_generation_that_a_chained_job_has_not_read_stays(
    scene: GarbageScene, configured: None
) -> None:
    """Expect a job that goes on from what is published to find the files that it is to read."""
    scene.loaded("warehouse")
    where = [{"column": "job", "operator": "=", "value": "orders"}]
    batch = acquire_batch("reader", "inventory", where=where, batch_count=1)
    assert batch is not None
    scene.age()
    assert scene.collect().garbage == ()
    batch.succeeded()
    assert len(scene.collect().garbage) == 3


def test_collectors_at_once_archive_each_file_once(scene: GarbageScene, tmp_path: Path) -> None:
    """Expect four of them to share the work, and every file to be whole."""
    scene.published(scene.batches[1])
    scene.loaded("warehouse")
    scene.age()
    there = scene.there()
    keeping = scene.loading_into("warehouse", archive=to_uri(tmp_path / "archive"))
    done: list[Any] = together(*[keeping.collect] * 4)
    assert sum(one.archived_files for one in done) == len(there) == 6
    assert (scene.there(), below(tmp_path / "archive")) == ([], there)
