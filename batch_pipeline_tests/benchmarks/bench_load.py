"""Loading wide records into a table of Postgres beside a bare COPY of a prepared CSV.

The same 100,000 records of 150 columns go into the same table (bigint, double precision, text,
timestamptz), on an embedded server with its usual flush: as a prepared CSV, by `COPY` alone, into a
table with the storage parameters of those that loads create (`copy-whole`, which the other ways are
compared with) and into one with the server's defaults (`copy`); and by the load step from
published part files, checked by their SHA-256, with its bookkeeping, in one transaction. The peak
is that of the process that loads; the server is left out. Each load runs in a process of its own.

Run `python -m batch_pipeline_tests.benchmarks load [--records 100000] [--files 10] [--rounds 3]
[--only copy jsonl …]`.
"""

import argparse
import hashlib
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv, parquet

from batch_pipeline.load.tables import TOAST_SETTING
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.load import WriteMode
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline_tests.benchmarks.load_published import TABLE, load_apart, loading_of
from batch_pipeline_tests.benchmarks.measures import MB, Spent
from batch_pipeline_tests.benchmarks.servers import check_table, database, server
from batch_pipeline_tests.benchmarks.wide_records import column_kinds
from batch_pipeline_tests.benchmarks.workload import (
    CACHE,
    JSONL_GZIP,
    Made,
    Source,
    Workload,
    made,
)

COPIES = {"copy": sql.SQL(""), "copy-whole": TOAST_SETTING}
_PIECE_BYTES = 2**20
_TYPES = {
    "integer": ColumnType.INTEGER,
    "float": ColumnType.NUMBER,
    "text": ColumnType.STRING,
    "timestamp": ColumnType.TIMESTAMP,
}
HEADER = (
    f"{'way':16} {'median s':>8} {'from':>7} {'to':>7} {'CPU s':>7} {'peak MB':>8} "
    f"{'of copy-whole':>13}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What is loaded, and how."""

    source: Source
    encoding: Encoding
    mode: WriteMode = WriteMode.APPEND


_SNAPPY = Encoding(format=Format.PARQUET, compression=Compression.SNAPPY)
WAYS = {
    "jsonl": Way(source=Source.JSONL, encoding=JSONL_GZIP),
    "parquet": Way(source=Source.TYPED, encoding=_SNAPPY),
    "jsonl-upsert": Way(source=Source.JSONL, encoding=JSONL_GZIP, mode=WriteMode.UPSERT),
    "parquet-upsert": Way(source=Source.TYPED, encoding=_SNAPPY, mode=WriteMode.UPSERT),
}
ALL = [*COPIES, *WAYS]


def main() -> None:
    """Measure what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=ALL, nargs="+", default=ALL)
    parser.add_argument("--cache", type=Path, default=CACHE)
    given = parser.parse_args()
    spent: dict[str, list[Spent]] = defaultdict(list)
    with server() as url:
        for number in range(given.rounds):
            first = number % len(given.only)  # none is always the first one
            for name in given.only[first:] + given.only[:first]:
                spent[name].append(_run(url, name, given))
                sys.stderr.write(f"{name} {spent[name][-1].seconds:.2f} s\n")  # progress
    print(f"{given.records:,} records in {given.files} files, {given.rounds} rounds\n{HEADER}")
    for name, each in spent.items():
        print(_line(name, each, spent.get("copy-whole")))


def _run(url: str, name: str, given: argparse.Namespace) -> Spent:
    """Load into an empty database, check what is there, and return what it took."""
    source = WAYS[name].source if name in WAYS else Source.TYPED
    files = made(Workload(source=source, records=given.records, files=given.files), given.cache)
    with database(url) as warehouse:
        if name in COPIES:
            spent = _bare_copy(warehouse, _prepared_csv(files), COPIES[name])
        else:
            way = WAYS[name]
            loading = loading_of(_schema(), way.encoding, list(_part_files(files)))
            spent = load_apart(warehouse, way.mode, loading)
        check_table(warehouse, f"public.{TABLE}", files.facts)
    return spent


def _bare_copy(url: str, prepared: Path, kept: sql.SQL) -> Spent:
    """Copy a CSV into a new table, whose rows are kept as `kept` says."""
    types = {"integer": "bigint", "float": "double precision", "timestamp": "timestamptz"}
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(types.get(kind, "text")))
        for name, kind in column_kinds(typed=True).items()
    ]
    create = sql.SQL("CREATE TABLE {} ({}) {}")
    statement = sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(sql.Identifier(TABLE))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(create.format(sql.Identifier(TABLE), sql.SQL(", ").join(columns), kept))
        started, processor = time.perf_counter(), time.process_time()
        with connection.cursor().copy(statement) as copy, prepared.open("rb") as file:
            while octets := file.read(_PIECE_BYTES):
                copy.write(octets)
        return Spent(
            seconds=time.perf_counter() - started,
            processor_seconds=time.process_time() - processor,
            peak_bytes=0,
        )


def _prepared_csv(files: Made) -> Path:
    """Return the records of typed parquet files as one CSV beside them; it is made once."""
    prepared = files.paths[0].parent / "whole.csv"
    if not prepared.exists():
        aside = prepared.with_suffix(".tmp")
        schema = parquet.read_schema(files.paths[0])
        options = csv.WriteOptions(include_header=False)
        with csv.CSVWriter(aside, schema, write_options=options) as writer:
            for batch in _batches(files):
                writer.write_batch(batch)
        aside.rename(prepared)
    return prepared


def _batches(files: Made) -> Iterator[pa.RecordBatch]:
    for path in files.paths:
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches()


def _schema() -> RecordSchema:
    kinds = column_kinds(typed=True).items()
    return RecordSchema(tuple(Column(name=name, type=_TYPES[kind]) for name, kind in kinds))


def _part_files(files: Made) -> Iterator[PartFile]:
    records, count = files.facts.records, len(files.paths)
    for number, path in enumerate(files.paths):
        yield PartFile(
            uri=to_uri(path),
            records=records * (number + 1) // count - records * number // count,
            size_bytes=path.stat().st_size,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )


def _line(name: str, each: list[Spent], floor: list[Spent] | None) -> str:
    seconds = [one.seconds for one in each]
    median = statistics.median(seconds)
    processor = statistics.median(one.processor_seconds for one in each)
    ratio = f"{median / statistics.median(one.seconds for one in floor):.2f} ×" if floor else ""
    peak = max(one.peak_bytes for one in each) / MB
    return (
        f"{name:16} {median:8.2f} {min(seconds):7.2f} {max(seconds):7.2f} {processor:7.2f} "
        f"{peak:8.0f} {ratio:>13}"
    )


if __name__ == "__main__":
    main()
