"""What a task is asked to do, and what it says that it did: values that travel as JSON."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from batch_pipeline.encode.cancellation import CancellationFlag
from batch_pipeline.encode.chunks import ByteRange
from batch_pipeline.encode.readers.csv import CsvSlice
from batch_pipeline.model.encode import BadRecord
from batch_pipeline.model.errors import BadFileError, SourceRefusedError, SourceUnavailableError
from batch_pipeline.model.item import Item
from batch_pipeline.model.manifest import ItemReport, PartFile
from batch_pipeline.model.record_rules import BadFileKind, LineageContext
from batch_pipeline.model.schema import Misfit, RecordSchema
from batch_pipeline.model.stream import SourceFormat, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What a task must do: encode the items, in order, with this schema.

    With a `part`, only that part of the one item; `csv_slice` describes what precedes it in a
    csv file. With `checks_only`, only bad records are written, and valid ones are counted.
    """

    number: int
    stem: str
    stream: Stream
    schema: RecordSchema
    items: tuple[Item, ...]
    context: LineageContext
    part: ByteRange | None = None
    csv_slice: CsvSlice | None = None
    cancellation_flag: CancellationFlag | None = None
    checks_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFailure:
    """Why a source object cannot be read now; as an error, but JSON."""

    uri: str
    reason: str
    is_refused: bool = False

    @classmethod
    def of(cls, error: SourceUnavailableError) -> "SourceFailure":
        """Copy the facts of an error."""
        is_refused = isinstance(error, SourceRefusedError)
        return cls(uri=error.uri, reason=error.reason, is_refused=is_refused)

    def error(self) -> SourceUnavailableError:
        """Return the error."""
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
    source_error: SourceFailure | None = None
    failure: str | None = None
    peak_bytes: int = 0


def report_row(number: int, report: object) -> pa.RecordBatch:
    """Return the row of columns `number, report` (JSON) that a task sends to the driver."""
    columns = [pa.array([number], pa.int32()), pa.array([msgspec.json.encode(report)])]
    return pa.RecordBatch.from_arrays(columns, ["number", "report"])


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """The kind of damage of a file, and the reason in words."""

    kind: BadFileKind
    reason: str

    @classmethod
    def of(cls, error: BadFileError) -> "BadFile":
        """Copy the facts of an error."""
        reason = error.reason if error.line is None else f"line {error.line}: {error.reason}"
        return cls(kind=BadFileKind(error.kind), reason=reason)


def item_report(
    item: Item, *, good: int = 0, bad: int = 0, filtered: int = 0, rescued: int = 0
) -> ItemReport:
    """Return the report of an item, or of a part of one, that was read."""
    return ItemReport(
        item_id=item.id,
        location=item.file.location,
        read=good + bad + filtered,
        written=good,
        quarantined=bad,
        filtered=filtered,
        rescued=rescued,
    )


def unreadable_item_report(item: Item, bad: BadFile) -> ItemReport:
    """Return the report of an item whose file cannot be used."""
    return replace(item_report(item), bad_file=bad.reason, bad_kind=bad.kind)


def without_part_files(item: ItemReport) -> ItemReport:
    """Return a report without the part files, which were deleted: nothing was written."""
    return replace(item, read=item.quarantined + item.filtered, written=0, rescued=0)


def merge_item_reports(reports: Iterable[ItemReport]) -> tuple[ItemReport, ...]:
    """Merge the reports of parts of an item into one per item, in order of first appearance."""
    sums: dict[int, ItemReport] = {}
    for one in reports:
        known = sums.get(one.item_id)
        if known is None:
            sums[one.item_id] = one
            continue
        sums[one.item_id] = replace(
            known if known.bad_file is not None else one,
            read=known.read + one.read,
            written=known.written + one.written,
            quarantined=known.quarantined + one.quarantined,
            filtered=known.filtered + one.filtered,
            rescued=known.rescued + one.rescued,
        )
    return tuple(sums.values())
