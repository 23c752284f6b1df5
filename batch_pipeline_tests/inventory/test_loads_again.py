"""Loads that runs ask for again, and up to which one all loads of a stream have ended."""

from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.load import Loaded
from batch_pipeline_tests.pipeline.load_fixture import FIRST, LEASE, due, published
from batch_pipeline_tests.seeds import execute


def load_all(database: Database, target: str = "warehouse", *, run_id: str = "load-1") -> None:
    """Record everything that is due as loaded."""
    wanted = due(database, target)
    with database.loads.claim("orders", target, wanted, run_id=run_id, lease=LEASE) as claim:
        assert claim is not None
        load = claim.load
        for following in (*claim.loadings[1:], None):
            load = database.loads.succeed(load, Loaded(records=2), following) or load


def leave_running(database: Database, target: str) -> None:
    """Let a load into a target be one whose process died."""
    with database.loads.claim(
        "orders", target, due(database, target), run_id="load-1", lease=LEASE
    ):
        pass


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
    leave_running(database, "old")
    load_all(database)
    assert database.loads.cursor("orders", ["warehouse"]) == 2
    assert database.loads.cursor("orders", ["warehouse", "old"]) == 0
    execute(database, "UPDATE batch_pipeline.load SET status = 'interrupted', finished_at = now()")
    assert database.loads.cursor("orders", ["warehouse", "old"]) == 2
