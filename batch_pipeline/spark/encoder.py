"""The encoder on Spark: plans the tasks of a batch, runs them and combines their reports.

The functions that combine reports need no Spark.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from batch_pipeline.encode.readers.formats import SOURCE_READERS
from batch_pipeline.encode.task import (
    TaskReport,
    TaskSpec,
    merge_item_reports,
    run_tasks,
    without_part_files,
)
from batch_pipeline.encode.writers.part_writer import remove
from batch_pipeline.model.encode_request import EncodeRequest, EncodeResult
from batch_pipeline.model.errors import InvariantError, StorageUnavailableError
from batch_pipeline.model.record_rules import OnBadFile
from batch_pipeline.model.schema import Misfit, RecordSchema, joined, needed
from batch_pipeline.model.stream import Stream
from batch_pipeline.spark.spark_job import SparkJobRunner, run_function
from batch_pipeline.spark.task_planning import TaskInput, plan_tasks, split_files

if TYPE_CHECKING:
    from batch_pipeline.spark.diagnostics import SparkEngine

MIN_SAMPLE_RECORDS = 1_000  # per task, so that rare columns and values are seen

log = logging.getLogger(__name__)


class SparkEncoder:
    """An encoder on the engine that the factory returns: a session if the stream has a transform.

    Tasks read, validate and write files in Spark's Python workers. Records enter the JVM only if
    the stream has a transform.
    """

    def __init__(self, engine_factory: "Callable[[], SparkEngine]") -> None:
        self._engine_factory = engine_factory

    def prepare(self) -> None:
        """Open the engine, so that no attempt starts when there is none.

        Raises:
            ConfigurationError, SparkUnavailableError: the engine cannot be opened.
        """
        self._engine_factory()

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Encode the items; bad records and files are reported, never raised.

        No part file is left if there are misfits, a bad file that the stream file does not allow,
        or too many bad records.

        Raises:
            ConflictError: the encode was cancelled.
            SourceUnavailableError: an object cannot be read now.
            StorageUnavailableError: part files cannot be written.
            SparkUnavailableError: the engine is gone.
            InvariantError: a task failed unexpectedly.
            TransformError: the stream's transform failed.
            ConfigurationError: the transform does not exist.
        """
        # Targets name databases and credentials; no task needs them.
        stream = replace(request.stream, targets=())
        request = replace(request, stream=stream)
        jobs = SparkJobRunner(self._engine_factory, stream.storage, request.stem, request.watch)
        inputs = list(plan_tasks(request.items, split_files(request.items, stream)))
        if request.sample_records is not None and inputs:
            most = max(MIN_SAMPLE_RECORDS, request.sample_records // len(inputs))
            rules = replace(stream.schema, sample_records=most)
            request = replace(request, stream=replace(stream, schema=rules))
        if stream.transform is not None:
            from batch_pipeline.spark.transform import encode_transformed  # imports this module

            return encode_transformed(jobs, request, inputs)
        return combine_reports(TaskRunner(jobs, request).run(inputs), request)


def raise_task_errors(reports: Iterable[TaskReport], stream: Stream) -> None:
    """Raise the error of the first task that did not finish.

    Raises:
        SourceUnavailableError: an object cannot be read now.
        StorageUnavailableError: part files cannot be written.
        InvariantError: a task failed unexpectedly.
    """
    for report in reports:
        if report.storage_error is not None:
            raise StorageUnavailableError(stream.storage.root, report.storage_error)
        if report.source_error is not None:
            raise report.source_error.error()
        if report.failure is not None:
            raise task_failed_error(stream.name, report.number, report.failure)


def combine_reports(reports: Sequence[TaskReport], request: EncodeRequest) -> EncodeResult:
    """Combine reports, in the order of the tasks, into the result of the encode.

    Deletes all part files if they must not be published: the schema does not fit, or the stream
    file does not allow so many bad records or such a bad file.
    """
    formats = {source_format for report in reports for source_format in report.formats}
    text_source = all(SOURCE_READERS[one].has_text_cells for one in formats)
    misfits = merge_misfits(reports, request.schema, text_source=text_source)
    items = merge_item_reports(item for report in reports for item in report.items)
    if misfits or exceeds_bad_data_rules(reports, request.stream):
        delete_files(reports)
        reports = [replace(report, part_files=(), quarantine_files=()) for report in reports]
        items = tuple(without_part_files(item) for item in items)
    return EncodeResult(
        part_files=tuple(part for report in reports for part in report.part_files),
        quarantine_files=tuple(part for report in reports for part in report.quarantine_files),
        items=items,
        misfits=misfits,
        bad_records=tuple(bad for report in reports for bad in report.bad_records),
        text_source=text_source,
    )


def merge_misfits(
    reports: Sequence[TaskReport], schema: RecordSchema, *, text_source: bool
) -> tuple[Misfit, ...]:
    """Merge the misfits of tasks, in their order; each keeps its first location.

    Columns that fit the schema after the merge are left out.
    """
    wide = {name for report in reports for name in report.wide}
    merged: dict[str, Misfit] = {}
    for misfit in (misfit for report in reports for misfit in report.misfits):
        name = misfit.column.name
        known = merged.setdefault(name, misfit)
        column = joined(known.column, misfit.column, text_source=text_source)
        merged[name] = replace(known, column=column)
    before = schema.by_name()
    misfits: list[Misfit] = []
    for name, misfit in merged.items():
        is_wide = name in wide
        column = needed(before.get(name), misfit.column, wide=is_wide, text_source=text_source)
        if column != before.get(name):
            misfits.append(replace(misfit, column=column))
    return tuple(misfits)


def exceeds_bad_data_rules(reports: Sequence[TaskReport], stream: Stream) -> bool:
    """Return whether the stream file forbids publishing so many bad records or such a bad file."""
    items = [item for report in reports for item in report.items]
    bad, read = sum(item.quarantined for item in items), sum(item.read for item in items)
    if not stream.on_bad_record.allow(bad=bad, read=read):
        return True
    kinds = {item.bad_kind for item in items if item.bad_kind is not None}
    return any(stream.on_bad_file.of(kind) is OnBadFile.FAIL for kind in kinds)


def delete_files(reports: Iterable[TaskReport]) -> None:
    """Delete the files that tasks wrote."""
    for report in reports:
        for part in (*report.part_files, *report.quarantine_files):
            remove(part)


def task_failed_error(stream: str, task: int, detail: str) -> InvariantError:
    """Build the error of a task that failed unexpectedly; `detail` is its traceback."""
    return InvariantError(
        f"{stream}: task {task} of the encode failed unexpectedly. Its files were "
        f"removed and nothing was published. Please report this: {detail.strip()}"
    )


class TaskRunner:
    """Runs the tasks of one encode and holds their reports.

    With `checks_only` the tasks write only bad records. After `run`, `specs` holds the specs of the
    reports that it returned, in the same order.
    """

    def __init__(
        self, jobs: SparkJobRunner, request: EncodeRequest, *, checks_only: bool = False
    ) -> None:
        self.specs: list[TaskSpec] = []
        self._jobs = jobs
        self._request = request
        self._checks_only = checks_only
        self._reports: list[TaskReport] = []

    def run(self, inputs: Sequence[TaskInput]) -> list[TaskReport]:
        """Run the tasks and return their reports in the order of `inputs`.

        A range of a csv file that was read from a wrong start is read again. If a range cannot be
        used, the file is read again by one task, whose report replaces those of the ranges: only
        that task can detect what is wrong, or that the file is valid and only written in an unusual
        way.

        After an exception, no part file that a task has reported is left.

        Raises:
            ConflictError: the encode was cancelled.
            SparkUnavailableError: the engine is gone.
            SourceUnavailableError: an object cannot be read now.
            StorageUnavailableError: part files cannot be written.
            InvariantError: a task failed unexpectedly.
        """
        try:
            return self._run(dict(enumerate(inputs)))
        except BaseException:
            delete_files(self._reports)
            raise

    def _run(self, inputs: dict[int, TaskInput]) -> list[TaskReport]:
        reports = self._run_tasks(inputs)
        while wrong := _wrong_starts(inputs, reports):
            delete_files(reports[number] for number in wrong)
            inputs |= wrong
            reports |= self._run_tasks(wrong)
        unusable = {
            task.items[0].id
            for number, task in inputs.items()
            if task.byte_range is not None and _is_unusable(reports[number])
        }
        whole = {item.id: item for item in self._request.items if item.id in unusable}
        repeated: dict[int, TaskInput] = {}
        for number, task in inputs.items():
            item_id = task.items[0].id
            if task.byte_range is None or item_id not in unusable:
                continue
            delete_files([reports.pop(number)])
            if item_id in whole:  # gets the number of the first range, and so its position
                repeated[number] = TaskInput(items=(whole.pop(item_id),))
        if repeated:
            reports |= self._run_tasks(repeated)
        final = inputs | repeated
        self.specs = [self._spec(number, final[number]) for number in sorted(reports)]
        return [reports[number] for number in sorted(reports)]

    def _run_tasks(self, inputs: Mapping[int, TaskInput]) -> dict[int, TaskReport]:
        # The longest tasks first: a long task started last would run alone while other cores idle.
        order = sorted(inputs, key=lambda number: -inputs[number].cost)
        payloads = [msgspec.json.encode(self._spec(number, inputs[number])) for number in order]
        if payloads:
            self._jobs.run(lambda engine: self._collect(engine, payloads), tasks=len(payloads))
            peak = max(report.peak_bytes for report in self._reports) >> 20
            log.info("%d tasks done, %d MiB at most in a worker", len(payloads), peak)
        reports = {report.number: report for report in self._reports if report.number in inputs}
        raise_task_errors(reports.values(), self._request.stream)
        return reports

    def _spec(self, number: int, task: TaskInput) -> TaskSpec:
        return TaskSpec(
            number=number,
            stem=self._request.stem,
            stream=self._request.stream,
            schema=self._request.schema,
            items=task.items,
            context=self._request.context,
            part=task.byte_range,
            csv_start=task.csv_start,
            cancellation_flag=self._jobs.cancellation_flag,
            checks_only=self._checks_only,
        )

    def _collect(self, engine: "SparkEngine", payloads: list[bytes]) -> None:
        reports = run_function(engine, payloads, run_tasks)
        # Stored here and not returned: after an interrupt, `run` must still delete the files.
        self._reports += [msgspec.json.decode(report, type=TaskReport) for report in reports]


def _wrong_starts(
    inputs: Mapping[int, TaskInput], reports: Mapping[int, TaskReport]
) -> dict[int, TaskInput]:
    """Return the input of the first range of each csv file that was read from a wrong start.

    It starts where the range before ends. What follows it is only known when it has been read.
    """
    wrong: dict[int, TaskInput] = {}
    ends: dict[int, int | None] = {}  # of the last range of each item; None: it is not known
    for number, task in sorted(inputs.items()):
        item_id, report = task.items[0].id, reports[number]
        end = ends.get(item_id)
        start = report.csv_start if task.csv_start is None else task.csv_start
        is_wrong = end is not None and start != end
        if is_wrong:
            wrong[number] = replace(task, csv_start=end)
        is_known = not is_wrong and (end is not None or item_id not in ends)
        ends[item_id] = report.csv_end if is_known else None
    return wrong


def _is_unusable(report: TaskReport) -> bool:
    """Return whether a task could not read its range of a file."""
    return report.refused is not None or any(item.bad_file is not None for item in report.items)
