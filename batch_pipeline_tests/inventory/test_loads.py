"""Loads: due batches, claims, recorded results, and reloads."""

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import IdRange
from batch_pipeline.model.errors import ConflictError, LoadRunningError, TargetFailedError
from batch_pipeline.model.load import Claim, Loaded, Loading, LoadStatus
from batch_pipeline_tests.concurrency import eventually, run_python, together
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
from batch_pipeline_tests.seeds import execute, has_lock_waiters, planned_backfill, query

CLAIM_AND_DIE = """
import os, signal, sys
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.pipeline.load_fixture import LEASE, due
database = open_database(sys.argv[1], migrated=None)
with database.loads.claim("orders", "warehouse", due(database), run_id="load-0", lease=LEASE):
    os.kill(os.getpid(), signal.SIGKILL)
"""
BACKFILL = f"2023:{FIRST}"
LOADED = Loaded(records=2, state={"bookmarks": {}}, exit_code=0, log="2 rows", mode="batch")


def claimed_generations(database: Database, loadings: Sequence[Loading]) -> list[int]:
    """Claim loads that were due before, and return the generations that are still due."""
    with database.loads.claim(
        "orders", "warehouse", loadings, run_id="load-2", lease=LEASE
    ) as claim:
        return [] if claim is None else [due.manifest.generation for due in claim.loadings]


@contextmanager
def claimed(
    database: Database, target: str = "warehouse", *, run_id: str = "load-1"
) -> Iterator[Claim]:
    """Claim all due batches."""
    loadings = due(database, target)
    with database.loads.claim("orders", target, loadings, run_id=run_id, lease=LEASE) as claim:
        assert claim is not None
        yield claim


def load_all(database: Database, target: str = "warehouse", *, run_id: str = "load-1") -> None:
    """Record all due batches as loaded."""
    with claimed(database, target, run_id=run_id) as claim:
        load = claim.load
        for following in (*claim.loadings[1:], None):
            load = database.loads.succeed(load, LOADED, following) or load


def test_due_loading_contains_what_a_load_needs(database: Database, tmp_path: Path) -> None:
    (batch,) = published(database, tmp_path, 1)
    (loading,) = database.loads.due(orders(alias="sales"), "warehouse")
    assert loading.manifest == database.manifests.of_batch(batch)
    assert (loading.publish_number, loading.label, loading.message_name) == (1, FIRST, "sales")
    assert (loading.item_ids, loading.again) == ((), False)


def publish_backfill(database: Database, folder: Path) -> None:
    """Publish the backfill `2023`, which contains the items of the first batch again."""
    [batch] = planned_backfill(database, ids=IdRange(first_id=1, last_id=3))
    publish_file(database, batch, folder)


@pytest.mark.parametrize("page", [1, 200])
def test_due_of_several_jobs_is_in_publish_order(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr("batch_pipeline.inventory.loads._PAGE", page)
    _, second, _ = published(database, tmp_path, 3)
    publish_backfill(database, tmp_path)
    publish_file(database, second, tmp_path, generation=2)
    labels = [
        (loading.label, loading.publish_number, loading.is_backfill) for loading in due(database)
    ]
    own = [(FIRST, 1, False), (THIRD, 3, False)]
    assert labels == [*own, (BACKFILL, 1, True), (SECOND, 4, False)]


def test_due_has_item_ids_once_a_backfill_is_published(database: Database, tmp_path: Path) -> None:
    """A killed load may have left the backfill's rows in the target."""
    [first, *_] = published(database, tmp_path, 1)
    planned_backfill(database, "2022")
    assert [loading.item_ids for loading in due(database)] == [()]
    load_all(database)
    publish_backfill(database, tmp_path)
    publish_file(database, first, tmp_path, generation=2)
    assert [(loading.label, loading.item_ids) for loading in due(database)] == [
        (BACKFILL, (1,)),
        (FIRST, (1,)),
    ]


def test_due_can_be_limited_to_named_batches(database: Database, tmp_path: Path) -> None:
    published(database, tmp_path, 2)
    publish_backfill(database, tmp_path)
    for only, expected in (
        ([FIRST], [FIRST]),
        ([SECOND, BACKFILL], [SECOND, BACKFILL]),
        ([BACKFILL, THIRD], [BACKFILL]),
        ([], []),
        (["no batch", f"{'9' * 19}-1"], []),
    ):
        selected = database.loads.due(orders(), "warehouse", only=only)
        assert [loading.label for loading in selected] == expected


def test_due_of_held_up_job_reads_no_further_pages(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later pages contain only batches of other jobs."""
    monkeypatch.setattr("batch_pipeline.inventory.loads._PAGE", 2)
    published(database, tmp_path, 3)
    publish_backfill(database, tmp_path)
    held_up: set[str] = set()
    labels = []
    for loading in database.loads.due(orders(), "warehouse", held_up=held_up):
        held_up.add("orders")
        labels.append(loading.label)
    assert labels == [FIRST, SECOND, BACKFILL]


def test_load_is_recorded_with_target_output(database: Database, tmp_path: Path) -> None:
    (batch,) = published(database, tmp_path, 1)
    load_all(database)
    (load,) = database.loads.of_batch(batch.id)
    assert (load.target, load.number, load.status) == ("warehouse", 1, LoadStatus.SUCCEEDED)
    assert (load.records, load.mode, load.generation) == (2, "batch", 1)
    stored = query(database, "SELECT state, exit_code, log FROM batch_pipeline.load")
    assert stored == [({"bookmarks": {}}, 0, "2 rows")]


def test_concurrent_load_into_same_target_is_rejected(
    database: Database, rival: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    with claimed(database):
        with (
            pytest.raises(LoadRunningError, match="run load-1 is loading this stream"),
            claimed(rival),
        ):
            pytest.fail("claimed twice")
        with claimed(rival, "lake"):
            pass


def test_one_of_four_concurrent_claims_wins(database: Database, tmp_path: Path) -> None:
    published(database, tmp_path, 1)
    loadings = due(database)

    def claim_and_load() -> str:
        with database.loads.claim(
            "orders", "warehouse", loadings, run_id="load-1", lease=LEASE
        ) as claim:
            assert claim is not None
            database.loads.succeed(claim.load, LOADED, None)
        return "loaded"

    results = together(*[claim_and_load] * 4)
    others = [result for result in results if result != "loaded"]
    assert len(others) == 3
    assert all(isinstance(result, LoadRunningError | AssertionError) for result in others), others
    assert [row[2] for row in rows(database)] == ["succeeded"]


def test_claim_skips_generation_replaced_by_loaded_one(database: Database, tmp_path: Path) -> None:
    """An older generation must not overwrite a newer one, voided or not."""
    [first, *_] = published(database, tmp_path, 2)
    before = due(database)
    publish_file(database, first, tmp_path, generation=2)
    load_all(database)
    assert (claimed_generations(database, before), due(database)) == ([], [])
    assert database.loads.void("orders", "warehouse", [FIRST])
    assert claimed_generations(database, before) == []
    [again] = due(database)
    assert (again.label, again.manifest.generation) == (FIRST, 2)


def test_claim_accepts_generation_whose_successor_is_not_loaded(
    database: Database, tmp_path: Path
) -> None:
    """The newer generation is loaded next time."""
    [first] = published(database, tmp_path, 1)
    before = due(database)
    publish_file(database, first, tmp_path, generation=2)
    load_all(database, "lake")
    assert claimed_generations(database, before) == [1]


def test_load_of_killed_process_does_not_block_next_claim(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    assert run_python(CLAIM_AND_DIE, database_url) == -signal.SIGKILL
    load_all(database)
    assert rows(database) == [(1, 1, "interrupted", "load-0"), (1, 2, "succeeded", "load-1")]


def test_failed_load_is_recorded_and_stays_due(database: Database, tmp_path: Path) -> None:
    (batch,) = published(database, tmp_path, 1)
    text = f"orders: batch {FIRST} was not loaded into warehouse"
    error = TargetFailedError(text, 4, "disk full\0")
    with claimed(database) as claim:
        database.loads.fail(claim.load, error)
    stored = query(database, "SELECT exit_code, log FROM batch_pipeline.load")
    assert stored == [(4, "disk full\\x00")]
    (load,) = database.loads.of_batch(batch.id)
    assert load.error is not None
    assert load.error.startswith(f"orders: batch {FIRST} was not loaded into warehouse")
    assert [loading.failed_before for loading in due(database)] == [True]
    assert [loading.failed_before for loading in due(database, "lake")] == [False]
    with claimed(database) as claim:
        database.loads.fail(claim.load, KeyboardInterrupt())
    load_all(database)
    states = [row[1:3] for row in rows(database)]
    assert states == [(1, "failed"), (2, "interrupted"), (3, "succeeded")]


def test_succeed_is_idempotent(database: Database, tmp_path: Path) -> None:
    """A reply may be lost and the call repeated."""
    published(database, tmp_path, 2)
    with claimed(database) as claim:
        first, second = claim.load, claim.loadings[1]
        following = database.loads.succeed(first, LOADED, second)
        assert database.loads.succeed(first, LOADED, second) == following
        assert following is not None
        assert database.loads.succeed(following, LOADED, None) is None
        assert database.loads.succeed(following, LOADED, None) is None
    assert [row[:3] for row in rows(database)] == [(1, 1, "succeeded"), (4, 1, "succeeded")]


def test_load_that_was_taken_over_cannot_succeed(
    database: Database, rival: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    with claimed(database) as claim:
        execute(database, "UPDATE batch_pipeline.load SET lease_until = now() - interval '1 s'")
        with claimed(rival) as second:
            with pytest.raises(ConflictError, match="its lease expired"):
                database.loads.succeed(claim.load, LOADED, None)
            rival.loads.succeed(second.load, LOADED, None)
    assert [row[2] for row in rows(database)] == ["interrupted", "succeeded"]


def test_load_lease_is_renewed_and_ends_with_block(database: Database, tmp_path: Path) -> None:
    published(database, tmp_path, 1)
    ends = "SELECT lease_until FROM batch_pipeline.load"
    with claimed(database):
        before = query(database, ends)
        database.heartbeat._renew_all()
        assert query(database, ends) > before
    over = "SELECT lease_until < clock_timestamp() FROM batch_pipeline.load"
    assert query(database, over) == [(True,)]


def test_lease_is_renewed_after_renewal_that_waits_for_succeed(
    database: Database, tmp_path: Path
) -> None:
    """The waiting renewal sees the closed load, but not the next one, which has the same token."""
    published(database, tmp_path, 3)
    renewals: list[Future[None]] = []
    ends_next_load = Event()

    def interleave(_connection: object, _cursor: object, sql: str, *_rest: object) -> None:
        if "INSERT INTO batch_pipeline.load" in sql:
            if renewals:
                ends_next_load.set()
            else:
                renewals.append(pool.submit(database.heartbeat._renew_all))
            eventually(lambda: renewals[0].done() or has_lock_waiters(database))
        elif "UPDATE batch_pipeline.load SET renewed_at" in sql:
            ends_next_load.wait(5)

    with ThreadPoolExecutor(1) as pool, claimed(database) as claim:
        sa.event.listen(database.engine, "after_cursor_execute", interleave)
        following = database.loads.succeed(claim.load, LOADED, claim.loadings[1])
        assert following is not None
        following = database.loads.succeed(following, LOADED, claim.loadings[2])
        renewals[0].result()
        assert following is not None
        assert database.heartbeat.is_renewing(following.token)


def test_void_makes_loaded_batch_due_again(database: Database, tmp_path: Path) -> None:
    """Only for the target that it was loaded into."""
    published(database, tmp_path, 2)
    before = due(database)
    load_all(database)
    assert (due(database), claimed_generations(database, before)) == ([], [])
    assert [loading.label for loading in due(database, "lake")] == [FIRST, SECOND]
    assert not database.loads.void("orders", "lake", [FIRST])
    assert not database.loads.void("orders", "warehouse", [THIRD])
    assert database.loads.void("orders", "warehouse", [FIRST])
    assert [(loading.label, loading.again) for loading in due(database)] == [(FIRST, True)]
    load_all(database)
    assert due(database) == []
    assert [row[:3] for row in rows(database)][-1] == (1, 2, "succeeded")


def test_void_distinguishes_backfill_batch_from_stream_batch(
    database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    publish_backfill(database, tmp_path)
    load_all(database)
    assert database.loads.void("orders", "warehouse", [BACKFILL])
    assert [loading.label for loading in due(database)] == [BACKFILL]
    assert database.loads.void("orders", "warehouse", [FIRST])
    assert [loading.label for loading in due(database)] == [FIRST, BACKFILL]
    assert not database.loads.void("orders", "warehouse", ["no such batch"])


def test_database_rejects_second_success_and_second_running_load(
    database: Database, tmp_path: Path
) -> None:
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


def test_target_status_counts_loaded_due_and_failed(database: Database, tmp_path: Path) -> None:
    published(database, tmp_path, 3)
    with claimed(database) as claim:
        second = database.loads.succeed(claim.load, LOADED, claim.loadings[1])
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


def test_void_keeps_loads_of_named_runs(database: Database, tmp_path: Path) -> None:
    published(database, tmp_path, 1)
    load_all(database)
    void = partial(database.loads.void, "orders", "warehouse", [FIRST])
    assert not void(but_of_runs=["load-2", "load-1"])
    assert due(database) == []
    assert void(but_of_runs=["load-2"])
    assert [loading.label for loading in due(database)] == [FIRST]


def test_void_of_repeated_run_accepts_removed_files(database: Database, tmp_path: Path) -> None:
    """The files were removed after this run had loaded them."""
    published(database, tmp_path, 1)
    load_all(database)
    assert database.stored_attempts.mark_loaded([1], ["warehouse"]) == {1}
    assert not database.loads.void("orders", "warehouse", [FIRST], but_of_runs=["load-1"])


def test_cursor_stops_before_running_load_of_configured_target(
    database: Database, tmp_path: Path
) -> None:
    """A load into a removed or renamed target does not hold it back."""
    published(database, tmp_path, 1)
    with claimed(database, "old"):
        pass  # like a process that dies
    load_all(database)
    assert database.loads.cursor("orders", ["warehouse"]) == 2
    assert database.loads.cursor("orders", ["warehouse", "old"]) == 0
    execute(database, "UPDATE batch_pipeline.load SET status = 'interrupted', finished_at = now()")
    assert database.loads.cursor("orders", ["warehouse", "old"]) == 2


def test_cursor_waits_for_claim_whose_id_is_not_visible(
    database: Database, rival: Database, tmp_path: Path
) -> None:
    """A load with a higher id may end before the claim is committed."""
    published(database, tmp_path, 1)
    cursors: list[Future[int]] = []

    def read_cursor(_connection: object, _cursor: object, sql: str, *_rest: object) -> None:
        if "INSERT INTO batch_pipeline.load" in sql:
            load_all(rival, "lake")
            cursors.append(pool.submit(rival.loads.cursor, "orders", ["lake", "warehouse"]))
            eventually(lambda: cursors[0].done() or has_lock_waiters(rival))

    sa.event.listen(database.engine, "after_cursor_execute", read_cursor)
    with ThreadPoolExecutor(1) as pool, claimed(database):
        assert cursors[0].result() == 0


def test_load_voided_while_it_is_read_is_complete(
    database: Database, rival: Database, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    load_all(database)

    def void(_connection: object, _cursor: object, sql: str, *_rest: object) -> None:
        if sql.startswith("SELECT batch_pipeline.load.id"):
            assert rival.loads.void("orders", "warehouse", [FIRST])

    sa.event.listen(database.engine, "before_cursor_execute", void)
    [loaded] = database.loads.in_all_targets("orders", ["warehouse"], 0)
    assert [record.is_void for record in loaded.loads] == [False]
