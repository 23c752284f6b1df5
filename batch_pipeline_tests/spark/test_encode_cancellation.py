"""Progress of a running encode, and what is left when it is cancelled."""

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


@pytest.fixture(scope="module")
def session(each_session: SparkSession) -> SparkSession:
    """Both kinds of sessions."""
    return each_session


@pytest.fixture
def run(tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> EncodeRun:
    """Files for twelve tasks, each with some work to do, and a watch that looks all the time."""
    monkeypatch.setattr(task_planning, "MAX_TASK_ITEMS", 1)
    monkeypatch.setattr(spark_job, "CANCEL_POLL_SECONDS", 0.01)
    run = EncodeRun(tmp_path, session)
    lines = [json.dumps({"id": number} | {f"c{n}": n for n in range(100)}) for number in range(100)]
    data = "\n".join([*lines * 80, ""]).encode()
    for _ in range(TASKS):
        run.land(data)
    return run


def has_begun(run: EncodeRun) -> bool:
    """Return whether a task has written anything yet; ten of the twelve have not begun by then."""
    return any(path.suffix in {".tmp", ".gz"} for path in run.root.iterdir())


def test_encode_that_is_cancelled_ends_its_tasks_and_leaves_no_file(run: EncodeRun) -> None:
    """The call comes while tasks write; when it is raised none of them is left to write more."""
    schema, first = run.settled()
    for path in run.root.iterdir():
        path.unlink()
    run.root.joinpath("kept").write_bytes(b"")
    run.watch = EncodeCallbacks(is_cancelled=lambda: has_begun(run))
    with pytest.raises(ConflictError, match="the encode was cancelled while it ran") as raised:
        run.encode_as(schema)
    left = run.files()
    run.watch = EncodeCallbacks()
    again = run.encode_as(schema)

    assert left == ["kept"]
    assert "orders-1: the encode was cancelled while it ran" in str(raised.value)
    assert [part.sha256 for part in again.part_files] == [p.sha256 for p in first.part_files]


@pytest.mark.parametrize("function", ["unchanged", "shuffled"])
def test_encode_with_a_transform_that_is_cancelled_leaves_no_file(
    run: EncodeRun, function: str
) -> None:
    """Reading and writing tasks end alike, whether or not all is read before any is written."""
    module = "batch_pipeline_tests.spark.transforms"
    run.configure(transform=f"{module}:{function}")
    schema = RecordSchema.from_json(
        [("id", "integer"), *((f"c{n}", "integer") for n in range(100))]
    )
    run.watch = EncodeCallbacks(is_cancelled=lambda: has_begun(run))
    with pytest.raises(ConflictError, match="the encode was cancelled while it ran"):
        run.encode_as(schema)

    assert run.files() == []


def test_encode_that_is_interrupted_ends_its_tasks_and_leaves_no_file(run: EncodeRun) -> None:
    """Ctrl-C, or Dagster's own interrupt, in the middle of the wait."""

    def interrupt() -> bool:
        if has_begun(run):
            raise KeyboardInterrupt
        return False

    run.watch = EncodeCallbacks(is_cancelled=interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.settled()

    assert run.files() == []


def test_encode_that_is_cancelled_where_nothing_can_be_written_is_killed(
    run: EncodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that cannot be told to end are interrupted by Spark, and the session goes on."""
    schema, first = run.settled()
    monkeypatch.setattr(spark_job, "STOP_TIMEOUT_SECONDS", 0.0)  # as if none of them had seen it

    run.watch = EncodeCallbacks(is_cancelled=lambda: True)
    with pytest.raises(ConflictError):
        run.encode_as(schema)
    run.watch = EncodeCallbacks()
    again = run.encode_as(schema)

    assert [part.sha256 for part in again.part_files] == [p.sha256 for p in first.part_files]


def test_encode_that_takes_long_reports_how_many_tasks_are_done(
    run: EncodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line is news, of all tasks, and the count only grows."""
    monkeypatch.setattr(spark_job, "REPORT_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(spark_job, "STATUS_POLL_SECONDS", 0.05)
    reported: list[tuple[int, int]] = []
    run.watch = EncodeCallbacks(on_progress=lambda done, total: reported.append((done, total)))

    run.encode()

    assert reported
    assert {total for _, total in reported} == {TASKS}
    assert reported == sorted(set(reported))
