"""The encoder and its jobs on a real Spark session.

Order, merged reports, split files, progress, cancellation, errors.
"""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from batch_pipeline.encode.readers.decoded_file import ItemCutter
from batch_pipeline.model.encode_request import EncodeCallbacks
from batch_pipeline.model.errors import (
    ConflictError,
    SparkUnavailableError,
    StorageUnavailableError,
    TasksLostError,
)
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import to_path
from batch_pipeline.model.record_rules import (
    BadFileKind,
    BadFileRules,
    BadRecordRules,
    OnBadFile,
    ReadLimits,
)
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline.spark import spark_job
from batch_pipeline.spark.spark_job import Progress, SparkJobRunner, run_function
from batch_pipeline_tests.spark.encode_fixture import (
    LARGE_SCHEMA,
    LARGE_TASK_RECORDS,
    LARGE_TASKS,
    MIB,
    EncodeRun,
    each_session,
    numbered_csv,
    numbered_jsonl,
    numbered_parquet,
    set_range_bytes,
)
from batch_pipeline_tests.storage_roots import records


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


def test_progress_counts_tasks_of_largest_stage() -> None:
    """A stage that only distributes payloads has fewer tasks."""
    progress = Progress(10, None)
    for stages, count in (([(2, 2)], (0, 10)), ([(2, 2), (10, 4)], (4, 10))):
        progress.update(stages)
        assert progress.count == count


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


@each_session
@pytest.mark.parametrize("error", [ConflictError, KeyboardInterrupt])
def test_stopped_encode_ends_tasks_and_leaves_no_files(
    large_run: EncodeRun, error: type[BaseException]
) -> None:
    """An encode is cancelled, or interrupted by Ctrl-C or Dagster; no task runs afterwards."""

    def is_cancelled() -> bool:
        if large_run.has_started() and error is KeyboardInterrupt:
            raise KeyboardInterrupt
        return large_run.has_started()

    large_run.root.joinpath("kept").write_bytes(b"")
    large_run.watch = EncodeCallbacks(is_cancelled=is_cancelled)
    with pytest.raises(error):
        large_run.encode_as(LARGE_SCHEMA)

    assert large_run.files() == ["kept"]


@each_session
def test_encode_that_ignores_cancellation_is_killed(
    large_run: EncodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark interrupts tasks that do not stop in time, and the session stays usable."""
    monkeypatch.setattr(spark_job, "STOP_TIMEOUT_SECONDS", 0.0)  # as if no task had stopped
    large_run.watch = EncodeCallbacks(is_cancelled=lambda: True)
    with pytest.raises(ConflictError, match="orders-1: the encode was cancelled while it ran"):
        large_run.encode_as(LARGE_SCHEMA)
    large_run.watch = EncodeCallbacks()
    again = large_run.encode_as(LARGE_SCHEMA)

    assert sum(part.records for part in again.part_files) == LARGE_TASKS * LARGE_TASK_RECORDS


@each_session
def test_long_encode_reports_number_of_finished_tasks(
    large_run: EncodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each report is new, and the count only grows."""
    monkeypatch.setattr(spark_job, "REPORT_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(spark_job, "STATUS_POLL_SECONDS", 0.05)
    reported: list[tuple[int, int]] = []
    large_run.watch = EncodeCallbacks(
        on_progress=lambda done, total: reported.append((done, total))
    )

    large_run.encode()

    assert reported
    assert {total for _, total in reported} == {LARGE_TASKS}
    assert reported == sorted(set(reported))


KIB = 2**10
COUNT = 3_000  # records just over 1 KiB: three ranges of one MiB


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split files of two MiB."""
    set_range_bytes(monkeypatch, MIB)


JSONL, CSV = numbered_jsonl(COUNT, KIB), numbered_csv(COUNT, KIB)
PARQUET = numbered_parquet(COUNT, KIB)
TYPES = {"id": "integer", "text": "string"}


def task_numbers(result_names: list[str]) -> set[str]:
    """Return the task numbers in the names of part files."""
    return {name.split("-")[3][:4] for name in result_names}


@pytest.mark.guarantee("G7")
def test_split_file_is_encoded_reproducibly(run: EncodeRun) -> None:
    """All records are in order, and the reports of the tasks are added up."""
    run.land(b'{"id":-1,"text":""}\n')
    run.land(JSONL)
    run.land(b'{"id":3000,"text":""}\n')

    result = run.encode(**TYPES)

    assert [one["id"] for one in records(result.part_files)] == list(range(-1, COUNT + 1))
    assert [(item.read, item.written) for item in result.items] == [(1, 1), (COUNT, COUNT), (1, 1)]
    assert task_numbers(run.files()) == {f"{number:04}" for number in range(5)}
    again = run.encode(**TYPES)
    assert [part.sha256 for part in again.part_files] == [p.sha256 for p in result.part_files]


@pytest.mark.parametrize(
    ("ending", "data", "texts"),
    [
        ("csv", CSV, {'a,\n"b' * (KIB // 6)}),
        ("parquet", PARQUET, {f"{number:08d}" * (KIB // 8) for number in range(COUNT)}),
    ],
    ids=["csv", "parquet"],
)
def test_split_file_has_all_records_in_order(
    run: EncodeRun, ending: str, data: bytes, texts: set[str]
) -> None:
    """Ranges of csv start inside quotes; for parquet, each task reads its own row groups."""
    run.land(data, ending=ending)

    rows = records(run.encode(**TYPES).part_files)

    assert [row["id"] for row in rows] == list(range(COUNT))
    assert {row["text"] for row in rows} == texts
    assert len(task_numbers(run.files())) == 3


def test_csv_range_that_was_read_from_a_wrong_start_is_read_again(run: EncodeRun) -> None:
    """The text of a cell reads like two records, and has no quotes for longer than a task looks."""
    rows = ["id,text", *(f"{number},x" for number in range(200_000))]
    rows[50_000:150_000] = ['7,"', *["8,y"] * 900_000, '"']
    run.land("\n".join(rows).encode())

    result = run.encode(**TYPES)

    ids = [row["id"] for row in records(result.part_files)]
    assert ids == [*range(49_999), 7, *range(149_999, 200_000)]
    assert task_numbers(run.files()) == {"0000", "0003"}  # the others have no record
    assert [(item.read, item.written) for item in result.items] == [(len(ids), len(ids))]
    assert len(run.files()) == len(result.part_files)


def test_bad_record_of_split_jsonl_has_its_line_in_the_file(run: EncodeRun) -> None:
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))
    run.land(numbered_jsonl(COUNT, KIB, line2500='{"id":'))

    result = run.encode(**TYPES)

    assert [bad.line for bad in result.bad_records] == [2_501]
    assert [one["line"] for one in records(result.quarantine_files)] == [2_501]
    assert [(item.read, item.quarantined) for item in result.items] == [(COUNT, 1)]


@pytest.mark.parametrize(
    ("line", "written"), [("2500,a,b", COUNT - 1), ('2500,a"b', COUNT)], ids=["bad", "odd quote"]
)
def test_malformed_csv_is_read_in_one_piece(run: EncodeRun, line: str, written: int) -> None:
    """Its quotes prove nothing; the part files of its slices are removed."""
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))
    run.land(b"id,text\n-1,\n")
    run.land(numbered_csv(COUNT, KIB, line2500=line))

    result = run.encode(**TYPES)

    ids = [row["id"] for row in records(result.part_files)]
    assert len(ids) == written + 1
    assert ids == sorted(set(ids))
    assert [item.read for item in result.items] == [1, COUNT]
    assert task_numbers(run.files()) <= {"0000", "0001"}
    lines_before = 1 + 2_500 * (1 + KIB // 6)
    assert [bad.line for bad in result.bad_records] == [lines_before + 1] * (COUNT - written)


def test_bad_split_file_leaves_no_part_files(run: EncodeRun) -> None:
    """One slice has a record that is too long; the part files of the other slices are removed."""
    run.configure(
        on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE),
        read_limits=ReadLimits(max_record_bytes=10 * KIB),
    )
    long = json.dumps({"id": 0, "text": "x" * 20 * KIB}).encode()
    run.land(b'{"id":-1,"text":""}\n')
    run.land(JSONL + b"\n" + long + b"\n")

    result = run.encode(**TYPES)

    assert [one["id"] for one in records(result.part_files)] == [-1]
    assert [item.bad_kind for item in result.items] == [None, BadFileKind.CORRUPT]
    assert [item.read for item in result.items] == [1, 0]
    assert len(records(result.quarantine_files)) == 1
    assert len(run.files()) == 2


RANGED = 2_000


def land_ranges(run: EncodeRun, data: bytes, source_format: SourceFormat) -> LandedFile:
    """Land a file as several items of 10 KiB."""
    run.configure(source=replace(run.stream.source, format=source_format))
    run.land(data)
    file = run.items[-1].file
    ranges = ItemCutter(stream=run.stream, most_bytes=10 * KIB).ranges(file)
    run.items = [Item(id=number, file=one) for number, one in enumerate(ranges, start=1)]
    assert len(run.items) > 2
    return file


def test_bad_record_of_range_has_its_line_in_the_file(
    run: EncodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_range_bytes(monkeypatch, KIB)
    file = land_ranges(run, numbered_csv(RANGED, 6, line1500='"1500\n"'), SourceFormat.CSV)
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))

    result = run.encode(id="integer", text="string")

    ids = [one["id"] for one in records(result.part_files)]
    assert ids == [*range(1_500), *range(1_501, RANGED)]
    assert sum(item.read for item in result.items) == RANGED
    assert [item.location for item in result.items] == [one.file.location for one in run.items]
    assert len(run.files()) > len(run.items)
    [bad] = result.bad_records
    assert (bad.line, bad.reason) == (3_002, "expected fields: 2, found: 1")
    assert bad.location == run.items[bad.item_id - 1].file.location
    assert bad.location.startswith(f"{file.location}#bytes=")
    assert [one["line"] for one in records(result.quarantine_files)] == [3_002]


def test_misfit_of_range_has_its_line_in_the_file(run: EncodeRun) -> None:
    land_ranges(run, numbered_csv(RANGED, 6, line1999="x1999,"), SourceFormat.CSV)
    [misfit] = run.encode(id="integer", text="string").misfits
    assert (misfit.item_id, misfit.line) == (len(run.items), 2 * 1_999 + 2)
    assert misfit.location == run.items[-1].file.location


def test_large_ranges_of_jsonl_are_split_over_tasks(
    run: EncodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_range_bytes(monkeypatch, KIB)
    lines = b"".join(b'{"id":%d}\n' % number for number in range(RANGED))
    land_ranges(run, lines, SourceFormat.JSONL)
    result = run.encode(id="integer")
    assert [one["id"] for one in records(result.part_files)] == list(range(RANGED))
    assert len(run.files()) > len(run.items)
