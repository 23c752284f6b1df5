"""Reads what is inside of the files of a BATCH. Which files they are is not known here."""

import base64
import gzip
import io
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from importlib import import_module
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from batch_pipeline.domain.encoding import Compression, Format
from batch_pipeline.domain.location import shown
from batch_pipeline.domain.roots import Roots
from batch_pipeline.singer.incoming import json_text
from batch_pipeline.singer.incoming.values import BatchMessage
from batch_pipeline.singer.target.refusals import BatchFileError
from batch_pipeline.stores.facts import FileFacts
from batch_pipeline.stores.within import open_within

_BLANKS = b" \t\r\n"  # of JSON
_CHUNK = 1 << 20
_RATIO_FROM = 64 * 2**20  # short files may well be blank
_AS_FOUND = Roots(uris=(), key="batch_roots", closed=False)  # at its real path, without links
_ISAL: Any = import_module("isal.igzip") if find_spec("isal") is not None else None
_GZIP: Any = _ISAL or gzip
_FAST: Any = import_module("isal.isal_zlib") if _ISAL else zlib
DAMAGES: tuple[type[Exception], ...] = (zlib.error, _FAST.error, zstandard.ZstdError, EOFError)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How long a line may be, and how many times larger a file may become."""

    max_line_bytes: int
    max_expansion: int = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFile:
    """A file of a manifest; `path` is where its bytes can be read, with no link on the way.

    Those of a store are copies, of the version that `facts` tell of.
    """

    location: str
    path: Path
    facts: FileFacts | None = None

    def __str__(self) -> str:
        return shown(self.location)

    def open(self) -> "BufferedReader[Any]":
        """Open it for reading.

        Raises:
            OSError: it cannot be opened, or a link has taken the place of it or of a folder.
        """
        if self.facts is not None:
            return self.path.open("rb")
        return open_within(self.location, _AS_FOUND)


def refusal(message: BatchMessage, file: BatchFile | Path | str, problem: str) -> BatchFileError:
    """Say what is wrong with a file of a manifest."""
    return BatchFileError(message.line, f"{file} {problem}", message.stream, "manifest")


def records(
    message: BatchMessage, file: BatchFile, limits: BatchLimits
) -> Iterator[tuple[bytes | None, dict[str, Any]]]:
    """Give the records of a checked file, and what was written of each; None for parquet.

    Raises:
        BatchFileError: a value has no meaning here, or a key is there twice.
    """
    if message.encoding.format is Format.PARQUET:
        for row in _rows(message, file):
            yield None, _plain(message, file, row)
        return
    for number, line in lines_of(message, file, limits):
        try:
            record = json_text.EXACT.decode(line)
            if not json_text.is_complete(record, line):
                json_text.parse(line)
        except json_text.TwiceError as error:
            raise refusal(message, file, f"line {number} has {error} twice") from error
        except json_text.UNREADABLE as error:
            problem = f"line {number} has a value that cannot be told ({error})"
            raise refusal(message, file, problem) from error
        yield line, record


def _rows(message: BatchMessage, file: BatchFile) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    first = 1
    try:
        with file.open() as opened, pq.ParquetFile(opened) as table:
            for batch in table.iter_batches(10_000):
                yield from batch.to_pylist()
                first += batch.num_rows
    except (ArithmeticError, ValueError, LookupError) as error:  # times and zones that Python lacks
        text = str(error).partition("\n")[0]
        problem = f"has a value, in record {first} or behind it, that cannot be told ({text})"
        raise refusal(message, file, problem) from error


def lines_of(
    message: BatchMessage, file: BatchFile, limits: BatchLimits
) -> Iterator[tuple[int, bytes]]:
    """Give the lines of a file that are not blank with their numbers, from 1 on.

    Raises:
        BatchFileError: a line is longer than it may be, or the file grows too much when it is
            decompressed; no more of it was read.
    """
    number = size_bytes = 0
    most = limits.max_line_bytes
    with file.open() as raw, _unpacked(message, raw) as opened:
        packed_bytes = raw.seek(0, io.SEEK_END)
        raw.seek(0)
        while line := opened.readline(most + 1):
            number += 1
            if len(line) > most and not line.endswith(b"\n"):
                problem = f"line {number} has more than {most} bytes (`max_line_bytes`)"
                raise refusal(message, file, problem)
            size_bytes += len(line)
            check_expansion(message, file, limits, packed_bytes, size_bytes)
            text = line.strip(_BLANKS)
            if text:
                yield number, text


def check_expansion(
    message: BatchMessage,
    file: BatchFile,
    limits: BatchLimits,
    packed_bytes: int,
    size_bytes: int,
) -> None:
    """Check how many times larger a file becomes when it is decompressed.

    Raises:
        BatchFileError: it is more than is allowed.
    """
    if size_bytes >= _RATIO_FROM and size_bytes > limits.max_expansion * packed_bytes:
        problem = (
            f"becomes more than {limits.max_expansion} times as large when it is decompressed "
            f"(`max_expansion`)"
        )
        raise refusal(message, file, problem)


@contextmanager
def _unpacked(message: BatchMessage, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """Give the JSON lines of an open file, compressed as its BATCH says."""
    match message.encoding.compression:
        case Compression.GZIP:
            with _GZIP.open(raw, "rb") as file:
                yield cast("IO[bytes]", file)
        case Compression.ZSTD:
            import pyarrow as pa

            # Other readers take data that breaks off for its end.
            with pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd") as reader:
                yield cast("IO[bytes]", io.BufferedReader(reader, _CHUNK))
        case _:
            yield raw


def _plain(message: BatchMessage, file: BatchFile, value: Any) -> Any:
    """Give a value of a table as JSON has it: times and binaries are text."""
    match value:
        case dict():
            return {str(name): _plain(message, file, one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(message, file, one) for one in value]
        case float() if not math.isfinite(value):
            raise refusal(message, file, f"has {value}, which is no number in JSON")
        case datetime() | date() | time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case timedelta():
            return str(value)
        case _:
            return value
