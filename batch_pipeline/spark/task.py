"""What one Spark task does: encode some items into part files and report. No Spark in here."""

import secrets
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from batch_pipeline.domain.encoding import Format
from batch_pipeline.domain.errors import BadFileError, StorageUnavailableError
from batch_pipeline.domain.item import Item
from batch_pipeline.domain.manifest import ItemReport, PartFile
from batch_pipeline.domain.schema import Column, RecordSchema
from batch_pipeline.domain.stream import OnBadFile, SourceFormat, Stream
from batch_pipeline.ports import BadRecord
from batch_pipeline.spark.check.profile import Profile
from batch_pipeline.spark.read.csv_reader import CsvReader
from batch_pipeline.spark.read.csv_strict import BadText
from batch_pipeline.spark.read.jsonl_reader import JsonlReader
from batch_pipeline.spark.read.sources import BLOCK_BYTES, TextSource, open_source
from batch_pipeline.spark.write.outputs import QUARANTINE_FOLDER, Quarantine, open_output
from batch_pipeline.spark.write.part_writer import PartNames

MAX_REPORTED_BAD_RECORDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What a task must do: encode the items, in order, with this schema."""

    number: int
    stem: str
    stream: Stream
    schema: RecordSchema
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What a task did, with one item report per item.

    There are no files when `misfits` are there, when a bad file must not be, or when there are too
    many bad records; then no record counts as written, and only the quarantined ones as read.
    `formats` are those of the files that were read; `wide` are the integer columns too long for a
    double. `storage_error` and `failure` (a traceback) tell that the task ended before its time.
    """

    number: int
    part_files: tuple[PartFile, ...] = ()
    quarantine_files: tuple[PartFile, ...] = ()
    items: tuple[ItemReport, ...] = ()
    misfits: tuple[Column, ...] = ()
    wide: tuple[str, ...] = ()
    bad_records: tuple[BadRecord, ...] = ()
    formats: tuple[SourceFormat, ...] = ()
    storage_error: str | None = None
    failure: str | None = None


def run_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the tasks of one Spark partition: rows of `spec` (JSON) in, `number, report` (JSON) out.

    Nothing is raised: Spark would only try again and bury the reason in a stack trace.
    """
    for batch in batches:
        for text in batch.column("spec").to_pylist():
            spec = msgspec.json.decode(text, type=TaskSpec)
            try:
                report = encode_items(spec, execution=secrets.token_hex(4))
            except Exception:  # noqa: BLE001 - whatever it is, the driver raises it
                report = TaskReport(number=spec.number, failure=traceback.format_exc())
            columns = [pa.array([spec.number], pa.int32()), pa.array([msgspec.json.encode(report)])]
            yield pa.RecordBatch.from_arrays(columns, ["number", "report"])


def encode_items(spec: TaskSpec, *, execution: str) -> TaskReport:
    """Encode the items of a task; `execution` (8 hex digits) marks the names of its files.

    Bad records, bad files and storage that cannot be written are reported. After an exception no
    file is left.
    """
    bad_files: dict[int, str] = {}
    while True:
        run = _Run(spec, execution, bad_files)
        try:
            return run.report()
        except _SpoiledError as spoiled:
            # Records of a file that turned out bad are written already: all over again without it.
            run.abort()
            bad_files |= {spoiled.item.id: spoiled.reason}
            bad_files |= _unreadable(spec, behind=spoiled.item)
        except StorageUnavailableError as error:
            run.abort()
            return TaskReport(number=spec.number, storage_error=error.reason)
        except BaseException:
            run.abort()
            raise


class _SpoiledError(Exception):
    """A file turned out to be bad after some of its records were used."""

    def __init__(self, item: Item, reason: str) -> None:
        super().__init__(reason)
        self.item = item
        self.reason = reason


class _Run:
    """One pass over the items of a task."""

    def __init__(self, spec: TaskSpec, execution: str, bad_files: dict[int, str]) -> None:
        stream = spec.stream
        names = PartNames(
            root=stream.storage.root,
            stem=f"{stream.storage.prefix}{spec.stem}",
            task=spec.number,
            execution=execution,
            suffix=stream.encoding.suffix,
        )
        self._spec = spec
        self._stream = stream
        self._bad_files = bad_files
        self._profile = Profile(spec.schema)
        self._output = open_output(names, stream, spec.schema)
        self._quarantine = Quarantine(replace(names, folder=QUARANTINE_FOLDER, suffix="jsonl.gz"))
        self._items: list[ItemReport] = []
        self._bad_records: list[BadRecord] = []
        self._bad_count = 0
        self._formats: set[SourceFormat] = set()
        self._writing = True

    def report(self) -> TaskReport:
        """Encode all items, as far as that makes sense, and report."""
        for item in self._spec.items:
            counted = self._encoded(item)
            self._items.append(counted)
            if counted.bad_file is not None:
                if self._stream.on_bad_file is OnBadFile.FAIL:
                    self._stop_writing()
                    break
                if self._writing:
                    self._quarantine.add(item.id, item.file.location, counted.bad_file)
            if self._too_many_bad:
                self._stop_writing()
                break
        return self._final()

    def abort(self) -> None:
        """Remove all files."""
        self._output.abort()
        self._quarantine.abort()

    @property
    def _too_many_bad(self) -> bool:
        return self._bad_count > self._stream.max_bad_records

    def _encoded(self, item: Item) -> ItemReport:
        if item.id in self._bad_files:
            return _counted(item, bad_file=self._bad_files[item.id])
        good = bad = 0
        used = False
        try:
            with open_source(item.file, self._stream) as source:
                self._formats.add(source.format)
                for good_here, bad_here in self._chunks(source):
                    used = True
                    self._set_aside(item, bad_here)
                    good, bad = good + good_here, bad + len(bad_here)
                    if self._too_many_bad:
                        break
        except BadFileError as error:
            reason = error.reason if error.line is None else f"line {error.line}: {error.reason}"
            if used:
                raise _SpoiledError(item, reason) from error
            return _counted(item, bad_file=reason)
        return _counted(item, good=good, bad=bad)

    def _chunks(self, source: TextSource) -> Iterator[tuple[int, tuple[BadText, ...]]]:
        """Take the records of a file chunk by chunk; gives the number of good ones, and the bad."""
        if source.format is SourceFormat.JSONL:
            values = self._stream.encoding.format is Format.PARQUET
            for lines in JsonlReader(source, self._profile, values=values).chunks():
                if self._goes_on_writing() and lines.lines:
                    self._output.write_json(lines)
                yield len(lines.lines), lines.bad
            return
        reader = CsvReader(source, self._stream.source.csv)
        for chunk in reader.chunks():
            self._profile.see_cells(chunk.cells)
            if self._goes_on_writing() and chunk.cells.num_rows:
                self._output.write_cells(chunk.cells)
            yield chunk.cells.num_rows, chunk.bad
        self._profile.see_names(reader.header)  # a file may have a header only
        self._goes_on_writing()
        yield 0, ()

    def _set_aside(self, item: Item, bad: tuple[BadText, ...]) -> None:
        self._bad_count += len(bad)
        for found in bad[: MAX_REPORTED_BAD_RECORDS - len(self._bad_records)]:
            self._bad_records.append(
                BadRecord(
                    item_id=item.id,
                    location=item.file.location,
                    line=found.line,
                    reason=found.reason,
                )
            )
        if self._writing and not self._too_many_bad:
            for found in bad:
                self._quarantine.add(item.id, item.file.location, found)

    def _goes_on_writing(self) -> bool:
        if self._writing and not self._profile.fits:
            self._stop_writing()
        return self._writing

    def _stop_writing(self) -> None:
        self._writing = False
        self.abort()

    def _refuse_records_without_columns(self) -> None:
        # Known only at the end: a later record may bring the first column.
        if self._spec.schema.columns or self._stream.encoding.format is not Format.PARQUET:
            return
        for item, counted in zip(self._spec.items, self._items, strict=False):
            if counted.written:
                reason = "its records have no columns, so parquet cannot hold them"
                raise _SpoiledError(item, reason)

    def _final(self) -> TaskReport:
        if self._writing:
            self._refuse_records_without_columns()
        part_files = self._output.close() if self._writing else ()
        quarantine_files = self._quarantine.close() if self._writing else ()
        unread = self._spec.items[len(self._items) :]
        items = (*self._items, *(_counted(item) for item in unread))
        if not self._writing:
            items = tuple(without_files(item) for item in items)
        return TaskReport(
            number=self._spec.number,
            part_files=part_files,
            quarantine_files=quarantine_files,
            items=items,
            misfits=self._profile.misfits(),
            wide=tuple(sorted(self._profile.wide)),
            bad_records=tuple(self._bad_records),
            formats=tuple(sorted(self._formats)),
        )


def without_files(item: ItemReport) -> ItemReport:
    """Give what is left of a report when the part files are gone: nothing counts as written."""
    return replace(item, read=item.quarantined + item.filtered, written=0)


def _counted(item: Item, *, good: int = 0, bad: int = 0, bad_file: str | None = None) -> ItemReport:
    return ItemReport(
        item_id=item.id,
        location=item.file.location,
        read=good + bad,
        written=good,
        quarantined=bad,
        bad_file=bad_file,
    )


def _unreadable(spec: TaskSpec, *, behind: Item) -> dict[int, str]:
    """Find the bad files among the later items by reading them, so that they spoil no other run."""
    found: dict[int, str] = {}
    for item in spec.items[spec.items.index(behind) + 1 :]:
        try:
            with open_source(item.file, spec.stream) as source:
                while source.read(BLOCK_BYTES):
                    pass
        except BadFileError as error:
            found[item.id] = error.reason
    return found
