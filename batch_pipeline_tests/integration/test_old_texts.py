"""Errors and logs that nothing depends on: which go, which stay, and that rows all stay."""

from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.domain.batch import AttemptStatus, Batch
from batch_pipeline.domain.failpoint import VARIABLE, FailpointError
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.upkeep import old_texts
from batch_pipeline.inventory.upkeep.old_texts import REMOVED, Texts, forget_texts
from batch_pipeline_tests.integration.garbage_scene import DAY, GarbageScene, open_garbage_scene
from batch_pipeline_tests.integration.invariants import check_invariants
from batch_pipeline_tests.integration.seeds import claimed, execute, query

ERRORS = "SELECT error FROM batch_pipeline.attempt ORDER BY id"
LOADS = "SELECT status, error, log FROM batch_pipeline.load ORDER BY id"
KEEP = timedelta(days=20)


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> GarbageScene:
    """Two planned batches of `orders`."""
    return open_garbage_scene(database, tmp_path / "batches")


def failed(database: Database, one: Batch, error: str) -> None:
    """Let an attempt fail with an error."""
    with claimed(database, one) as attempt:
        database.attempts.fail(attempt, error, AttemptStatus.FAILED)


def errors(database: Database) -> list[str | None]:
    """Read the errors of all attempts, oldest first."""
    return [error for (error,) in query(database, ERRORS)]


def forget(database: Database, *, dry_run: bool = False) -> Texts:
    """Forget what is older than 20 days."""
    return forget_texts(database.engine, "orders", KEEP, dry_run=dry_run)


def test_error_goes_once_another_attempt_followed(scene: GarbageScene) -> None:
    """Expect the last error of a batch to stay, with all rows, numbers and states."""
    database = scene.database
    first, second = scene.batches
    failed(database, first, "one")
    failed(database, first, "four")
    failed(database, second, "three")
    scene.published(second)
    scene.age(19 * DAY)
    assert forget(database) == Texts()
    scene.age(2 * DAY)
    assert forget(database, dry_run=True) == Texts(attempts=2, size_bytes=8)
    assert errors(database) == ["one", "four", "three", None]
    assert forget(database) == Texts(attempts=2, size_bytes=8)
    assert errors(database) == [REMOVED, "four", REMOVED, None]
    assert forget(database) == Texts()
    check_invariants(database)


def test_logging_of_the_live_generation_stays(scene: GarbageScene) -> None:
    """Expect that of a generation that was replaced to go, also where the newest try failed."""
    database, one = scene.database, scene.batches[0]
    scene.published(one)
    scene.published(one)
    failed(database, one, "the last")
    execute(database, "UPDATE batch_pipeline.attempt SET logging = 'abc'")
    scene.age()
    assert forget(database) == Texts(attempts=1, size_bytes=3)
    kept = query(database, "SELECT logging FROM batch_pipeline.attempt ORDER BY id")
    assert kept == [(None,), ("abc",), ("abc",)]


def test_logs_of_loads_go_but_for_a_failure_that_nothing_followed(scene: GarbageScene) -> None:
    """Expect what `status` shows of a target to stay."""
    database = scene.database
    scene = scene.loading_into("warehouse", "lake")
    scene.published(scene.batches[0])
    scene.loaded("warehouse")
    scene.loaded("lake")
    execute(
        database,
        "UPDATE batch_pipeline.load SET log = 'ten bytes.', "
        "status = CASE target WHEN 'lake' THEN 'failed' ELSE status END, "
        "error = CASE target WHEN 'lake' THEN 'refused' END",
    )
    scene.age()
    assert forget(database) == Texts(loads=1, size_bytes=10)
    assert query(database, LOADS) == [
        ("succeeded", None, None),
        ("failed", "refused", "ten bytes."),
    ]
    scene.loaded("lake")
    assert forget(database) == Texts(loads=1, size_bytes=17)
    assert query(database, LOADS)[1] == ("failed", REMOVED, None)
    found = database.loads.standing("orders", ["warehouse", "lake"])
    assert [one.loaded for one in found] == [1, 1]


def fail_five_times(scene: GarbageScene) -> None:
    """Let five attempts on a batch have failed long ago."""
    execute(scene.database, "UPDATE batch_pipeline.job SET max_attempts = 10")
    for number in range(5):
        failed(scene.database, scene.batches[0], f"error {number}")
    scene.age()


def test_forgetting_takes_page_after_page(
    scene: GarbageScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect all rows to be met, also as many as fill a page exactly."""
    monkeypatch.setattr(old_texts, "AT_ONCE", 2)
    fail_five_times(scene)
    assert forget(scene.database) == Texts(attempts=4, size_bytes=28)
    assert errors(scene.database) == [*[REMOVED] * 4, "error 4"]


def test_forgetting_that_was_stopped_goes_on(
    scene: GarbageScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the pages before to be done, and the others afterwards."""
    monkeypatch.setattr(old_texts, "AT_ONCE", 2)
    fail_five_times(scene)
    monkeypatch.setenv(VARIABLE, "trim.page=raise")
    with pytest.raises(FailpointError):
        forget(scene.database)
    assert errors(scene.database).count(REMOVED) == 2
    monkeypatch.delenv(VARIABLE)
    assert forget(scene.database).attempts == 2


def test_row_that_somebody_works_on_is_left_for_later(scene: GarbageScene) -> None:
    """Expect nobody to be waited for."""
    database, one = scene.database, scene.batches[0]
    failed(database, one, "one")
    failed(database, one, "two")
    scene.age()
    with database.engine.begin() as connection:
        connection.exec_driver_sql("SELECT FROM batch_pipeline.attempt FOR UPDATE")
        assert forget(database) == Texts()
    assert forget(database).attempts == 1


def test_other_streams_are_left_alone(scene: GarbageScene) -> None:
    """Expect a stream's policy to be its own."""
    failed(scene.database, scene.batches[0], "one")
    failed(scene.database, scene.batches[0], "two")
    scene.age()
    assert forget_texts(scene.database.engine, "clicks", KEEP, dry_run=False) == Texts()
