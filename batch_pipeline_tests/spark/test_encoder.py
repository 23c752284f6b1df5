"""The encoder and its jobs on a real Spark session: order, merged reports, progress, errors."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from batch_pipeline.model.encode_request import EncodeCallbacks
from batch_pipeline.model.errors import (
    SparkUnavailableError,
    StorageUnavailableError,
    TasksLostError,
)
from batch_pipeline.model.location import to_path
from batch_pipeline.model.record_rules import BadFileRules, BadRecordRules, OnBadFile
from batch_pipeline.spark import spark_job
from batch_pipeline.spark.spark_job import Progress, SparkJobRunner, run_function, task_frame
from batch_pipeline_tests.spark.encode_fixture import EncodeRun, records


def test_parts_and_items_of_several_tasks_are_in_order(run: EncodeRun) -> None:
    """Tasks finish in any order."""
    for number in range(550):
        run.land(b"id,name\n%d,n%d\n" % (number, number))

    result = run.encode(id="integer", name="string")

    assert [record["id"] for record in records(result.part_files)] == list(range(550))
    assert [part.records for part in result.part_files] == [138, 137, 138, 137]
    starts = [Path(to_path(part.uri)).name.rpartition("-")[0] for part in result.part_files]
    assert starts == [f"p-orders-1-000{task}0000" for task in range(4)]
    assert run.files() == sorted(Path(to_path(part.uri)).name for part in result.part_files)
    assert (result.text_source, result.misfits, result.bad_records) == (True, (), ())


def test_misfits_of_several_tasks_are_merged_and_leave_no_files(run: EncodeRun) -> None:
    """Columns are in order of appearance.

    A column of wide integers and fractions becomes a decimal, whose precision the next pass counts.
    """
    for number in range(250):
        run.land(b"id,wide\n%d,9007199254740993\n" % number)
    run.land(b"id,wide,late\n1.5,0.5,x\n")

    first = run.encode(id="integer", wide="integer")
    left = run.files()
    needed = {one.column.name: one.column.type_text for one in first.misfits}
    second = run.encode(**needed)
    counted = {one.column.name: one.column.type_text for one in second.misfits}
    third = run.encode(**needed | counted)

    assert needed == {"id": "number", "wide": "decimal(19,0)", "late": "string"}
    assert (first.part_files, left) == ((), [])
    assert counted == {"wide": "decimal(20,1)"}
    assert third.misfits == ()
    assert records(third.part_files)[249:] == [
        {"id": 249, "wide": 9007199254740993},
        {"id": 1.5, "wide": 0.5, "late": "x"},
    ]


def test_csv_and_jsonl_together_are_not_text_source(run: EncodeRun) -> None:
    """If a file has typed values, a column without a common type is `any`."""
    run.land(b"a\nx\n")
    run.land(b'{"a":1}\n')

    result = run.encode(a="integer")

    assert [(one.column.name, one.column.type.value) for one in result.misfits] == [("a", "any")]
    assert result.text_source is False


def test_bad_record_limit_applies_to_all_tasks_together(run: EncodeRun) -> None:
    """Each task is within the limit."""
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))
    for number in range(251):
        run.land(b"a,b\n1,2\n3\n" if number in (7, 250) else b"a,b\n1,2\n")

    result = run.encode(a="integer", b="integer")

    assert [(bad.item_id, bad.line) for bad in result.bad_records] == [(8, 3), (251, 3)]
    assert (result.part_files, result.quarantine_files, run.files()) == ((), (), [])


def test_bad_file_is_handled_as_configured(run: EncodeRun) -> None:
    """The batch is published without the file if allowed; otherwise no file is written."""
    run.land(b"a\n1\n")
    run.land(b"a,a\n")
    allowed = replace(run.stream, on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE))

    failed = run.encode(a="integer")
    left = run.files()
    run.stream = allowed
    published = run.encode(a="integer")

    reasons = [None, "line 1: header: column 'a' is duplicated"]
    assert [item.bad_file for item in failed.items] == reasons
    assert left == []
    assert [item.bad_file for item in published.items] == reasons
    assert records(published.part_files) == [{"a": 1}]
    assert records(published.quarantine_files)[0]["reason"] == reasons[1]


def test_encode_without_items_has_empty_result(run: EncodeRun) -> None:
    """A range of ids may have no items."""
    result = run.encode()

    assert (result.items, result.part_files, result.misfits) == ((), (), ())


def test_encode_to_missing_storage_raises(run: EncodeRun) -> None:
    """Spark does not retry these tasks."""
    run.land(b"a\n1\n")
    run.root.rmdir()

    with pytest.raises(StorageUnavailableError, match=r"batches cannot be written \(no such file"):
        run.encode(a="integer")


def test_workers_that_cannot_start_make_spark_unavailable(
    run: EncodeRun, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is one line that names the cause."""
    monkeypatch.setattr(session.sparkContext, "pythonExec", "/no/such/python")
    run.land(b"a\n1\n")

    with pytest.raises(SparkUnavailableError) as raised:
        run.encode(a="integer")

    assert raised.value.target == "local[2, 4]"
    assert "/no/such/python" in raised.value.reason
    assert "\n" not in raised.value.reason


@pytest.mark.guarantee("G3")
def test_killed_tasks_are_distinguished_from_unavailable_spark(
    run: EncodeRun, session: SparkSession
) -> None:
    """Workers that exit without an error may have crashed because of what they read."""

    def end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is short
        yield from batches

    jobs = SparkJobRunner(lambda: session, run.stream.storage, "orders-1", EncodeCallbacks())
    with pytest.raises(TasksLostError) as raised:
        jobs.run(lambda engine: run_function(engine, [b""], end), tasks=1)

    assert "Python worker exited unexpectedly" in raised.value.reason
    assert "\n" not in raised.value.reason


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
