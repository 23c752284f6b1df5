"""Landed files for the tests of readers: in a folder, or in memory only."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.item import FoundFile, modified_at
from batch_pipeline.domain.location import to_uri
from batch_pipeline.domain.planning import Limits
from batch_pipeline.domain.record_rules import ReadLimits
from batch_pipeline.domain.stream import Source, SourceFormat, Storage, Stream
from batch_pipeline.spark.chunks import JsonRecords
from batch_pipeline.spark.read.slices import ByteRange
from batch_pipeline.spark.read.sources import OpenSource
from batch_pipeline.stores.facts import FileFacts

STREAM = Stream(
    name="orders",
    source=Source(uri="file:///landing"),
    limits=Limits(max_weight=1, max_count=1),
    encoding=Encoding(format=Format.JSONL, compression=Compression.GZIP),
    storage=Storage(root="file:///batches"),
)


def stream_of(
    format: SourceFormat = SourceFormat.AUTO,  # noqa: A002 - as in stream files
    charset: str = "utf-8",
    **limits: int,
) -> Stream:
    """Make a stream whose files have this format and charset; `limits` are its read limits."""
    source = Source(uri="file:///landing", format=format, charset=charset)
    return replace(STREAM, source=source, read_limits=ReadLimits(**limits))


def landed(folder: Path, data: bytes, name: str = "orders") -> FoundFile:
    """Write a file and give what a listing would say of it."""
    path = folder / name
    path.write_bytes(data)
    return FoundFile(
        location=to_uri(path), size_bytes=len(data), modified_at=modified_at(path.stat())
    )


def in_memory(data: bytes, stream: Stream = STREAM, part: ByteRange | None = None) -> OpenSource:
    """Open bytes as if they had landed."""
    file = FoundFile(location="file:///landing/orders")
    return OpenSource(Held(data), stream, file, part)


class Held:
    """Bytes that are held in memory, with the face of a file that landed."""

    etag: str | None = None
    version: str | None = None
    trouble: OSError | None = None

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.raw: BufferedReader[Any] = BufferedReader(BytesIO(data))
        self.facts = FileFacts(size_bytes=len(data), modified_at=datetime(2026, 1, 1, tzinfo=UTC))

    def reopened(self) -> BinaryIO:
        """Give the bytes once more."""
        return BytesIO(self._data)

    def check(self) -> None:
        """Find nothing: they do not change."""


def texts(chunks: Sequence[JsonRecords]) -> list[bytes]:
    """Give the records of all chunks."""
    return [line for chunk in chunks for line in chunk.lines]


def places(chunks: Sequence[JsonRecords]) -> list[int]:
    """Give the lines where the records of all chunks start."""
    return [place for chunk in chunks for place in chunk.places]


def numbers(chunks: Sequence[JsonRecords]) -> list[int]:
    """Give the numbers of the records of all chunks."""
    return [number for chunk in chunks for number in chunk.numbers]


def fault_of(error: Any) -> tuple[int | None, str]:
    """Give the line and the reason of a bad file."""
    return error.value.line, error.value.reason
