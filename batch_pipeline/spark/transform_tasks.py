"""Tasks on both sides of a user's transform: yield records as batches, write the frame's batches.

They run in Spark's Python workers, on executors that may have nothing but the packed archive, so
this module does not import pyspark. The reading side writes nothing, because Spark may run it more
than once. It reads files that an earlier job has checked, and fails if they have changed since:
records that became bad in between can no longer be quarantined.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from batch_pipeline.encode.arrow_types import JSON_TYPES, OPENING_BRACKETS
from batch_pipeline.encode.cancellation import (
    CancellationCheck,
    CancellationFlag,
    TaskCancelledError,
)
from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.errors import TaskInputError
from batch_pipeline.encode.lineage import Lineage
from batch_pipeline.encode.readers.arrow_values import convert_batch
from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.encode.source_file import Prefetcher, TakePrefetched
from batch_pipeline.encode.task import (
    SourceFailure,
    TaskReport,
    TaskRun,
    TaskSpec,
    error_report,
    report_row,
)
from batch_pipeline.encode.validation import ChunkValidator
from batch_pipeline.encode.validation.type_inference import SchemaProfile
from batch_pipeline.encode.writers.outputs import ArrowOutput, open_output
from batch_pipeline.encode.writers.part_writer import PartNames
from batch_pipeline.model.errors import (
    BadFileError,
    SourceUnavailableError,
)
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.model.stream import Stream
from batch_pipeline.spark.executor_archive import TaskFunction

# Spark passes on only the text of a task's error. The driver recognizes these prefixes in it.
FILE_CHANGED = "batch-pipeline: file changed while it was read"
SOURCE_UNAVAILABLE = "batch-pipeline: source unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """The input of a reading task: its spec, and the number of records that each item must have."""

    task: TaskSpec
    expected_records: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSpec:
    """The input of the writing tasks; `columns` are those of the frame, by position."""

    stem: str
    stream: Stream
    schema: RecordSchema
    columns: tuple[Column, ...]
    cancellation_flag: CancellationFlag | None


def record_reader(schema: RecordSchema, arrow_schema: pa.Schema) -> TaskFunction:
    """Return the function that yields the records of `spec` (JSON of a `ReadSpec`) as batches."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column("spec").to_pylist():
                spec = msgspec.json.decode(text, type=ReadSpec)
                # After a cancellation the records do not matter. The job ends without an error, so
                # that its writing tasks still report the files to delete.
                files = () if spec.task.part else (item.file for item in spec.task.items)
                with (
                    suppress(TaskCancelledError),
                    closing(Prefetcher(files, spec.task.stream.source.within)) as prefetcher,
                ):
                    for records in _records(spec, schema, prefetcher.take):
                        yield records.cast(arrow_schema)

    return read


def _records(
    spec: ReadSpec, schema: RecordSchema, prefetched: TakePrefetched
) -> Iterator[pa.RecordBatch]:
    task = spec.task
    output = ArrowOutput(schema, task.stream.on_nonfinite)
    run = TaskRun(task, secrets.token_hex(4), {}, output)
    stop = CancellationCheck(task.cancellation_flag)
    for item, expected in zip(task.items, spec.expected_records, strict=True):
        rows = 0
        stop.check()
        try:
            with open_source(item.file, task.stream, task.part, prefetched=prefetched) as source:
                lineage = Lineage(task.stream.lineage, item, task.context)
                for _ in run.chunks(source, lineage):
                    stop.check()
                    for batch in output.take_batches():
                        rows += batch.num_rows
                        yield batch
        except (BadFileError, TaskInputError) as error:
            raise RuntimeError(f"{FILE_CHANGED}: {item.file.location}: {error}") from error
        except SourceUnavailableError as error:
            trouble = msgspec.json.encode(SourceFailure.of(error)).decode()
            raise RuntimeError(f"{SOURCE_UNAVAILABLE}: {trouble}") from error
        if rows != expected:
            reason = f"records: {rows} instead of {expected}"
            if task.stream.mapping.stream_maps:
                reason += ", or an expression of `stream_maps` has another result each time"
            raise RuntimeError(f"{FILE_CHANGED}: {item.file.location}: {reason}")


def source_error(text: str) -> SourceUnavailableError | None:
    """Return the error of an unavailable source from Spark's report of a failed job, if any."""
    match = re.search(rf"{SOURCE_UNAVAILABLE}: (\{{.*\}})", text)
    return None if match is None else msgspec.json.decode(match[1], type=SourceFailure).error()


def record_writer(spec: bytes) -> TaskFunction:
    """Return the function that writes one partition according to `spec` and yields its report."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        writer = _PartitionWriter(msgspec.json.decode(spec, type=WriteSpec), number)
        yield report_row(number, writer.write(batches))

    return write


class _PartitionWriter:
    """Writes one partition of a transformed frame to part files."""

    def __init__(self, spec: WriteSpec, number: int) -> None:
        stream = spec.stream
        names = PartNames.of(stream, spec.stem, number, secrets.token_hex(4))
        self._spec = spec
        self._number = number
        self._profile = SchemaProfile(spec.schema, stream.schema.declared)
        self._validator = ChunkValidator(self._profile, stream)
        self._output = open_output(names, stream, spec.schema)
        self._stop = CancellationCheck(spec.cancellation_flag)
        self._next_record = 1

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write all batches; errors are in the report, and no part file is left after an error."""
        try:
            for batch in batches:
                self._stop.check()
                self._write_batch(batch)
            fits = self._profile.fits
            part_files = self._output.close() if fits else ()
            return TaskReport(
                number=self._number,
                part_files=part_files,
                misfits=self._profile.misfits(),
                wide=tuple(sorted(self._profile.wide)),
            )
        except Exception as error:  # noqa: BLE001 - the driver raises it
            self._output.abort()
            return error_report(self._number, error)
        except BaseException:
            self._output.abort()
            raise

    def _write_batch(self, batch: pa.RecordBatch) -> None:
        checked = self._validator.validate(self._table(batch))
        if self._profile.fits:
            checked = self._output.without_unsupported(checked)
        bad = next(iter(checked.bad), None)
        if bad is not None:
            raise TaskInputError(bad.reason)
        if not self._profile.fits:
            self._output.abort()
        elif checked.good:
            self._output.write(checked)

    def _table(self, batch: pa.RecordBatch) -> Table:
        """Return the table of a batch; columns of JSON text are checked and stay text."""
        columns, nonfinite = self._spec.columns, self._spec.stream.on_nonfinite
        texts = [kind in (pa.string(), pa.large_string()) for kind in batch.schema.types]
        # As Arrow represents them: JSON text and columns without values are strings.
        arrow_columns = [
            Column(name=column.name, type=ColumnType.STRING) if is_text else column
            for column, is_text in zip(columns, texts, strict=True)
        ]
        table = convert_batch(batch, arrow_columns, nonfinite, self._next_record, {})
        self._next_record += batch.num_rows
        arrays, json_names = table.batch.columns, set(table.json)
        for index, column in enumerate(columns):
            if texts[index] and column.type in JSON_TYPES:
                _check_json_texts(arrays[index], column)
                json_names.add(column.name)
        return replace(
            table,
            batch=pa.RecordBatch.from_arrays(arrays, [column.name for column in columns]),
            json=frozenset(json_names),
        )


def _check_json_texts(texts: pa.StringArray, column: Column) -> None:
    """Check that texts are JSON of the column's type.

    To Spark, the column is an ordinary string, so a transform may have put other text into it.
    """
    opening = OPENING_BRACKETS.get(column.type, "")
    for text in texts.drop_null().to_pylist():
        try:
            msgspec.json.decode(text, type=msgspec.Raw)
        except msgspec.DecodeError as error:
            reason = f"column {column.name!r} is marked as JSON but holds {text[:80]!r}"
            raise TaskInputError(reason) from error
        if not text.startswith(opening):
            reason = f"column {column.name!r} is marked as {column.type} but holds {text[:80]!r}"
            raise TaskInputError(reason)
