"""Landed files for tests of readers, in a folder or in memory."""

import bz2
import gzip
import lzma
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_pipeline.encode.chunks import ByteRange, JsonRecords, MalformedRecord
from batch_pipeline.encode.readers.csv import CsvReader
from batch_pipeline.encode.readers.decoded_file import DecodedFile
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.record_rules import ReadLimits
from batch_pipeline.model.stream import CsvOptions, Source, SourceFormat, Stream
from batch_pipeline.storage.filesystem import FileFacts
from batch_pipeline_tests import factories
from batch_pipeline_tests.storage_roots import landed_file

COMMA = CsvOptions()
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
STREAM = factories.stream(key_properties=())


def stream_of(
    format: SourceFormat = SourceFormat.AUTO,  # noqa: A002 - as in stream files
    charset: str = "utf-8",
    csv: CsvOptions = COMMA,
    **limits: int,
) -> Stream:
    """Return a stream of files in this format and charset; `limits` are its read limits."""
    source = Source(uri="file:///landing", format=format, charset=charset, csv=csv)
    return replace(STREAM, source=source, read_limits=ReadLimits(**limits))


def landed(folder: Path, data: bytes, name: str = "orders") -> LandedFile:
    """Write a file and return its listing entry."""
    path = folder / name
    path.write_bytes(data)
    return landed_file(path)


def in_memory(data: bytes, stream: Stream = STREAM, part: ByteRange | None = None) -> DecodedFile:
    """Open bytes as a landed file."""
    file = LandedFile(location="file:///landing/orders")
    return DecodedFile(cast("Any", InMemoryFile(data)), stream, file, part)


class InMemoryFile:
    """Bytes in memory with the interface of a landed file."""

    trouble: OSError | None = None

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.raw: BufferedReader[Any] = BufferedReader(BytesIO(data))
        self.facts = FileFacts(size_bytes=len(data), modified_at=datetime(2026, 1, 1, tzinfo=UTC))

    def reopened(self) -> BinaryIO:
        return BytesIO(self._data)

    def check(self) -> None:
        """Do nothing: the bytes do not change."""


def parquet(table: pa.Table, **options: Any) -> bytes:
    """Return a parquet file of a table."""
    file = BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def negative_row_group() -> bytes:
    """Return a damaged parquet file: its row group claims -1 rows."""
    data = parquet(pa.table({"a": [1.5]}))
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")  # of the footer
    for at in range(start, len(data) - 8):
        damaged = data[:at] + b"\1" + data[at + 1 :]  # -1 in the encoding of numbers; 1 is 2
        with suppress(Exception):
            if data[at] == 2 and pq.read_metadata(BytesIO(damaged)).row_group(0).num_rows == -1:
                return damaged
    raise AssertionError("no byte of the footer is the number of rows")


def texts(chunks: Sequence[JsonRecords]) -> list[bytes]:
    return [line for chunk in chunks for line in chunk.lines]


def line_numbers(chunks: Sequence[JsonRecords]) -> list[int]:
    return [number for chunk in chunks for number in chunk.line_numbers]


def record_numbers(chunks: Sequence[JsonRecords]) -> list[int]:
    return [number for chunk in chunks for number in chunk.record_numbers]


def rejection(
    read: Callable[..., object], *arguments: Any, **options: Any
) -> tuple[int | None, str]:
    """Read a bad file, and return the line and the reason of the error."""
    with pytest.raises(BadFileError) as error:
        read(*arguments, **options)
    return error.value.line, error.value.reason


Rows = list[tuple[str | None, ...]]


def read_csv(
    data: bytes, options: CsvOptions = COMMA, **limits: Any
) -> tuple[Rows, list[MalformedRecord]]:
    """Read a whole csv file and return its rows and its malformed records."""
    stream = stream_of(SourceFormat.CSV, csv=options, **limits)
    rows: Rows = []
    bad: list[MalformedRecord] = []
    for chunk in CsvReader(in_memory(data, stream), stream).chunks():
        rows += [tuple(row.values()) for row in chunk.batch.to_pylist()]
        assert len(chunk.line_numbers) == len(chunk.record_numbers) == chunk.good
        bad += chunk.bad
    return rows, bad


def csv_text(rows: Rows, end: str, options: CsvOptions = COMMA) -> bytes:
    """Write rows as csv: None as an empty cell, an empty string as a quoted one."""
    quote, delimiter = options.quote, options.delimiter

    def cell(value: str | None) -> str:
        if value is None:
            return ""
        if value == "" or {quote, delimiter, "\r", "\n"} & set(value):
            return quote + value.replace(quote, quote * 2) + quote
        return value

    return "".join(delimiter.join(map(cell, row)) + end for row in rows).encode()
