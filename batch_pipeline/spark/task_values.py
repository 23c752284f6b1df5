"""What a task is asked to do, and what it says that it did: values that travel as JSON."""

from dataclasses import dataclass

import msgspec
import pyarrow as pa

from batch_pipeline.domain.encode import BadRecord
from batch_pipeline.domain.errors import SourceRefusedError, SourceUnavailableError
from batch_pipeline.domain.item import Item
from batch_pipeline.domain.manifest import ItemReport, PartFile
from batch_pipeline.domain.record_rules import LineageContext
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.schema_change import Misfit
from batch_pipeline.domain.stream import SourceFormat, Stream
from batch_pipeline.spark.read.csv_slices import CsvSlice
from batch_pipeline.spark.read.slices import ByteRange
from batch_pipeline.spark.stop_mark import StopMark


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What a task must do: encode the items, in order, with this schema.

    With a `part`, only that part of the one item; `csv_slice` tells of a csv file what is in front.
    One that `checks_only` writes bad records alone, and counts as written what could be.
    """

    number: int
    stem: str
    stream: Stream
    schema: RecordSchema
    items: tuple[Item, ...]
    context: LineageContext
    part: ByteRange | None = None
    csv_slice: CsvSlice | None = None
    stop_mark: StopMark | None = None
    checks_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTrouble:
    """Which object cannot be read now, through no fault of its own, and why."""

    uri: str
    reason: str
    is_refused: bool = False

    @classmethod
    def of(cls, error: SourceUnavailableError) -> "SourceTrouble":
        """Take over what an error tells."""
        is_refused = isinstance(error, SourceRefusedError)
        return cls(uri=error.uri, reason=error.reason, is_refused=is_refused)

    def error(self) -> SourceUnavailableError:
        """Give the error again."""
        kind = SourceRefusedError if self.is_refused else SourceUnavailableError
        return kind(self.uri, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What a task did, with one item report per item.

    There are no files when `misfits` are there, when a bad file must not be, or when there are too
    many bad records; then no record counts as written, and only the quarantined ones as read.
    `formats` are those of the files that were read; `wide` are the integer columns too long for a
    double. `refused` tells why the file must be read in one piece instead, `storage_error`,
    `source_error` and `failure` (a traceback) that the task ended before its time. `peak_bytes` is
    the most memory that the worker process has held at once since it started.
    """

    number: int
    part_files: tuple[PartFile, ...] = ()
    quarantine_files: tuple[PartFile, ...] = ()
    items: tuple[ItemReport, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    wide: tuple[str, ...] = ()
    bad_records: tuple[BadRecord, ...] = ()
    formats: tuple[SourceFormat, ...] = ()
    refused: str | None = None
    storage_error: str | None = None
    source_error: SourceTrouble | None = None
    failure: str | None = None
    peak_bytes: int = 0


def answer(number: int, report: object) -> pa.RecordBatch:
    """Make the row of columns `number, report` (JSON) that a task gives back to the driver."""
    columns = [pa.array([number], pa.int32()), pa.array([msgspec.json.encode(report)])]
    return pa.RecordBatch.from_arrays(columns, ["number", "report"])
