"""Progress and cancellation of a running encode."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batch_pipeline.model.encode_request import EncodeCallbacks
from batch_pipeline.model.errors import ConflictError
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.spark import spark_job, task_planning
from batch_pipeline_tests.spark.encode_fixture import EncodeRun

TASKS = 12
SCHEMA = RecordSchema.from_json([("id", "integer"), *((f"c{n}", "integer") for n in range(100))])


@pytest.fixture(scope="module")
def session(each_session: SparkSession) -> SparkSession:
    """A local and a Connect session."""
    return each_session


@pytest.fixture
def run(tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> EncodeRun:
    """Files for twelve tasks of some duration, and frequent cancellation checks."""
    monkeypatch.setattr(task_planning, "MAX_TASK_ITEMS", 1)
    monkeypatch.setattr(spark_job, "CANCEL_POLL_SECONDS", 0.01)
    run = EncodeRun(tmp_path, session)
    lines = [json.dumps({"id": number} | {f"c{n}": n for n in range(100)}) for number in range(100)]
    data = "\n".join([*lines * 80, ""]).encode()
    for _ in range(TASKS):
        run.land(data)
    return run


def has_started(run: EncodeRun) -> bool:
    """Return whether a task has written something; by then, at most two of twelve have."""
    return any(path.suffix in {".tmp", ".gz"} for path in run.root.iterdir())


def test_cancelled_encode_ends_tasks_and_leaves_no_files(run: EncodeRun) -> None:
    """No task is running any more when the error is raised."""
    first = run.encode_as(SCHEMA)
    for path in run.root.iterdir():
        path.unlink()
    run.root.joinpath("kept").write_bytes(b"")
    run.watch = EncodeCallbacks(is_cancelled=lambda: has_started(run))
    with pytest.raises(ConflictError, match="orders-1: the encode was cancelled while it ran"):
        run.encode_as(SCHEMA)
    left = run.files()
    run.watch = EncodeCallbacks()
    again = run.encode_as(SCHEMA)

    assert left == ["kept"]
    assert [part.sha256 for part in again.part_files] == [p.sha256 for p in first.part_files]


@pytest.mark.long
@pytest.mark.parametrize("function", ["unchanged", "shuffled"])
def test_cancelled_encode_with_transform_leaves_no_files(run: EncodeRun, function: str) -> None:
    """Both while reading and while writing tasks run."""
    run.configure(transform=f"batch_pipeline_tests.spark.transforms:{function}")
    run.watch = EncodeCallbacks(is_cancelled=lambda: has_started(run))
    with pytest.raises(ConflictError, match="the encode was cancelled while it ran"):
        run.encode_as(SCHEMA)

    assert run.files() == []


def test_interrupted_encode_ends_tasks_and_leaves_no_files(run: EncodeRun) -> None:
    """Ctrl-C, or an interrupt by Dagster."""

    def interrupt() -> bool:
        if has_started(run):
            raise KeyboardInterrupt
        return False

    run.watch = EncodeCallbacks(is_cancelled=interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.encode_as(SCHEMA)

    assert run.files() == []


def test_encode_that_ignores_cancellation_is_killed(
    run: EncodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark interrupts tasks that do not stop in time, and the session stays usable."""
    first = run.encode_as(SCHEMA)
    monkeypatch.setattr(spark_job, "STOP_TIMEOUT_SECONDS", 0.0)  # as if no task had stopped

    run.watch = EncodeCallbacks(is_cancelled=lambda: True)
    with pytest.raises(ConflictError):
        run.encode_as(SCHEMA)
    run.watch = EncodeCallbacks()
    again = run.encode_as(SCHEMA)

    assert [part.sha256 for part in again.part_files] == [p.sha256 for p in first.part_files]


def test_long_encode_reports_number_of_finished_tasks(
    run: EncodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each report is new, and the count only grows."""
    monkeypatch.setattr(spark_job, "REPORT_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(spark_job, "STATUS_POLL_SECONDS", 0.05)
    reported: list[tuple[int, int]] = []
    run.watch = EncodeCallbacks(on_progress=lambda done, total: reported.append((done, total)))

    run.encode()

    assert reported
    assert {total for _, total in reported} == {TASKS}
    assert reported == sorted(set(reported))
