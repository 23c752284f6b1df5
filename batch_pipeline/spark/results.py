"""Adds up what the tasks of an encode report, and removes their files where they must not be.

Driver side, but without Spark.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from batch_pipeline.domain.encode import EncodeRequest, EncodeResult
from batch_pipeline.domain.errors import StorageUnavailableError, TaskFailedError
from batch_pipeline.domain.record_rules import OnBadFile
from batch_pipeline.domain.schema import RecordSchema, joined, needed
from batch_pipeline.domain.schema_change import Misfit
from batch_pipeline.domain.stream import SourceFormat, Stream
from batch_pipeline.spark.item_reports import added_up, without_files
from batch_pipeline.spark.task_values import TaskReport
from batch_pipeline.spark.write.part_files import remove

_TEXT_FORMATS = frozenset({SourceFormat.CSV})  # whose values are text cells


def check_finished(reports: Iterable[TaskReport], stream: Stream) -> None:
    """Check that all tasks came to their end.

    Raises:
        SourceUnavailableError: an object cannot be read now.
        StorageUnavailableError: part files cannot be written.
        TaskFailedError: a task ended in an unexpected way.
    """
    for report in reports:
        if report.storage_error is not None:
            raise StorageUnavailableError(stream.storage.root, report.storage_error)
        if report.source_error is not None:
            raise report.source_error.error()
        if report.failure is not None:
            raise TaskFailedError(stream.name, report.number, report.failure)


def result_of(reports: Sequence[TaskReport], request: EncodeRequest) -> EncodeResult:
    """Add up reports, in the order of the tasks; removes all files when they are of no use."""
    text_source = all(_TEXT_FORMATS.issuperset(report.formats) for report in reports)
    misfits = misfits_of(reports, request.schema, text_source=text_source)
    items = added_up(item for report in reports for item in report.items)
    if misfits or is_refused(reports, request.stream):
        remove_files(reports)
        reports = [replace(report, part_files=(), quarantine_files=()) for report in reports]
        items = tuple(without_files(item) for item in items)
    return EncodeResult(
        part_files=tuple(part for report in reports for part in report.part_files),
        quarantine_files=tuple(part for report in reports for part in report.quarantine_files),
        items=items,
        misfits=misfits,
        bad_records=tuple(bad for report in reports for bad in report.bad_records),
        text_source=text_source,
    )


def misfits_of(
    reports: Sequence[TaskReport], schema: RecordSchema, *, text_source: bool
) -> tuple[Misfit, ...]:
    """Merge what the tasks could not fit, in the order of the tasks; each keeps its first place."""
    wide = {name for report in reports for name in report.wide}
    merged: dict[str, Misfit] = {}
    for misfit in (misfit for report in reports for misfit in report.misfits):
        name = misfit.column.name
        known = merged.setdefault(name, misfit)
        column = joined(known.column, misfit.column, text_source=text_source)
        merged[name] = replace(known, column=column)
    before = schema.by_name()
    found: list[Misfit] = []
    for name, misfit in merged.items():
        is_wide = name in wide
        column = needed(before.get(name), misfit.column, wide=is_wide, text_source=text_source)
        if column != before.get(name):
            found.append(replace(misfit, column=column))
    return tuple(found)


def is_refused(reports: Sequence[TaskReport], stream: Stream) -> bool:
    """Tell whether the stream file forbids to publish this."""
    items = [item for report in reports for item in report.items]
    bad, read = sum(item.quarantined for item in items), sum(item.read for item in items)
    if not stream.on_bad_record.allow(bad=bad, read=read):
        return True
    kinds = {item.bad_kind for item in items if item.bad_kind is not None}
    return any(stream.on_bad_file.of(kind) is OnBadFile.FAIL for kind in kinds)


def remove_files(reports: Iterable[TaskReport]) -> None:
    """Remove the files that the tasks wrote."""
    for report in reports:
        for part in (*report.part_files, *report.quarantine_files):
            remove(part)
