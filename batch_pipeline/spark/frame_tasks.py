"""What tasks do on both sides of a user's transform: give records as batches, write what comes.

Runs in Spark's Python workers. The reading side has no effect but its batches, for Spark may run it
several times; it reads what was checked before, and fails when that has changed.
"""

import re
import secrets
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from batch_pipeline.domain.errors import (
    BadFileError,
    SourceUnavailableError,
    StorageUnavailableError,
)
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema
from batch_pipeline.domain.stream import Stream
from batch_pipeline.spark.arrow_types import JSON_TYPES
from batch_pipeline.spark.check.check import Check
from batch_pipeline.spark.check.profile import Profile
from batch_pipeline.spark.chunks import Table
from batch_pipeline.spark.kept_output import BatchOutput
from batch_pipeline.spark.lineage import Lineage
from batch_pipeline.spark.read.arrow_tables import table_of
from batch_pipeline.spark.read.csv_slices import SliceRefusedError
from batch_pipeline.spark.read.objects import Ahead
from batch_pipeline.spark.read.originals import Fetch
from batch_pipeline.spark.read.sources import open_source
from batch_pipeline.spark.stop_mark import StopCheck, StopMark, StoppedError
from batch_pipeline.spark.task import TaskRun
from batch_pipeline.spark.task_values import SourceTrouble, TaskReport, TaskSpec, answer
from batch_pipeline.spark.write.outputs import open_output
from batch_pipeline.spark.write.part_files import PartNames

CHANGED = "batch-pipeline: read differently"
UNREAD = "batch-pipeline: cannot be read now"
REFUSED = "batch-pipeline: cannot be written"

_OPENINGS = {ColumnType.OBJECT: "{", ColumnType.ARRAY: "["}
BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class ReadDifferentlyError(Exception):
    """A file no longer gives the records that were counted before."""


class UnreadError(Exception):
    """A source cannot be read now, through no fault of its own; the text ends with the trouble."""


class RecordRefusedError(Exception):
    """A transformed record cannot be written; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """What a reading task must do, and how many good records each of its items has."""

    task: TaskSpec
    good: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSpec:
    """What the writing tasks must do: `columns` are what the frame gives, by their order."""

    stem: str
    stream: Stream
    schema: RecordSchema
    columns: tuple[Column, ...]
    stop_mark: StopMark | None


def read_records(schema: RecordSchema, arrow_schema: pa.Schema) -> BatchFunction:
    """Make the function that gives the records of `spec` (JSON of `ReadSpec`) as batches."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column("spec").to_pylist():
                spec = msgspec.json.decode(text, type=ReadSpec)
                # Of a stopped encode nothing counts any more: the job ends as soon as it can, and
                # its writing tasks can still say which files they made.
                files = () if spec.task.part else (item.file for item in spec.task.items)
                with suppress(StoppedError), closing(Ahead(files)) as ahead:
                    for found in _records(spec, schema, ahead.fetch):
                        yield found.cast(arrow_schema)

    return read


def _records(spec: ReadSpec, schema: RecordSchema, fetch: Fetch) -> Iterator[pa.RecordBatch]:
    task = spec.task
    output = BatchOutput(schema, task.stream.on_nonfinite)
    run = TaskRun(task, secrets.token_hex(4), {}, output)
    stop = StopCheck(task.stop_mark)
    for item, expected in zip(task.items, spec.good, strict=True):
        rows = 0
        stop.check()
        try:
            with open_source(item.file, task.stream, task.part, fetch=fetch) as source:
                lineage = Lineage(task.stream.lineage, item, task.context)
                for _ in run.chunks(source, lineage):
                    stop.check()
                    for batch in output.taken():
                        rows += batch.num_rows
                        yield batch
        except (BadFileError, SliceRefusedError) as error:
            raise ReadDifferentlyError(f"{CHANGED}: {item.file.location}: {error}") from error
        except SourceUnavailableError as error:
            trouble = msgspec.json.encode(SourceTrouble.of(error)).decode()
            raise UnreadError(f"{UNREAD}: {trouble}") from error
        if rows != expected:
            told = f"records: {rows} instead of {expected}"
            raise ReadDifferentlyError(f"{CHANGED}: {item.file.location}: {told}")


def source_error(text: str) -> SourceUnavailableError | None:
    """Find the trouble with a source in what an engine tells of a failed job, if it was that."""
    found = re.search(rf"{UNREAD}: (\{{.*\}})", text)
    return None if found is None else msgspec.json.decode(found[1], type=SourceTrouble).error()


def write_records(spec: bytes) -> BatchFunction:
    """Make the function that writes the batches of one partition by `spec`, and gives a report."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        report = _FrameRun(msgspec.json.decode(spec, type=WriteSpec), number).report(batches)
        yield answer(number, report)

    return write


class _FrameRun:
    """One partition of a transformed frame on its way to part files."""

    def __init__(self, spec: WriteSpec, number: int) -> None:
        stream = spec.stream
        names = PartNames(
            root=stream.storage.root,
            stem=f"{stream.storage.prefix}{spec.stem}",
            task=number,
            execution=secrets.token_hex(4),
            suffix=stream.encoding.suffix,
        )
        self._spec = spec
        self._number = number
        self._profile = Profile(spec.schema)
        self._check = Check(self._profile, stream)
        self._output = open_output(names, stream, spec.schema)
        self._stop = StopCheck(spec.stop_mark)
        self._first = 1

    def report(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write all batches; what goes wrong is in the report, and then no file is left."""
        try:
            for batch in batches:
                self._stop.check()
                self._write(batch)
            fits = self._profile.fits
            part_files = self._output.close() if fits else ()
            return TaskReport(
                number=self._number,
                part_files=part_files,
                misfits=self._profile.misfits(),
                wide=tuple(sorted(self._profile.wide)),
            )
        except StorageUnavailableError as error:
            self._output.abort()
            return TaskReport(number=self._number, storage_error=error.reason)
        except RecordRefusedError as error:
            self._output.abort()
            return TaskReport(number=self._number, refused=str(error))
        except Exception:  # noqa: BLE001 - whatever it is, the driver raises it
            self._output.abort()
            return TaskReport(number=self._number, failure=traceback.format_exc())
        except BaseException:
            self._output.abort()
            raise

    def _write(self, batch: pa.RecordBatch) -> None:
        checked = self._check.checked(self._table(batch))
        bad = next(iter(checked.bad), None)
        if bad is not None:
            raise RecordRefusedError(bad.reason)
        if not self._profile.fits:
            self._output.abort()
        elif checked.good:
            self._output.write(checked)

    def _table(self, batch: pa.RecordBatch) -> Table:
        """Make a table of the frame's columns; those of JSON text are that already."""
        columns = self._spec.columns
        plain = _plain(columns, batch.schema)
        table = table_of(batch, plain, self._spec.stream.on_nonfinite, self._first, {})
        self._first += batch.num_rows
        texts = [
            (index, column)
            for index, (column, is_text) in enumerate(
                zip(columns, map(pa.types.is_string, batch.schema.types), strict=True)
            )
            if is_text and column.type in JSON_TYPES
        ]
        arrays = table.batch.columns
        for index, column in texts:
            arrays[index] = _json_texts(arrays[index], column)
        names = frozenset(column.name for _, column in texts)
        return replace(
            table,
            batch=pa.RecordBatch.from_arrays(arrays, [column.name for column in columns]),
            json=table.json | names,
        )


def _plain(columns: Sequence[Column], schema: pa.Schema) -> list[Column]:
    """Give what the columns are to Arrow: JSON text and what is not known yet are strings."""
    return [
        Column(name=column.name, type=ColumnType.STRING) if pa.types.is_string(kind) else column
        for column, kind in zip(columns, schema.types, strict=True)
    ]


def _json_texts(texts: pa.StringArray, column: Column) -> pa.StringArray:
    """Check that texts are JSON of the column's type, and put each on one line."""
    opening = _OPENINGS.get(column.type, "")
    found: list[str | None] = []
    for text in texts.to_pylist():
        if text is None:
            found.append(None)
            continue
        try:
            msgspec.json.decode(text, type=msgspec.Raw)
        except msgspec.DecodeError as error:
            told = f"column {column.name!r} is marked as JSON but holds {text[:80]!r}"
            raise RecordRefusedError(told) from error
        if not text.startswith(opening):
            told = f"column {column.name!r} is marked as {column.type} but holds {text[:80]!r}"
            raise RecordRefusedError(told)
        # Line ends can only be blanks here: inside of text JSON escapes them.
        found.append(text.replace("\n", " ").replace("\r", " "))
    return pa.array(found, pa.string())
