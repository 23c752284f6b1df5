"""Files of wide records, made once into a cache folder, and the conversions of them.

Same arguments, same files. What the records hold is known elsewhere; nothing is measured here.
"""

import json
import multiprocessing
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline_tests.benchmarks.wide_records import CHECKED, json_text, records

CACHE = Path(tempfile.gettempdir()) / "batch-pipeline-benchmarks"
_BLOCK_RECORDS = 10_000
_GZIP_LEVEL = 6


class Source(StrEnum):
    """What the generated files are; `typed` is parquet whose timestamps are no text."""

    JSONL = "jsonl"
    CSV = "csv"
    TYPED = "typed"

    @property
    def suffix(self) -> str:
        """File name ending."""
        return {Source.JSONL: "jsonl.gz", Source.CSV: "csv", Source.TYPED: "parquet"}[self]


JSONL_GZIP = Encoding(format=Format.JSONL, compression=Compression.GZIP)
_PARQUET_ZSTD = Encoding(format=Format.PARQUET, compression=Compression.ZSTD, level=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """From generated files of one kind to one encoding."""

    source: Source
    encoding: Encoding

    @property
    def name(self) -> str:
        """What the command line calls it."""
        return f"{self.source}-{self.encoding.format}"


CONVERSIONS = {
    one.name: one
    for one in (
        Conversion(source=Source.JSONL, encoding=JSONL_GZIP),
        Conversion(source=Source.JSONL, encoding=_PARQUET_ZSTD),
        Conversion(source=Source.CSV, encoding=_PARQUET_ZSTD),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """So many records in so many files of one kind."""

    source: Source
    records: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What readers must find; `text_bytes` is what the records take as JSON lines."""

    records: int
    sum_of_ids: int
    sum_of_integers: int
    text_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Generated files, in order, and what is in them."""

    paths: tuple[Path, ...]
    facts: Facts


def made(workload: Workload, cache: Path) -> Made:
    """Give the files of a workload; they are generated, two at a time, if they are not there."""
    folder = cache / f"{workload.source}-{workload.records}-{workload.files}"
    facts = folder / "facts.json"
    if not facts.exists():
        cache.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=cache, prefix=".making-"))
        _make(workload, aside)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    paths = tuple(sorted(folder.glob(f"*.{workload.source.suffix}")))
    return Made(paths=paths, facts=Facts(**json.loads(facts.read_text())))


def _make(workload: Workload, folder: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=2, mp_context=spawn) as executor:
        each = list(executor.map(partial(_make_file, workload, folder), range(workload.files)))
    facts = {
        "records": workload.records,
        "sum_of_ids": workload.records * (workload.records + 1) // 2,
        "sum_of_integers": sum(integers for integers, _ in each),
        "text_bytes": sum(text_bytes for _, text_bytes in each),
    }
    (folder / "facts.json").write_text(json.dumps(facts))


def _make_file(workload: Workload, folder: Path, number: int) -> tuple[int, int]:
    first = workload.records * number // workload.files
    last = workload.records * (number + 1) // workload.files
    path = folder / f"wide-{number:05}.{workload.source.suffix}"
    sums = text_bytes = 0
    with _writers(workload.source, path) as write:
        for start in range(first, last, _BLOCK_RECORDS):
            stop = min(start + _BLOCK_RECORDS, last)
            block = records(start + 1, stop - start, typed=workload.source is Source.TYPED)
            text_bytes += write(block)
            sums += pc.sum(block.column(CHECKED)).as_py()
    return sums, text_bytes


@contextmanager
def _writers(source: Source, path: Path) -> Iterator[Callable[[pa.RecordBatch], int]]:
    """Open a file; what it gives writes records and tells what they take as JSON lines."""
    if source is Source.JSONL:
        compressor = zlib.compressobj(_GZIP_LEVEL, wbits=31)
        with path.open("wb") as file:

            def write_lines(block: pa.RecordBatch) -> int:
                text = json_text(block)
                file.write(compressor.compress(text))
                return len(text)

            yield write_lines
            file.write(compressor.flush())
        return
    schema = records(1, 1, typed=source is Source.TYPED).schema
    if source is Source.CSV:
        options = csv.WriteOptions(quoting_style="needed")
        with csv.CSVWriter(path, schema, write_options=options) as writer:
            yield partial(_written, writer.write_batch)
        return
    with pq.ParquetWriter(path, schema, compression="snappy") as writer:
        yield partial(_written, writer.write_batch)


def _written(write: Callable[[pa.RecordBatch], None], block: pa.RecordBatch) -> int:
    write(block)
    return len(json_text(block))
