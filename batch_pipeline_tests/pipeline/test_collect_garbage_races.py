"""Concurrent and killed garbage collections never delete live files."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline import acquire_batch, cancel_job, plan_backfill, retry_job
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.garbage import StoredFile
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.concurrency import run_python, together
from batch_pipeline_tests.pipeline.garbage_fixture import (
    DAY,
    MARKS,
    GarbageHarness,
    open_bucket_harness,
    open_garbage_harness,
    paths,
)
from batch_pipeline_tests.seeds import claimed, query

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


@pytest.fixture
def disk(database: Database, tmp_path: Path) -> GarbageHarness:
    """Two planned batches and an empty storage root; superseded generations are kept for a day."""
    return open_garbage_harness(database, tmp_path / "batches").keeping(DAY)


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.long)])
def harness(request: pytest.FixtureRequest, database: Database) -> GarbageHarness:
    """Two planned batches and an empty storage root, on a disk and in a bucket."""
    if request.param == "s3":
        return open_bucket_harness(database, request.getfixturevalue("bucket")).keeping(DAY)
    disk: GarbageHarness = request.getfixturevalue("disk")
    return disk


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
