"""Loads: what is due, who may load it, what is stored, and loads that are requested again."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import exc

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.errors import ConflictError, LoadRunningError, TargetFailedError
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.load import Claim, Loaded, LoadStatus
from batch_pipeline_tests.concurrency import python, said, together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.pipeline.load_fixture import (
    FIRST,
    LEASE,
    SECOND,
    THIRD,
    due,
    orders,
    publish_file,
    published,
    rows,
)
from batch_pipeline_tests.seeds import execute, query

CLAIM_AND_WAIT = """
import sys
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.pipeline.load_fixture import LEASE, due
database = open_database(sys.argv[1], migrated=None)
with database.loads.claim("orders", "warehouse", due(database), run_id="load-0", lease=LEASE):
    print("claimed")
    sys.stdin.read()
"""
AGAIN = f"2023:{FIRST}"
DONE = Loaded(records=2, state={"bookmarks": {}}, exit_code=0, log="2 rows", mode="batch")


@contextmanager
def claimed(
    database: Database, target: str = "warehouse", *, run_id: str = "load-1"
) -> Iterator[Claim]:
    """Claim all that is due."""
    wanted = due(database, target)
    with database.loads.claim("orders", target, wanted, run_id=run_id, lease=LEASE) as claim:
        assert claim is not None
        yield claim


def load_all(database: Database, target: str = "warehouse", *, run_id: str = "load-1") -> None:
    """Record everything that is due as loaded."""
    with claimed(database, target, run_id=run_id) as claim:
        load = claim.load
        for following in (*claim.loadings[1:], None):
            load = database.loads.succeed(load, DONE, following) or load


def test_due_is_what_a_target_has_not_acknowledged(database: Database, tmp_path: Path) -> None:
    """Expect all batches in publish order for each target, and none that is loaded."""
    published(database, tmp_path, 2)
    assert [one.label for one in due(database)] == [FIRST, SECOND]
    load_all(database)
    assert due(database) == []
    assert [one.label for one in due(database, "lake")] == [FIRST, SECOND]


def test_due_tells_all_that_loading_needs(database: Database, tmp_path: Path) -> None:
    """Expect manifest, publish number, label and the stream's name in messages."""
    (one,) = published(database, tmp_path, 1)
    (what,) = database.loads.due(orders(alias="sales"), "warehouse")
    assert what.manifest == database.manifests.of_batch(one)
    assert (what.publish_number, what.label, what.message_name) == (1, FIRST, "sales")
    assert (what.item_ids, what.again) == ((), False)


def test_due_is_the_newest_generation_only(database: Database, tmp_path: Path) -> None:
    """Expect a batch that was published again to be due again, behind the others."""
    first, _ = published(database, tmp_path, 2)
    load_all(database)
    publish_file(database, first, tmp_path, generation=2)
    assert [(one.label, one.manifest.generation) for one in due(database)] == [(FIRST, 2)]


def publish_backfill(database: Database, folder: Path) -> None:
    """Publish the backfill `2023`, which brings the items of the first batch again."""
    request = Backfill.of_stream(
        "orders", "2023", Selection(ids=IdRange(first_id=1, last_id=3)), limits(max_count=3)
    )
    database.backfills.plan(request, database.meta_table("orders"))
    publish_file(database, database.batches.batch("orders", AGAIN), folder)


@pytest.mark.parametrize("page", [1, 2, 200])
def test_due_of_several_jobs_comes_in_the_order_of_publishing(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """Expect a backfill between the stream's own batches, once each from pages of any size."""
    monkeypatch.setattr("batch_pipeline.inventory.loads._PAGE", page)
    _, second, _ = published(database, tmp_path, 3)
    publish_backfill(database, tmp_path)
    publish_file(database, second, tmp_path, generation=2)
    found = [(one.label, one.publish_number, one.is_backfill) for one in due(database)]
    assert found == [
        (FIRST, 1, False),
        (THIRD, 3, False),
        (AGAIN, 1, True),
        (SECOND, 4, False),
    ]


def test_due_of_a_stream_without_backfills_names_no_items(
    database: Database, tmp_path: Path
) -> None:
    """Expect batches whose records are under their own name only, also beside a planned one."""
    published(database, tmp_path, 1)
    request = Backfill.of_stream("orders", "2023", Selection(), limits())
    database.backfills.plan(request, database.meta_table("orders"))
    assert [one.item_ids for one in due(database)] == [()]


def test_due_beside_a_backfill_that_no_load_tells_of_names_the_items(
    database: Database, tmp_path: Path
) -> None:
    """Expect all items, for a killed load may have left the backfill's rows in the target."""
    [first, *_] = published(database, tmp_path, 1)
    load_all(database)
    publish_backfill(database, tmp_path)
    publish_file(database, first, tmp_path, generation=2)
    assert [(one.label, one.item_ids) for one in due(database)] == [(AGAIN, (1,)), (FIRST, (1,))]


def test_due_of_named_batches_is_these_only(database: Database, tmp_path: Path) -> None:
    """Expect a backfill's batch and the stream's own one of the same ids to be told apart."""
    published(database, tmp_path, 2)
    publish_backfill(database, tmp_path)
    asked: list[list[str]] = [
        [FIRST],
        [SECOND, AGAIN],
        [AGAIN, THIRD],
        [],
        ["no batch", f"{'9' * 19}-1"],
    ]
    found = [
        [one.label for one in database.loads.due(orders(), "warehouse", only=only)]
        for only in asked
    ]
    assert found == [[FIRST], [SECOND, AGAIN], [AGAIN], [], []]


def test_due_of_a_job_that_is_held_up_is_read_no_further(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the page that was read, and of later ones only batches of other jobs."""
    monkeypatch.setattr("batch_pipeline.inventory.loads._PAGE", 2)
    published(database, tmp_path, 3)
    publish_backfill(database, tmp_path)
    held_up: set[str] = set()
    found = []
    for one in database.loads.due(orders(), "warehouse", held_up=held_up):
        held_up.add("orders")
        found.append(one.label)
    assert found == [FIRST, SECOND, AGAIN]


def test_load_is_recorded_with_what_the_target_said(database: Database, tmp_path: Path) -> None:
    """Expect records, state, exit code, log and how it was handed over."""
    (one,) = published(database, tmp_path, 1)
    load_all(database)
    (found,) = database.loads.of_batch(one.id)
    assert (found.target, found.number, found.status) == ("warehouse", 1, LoadStatus.SUCCEEDED)
    assert (found.records, found.mode, found.generation) == (2, "batch", 1)
    kept = query(database, "SELECT state, exit_code, log FROM batch_pipeline.load")
    assert kept == [({"bookmarks": {}}, 0, "2 rows")]


def test_second_load_into_the_same_target_is_refused(
    database: Database, rival: Database, tmp_path: Path
) -> None:
    """Expect the run that loads to be named, and another target to be free."""
    published(database, tmp_path, 1)
    with claimed(database):
        with (
            pytest.raises(LoadRunningError, match="run load-1 is loading this stream"),
            claimed(rival),
        ):
            pytest.fail("claimed twice")
        with claimed(rival, "lake"):
            pass


def test_one_of_four_claims_at_once_wins(database: Database, tmp_path: Path) -> None:
    """Expect three refusals and one load."""
    published(database, tmp_path, 1)
    wanted = due(database)

    def claim_and_load() -> str:
        with database.loads.claim(
            "orders", "warehouse", wanted, run_id="load-1", lease=LEASE
        ) as claim:
            assert claim is not None
            database.loads.succeed(claim.load, DONE, None)
        return "loaded"

    results = together(*[partial(claim_and_load)] * 4)
    others = [one for one in results if one != "loaded"]
    assert len(others) == 3
    assert all(isinstance(one, LoadRunningError | AssertionError) for one in others), others
    assert [row[2] for row in rows(database)] == ["succeeded"]


def test_claim_leaves_out_what_somebody_has_loaded_by_now(
    database: Database, tmp_path: Path
) -> None:
    """Expect a list that was read before to be looked at again under the lock."""
    published(database, tmp_path, 1)
    before = due(database)
    load_all(database)
    claim = database.loads.claim("orders", "warehouse", before, run_id="load-2", lease=LEASE)
    with claim as got:
        assert got is None
    assert len(rows(database)) == 1


@pytest.mark.parametrize("is_asked_again", [False, True])
def test_claim_leaves_out_a_generation_that_a_newer_one_took_the_place_of(
    database: Database, tmp_path: Path, is_asked_again: bool
) -> None:
    """Expect the older generation not to come over the newer one, asked for again or not."""
    [first, *_] = published(database, tmp_path, 2)
    before = due(database)
    publish_file(database, first, tmp_path, generation=2)
    load_all(database)
    if is_asked_again:
        assert database.loads.void("orders", "warehouse", [FIRST])
    claim = database.loads.claim("orders", "warehouse", before, run_id="load-2", lease=LEASE)
    with claim as got:
        assert got is None
    again = [(FIRST, 2)] if is_asked_again else []
    assert [(one.label, one.manifest.generation) for one in due(database)] == again


def test_claim_takes_a_generation_whose_newer_one_is_in_no_target_yet(
    database: Database, tmp_path: Path
) -> None:
    """Expect what somebody is about to load to stay so; the newer one comes with the next look."""
    [first] = published(database, tmp_path, 1)
    before = due(database)
    publish_file(database, first, tmp_path, generation=2)
    load_all(database, "lake")
    claim = database.loads.claim("orders", "warehouse", before, run_id="load-2", lease=LEASE)
    with claim as got:
        assert got is not None
        assert [one.manifest.generation for one in got.loadings] == [1]


def test_load_of_a_killed_process_blocks_nobody(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Expect the next claim at once, and the killed one to be called interrupted."""
    published(database, tmp_path, 1)
    with python(CLAIM_AND_WAIT, database_url) as child:
        assert said(child) == "claimed"
        child.kill()
        child.wait()
    load_all(database)
    assert rows(database) == [(1, 1, "interrupted", "load-0"), (1, 2, "succeeded", "load-1")]


def test_load_that_fails_is_remembered_and_stays_due(database: Database, tmp_path: Path) -> None:
    """Expect error, exit code and log, and the next try to be number 2."""
    (one,) = published(database, tmp_path, 1)
    text = f"orders: batch {FIRST} was not loaded into warehouse"
    error = TargetFailedError(text, 4, "disk full\0")
    with claimed(database) as claim:
        database.loads.fail(claim.load, error)
    kept = query(database, "SELECT exit_code, log FROM batch_pipeline.load")
    assert kept == [(4, "disk full\\x00")]
    (found,) = database.loads.of_batch(one.id)
    assert found.error is not None
    assert found.error.startswith(f"orders: batch {FIRST} was not loaded into warehouse")
    assert [one.failed_before for one in due(database)] == [True]
    assert [one.failed_before for one in due(database, "lake")] == [False]
    load_all(database)
    assert [row[1:3] for row in rows(database)] == [(1, "failed"), (2, "succeeded")]


def test_load_that_was_called_off_is_nobodys_fault(database: Database, tmp_path: Path) -> None:
    """Expect an interrupt to leave an interrupted load."""
    published(database, tmp_path, 1)
    with claimed(database) as claim:
        database.loads.fail(claim.load, KeyboardInterrupt())
    assert [row[2] for row in rows(database)] == ["interrupted"]


def test_succeed_asked_again_gives_the_same(database: Database, tmp_path: Path) -> None:
    """Expect one load a batch although a reply was lost."""
    published(database, tmp_path, 2)
    with claimed(database) as claim:
        first, second = claim.load, claim.loadings[1]
        following = database.loads.succeed(first, DONE, second)
        assert database.loads.succeed(first, DONE, second) == following
        assert following is not None
        assert database.loads.succeed(following, DONE, None) is None
        assert database.loads.succeed(following, DONE, None) is None
    assert [row[:3] for row in rows(database)] == [(1, 1, "succeeded"), (4, 1, "succeeded")]


def test_load_that_was_taken_over_records_nothing(
    database: Database, rival: Database, tmp_path: Path
) -> None:
    """Expect the first to be told that it lost its claim."""
    published(database, tmp_path, 1)
    with claimed(database) as claim:
        execute(database, "UPDATE batch_pipeline.load SET lease_until = now() - interval '1 s'")
        with claimed(rival) as second:
            with pytest.raises(ConflictError, match="its lease expired"):
                database.loads.succeed(claim.load, DONE, None)
            rival.loads.succeed(second.load, DONE, None)
    assert [row[2] for row in rows(database)] == ["interrupted", "succeeded"]


def test_lease_of_a_load_is_renewed(database: Database, tmp_path: Path) -> None:
    """Expect a later end after a beat, and an end at once when the block is left."""
    published(database, tmp_path, 1)
    ends = "SELECT lease_until FROM batch_pipeline.load"
    with claimed(database):
        before = query(database, ends)
        database.heartbeat._renew_all()
        assert query(database, ends) > before
    over = "SELECT lease_until < clock_timestamp() FROM batch_pipeline.load"
    assert query(database, over) == [(True,)]


def test_void_lets_a_loaded_batch_be_due_again(database: Database, tmp_path: Path) -> None:
    """Expect only the named batch, marked as asked for again, until it is loaded."""
    published(database, tmp_path, 2)
    load_all(database)
    assert not database.loads.void("orders", "lake", [FIRST])
    assert not database.loads.void("orders", "warehouse", [THIRD])
    assert database.loads.void("orders", "warehouse", [FIRST])
    assert [(one.label, one.again) for one in due(database)] == [(FIRST, True)]
    load_all(database)
    assert due(database) == []
    assert [row[:3] for row in rows(database)][-1] == (1, 2, "succeeded")


def test_void_of_a_backfills_batch_leaves_the_streams_own_alone(
    database: Database, tmp_path: Path
) -> None:
    """Expect two batches of the same ids to be told apart by their names."""
    published(database, tmp_path, 1)
    publish_backfill(database, tmp_path)
    load_all(database)
    assert database.loads.void("orders", "warehouse", [AGAIN])
    assert [one.label for one in due(database)] == [AGAIN]
    assert database.loads.void("orders", "warehouse", [FIRST])
    assert [one.label for one in due(database)] == [FIRST, AGAIN]
    assert not database.loads.void("orders", "warehouse", ["no such batch"])


def test_generation_is_loaded_once(database: Database, tmp_path: Path) -> None:
    """Expect the database itself to refuse a second success, and a second running load."""
    published(database, tmp_path, 1)
    load_all(database)
    again = (
        "INSERT INTO batch_pipeline.load (attempt_id, stream, target, number, token, liveness_key, "
        "status, run_id, lease_until, finished_at) SELECT attempt_id, stream, target, number + :n, "
        "gen_random_uuid(), 0, :status, run_id, lease_until, CASE WHEN :status <> 'running' THEN "
        "finished_at END FROM batch_pipeline.load WHERE number = 1"
    )
    with pytest.raises(exc.IntegrityError, match="load_once_per_target"):
        execute(database, again, n=1, status="succeeded")
    execute(database, again, n=1, status="running")
    with pytest.raises(exc.IntegrityError, match="load_one_running_per_target"):
        execute(database, again, n=2, status="running")


def test_standing_counts_what_a_target_has_and_lacks(database: Database, tmp_path: Path) -> None:
    """Expect loaded, due and failed, the last error, and who is loading."""
    published(database, tmp_path, 3)
    with claimed(database) as claim:
        second = database.loads.succeed(claim.load, DONE, claim.loadings[1])
        assert second is not None
        (during,) = database.loads.target_statuses("orders", ["warehouse"])
        error = TargetFailedError("ended with exit code 4", 4)
        database.loads.fail(second, error)
    warehouse, lake = database.loads.target_statuses("orders", ["warehouse", "lake"])
    assert (during.loaded, during.due, during.failed, during.running) == (1, 2, 0, "load-1")
    assert (warehouse.loaded, warehouse.due, warehouse.failed) == (1, 2, 1)
    assert warehouse.error == str(error)
    assert (warehouse.running, warehouse.loaded_at is None) == (None, False)
    assert (lake.loaded, lake.due, lake.failed, lake.error) == (0, 3, 0, None)


@pytest.mark.parametrize(
    ("runs", "is_void"), [((), True), (("load-2",), True), (("load-2", "load-1"), False)]
)
def test_void_leaves_what_the_named_runs_have_loaded(
    database: Database, tmp_path: Path, runs: tuple[str, ...], is_void: bool
) -> None:
    """Expect the batch to be due again unless one of them has loaded it."""
    published(database, tmp_path, 1)
    load_all(database)
    assert database.loads.void("orders", "warehouse", [FIRST], but_of_runs=runs) is is_void
    assert [one.label for one in due(database)] == ([FIRST] if is_void else [])


def test_void_of_a_repeated_run_takes_files_that_went_as_loaded(
    database: Database, tmp_path: Path
) -> None:
    """Expect no complaint of files that were removed after this very run had loaded them."""
    published(database, tmp_path, 1)
    load_all(database)
    assert database.stored_attempts.mark_loaded([1], ["warehouse"]) == {1}
    assert not database.loads.void("orders", "warehouse", [FIRST], but_of_runs=["load-1"])


def test_mark_stops_before_a_running_load_of_a_target_that_the_stream_has(
    database: Database, tmp_path: Path
) -> None:
    """Expect a load into a target that was removed, or renamed, not to hold it for ever."""
    published(database, tmp_path, 1)
    with claimed(database, "old"):
        pass  # as a process that dies
    load_all(database)
    assert database.loads.cursor("orders", ["warehouse"]) == 2
    assert database.loads.cursor("orders", ["warehouse", "old"]) == 0
    execute(database, "UPDATE batch_pipeline.load SET status = 'interrupted', finished_at = now()")
    assert database.loads.cursor("orders", ["warehouse", "old"]) == 2
