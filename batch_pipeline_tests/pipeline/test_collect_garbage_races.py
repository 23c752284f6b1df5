"""Garbage collection beside others, and killed at every point: nothing that is live is lost."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline import acquire_batch
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.errors import FencedError
from batch_pipeline.model.garbage import StoredFile
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.concurrency import run_python, together
from batch_pipeline_tests.pipeline.garbage_fixture import (
    COLLECT,
    DAY,
    GarbageScene,
    open_bucket_scene,
    open_garbage_scene,
    paths,
)
from batch_pipeline_tests.seeds import claimed, query


@pytest.fixture
def disk(database: Database, tmp_path: Path) -> GarbageScene:
    """Two planned batches and an empty storage root; superseded generations are kept for a day."""
    return open_garbage_scene(database, tmp_path / "batches").keeping(DAY)


@pytest.fixture(params=["disk", "s3"])
def scene(request: pytest.FixtureRequest, database: Database) -> GarbageScene:
    """The same on a disk and in a bucket."""
    if request.param == "s3":
        return open_bucket_scene(database, request.getfixturevalue("bucket")).keeping(DAY)
    found: GarbageScene = request.getfixturevalue("disk")
    return found


@dataclass(frozen=True)
class Meanwhile(PartFileStorage):
    """A storage during whose listing something happens elsewhere: at its start or its end."""

    inner: PartFileStorage
    at_start: Callable[[], object]
    at_end: Callable[[], object]

    def files(self) -> Iterator[StoredFile]:
        """List the files."""
        self.at_start()
        yield from self.inner.files()
        self.at_end()


def nothing() -> None:
    """Do nothing."""


def live(scene: GarbageScene) -> list[str]:
    """The files that manifests of newest generations list."""
    rows = query(
        scene.database,
        "SELECT uri FROM batch_pipeline.part_file p JOIN batch_pipeline.attempt a "
        "ON a.id = p.attempt_id JOIN batch_pipeline.batch_state s USING (batch_id) "
        "WHERE s.generation = a.generation",
    )
    return [uri.removeprefix(f"{scene.stream.storage.root}/") for (uri,) in rows]


def test_attempt_published_while_files_are_listed_keeps_them(scene: GarbageScene) -> None:
    """Expect the inventory to be asked after the listing, so that the publish is seen."""
    with claimed(scene.database, scene.batches[0]) as attempt:
        scene.publish(attempt)  # what it replaces does not matter: it is the newest
        scene.age()
    with claimed(scene.database, scene.batches[0]) as again:
        storage = Meanwhile(
            scene.stream.storage, scene.storage, lambda: scene.publish(again), scene.age
        )
        collected = scene.collect(storage=storage)
    assert {*live(scene)} <= {*scene.there()}
    assert not {*paths(collected)} & {*live(scene)}


@pytest.mark.parametrize("at_start", [True, False])
def test_attempt_claimed_while_files_are_listed_keeps_what_it_writes(
    scene: GarbageScene, at_start: bool
) -> None:
    """Expect no file of an attempt to be taken for one that nobody knows."""
    with claimed(scene.database, scene.batches[1]) as attempt:

        def write() -> None:
            scene.write(attempt)
            scene.age()

        ends = (write, nothing) if at_start else (nothing, write)
        storage = Meanwhile(scene.stream.storage, scene.storage, *ends)
        collected = scene.collect(storage=storage, with_unknown=True)
    assert collected.garbage == ()
    assert len(scene.there()) == 4


def test_worker_that_was_given_up_can_publish_nothing_afterwards(scene: GarbageScene) -> None:
    """Expect files to go only once their attempt cannot be published any more."""
    with claimed(scene.database, scene.batches[0]) as zombie:
        left = scene.write(zombie)
        scene.database.attempts.fail(zombie, "fenced", AttemptStatus.ABANDONED)
        scene.age()
        assert sorted(paths(scene.collect())) == sorted(left)
        with pytest.raises(FencedError):
            scene.publish(zombie)


def test_generation_is_only_given_up_when_a_newer_one_is_there(disk: GarbageScene) -> None:
    """Expect the inventory to refuse the mark of a live generation, whoever asks."""
    disk.published()
    disk.published()
    first, second = (
        found
        for (found,) in query(disk.database, "SELECT id FROM batch_pipeline.attempt ORDER BY 1")
    )
    assert disk.database.stored_attempts.mark_superseded([first, second]) == {first}
    marks = "SELECT facts ->> 'files_removed_at' FROM batch_pipeline.attempt WHERE id = :id"
    before = query(disk.database, marks, id=first)
    assert disk.database.stored_attempts.mark_superseded([first]) == {first}
    assert query(disk.database, marks, id=first) == before


def test_collectors_at_once_delete_each_file_once(disk: GarbageScene) -> None:
    """Expect four of them to agree on the list and to share the work."""
    for one in disk.batches:
        disk.failed(one)
        disk.published(one)
        disk.published(one)
    disk.age()
    told = disk.collect(dry_run=True)
    assert len(told.garbage) == 14
    done: list[Any] = together(*[disk.collect] * 4)
    assert sum(one.removed_files for one in done) == 14
    assert disk.there() == sorted(
        [*live(disk), *(f"manifests/orders-{one.key}.g2.json" for one in disk.batches)]
    )


def test_collecting_beside_publishes_loses_nothing_live(scene: GarbageScene) -> None:
    """Expect generation after generation to be published while superseded ones go."""
    scene.published()
    scene.published()

    def publish() -> None:
        for _ in range(5):
            scene.published(scene.batches[1])
            scene.age()

    def collect() -> None:
        for _ in range(10):
            scene.collect()

    results = together(publish, collect, collect)
    assert [one for one in results if one is not None] == []
    assert {*live(scene)} <= {*scene.there()}


@pytest.mark.parametrize(
    "failpoint", ["collect.listed", "collect.judged", "collect.marked", "collect.before_remove"]
)
def test_collector_killed_anywhere_leaves_the_rest_to_the_next(
    disk: GarbageScene, database_url: str, failpoint: str
) -> None:
    """Expect what is live to be whole, and the next collector to finish."""
    disk.failed()
    disk.published()
    disk.published()
    disk.age()
    garbage, there = paths(disk.collect(dry_run=True)), disk.there()
    arguments = (database_url, disk.stream.storage.root)
    killed = run_python(COLLECT, *arguments, failpoints=f"{failpoint}=kill")
    assert killed == -signal.SIGKILL
    assert disk.there() == there
    assert paths(disk.collect()) == garbage
    assert disk.there() == sorted({*there} - {*garbage})


def test_generation_that_a_chained_job_has_not_read_is_kept(
    disk: GarbageScene, configured: None
) -> None:
    """Expect a job that goes on from what is published to find every generation's files."""
    disk.published()
    disk.published()
    where = [{"column": "job", "operator": "=", "value": "orders"}]
    batch = acquire_batch("reader", "inventory", where=where, batch_count=1)
    assert batch is not None
    disk.age()
    assert disk.collect().garbage == ()
    batch.succeeded()
    assert len(disk.collect().garbage) == 3
