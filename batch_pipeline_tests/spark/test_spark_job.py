"""Spark jobs: a task for each payload, counts of finished tasks and their reports."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from batch_pipeline.spark import spark_job
from batch_pipeline.spark.spark_job import Progress, run_function, task_frame

PAYLOADS = [bytes([number]) * 1_000 for number in range(5)]
REPORTS = [f"task {number} in partition {number}, of {number}" for number in range(5)]


def describe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Report the number, the partition and the payload of each task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        [(number, payload)] = zip(*batch.to_pydict().values(), strict=True)
        report = f"task {number} in partition {context.partitionId()}, of {payload[0]}"
        columns = [pa.array([number], pa.int32()), pa.array([report.encode()])]
        yield pa.RecordBatch.from_arrays(columns, ["number", "report"])


def test_each_task_of_a_context_gets_its_payload(session: SparkSession) -> None:
    reports = run_function(session.sparkContext, PAYLOADS, describe)

    assert sorted(report.decode() for report in reports) == REPORTS


@pytest.mark.parametrize(
    "inline_bytes", [spark_job.INLINE_PAYLOAD_BYTES, 0], ids=["inline", "as rows"]
)
def test_each_task_of_a_frame_gets_its_payload(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr(spark_job, "INLINE_PAYLOAD_BYTES", inline_bytes)
    frame = task_frame(session, PAYLOADS, describe, "number int, report binary")

    assert sorted(row.report.decode() for row in frame.collect()) == REPORTS


def test_progress_counts_tasks_of_largest_stage() -> None:
    """A stage that only distributes payloads has fewer tasks."""
    progress = Progress(10, None)

    progress.update([(2, 2)])
    before = progress.count
    progress.update([(2, 2), (10, 4)])

    assert before == (0, 10)
    assert progress.count == (4, 10)


@pytest.mark.parametrize(
    ("seconds", "counts", "expected"),
    [
        ((0, 1, 4.9), (1, 9), []),
        # At 6, 8 and 12 seconds; the clock is not read if the count has not changed.
        ((0, 6, 8, 12), (1, 2, 1, 3), [(1, 10), (3, 10)]),
    ],
    ids=["short job", "long job"],
)
def test_progress_reports_changes_at_most_every_five_seconds(
    seconds: tuple[float, ...], counts: tuple[int, ...], expected: list[tuple[int, int]]
) -> None:
    reported: list[tuple[int, int]] = []
    clock = iter(seconds)
    progress = Progress(10, lambda *counts: reported.append(counts), lambda: next(clock))

    for done in counts:
        progress.update([(10, done)])
        progress.report()

    assert reported == expected
