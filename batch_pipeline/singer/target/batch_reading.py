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
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from batch_pipeline.domain.encoding import Compression, Format
from batch_pipeline.domain.location import shown
from batch_pipeline.singer.incoming import json_text
from batch_pipeline.singer.incoming.values import BatchMessage
from batch_pipeline.singer.target.refusals import BatchFileError
from batch_pipeline.stores.facts import FileFacts

_CHUNK = 1 << 20
_ISAL: Any = import_module("isal.igzip") if find_spec("isal") is not None else None
_GZIP: Any = _ISAL or gzip
_FAST: Any = import_module("isal.isal_zlib") if _ISAL else zlib
DAMAGES: tuple[type[Exception], ...] = (zlib.error, _FAST.error, zstandard.ZstdError, EOFError)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFile:
    """A file of a manifest; `path` is where its bytes can be read.

    Those of a store are copies, of the version that `facts` tell of.
    """

    location: str
    path: Path
    facts: FileFacts | None = None

    def __str__(self) -> str:
        return shown(self.location)


def refusal(message: BatchMessage, file: BatchFile | Path | str, problem: str) -> BatchFileError:
    """Say what is wrong with a file of a manifest."""
    return BatchFileError(message.line, f"{file} {problem}", message.stream, "manifest")


def records(
    message: BatchMessage, file: BatchFile, *, max_line_bytes: int
) -> Iterator[tuple[bytes | None, dict[str, Any]]]:
    """Give the records of a checked file, and what was written of each; None for parquet."""
    if message.encoding.format is Format.PARQUET:
        import pyarrow.parquet as pq

        with pq.ParquetFile(file.path) as table:
            for batch in table.iter_batches(10_000):
                for row in batch.to_pylist():
                    yield None, _plain(message, file, row)
        return
    for number, line in lines_of(message, file, max_line_bytes=max_line_bytes):
        record = json_text.EXACT.decode(line)
        if not json_text.is_complete(record, line):
            try:
                json_text.parse(line)
            except ValueError as error:
                raise refusal(message, file, f"line {number} has {error} twice") from error
        yield line, record


def lines_of(
    message: BatchMessage, file: BatchFile, *, max_line_bytes: int
) -> Iterator[tuple[int, bytes]]:
    """Give the lines of a file that are not blank with their numbers, from 1 on.

    Raises:
        BatchFileError: a line is longer than it may be; no more of it was read.
    """
    number = 0
    with _opened(message, file.path) as opened:
        while line := opened.readline(max_line_bytes + 1):
            number += 1
            if len(line) > max_line_bytes and not line.endswith(b"\n"):
                problem = f"line {number} has more than {max_line_bytes} bytes (`max_line_bytes`)"
                raise refusal(message, file, problem)
            text = line.strip()
            if text:
                yield number, text


@contextmanager
def _opened(message: BatchMessage, path: Path) -> Iterator[IO[bytes]]:
    """Open a file of JSON lines, compressed as its BATCH says."""
    match message.encoding.compression:
        case Compression.GZIP:
            with _GZIP.open(path, "rb") as file:
                yield cast("IO[bytes]", file)
        case Compression.ZSTD:
            with path.open("rb") as raw:
                reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
                yield cast("IO[bytes]", io.BufferedReader(reader, _CHUNK))
        case _:
            with path.open("rb", buffering=_CHUNK) as file:
                yield file


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
