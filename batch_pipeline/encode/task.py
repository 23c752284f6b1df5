"""One task: encode items into part files and report.

Specs and reports travel between driver and tasks as JSON.
"""

import resource
import secrets
import traceback
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from batch_pipeline.encode.cancellation import CancellationCheck, CancellationFlag
from batch_pipeline.encode.chunks import ByteRange, Chunk, MalformedRecord, Table
from batch_pipeline.encode.errors import TaskInputError, format_reason
from batch_pipeline.encode.lineage import Lineage, joined_lineage
from batch_pipeline.encode.mapping.mapper import Mapper
from batch_pipeline.encode.readers.csv import MAX_JOINED_FILE_BYTES, CsvSlice, JoinedCsvFiles
from batch_pipeline.encode.readers.decoded_file import BLOCK_BYTES, DecodedFile, open_source
from batch_pipeline.encode.source_file import Prefetcher, TakePrefetched
from batch_pipeline.encode.validation import ChunkValidator
from batch_pipeline.encode.validation.type_inference import SchemaProfile
from batch_pipeline.encode.writers.outputs import QUARANTINE_FOLDER, Output, Quarantine, open_output
from batch_pipeline.encode.writers.part_writer import PartNames
from batch_pipeline.model.encode_request import BadRecord
from batch_pipeline.model.errors import (
    BadFileError,
    SourceRefusedError,
    SourceUnavailableError,
    StorageUnavailableError,
)
from batch_pipeline.model.item import Item
from batch_pipeline.model.manifest import ItemReport, PartFile
from batch_pipeline.model.record_rules import BadFileKind, Evolution, LineageContext, OnBadFile
from batch_pipeline.model.schema import Misfit, RecordSchema
from batch_pipeline.model.stream import SourceFormat, Stream
from batch_pipeline.storage.filesystem import FileFacts

MAX_REPORTED_BAD_RECORDS = 20
_MAX_JOINED_FILES = 50  # read again one by one if any record is irregular


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """The work of a task: encode the items, in order, with this schema.

    With a `part`, only that part of the single item is read; `csv_start` is where its first record
    starts, if it is a csv file and that is known. With `checks_only`, only bad records are written,
    and valid ones are counted.
    """

    number: int
    stem: str
    stream: Stream
    schema: RecordSchema
    items: tuple[Item, ...]
    context: LineageContext
    part: ByteRange | None = None
    csv_start: int | None = None
    cancellation_flag: CancellationFlag | None = None
    checks_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFailure:
    """The reason why a source object cannot be read now: an error in a form that JSON can hold."""

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
    """The result of a task, with one report per item.

    There are no files if there are `misfits`, a bad file that is not allowed, or too many bad
    records; then no record counts as written, and only quarantined and filtered ones count as read.
    `formats` are the formats of the files that were read; `wide` names the integer columns whose
    values a double cannot hold. `refused` says why the file must be read in one piece instead;
    `storage_error`, `source_error` and `failure` (a traceback) say why the task ended early.
    `peak_bytes` is the peak memory of the worker process since it started. `csv_start` and
    `csv_end` are the bounds of the records in a range of a csv file.
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
    csv_start: int | None = None
    csv_end: int | None = None


def report_row(number: int, report: object) -> pa.RecordBatch:
    """Return the row of columns `number, report` (JSON) that a task sends to the driver."""
    columns = [pa.array([number], pa.int32()), pa.array([msgspec.json.encode(report)])]
    return pa.RecordBatch.from_arrays(columns, ["number", "report"])


def error_report(number: int, error: Exception) -> TaskReport:
    """Return the report of a task that failed with an error; its files are deleted."""
    match error:
        case TaskInputError():
            return TaskReport(number=number, refused=str(error))
        case StorageUnavailableError():
            return TaskReport(number=number, storage_error=error.reason)
        case SourceUnavailableError():
            return TaskReport(number=number, source_error=SourceFailure.of(error))
        case _:
            text = "".join(traceback.format_exception(error))
            return TaskReport(number=number, failure=text)


def item_report(
    item: Item,
    facts: FileFacts | None = None,
    *,
    good: int = 0,
    bad: int = 0,
    filtered: int = 0,
    rescued: int = 0,
) -> ItemReport:
    """Return the report of an item, or of a part of it; `facts` are those of the file read."""
    return ItemReport(
        item_id=item.id,
        location=item.file.location,
        read=good + bad + filtered,
        written=good,
        quarantined=bad,
        filtered=filtered,
        rescued=rescued,
        etag=None if facts is None else facts.etag,
        version=None if facts is None else facts.version,
    )


def bad_file_report(item: Item, error: BadFileError) -> ItemReport:
    """Return the report of an item whose file cannot be used."""
    reason = error.reason if error.line is None else f"line {error.line}: {error.reason}"
    return replace(item_report(item), bad_file=reason, bad_kind=BadFileKind(error.kind))


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


def run_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the tasks of one Spark partition: rows of `spec` (JSON) in, `number, report` (JSON) out.

    No exception is raised: Spark would retry the task and hide the reason in a stack trace.
    """
    for batch in batches:
        for text in batch.column("spec").to_pylist():
            spec = msgspec.json.decode(text, type=TaskSpec)
            try:
                report = encode_items(spec, execution=secrets.token_hex(4))
            except Exception as error:  # noqa: BLE001 - the driver raises any error
                report = error_report(spec.number, error)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            report = replace(report, peak_bytes=peak)
            yield report_row(spec.number, report)


def encode_items(spec: TaskSpec, *, execution: str) -> TaskReport:
    """Encode the items of a task; `execution` (8 hex digits) marks the names of its files.

    Bad records, bad files, and unreachable sources and storage are reported. If an exception is
    raised, all files have been deleted.
    """
    bad_files: dict[int, ItemReport] = {}
    late_bad_item: Item | None = None
    while True:
        run = TaskRun(spec, execution, bad_files)
        try:
            if late_bad_item is not None:
                bad_files |= _bad_files_behind(late_bad_item, spec)
            return run.report()
        except _LateBadFileError as late:
            # Records of the bad file have already been written: start again without it.
            run.abort()
            bad_files[late.item.id] = late.report
            late_bad_item = late.item
        except (TaskInputError, StorageUnavailableError, SourceUnavailableError) as error:
            run.abort()
            return replace(error_report(spec.number, error), csv_start=run.csv_start)
        except BaseException:
            run.abort()
            raise


class _LateBadFileError(Exception):
    """A file was found to be bad after some of its records had been written."""

    def __init__(self, item: Item, report: ItemReport) -> None:
        super().__init__(report.bad_file)
        self.item = item
        self.report = report


class _JoinedItems:
    """Items whose small files are read together, and the facts of these files."""

    def __init__(self, stream: Stream) -> None:
        self.items: list[Item] = []
        self.facts: list[FileFacts] = []
        self.csv = JoinedCsvFiles(stream)


class TaskRun:
    """One pass over the items of a task."""

    def __init__(
        self,
        spec: TaskSpec,
        execution: str,
        bad_files: dict[int, ItemReport],
        output: Output | None = None,
    ) -> None:
        stream = spec.stream
        names = PartNames.of(stream, spec.stem, spec.number, execution)
        self._spec = spec
        self._stream = stream
        self._bad_files = bad_files
        added = tuple(lineage.column for lineage in stream.lineage)
        own = tuple(column for column in spec.schema.columns if column not in added)
        self._schema = RecordSchema(own)
        self._profile = SchemaProfile(self._schema, self._stream.schema.declared)
        self._mapper = Mapper.of(stream)
        self._validator = ChunkValidator(self._profile, stream)
        self._output = Output()
        if output is not None:
            self._output = output
        elif not spec.checks_only:
            self._output = open_output(names, stream, RecordSchema(own + added))
        self._quarantine = Quarantine(replace(names, folder=QUARANTINE_FOLDER, suffix="jsonl.gz"))
        self._items: list[ItemReport] = []
        self._bad_records: list[BadRecord] = []
        self._bad_count = 0
        self._profiled = 0  # records examined since the first misfit, at which writing stopped
        self._formats: set[SourceFormat] = set()
        self._writing = True
        # Do not join files if a mapper may filter records, nor a part, which is of a large file.
        self._joins = self._mapper is None and spec.part is None
        self._stop = CancellationCheck(spec.cancellation_flag)
        self._prefetched: TakePrefetched | None = None
        self._conflict: _LateBadFileError | None = None
        self._csv_slice: CsvSlice | None = None
        self._csv_end: int | None = None

    @property
    def csv_start(self) -> int | None:
        """Return where the records of a range of a csv file start."""
        return None if self._csv_slice is None else self._csv_slice.start

    def report(self) -> TaskReport:
        """Encode the items until an error or a limit makes the rest useless, and report."""
        wanted = (item.file for item in self._spec.items if item.id not in self._bad_files)
        files = () if self._spec.part else wanted
        with closing(Prefetcher(files, self._stream.source.within)) as prefetcher:
            self._prefetched = prefetcher.take
            self._encode()
        if self._conflict is not None:
            raise self._conflict
        return self._final()

    def _encode(self) -> None:
        joined = _JoinedItems(self._stream)
        for item in self._spec.items:
            if self._join(joined, item):
                continue
            if joined.items:
                if not self._encode_joined(joined):
                    return
                joined = _JoinedItems(self._stream)
                if self._join(joined, item):
                    continue
            if not self._encode_item(item):
                return
        self._encode_joined(joined)

    def _join(self, joined: _JoinedItems, item: Item) -> bool:
        """Add an item if its file can be joined with the previous ones; return whether it was."""
        file = item.file
        is_small = file.range is None and 0 < (file.size_bytes or 0) <= MAX_JOINED_FILE_BYTES
        can_join = is_small and self._joins and self._writing and item.id not in self._bad_files
        if not can_join or len(joined.items) == _MAX_JOINED_FILES:
            return False
        self._stop.check()
        try:
            with open_source(file, self._stream, prefetched=self._prefetched) as source:
                body = joined.csv.read(source) if source.format is SourceFormat.CSV else None
        except BadFileError:
            return False  # reading it separately reports the error
        if body is None:
            # If the first file cannot be joined, the others are probably like it: do not read
            # them twice.
            self._joins = bool(joined.items)
            return False
        joined.csv.add(body)
        joined.items.append(item)
        joined.facts.append(source.facts)
        return True

    def _encode_joined(self, joined: _JoinedItems) -> bool:
        """Encode joined items, and return whether to continue with the next item.

        If any record does not fit, the items are encoded one by one, so that the report names the
        file.
        """
        return self._write_joined(joined) or all(map(self._encode_item, joined.items))

    def _write_joined(self, joined: _JoinedItems) -> bool:
        if not joined.items or (table := joined.csv.parse()) is None:
            return False
        profile = SchemaProfile(self._schema, self._stream.schema.declared)
        checked = ChunkValidator(profile, self._stream).validate(table)
        if profile.fits:
            checked = self._output.without_unsupported(checked)
        is_regular = profile.fits and profile.wide <= self._profile.wide
        if not is_regular or checked.bad or checked.rescued or not isinstance(checked, Table):
            return False
        stream, context = self._stream, self._spec.context
        lineages = [Lineage(stream.lineage, item, context) for item in joined.items]
        if lineages[0].conflicts(profile.columns):
            return False
        counts = joined.csv.counts
        if checked.good:
            self._output.write(joined_lineage(checked, lineages, counts))
        self._formats.add(SourceFormat.CSV)
        for item, facts, count in zip(joined.items, joined.facts, counts, strict=True):
            self._items.append(item_report(item, facts, good=count))
        return True

    def _encode_item(self, item: Item) -> bool:
        """Encode a single item, and return whether to continue with the next item."""
        report = self._encoded(item)
        self._items.append(report)
        if report.bad_file is not None and report.bad_kind is not None:
            rule = self._stream.on_bad_file.of(report.bad_kind)
            if rule is OnBadFile.FAIL:
                self._stop_writing()
                return False
            if rule is OnBadFile.QUARANTINE and self._writing:
                self._quarantine.add(item.id, item.file.location, report.bad_file)
        if self._too_many_bad:
            self._stop_writing()
            return False
        return not self._sample_is_complete

    def abort(self) -> None:
        """Delete all files."""
        self._output.abort()
        self._quarantine.abort()

    @property
    def _too_many_bad(self) -> bool:
        most = self._stream.on_bad_record.most
        return most is not None and self._bad_count > most

    @property
    def _sample_is_complete(self) -> bool:
        most = self._stream.schema.sample_records
        return most is not None and self._profiled >= most

    def _encoded(self, item: Item) -> ItemReport:
        self._stop.check()
        if item.id in self._bad_files:
            return self._bad_files[item.id]
        self._profile.item = item
        good = bad = filtered = rescued = 0
        used = False
        stream = self._stream
        lineage = Lineage(stream.lineage, item, self._spec.context)
        try:
            with open_source(
                item.file, stream, self._spec.part, prefetched=self._prefetched
            ) as source:
                self._formats.add(source.format)
                for chunk in self.chunks(source, lineage):
                    used = True
                    self._stop.check()
                    self._quarantine_records(item, chunk.bad)
                    good, bad = good + chunk.good, bad + len(chunk.bad)
                    filtered, rescued = filtered + chunk.filtered, rescued + chunk.rescued
                    if self._too_many_bad or self._sample_is_complete:
                        break
                if self._csv_slice is not None:
                    self._csv_end = self._csv_slice.find_end()
        except BadFileError as error:
            report = bad_file_report(item, error)
            if used:
                raise _LateBadFileError(item, report) from error
            if lineage.conflicts(self._profile.columns):
                # The profile has its columns: go on with a new one, and start again at the end.
                self._bad_files[item.id] = report
                self._conflict = _LateBadFileError(item, report)
                self._profile = SchemaProfile(self._schema, stream.schema.declared)
                self._validator = ChunkValidator(self._profile, stream)
            return report
        return item_report(
            item, source.facts, good=good, bad=bad, filtered=filtered, rescued=rescued
        )

    def chunks(self, source: DecodedFile, lineage: Lineage) -> Iterator[Chunk]:
        """Read, map, check and write the records of a file, chunk by chunk."""
        chunks: Iterator[Chunk]
        part = self._spec.part
        if part is not None and source.format is SourceFormat.CSV:
            self._csv_slice = CsvSlice(source, self._stream, part, self._spec.csv_start)
            chunks = self._csv_slice.chunks()
        else:
            chunks = source.reader.chunks(source, self._stream)
        for chunk in chunks:
            mapped = chunk if self._mapper is None else self._mapper.mapped(chunk)
            if isinstance(mapped, Table):
                self._check_new_columns(source, mapped)
            checked = self._validator.validate(mapped)
            if self._profile.fits:
                checked = self._output.without_unsupported(checked)
            if taken := lineage.conflicts(self._profile.columns):
                raise source.bad_file(f"has the column {taken[0]}, which `lineage` adds")
            if self._is_still_writing() and checked.good:
                self._output.write(lineage.added(checked))
            elif not self._profile.fits:
                self._profiled += checked.good
            yield checked

    def _check_new_columns(self, source: DecodedFile, table: Table) -> None:
        """Raise if a file adds too many columns; validation quarantines such JSON records."""
        rescues = self._stream.schema.evolution is Evolution.RESCUE
        # Flattening makes columns of the keys of maps, which differ between records.
        if rescues or self._stream.mapping.flattening_enabled:
            return
        added = sum(name not in self._profile.columns for name in table.batch.schema.names)
        if reason := self._profile.refusal(added, self._stream.read_limits.max_columns):
            raise source.bad_file(reason)

    def _quarantine_records(self, item: Item, bad: tuple[MalformedRecord, ...]) -> None:
        self._bad_count += len(bad)
        bad = tuple(replace(record, reason=format_reason(record.reason)) for record in bad)
        for record in bad[: MAX_REPORTED_BAD_RECORDS - len(self._bad_records)]:
            self._bad_records.append(
                BadRecord(
                    item_id=item.id,
                    location=item.file.location,
                    line=record.line,
                    reason=record.reason,
                )
            )
        if self._writing and not self._too_many_bad:
            for record in bad:
                self._quarantine.add(item.id, item.file.location, record)

    def _is_still_writing(self) -> bool:
        if self._writing and not self._profile.fits:
            self._stop_writing()
        return self._writing

    def _stop_writing(self) -> None:
        self._writing = False
        self.abort()

    def _refuse_records_without_columns(self) -> None:
        # Known only at the end: a later record may add the first column.
        encoding = self._stream.encoding
        if self._spec.schema.columns or not encoding.part_format.is_columnar:
            return
        written = [
            item
            for item, report in zip(self._spec.items, self._items, strict=False)
            if report.written
        ]
        reason = f"its records have no columns, so {encoding.format} cannot store them"
        for item in written:
            bad = replace(item_report(item), bad_file=reason, bad_kind=BadFileKind.CORRUPT)
            self._bad_files[item.id] = bad
        if written:
            raise _LateBadFileError(written[-1], self._bad_files[written[-1].id])

    def _final(self) -> TaskReport:
        if self._writing:
            self._refuse_records_without_columns()
        part_files = self._output.close() if self._writing else ()
        quarantine_files = self._quarantine.close() if self._writing else ()
        not_reached = self._spec.items[len(self._items) :]
        items = (*self._items, *(item_report(item) for item in not_reached))
        if not self._writing:
            items = tuple(without_part_files(item) for item in items)
        return TaskReport(
            number=self._spec.number,
            part_files=part_files,
            quarantine_files=quarantine_files,
            items=items,
            misfits=self._profile.misfits(),
            wide=tuple(sorted(self._profile.wide)),
            bad_records=tuple(self._bad_records),
            formats=tuple(sorted(self._formats)),
            csv_start=self.csv_start,
            csv_end=self._csv_end,
        )


def _bad_files_behind(item: Item, spec: TaskSpec) -> dict[int, ItemReport]:
    """Return the bad files among the later items, so that no further restart is needed."""
    bad_files: dict[int, ItemReport] = {}
    for later in spec.items[spec.items.index(item) + 1 :]:
        try:
            with open_source(later.file, spec.stream) as source:
                # The bytes of other files say nothing that opening them has not shown.
                while not source.is_plain and source.read(BLOCK_BYTES):
                    pass
        except BadFileError as error:
            bad_files[later.id] = bad_file_report(later, error)
    return bad_files
