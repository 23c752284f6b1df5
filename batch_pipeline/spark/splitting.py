"""Finds the large files that several tasks can read at once, and where they are cut.

The driver looks at the first bytes of heavy files only; what it cannot open is left to the task,
whose report says why. In csv files a first Spark job counts quotes, so that each part knows whether
it starts inside of them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from batch_pipeline.domain.errors import BadFileError, SourceUnavailableError
from batch_pipeline.domain.item import Item
from batch_pipeline.domain.record_rules import LineageColumn
from batch_pipeline.domain.stream import SourceFormat, Stream
from batch_pipeline.spark.packing import SLICE_BYTES, Work, byte_ranges
from batch_pipeline.spark.read.csv_slices import (
    CsvCounts,
    can_be_sliced,
    count_csv,
    csv_slices,
)
from batch_pipeline.spark.read.slices import ByteRange
from batch_pipeline.spark.read.sources import open_source
from batch_pipeline.spark.running import SparkJobs, task_frame
from batch_pipeline.spark.task_values import SourceTrouble, answer


@dataclass(frozen=True, slots=True, kw_only=True)
class CountSpec:
    """What a counting task must do: count the quotes of a part of a csv file."""

    stream: Stream
    item: Item
    part: ByteRange


@dataclass(frozen=True, slots=True, kw_only=True)
class CountReport:
    """What it counted; nothing when the file could not be read.

    `source_error` tells that this was no fault of the file.
    """

    number: int
    counts: CsvCounts | None = None
    source_error: SourceTrouble | None = None


def splits(items: Sequence[Item], stream: Stream, jobs: SparkJobs) -> dict[int, tuple[Work, ...]]:
    """Give, by id, the parts of the items that are split.

    The numbers of records are only known to a task that has read all of the file in front of them,
    so a stream that wants these has no file split.

    Raises:
        SourceUnavailableError: an object cannot be read now.
    """
    if LineageColumn.RECORD_NUMBER in stream.lineage:
        return {}
    found: dict[int, tuple[Work, ...]] = {}
    to_count: list[CountSpec] = []
    for item in items:
        opened = _opened(item, stream) if item.weight >= 2 * SLICE_BYTES else None
        if opened is None:
            continue
        noted, source_format = opened
        own = noted.file.range
        ranges = byte_ranges(noted.file.wanted_bytes or 0, start=0 if own is None else own.start)
        if len(ranges) < 2:
            continue
        if source_format is SourceFormat.CSV:
            to_count += [CountSpec(stream=stream, item=noted, part=part) for part in ranges]
        else:
            found[item.id] = tuple(Work(items=(noted,), part=part) for part in ranges)
    return found | (_counted(to_count, jobs) if to_count else {})


def _opened(item: Item, stream: Stream) -> tuple[Item, SourceFormat] | None:
    """Tell the format of a file that can be split, and note what it is like now.

    With its size and time noted, and the ETag of an object, all tasks that read a part of it read
    the same file.
    """
    with suppress(BadFileError, OSError), open_source(item.file, stream) as source:
        is_csv = source.format is SourceFormat.CSV
        if not source.can_split or (is_csv and not can_be_sliced(stream.source.csv)):
            return None
        known, facts = item.file, source.facts
        noted = replace(
            known,
            size_bytes=facts.size_bytes if known.size_bytes is None else known.size_bytes,
            modified_at=known.modified_at or facts.modified_at,
            etag=known.etag or facts.etag,
        )
        return replace(item, file=noted), source.format
    return None


def _counted(specs: Sequence[CountSpec], jobs: SparkJobs) -> dict[int, tuple[Work, ...]]:
    payloads = [msgspec.json.encode(spec) for spec in specs]
    rows = jobs.run(
        lambda session: task_frame(
            session, payloads, count_parts, "number int, report binary"
        ).collect(),
        tasks=len(payloads),
    )
    reports = [msgspec.json.decode(row["report"], type=CountReport) for row in rows]
    for report in reports:
        if report.source_error is not None:
            raise report.source_error.error()
    counts: dict[int, list[CsvCounts | None]] = defaultdict(list)
    parts: dict[int, list[CountSpec]] = defaultdict(list)
    for spec, report in zip(specs, sorted(reports, key=lambda one: one.number), strict=True):
        counts[spec.item.id].append(report.counts)
        parts[spec.item.id].append(spec)
    found: dict[int, tuple[Work, ...]] = {}
    for item_id, asked in parts.items():
        known = [one for one in counts[item_id] if one is not None]
        if len(known) == len(asked):
            slices = csv_slices([spec.part for spec in asked], known)
            found[item_id] = tuple(
                Work(items=(asked[0].item,), part=one.bytes, csv_slice=one) for one in slices
            )
    return found


def count_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run counting tasks: rows of `number, spec` (JSON) in, `number, report` (JSON) out."""
    for batch in batches:
        for row in batch.to_pylist():
            spec = msgspec.json.decode(row["spec"], type=CountSpec)
            yield answer(row["number"], _count(row["number"], spec))


def _count(number: int, spec: CountSpec) -> CountReport:
    counts: CsvCounts | None = None
    try:
        with (
            suppress(BadFileError, OSError),
            open_source(spec.item.file, spec.stream, spec.part) as source,
        ):
            counts = count_csv(source.file, spec.part, spec.stream.source.csv.quote)
    except SourceUnavailableError as error:
        return CountReport(number=number, source_error=SourceTrouble.of(error))
    return CountReport(number=number, counts=counts)
