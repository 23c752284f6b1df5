"""Encode a batch through a user's transform: a function from DataFrame to DataFrame.

The files are read twice (decision record 12). The first job checks them: it determines the columns,
writes bad records to the quarantine and counts the good ones. The second job reads the good records
again as a DataFrame, calls the function and writes the part files. Its reading tasks have no side
effects, since Spark decides how often they run, and fail if a file yields another number of
records. Storing the checked records between the jobs costs more than parsing them again.
"""

import importlib
import re
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from pyspark.sql.pandas.types import to_arrow_schema

from batch_pipeline.encode.arrow_types import ArrowTypeUnknownError
from batch_pipeline.encode.task import TaskReport, TaskSpec, without_part_files
from batch_pipeline.encode.writers.part_writer import remove
from batch_pipeline.model.encode_request import EncodeRequest, EncodeResult
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import (
    ConfigurationError,
    PipelineError,
    SparkUnavailableError,
    TransformError,
)
from batch_pipeline.model.record_rules import Evolution
from batch_pipeline.model.schema import Column, Misfit, RecordSchema
from batch_pipeline.model.stream import Stream
from batch_pipeline.spark.diagnostics import diagnose_job_error, failure_reason, target_of
from batch_pipeline.spark.encoder import (
    TaskRunner,
    combine_reports,
    delete_files,
    exceeds_bad_data_rules,
    merge_misfits,
    raise_task_errors,
    task_failed_error,
)
from batch_pipeline.spark.executor_archive import with_archive
from batch_pipeline.spark.frames import frame_columns, frame_schema
from batch_pipeline.spark.spark_job import SparkJobRunner, task_frame
from batch_pipeline.spark.task_planning import TaskInput
from batch_pipeline.spark.transform_tasks import (
    FILE_CHANGED,
    ReadSpec,
    WriteSpec,
    record_reader,
    record_writer,
    source_error,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRACEBACK_LINE = re.compile(r'File "([^"]+)", line ([0-9]+), in (\S+)')
_LIBRARIES = ("pyspark", "py4j", "pandas", "pyarrow", "batch_pipeline", "concurrent")
_MAX_CHECKS = 5
_MAX_READS = 3

_Result = TypeVar("_Result")


class Transform:
    """The function that a stream file names.

    Raises:
        ConfigurationError: there is no such function.
    """

    def __init__(self, stream: Stream, batch_key: str) -> None:
        self._stream = stream.name
        self._name = stream.transform or ""
        self._batch_key = batch_key
        self._function = self._load()

    def apply(self, frame: "DataFrame") -> "DataFrame":
        """Call the function and return its DataFrame. Spark's own errors pass through.

        Raises:
            TransformError: it failed.
            ConfigurationError: it returned something other than a DataFrame.
        """
        try:
            result = self._function(frame)
        except Exception as error:
            if _is_spark_error(error):
                raise
            raise self.error(error) from error
        if isinstance(result, type(frame)):
            return result
        raise self._unusable(f"it returned {type(result).__name__}, not a DataFrame")

    def error(self, error: Exception) -> TransformError:
        """Build the error of a function that failed, with the line of the user's code."""
        reason = failure_reason(error)
        if not _is_spark_error(error):
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return self.rejected(reason, _user_code_line(error))

    def rejected(self, reason: str, place: str | None = None) -> TransformError:
        """Build the error of a result that cannot be written."""
        return TransformError(self._stream, self._name, self._batch_key, reason, place)

    def _load(self) -> "Callable[[DataFrame], Any]":
        module, _, name = self._name.partition(":")
        try:
            function = getattr(importlib.import_module(module), name, None)
        except Exception as error:
            reason = f"{module} cannot be imported: {type(error).__name__}: {error}"
            raise self._unusable(reason) from error
        if function is None:
            raise self._unusable(f"{module} has no {name}")
        if not callable(function):
            raise self._unusable(f"{name} is of type {type(function).__name__}, not a function")
        loaded: Callable[[DataFrame], Any] = function
        return loaded

    def _unusable(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._stream}: the transform {self._name} cannot be used ({reason}). Nothing was "
            f"published. `transform` takes `package.module:function`; the function takes a "
            f"DataFrame and returns one; its package must be installed wherever the pipeline and "
            f"Spark's Python workers run. Correct it, then run again."
        )


def _is_spark_error(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}


def _user_code_line(error: Exception) -> str | None:
    """Return the innermost line of the user's code that an error mentions.

    It is in the text if the function ran in a worker, in the traceback if it ran here, and in
    Spark's query context if Spark rejected or failed an expression.
    """
    in_worker = _TRACEBACK_LINE.findall(str(error))
    on_driver = traceback.extract_tb(error.__traceback__)
    frames = [(frame.filename, frame.lineno, frame.name) for frame in on_driver]
    for file, line, name in (*reversed(in_worker), *reversed(frames)):
        if not any(part in _LIBRARIES or part.startswith("<") for part in Path(file).parts):
            return f"{Path(file).name}:{line} in {name}"
    with suppress(Exception):  # not every error of Spark has a context, or a call in it
        contexts: Any = error.getQueryContext()  # type: ignore[attr-defined]
        file, _, line = contexts[0].callSite().rpartition(":")
        return f"{Path(file).name}:{line}" if file else None
    return None


class _FileChangedError(Exception):
    """A file changed between its check and its read."""


def encode_transformed(
    jobs: SparkJobRunner, request: EncodeRequest, inputs: Sequence[TaskInput]
) -> EncodeResult:
    """Encode items through the stream's transform.

    In the item reports, records that the function received count as written. The function's results
    are in the part files.

    Raises:
        TransformError: the function failed, or its result cannot be written.
        ConfigurationError: the function does not exist.
    """
    transform = Transform(request.stream, request.context.batch_key)
    reason = ""
    for _ in range(_MAX_READS):
        try:
            return _TransformRun(jobs, request, transform).encode(inputs)
        except _FileChangedError as error:
            reason = failure_reason(error)
    raise transform.rejected(reason)


class _TransformRun:
    """One pass over the items: check, read, transform, write."""

    def __init__(self, jobs: SparkJobRunner, request: EncodeRequest, transform: Transform) -> None:
        self._jobs = jobs
        self._request = request
        self._transform = transform
        self._written: list[TaskReport] = []

    def encode(self, inputs: Sequence[TaskInput]) -> EncodeResult:
        schema, tasks, reports, checked = self._check(inputs)
        result = replace(checked, transformed=True)
        is_empty = not inputs or not schema.columns
        if is_empty or exceeds_bad_data_rules(reports, self._request.stream):
            return result
        try:
            specs = [_read_spec(*pair) for pair in zip(tasks.specs, reports, strict=True)]
            misfits = self._jobs.run(
                lambda engine: self._write(engine, specs, schema), tasks=len(specs)
            )
        except BaseException:
            delete_files([*reports, *self._written])
            raise
        return self._combine(result, misfits)

    def _check(
        self, inputs: Sequence[TaskInput]
    ) -> tuple[RecordSchema, TaskRunner, list[TaskReport], EncodeResult]:
        """Check the files, with a wider schema each time, until it fits all of their records."""
        request = _input_request(self._request)
        for _ in range(_MAX_CHECKS):
            tasks = TaskRunner(self._jobs, request, checks_only=True)
            reports = tasks.run(inputs)
            result = combine_reports(reports, request)
            if not result.misfits:
                return request.schema, tasks, reports, result
            columns = [misfit.column for misfit in result.misfits]
            wider = request.schema.widened(columns, text_source=result.text_source)
            request = replace(request, schema=wider)
        raise task_failed_error(request.stream.name, 0, "the columns of the files do not settle")

    def _write(
        self, session: Any, specs: Sequence[ReadSpec], schema: RecordSchema
    ) -> tuple[Misfit, ...]:
        """Call the function on all records and write its result, or return why it does not fit."""
        input_schema = frame_schema(schema)
        reader = record_reader(schema, to_arrow_schema(input_schema, timezone="UTC"))
        payloads = [msgspec.json.encode(spec) for spec in specs]
        records = task_frame(session, payloads, reader, input_schema)
        frame = self._guard(session, lambda: self._transform.apply(records))
        spark_schema = self._guard(session, lambda: frame.schema)
        try:
            columns = frame_columns(spark_schema, self._request.stream.read_limits)
        except ArrowTypeUnknownError as error:
            raise self._transform.rejected(str(error)) from error
        misfits = self._find_misfits(columns)
        if misfits:
            return misfits
        # Not `collect`, which takes a connection that breaks off for the end of the rows.
        rows = self._guard(session, self._writing_frame(session, frame, columns).toArrow)
        texts = rows.column("report").to_pylist()
        reports = [msgspec.json.decode(text, type=TaskReport) for text in texts]
        self._written = sorted(reports, key=lambda report: report.number)
        raise_task_errors(self._written, self._request.stream)
        for report in self._written:
            if report.refused is not None:
                raise self._transform.rejected(f"it returned a record that {report.refused}")
        return merge_misfits(self._written, self._request.schema, text_source=False)

    def _writing_frame(
        self, session: "SparkSession", frame: "DataFrame", columns: tuple[Column, ...]
    ) -> "DataFrame":
        spec = WriteSpec(
            stem=self._request.stem,
            stream=self._request.stream,
            schema=self._request.schema,
            columns=columns,
            cancellation_flag=self._jobs.cancellation_flag,
        )
        # By position: Spark cannot resolve names with dots, or names that differ only by case.
        numbered = frame.toDF(*(f"c{index}" for index in range(len(columns))))
        function = with_archive(session, record_writer(msgspec.json.encode(spec)))
        return numbered.mapInArrow(function, "number int, report binary")

    def _find_misfits(self, columns: Sequence[Column]) -> tuple[Misfit, ...]:
        """Return the columns of the frame that the schema lacks or has with a narrower type.

        Their location is the first item's, since a column of a frame comes from no single file.
        """
        schema = self._request.schema
        known = schema.by_name()
        item = self._request.items[0]
        return tuple(
            Misfit(column=column, item_id=item.id, location=item.file.location, line=None)
            for column in schema.widened(columns, text_source=False).columns
            if known.get(column.name) != column
        )

    def _guard(self, session: "SparkSession", call: Callable[[], _Result]) -> _Result:
        """Return the result of a Spark call, or raise the error that explains its failure."""
        try:
            return call()
        except PipelineError:
            raise
        except EOFError as error:
            raise SparkUnavailableError(target_of(session), "tasks that did not report") from error
        except Exception as error:
            if FILE_CHANGED in str(error):
                raise _FileChangedError(str(error)) from error
            if (unavailable := source_error(str(error))) is not None:
                raise unavailable from error
            # Lost executors, or executors that lack a module, are not the function's fault.
            engine_error = diagnose_job_error(session, error)
            raise engine_error or self._transform.error(error) from error

    def _combine(self, checked: EncodeResult, misfits: tuple[Misfit, ...]) -> EncodeResult:
        """Return the result of the check with the part files, or with the misfits and no files."""
        if not misfits:
            parts = tuple(part for report in self._written for part in report.part_files)
            return replace(checked, part_files=parts)
        delete_files(self._written)
        for part in checked.quarantine_files:
            remove(part)
        items = tuple(without_part_files(item) for item in checked.items)
        return replace(
            checked, quarantine_files=(), items=items, misfits=misfits, text_source=False
        )


def _input_request(request: EncodeRequest) -> EncodeRequest:
    """Return the request for the transform's input: typed values in the columns of the files."""
    stream = request.stream
    rules = replace(stream.schema, evolution=Evolution.ADD, sample_records=None)
    columns = Encoding(format=Format.PARQUET, compression=Compression.NONE)
    declared = stream.schema.declared or RecordSchema()
    lineage = [lineage.column for lineage in stream.lineage]
    return replace(
        request,
        stream=replace(stream, encoding=columns, schema=rules),
        schema=declared.widened(lineage, text_source=False),
    )


def _read_spec(spec: TaskSpec, report: TaskReport) -> ReadSpec:
    """Return what to read again: the usable files of a checked task and their record counts."""
    usable = {item.item_id: item for item in report.items if item.bad_file is None}
    # With the ETag of the object that was checked, no other version is read.
    items = tuple(
        replace(item, file=replace(item.file, etag=usable[item.id].etag or item.file.etag))
        for item in spec.items
        if item.id in usable
    )
    task = replace(spec, items=items, checks_only=False)
    return ReadSpec(task=task, expected_records=tuple(usable[item.id].written for item in items))
