"""Encodes the batches of a stream with a transform: check, read into a frame, call, write.

The files are read twice. The first look writes nothing but bad records: it finds the columns,
the bad files and how many records each item gives. The second one has no effect of its own, since
Spark may run it as often as the function's plan asks for; it must find the same records.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import msgspec
from pyspark.sql.pandas.types import to_arrow_schema

from batch_pipeline.domain.encode import EncodeRequest, EncodeResult
from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.errors import PipelineError, TaskFailedError
from batch_pipeline.domain.item import Item
from batch_pipeline.domain.manifest import ItemReport
from batch_pipeline.domain.record_rules import Evolution
from batch_pipeline.domain.schema import Column, RecordSchema
from batch_pipeline.domain.schema_change import Misfit
from batch_pipeline.spark.clusters.fitness import fault
from batch_pipeline.spark.clusters.shipped import shipped
from batch_pipeline.spark.engine_errors import reason_of
from batch_pipeline.spark.frame_schema import FrameColumnError, frame_columns, frame_schema
from batch_pipeline.spark.frame_tasks import (
    CHANGED,
    ReadSpec,
    WriteSpec,
    read_records,
    source_error,
    write_records,
)
from batch_pipeline.spark.item_reports import without_files
from batch_pipeline.spark.packing import Work
from batch_pipeline.spark.results import (
    check_finished,
    is_refused,
    misfits_of,
    remove_files,
    result_of,
)
from batch_pipeline.spark.running import SparkJobs, task_frame
from batch_pipeline.spark.task_values import TaskReport, TaskSpec
from batch_pipeline.spark.tasks import Tasks
from batch_pipeline.spark.transform_function import Transform
from batch_pipeline.spark.write.part_files import remove

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOKS = 5
_READS = 3
_Given = TypeVar("_Given")


class ReadAgainError(Exception):
    """A file changed between the two looks at it."""


def encode_transformed(
    jobs: SparkJobs, request: EncodeRequest, works: Sequence[Work]
) -> EncodeResult:
    """Encode items through the stream's transform.

    The items' reports count as written what the function was given; what it made of that is in the
    part files.

    Raises:
        TransformError: the function failed, or gave what cannot be written.
        TransformUnusableError: it is not there.
    """
    transform = Transform(request.stream, request.context.batch_key)
    reason = ""
    for _ in range(_READS):
        try:
            return _Attempt(jobs, request, transform).encode(works)
        except ReadAgainError as error:
            reason = reason_of(error)
    raise transform.refused(reason)


class _Attempt:
    """One pass over the items: check, transform and write."""

    def __init__(self, jobs: SparkJobs, request: EncodeRequest, transform: Transform) -> None:
        self._jobs = jobs
        self._request = request
        self._transform = transform
        self._written: list[TaskReport] = []

    def encode(self, works: Sequence[Work]) -> EncodeResult:
        reading, tasks, reports = self._checked(works)
        result = replace(result_of(reports, reading), transformed=True)
        columns = reading.schema.columns
        is_empty = not works or not columns
        if is_empty or result.misfits or is_refused(reports, reading.stream):
            return result
        try:
            specs = [_read_spec(*pair) for pair in zip(tasks.specs, reports, strict=True)]
            misfits = self._jobs.run(
                lambda session: self._transformed(session, specs, reading.schema),
                tasks=len(specs),
            )
        except BaseException:
            remove_files([*reports, *self._written])
            raise
        return self._result(result, misfits)

    def _checked(self, works: Sequence[Work]) -> tuple[EncodeRequest, Tasks, list[TaskReport]]:
        """Look at the files until the schema holds all of their records."""
        reading = _reading(self._request)
        for _ in range(_LOOKS):
            tasks = Tasks(self._jobs, reading, checks_only=True)
            reports = tasks.run(works)
            result = result_of(reports, reading)
            if not result.misfits:
                return reading, tasks, reports
            seen = [misfit.column for misfit in result.misfits]
            wider = reading.schema.widened(seen, text_source=result.text_source)
            reading = replace(reading, schema=wider)
        raise TaskFailedError(reading.stream.name, 0, "the columns of the files do not settle")

    def _transformed(
        self, session: "SparkSession", specs: Sequence[ReadSpec], schema: RecordSchema
    ) -> tuple[Misfit, ...]:
        """Call the function on all records and write what it gives, if the schema holds it."""
        given = _frame(session, specs, schema)
        frame = self._guarded(session, lambda: self._transform.applied(given))
        found = self._guarded(session, lambda: frame.schema)
        try:
            columns = frame_columns(found, self._request.stream.read_limits)
        except FrameColumnError as error:
            raise self._transform.refused(str(error)) from error
        misfits = self._misfits(columns)
        if misfits:
            return misfits
        spec = WriteSpec(
            stem=self._request.stem,
            stream=self._request.stream,
            schema=self._request.schema,
            columns=columns,
            stop_mark=self._jobs.stop_mark,
        )
        # By place and not by name: names with dots, or that differ by case, confuse Spark.
        placed = frame.toDF(*(f"c{place}" for place in range(len(columns))))
        function = shipped(session, write_records(msgspec.json.encode(spec)))
        written = placed.mapInArrow(function, "number int, report binary")
        rows = self._guarded(session, written.collect)
        found_reports = [msgspec.json.decode(row["report"], type=TaskReport) for row in rows]
        self._written = sorted(found_reports, key=lambda report: report.number)
        check_finished(self._written, self._request.stream)
        for report in self._written:
            if report.refused is not None:
                raise self._transform.refused(f"it gave a record that {report.refused}")
        return misfits_of(self._written, self._request.schema, text_source=False)

    def _misfits(self, columns: Sequence[Column]) -> tuple[Misfit, ...]:
        """Give the columns of the frame that the schema does not have, or not as wide."""
        before = self._request.schema
        known = before.by_name()
        place = self._request.items[0]
        return tuple(
            Misfit(column=column, item_id=place.id, location=place.file.location, line=None)
            for column in before.widened(columns, text_source=False).columns
            if known.get(column.name) != column
        )

    def _guarded(self, session: "SparkSession", call: Callable[[], _Given]) -> _Given:
        try:
            return call()
        except PipelineError:
            raise
        except Exception as error:
            if CHANGED in str(error):
                raise ReadAgainError(str(error)) from error
            if (unread := source_error(str(error))) is not None:
                raise unread from error
            # Executors that are lost, or lack what the function imports, are not its fault.
            raise fault(session, error) or self._transform.error(error) from error

    def _result(self, read: EncodeResult, misfits: tuple[Misfit, ...]) -> EncodeResult:
        """Add what was written to what was read."""
        if not misfits:
            parts = tuple(part for report in self._written for part in report.part_files)
            return replace(read, part_files=parts)
        remove_files(self._written)
        for part in read.quarantine_files:
            remove(part)
        items = tuple(without_files(item) for item in read.items)
        return replace(read, quarantine_files=(), items=items, misfits=misfits, text_source=False)


def _reading(request: EncodeRequest) -> EncodeRequest:
    """Make the request of the reading side: values in columns, and the columns of the files."""
    stream = request.stream
    rules = replace(stream.schema, evolution=Evolution.ADD, sample_records=None)
    columns = Encoding(format=Format.PARQUET, compression=Compression.NONE)
    declared = stream.schema.declared or RecordSchema()
    added = [lineage.column for lineage in stream.lineage]
    return replace(
        request,
        stream=replace(stream, encoding=columns, schema=rules),
        schema=declared.widened(added, text_source=False),
    )


def _read_spec(spec: TaskSpec, report: TaskReport) -> ReadSpec:
    """Say again what a task has to read: the files that can be used, with what they give."""
    good = {one.item_id: one for one in report.items if one.bad_file is None}
    items = tuple(_as_read(item, good[item.id]) for item in spec.items if item.id in good)
    task = replace(spec, items=items, checks_only=False)
    return ReadSpec(task=task, good=tuple(good[item.id].written for item in items))


def _as_read(item: Item, report: ItemReport) -> Item:
    """Note which version of an object was read, so that it is read again."""
    return item if report.etag is None else replace(item, file=replace(item.file, etag=report.etag))


def _frame(session: "SparkSession", specs: Sequence[ReadSpec], schema: RecordSchema) -> "DataFrame":
    fields = frame_schema(schema)
    arrow_schema = to_arrow_schema(fields, timezone="UTC")
    payloads = [msgspec.json.encode(spec) for spec in specs]
    return task_frame(session, payloads, read_records(schema, arrow_schema), fields)
