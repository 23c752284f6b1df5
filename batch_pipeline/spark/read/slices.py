"""Which part of a large file one task reads. Values only: readers know where records start."""

from dataclasses import dataclass

from batch_pipeline.domain.stream import SourceFormat

SLICEABLE = frozenset({SourceFormat.CSV, SourceFormat.JSONL, SourceFormat.PARQUET})
IN_RANGES = frozenset({SourceFormat.CSV, SourceFormat.JSONL})


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of a file from `start` up to, not including, `stop`.

    A record belongs to the range that its first byte is in.
    """

    start: int
    stop: int
