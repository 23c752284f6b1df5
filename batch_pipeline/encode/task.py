"""One task: encode items into part files and report."""

import secrets
import traceback
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import msgspec
import pyarrow as pa

from batch_pipeline.encode.cancellation import CancellationCheck
from batch_pipeline.encode.chunks import Chunk, MalformedRecord, Table
from batch_pipeline.encode.errors import TaskInputError, format_reason
from batch_pipeline.encode.lineage import Lineage, joined_lineage
from batch_pipeline.encode.mapping.mapper import Mapper
from batch_pipeline.encode.readers.csv import MAX_JOINED_FILE_BYTES, JoinedCsvFiles
from batch_pipeline.encode.readers.decoded_file import BLOCK_BYTES, DecodedFile, open_source
from batch_pipeline.encode.readers.formats import read_chunks
from batch_pipeline.encode.source_file import Prefetcher, TakePrefetched
from batch_pipeline.encode.task_values import (
    BadFile,
    SourceFailure,
    TaskReport,
    TaskSpec,
    item_report,
    report_row,
    unreadable_item_report,
    without_part_files,
)
from batch_pipeline.encode.validation import ChunkValidator
from batch_pipeline.encode.validation.type_inference import SchemaProfile
from batch_pipeline.encode.worker_memory import peak_bytes
from batch_pipeline.encode.writers.outputs import (
    QUARANTINE_FOLDER,
    NoOutput,
    Output,
    Quarantine,
    open_output,
)
from batch_pipeline.encode.writers.part_files import PartNames
from batch_pipeline.model.encode import BadRecord
from batch_pipeline.model.errors import (
    BadFileError,
    SourceUnavailableError,
    StorageUnavailableError,
)
from batch_pipeline.model.item import Item
from batch_pipeline.model.manifest import ItemReport
from batch_pipeline.model.record_rules import BadFileKind, OnBadFile
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import SourceFormat, Stream

MAX_REPORTED_BAD_RECORDS = 20
_MAX_JOINED_FILES = 50  # read again one by one if a single record of them is irregular


def run_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the tasks of one Spark partition: rows of `spec` (JSON) in, `number, report` (JSON) out.

    Nothing is raised: Spark would try again and hide the reason in a stack trace.
    """
    for batch in batches:
        for text in batch.column("spec").to_pylist():
            spec = msgspec.json.decode(text, type=TaskSpec)
            try:
                report = encode_items(spec, execution=secrets.token_hex(4))
            except Exception:  # noqa: BLE001 - whatever it is, the driver raises it
                report = TaskReport(number=spec.number, failure=traceback.format_exc())
            report = replace(report, peak_bytes=peak_bytes())
            yield report_row(spec.number, report)


def encode_items(spec: TaskSpec, *, execution: str) -> TaskReport:
    """Encode the items of a task; `execution` (8 hex digits) marks the names of its files.

    Bad records, bad files, and sources and storage that cannot be reached are reported. After an
    exception no file is left.
    """
    bad_files: dict[int, BadFile] = {}
    late_bad_item: Item | None = None
    while True:
        run = TaskRun(spec, execution, bad_files)
        try:
            if late_bad_item is not None:
                bad_files |= _unreadable(spec, behind=late_bad_item)
            return run.report()
        except _LateBadFileError as late:
            # Records of the bad file are written already: start again without it.
            run.abort()
            bad_files |= {late.item.id: late.bad}
            late_bad_item = late.item
        except TaskInputError as error:
            run.abort()
            return TaskReport(number=spec.number, refused=str(error))
        except StorageUnavailableError as error:
            run.abort()
            return TaskReport(number=spec.number, storage_error=error.reason)
        except SourceUnavailableError as error:
            run.abort()
            return TaskReport(number=spec.number, source_error=SourceFailure.of(error))
        except BaseException:
            run.abort()
            raise


class _LateBadFileError(Exception):
    """A file was found to be bad after some of its records had been written."""

    def __init__(self, item: Item, bad: BadFile) -> None:
        super().__init__(bad.reason)
        self.item = item
        self.bad = bad


class _ItemGroup:
    """Consecutive items that are read together, with ETag and version of what was read."""

    def __init__(self, stream: Stream) -> None:
        self.items: list[Item] = []
        self.versions: list[tuple[str | None, str | None]] = []
        self.csv = JoinedCsvFiles(stream)


class TaskRun:
    """One pass over the items of a task."""

    def __init__(
        self,
        spec: TaskSpec,
        execution: str,
        bad_files: dict[int, BadFile],
        output: Output | None = None,
    ) -> None:
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
        added = tuple(lineage.column for lineage in stream.lineage)
        own = tuple(column for column in spec.schema.columns if column not in added)
        self._schema = RecordSchema(own)
        self._profile = SchemaProfile(self._schema)
        self._mapper = Mapper.of(stream)
        self._validator = ChunkValidator(self._profile, stream)
        self._output: Output = NoOutput()
        if output is not None:
            self._output = output
        elif not spec.checks_only:
            self._output = open_output(names, stream, RecordSchema(own + added))
        self._quarantine = Quarantine(replace(names, folder=QUARANTINE_FOLDER, suffix="jsonl.gz"))
        self._items: list[ItemReport] = []
        self._bad_records: list[BadRecord] = []
        self._bad_count = 0
        self._profiled = 0  # records looked at since the first misfit: nothing is written any more
        self._formats: set[SourceFormat] = set()
        self._writing = True
        # Mapped records may be filtered, and a part is of a large file.
        self._joins = self._mapper is None and spec.part is None
        self._stop = CancellationCheck(spec.cancellation_flag)
        self._prefetched: TakePrefetched | None = None

    def report(self) -> TaskReport:
        """Encode the items until an error or a limit makes the rest useless, and report."""
        wanted = (item.file for item in self._spec.items if item.id not in self._bad_files)
        with closing(Prefetcher(() if self._spec.part else wanted)) as prefetcher:
            self._prefetched = prefetcher.take
            self._encode()
        return self._final()

    def _encode(self) -> None:
        for group in self._groups():
            if not (self._write_joined(group) or all(map(self._encode_item, group.items))):
                break

    def _groups(self) -> Iterator["_ItemGroup"]:
        """Yield the items in order: small csv files that can be read together, others alone."""
        group = _ItemGroup(self._stream)
        for item in self._spec.items:
            if self._join(group, item):
                continue
            if group.items:
                yield group
                group = _ItemGroup(self._stream)
                if self._join(group, item):
                    continue
            group.items.append(item)
            yield group
            group = _ItemGroup(self._stream)
        yield group

    def _join(self, group: "_ItemGroup", item: Item) -> bool:
        """Add an item to a group, return whether it can be read together with those before."""
        file = item.file
        is_small = 0 < (file.size_bytes or 0) <= MAX_JOINED_FILE_BYTES
        can_join = is_small and self._joins and self._writing and item.id not in self._bad_files
        if not can_join or len(group.items) == _MAX_JOINED_FILES:
            return False
        self._stop.check()
        try:
            with open_source(file, self._stream, prefetched=self._prefetched) as source:
                is_joined = source.format is SourceFormat.CSV and group.csv.add(source)
        except BadFileError:
            return False  # read by itself, it is reported
        if not is_joined:
            # The first file of a group: others are probably like it, so do not read them twice.
            self._joins = bool(group.items)
            return False
        group.items.append(item)
        group.versions.append((source.facts.etag, source.facts.version))
        return True

    def _write_joined(self, group: "_ItemGroup") -> bool:
        """Write the records of small files together, return False to encode them one by one.

        That is done as soon as any record does not fit: what is reported then names the file.
        """
        if not group.versions or (table := group.csv.parse()) is None:
            return False
        profile = SchemaProfile(self._schema)
        checked = ChunkValidator(profile, self._stream).validate(table)
        if profile.fits:
            checked = self._output.without_unsupported(checked)
        items, counts = group.items, group.csv.record_counts()
        lineages = [Lineage(self._stream.lineage, item, self._spec.context) for item in items]
        is_regular = profile.fits and profile.wide <= self._profile.wide
        if not is_regular or checked.bad or checked.rescued or not isinstance(checked, Table):
            return False
        if lineages[0].conflicts(profile.columns):
            return False
        if checked.good:
            self._output.write(joined_lineage(checked, lineages, counts))
        self._formats.add(SourceFormat.CSV)
        for item, (etag, version), count in zip(items, group.versions, counts, strict=True):
            self._items.append(replace(item_report(item, good=count), etag=etag, version=version))
        return True

    def _encode_item(self, item: Item) -> bool:
        """Encode an item by itself, return whether the next one is wanted."""
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
            return unreadable_item_report(item, self._bad_files[item.id])
        self._validator.start_item(item)
        good = bad = filtered = rescued = 0
        used = False
        stream, context = self._stream, self._spec.context
        try:
            with open_source(
                item.file, stream, self._spec.part, prefetched=self._prefetched
            ) as source:
                self._formats.add(source.format)
                for chunk in self.chunks(source, Lineage(stream.lineage, item, context)):
                    used = True
                    self._stop.check()
                    self._quarantine_records(item, chunk.bad)
                    good, bad = good + chunk.good, bad + len(chunk.bad)
                    filtered, rescued = filtered + chunk.filtered, rescued + chunk.rescued
                    if self._too_many_bad or self._sample_is_complete:
                        break
        except BadFileError as error:
            bad_file = BadFile.of(error)
            if used:
                raise _LateBadFileError(item, bad_file) from error
            return unreadable_item_report(item, bad_file)
        report = item_report(item, good=good, bad=bad, filtered=filtered, rescued=rescued)
        return replace(report, etag=source.facts.etag, version=source.facts.version)

    def chunks(self, source: DecodedFile, lineage: Lineage) -> Iterator[Chunk]:
        """Read, map, check and write the records of a file, chunk by chunk."""
        for chunk in read_chunks(source, self._stream, self._spec.csv_slice):
            mapped = chunk if self._mapper is None else self._mapper.mapped(chunk)
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

    def _quarantine_records(self, item: Item, bad: tuple[MalformedRecord, ...]) -> None:
        self._bad_count += len(bad)
        bad = tuple(replace(found, reason=format_reason(found.reason)) for found in bad)
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

    def _is_still_writing(self) -> bool:
        if self._writing and not self._profile.fits:
            self._stop_writing()
        return self._writing

    def _stop_writing(self) -> None:
        self._writing = False
        self.abort()

    def _refuse_records_without_columns(self) -> None:
        # Known only at the end: a later record may bring the first column.
        encoding = self._stream.encoding
        if self._spec.schema.columns or not encoding.part_format.is_columnar:
            return
        for item, report in zip(self._spec.items, self._items, strict=False):
            if report.written:
                reason = f"its records have no columns, so {encoding.format} cannot hold them"
                raise _LateBadFileError(item, BadFile(kind=BadFileKind.CORRUPT, reason=reason))

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
        )


def _unreadable(spec: TaskSpec, *, behind: Item) -> dict[int, BadFile]:
    """Return the bad files among the later items, so that no further run has to start again."""
    found: dict[int, BadFile] = {}
    for item in spec.items[spec.items.index(behind) + 1 :]:
        try:
            with open_source(item.file, spec.stream) as source:
                # Opening plain text has already shown whether it is bad.
                while source.range is None and source.read(BLOCK_BYTES):
                    pass
        except BadFileError as error:
            found[item.id] = BadFile.of(error)
    return found
