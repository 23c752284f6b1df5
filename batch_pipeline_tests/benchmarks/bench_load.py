"""Loading wide records into a Postgres table, compared with a plain COPY of a prepared CSV.

The same 100,000 records of 150 columns are loaded into the same table (bigint, double precision,
text, timestamptz) on an embedded server with its default flushing: a prepared CSV by `COPY` into a
table with the storage parameters of tables that loads create (`copy-whole`, the baseline) and into
one with the server's defaults (`copy`); and published part files by the load step, which verifies
their SHA-256 and records the load in the same transaction. The peak is that of the loading process
without the server. Each load runs in a process of its own.

Run `python -m batch_pipeline_tests.benchmarks load [--records 100000] [--files 10] [--rounds 3]
[--only copy jsonl …]`.
"""

import argparse
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
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline_tests.benchmarks.load_published import TABLE, load_in_process, loading_of
from batch_pipeline_tests.benchmarks.measures import MB, Cost, rotations
from batch_pipeline_tests.benchmarks.servers import check_table, database, server
from batch_pipeline_tests.benchmarks.wide_records import column_kinds
from batch_pipeline_tests.benchmarks.workload import (
    CACHE,
    JSONL_GZIP,
    GeneratedFiles,
    Source,
    Workload,
    generate,
)
from batch_pipeline_tests.published_files import described

COPIES = {"copy": sql.SQL(""), "copy-whole": TOAST_SETTING}
_BLOCK_BYTES = 2**20
_TYPES = {
    "integer": ColumnType.INTEGER,
    "float": ColumnType.NUMBER,
    "text": ColumnType.STRING,
    "timestamp": ColumnType.TIMESTAMP,
}
HEADER = f"{'way':16} {'median s':>8} {'peak MB':>8} {'of copy-whole':>13}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The source files, their encoding and the write mode of a load."""

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
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=ALL, nargs="+", default=ALL)
    parser.add_argument("--cache", type=Path, default=CACHE)
    args = parser.parse_args()
    costs: dict[str, list[Cost]] = defaultdict(list)
    with server() as url:
        for names in rotations(args.only, args.rounds):
            for name in names:
                costs[name].append(_run(url, name, args))
                sys.stderr.write(f"{name} {costs[name][-1].seconds:.2f} s\n")  # progress
    print(f"{args.records:,} records in {args.files} files, {args.rounds} rounds\n{HEADER}")
    medians = {name: statistics.median(cost.seconds for cost in costs[name]) for name in costs}
    for name, median in medians.items():
        ratio = f"{median / medians['copy-whole']:.2f} ×" if "copy-whole" in medians else ""
        peak = max(cost.peak_bytes for cost in costs[name]) / MB
        print(f"{name:16} {median:8.2f} {peak:8.0f} {ratio:>13}")


def _run(url: str, name: str, args: argparse.Namespace) -> Cost:
    """Load into an empty database, check the table, and return the cost."""
    source = WAYS[name].source if name in WAYS else Source.TYPED
    files = generate(Workload(source=source, records=args.records, files=args.files), args.cache)
    with database(url) as warehouse:
        if name in COPIES:
            cost = _copy(warehouse, _prepared_csv(files), COPIES[name])
        else:
            way = WAYS[name]
            loading = loading_of(_schema(), way.encoding, list(_part_files(files)))
            cost = load_in_process(warehouse, way.mode, loading)
        check_table(warehouse, f"public.{TABLE}", files.facts)
    return cost


def _copy(url: str, prepared: Path, storage_parameters: sql.SQL) -> Cost:
    """Copy a CSV into a new table with some storage parameters."""
    types = {"integer": "bigint", "float": "double precision", "timestamp": "timestamptz"}
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(types.get(kind, "text")))
        for name, kind in column_kinds(typed=True).items()
    ]
    create = sql.SQL("CREATE TABLE {} ({}) {}")
    statement = sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(sql.Identifier(TABLE))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            create.format(sql.Identifier(TABLE), sql.SQL(", ").join(columns), storage_parameters)
        )
        started = time.perf_counter()
        with connection.cursor().copy(statement) as copy, prepared.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                copy.write(block)
        return Cost(seconds=time.perf_counter() - started, peak_bytes=0)


def _prepared_csv(files: GeneratedFiles) -> Path:
    """Return the records of typed parquet files as one CSV, which is created once."""
    prepared = files.paths[0].parent / "whole.csv"
    if not prepared.exists():
        temporary = prepared.with_suffix(".tmp")
        schema = parquet.read_schema(files.paths[0])
        options = csv.WriteOptions(include_header=False)
        with csv.CSVWriter(temporary, schema, write_options=options) as writer:
            for batch in _batches(files):
                writer.write_batch(batch)
        temporary.rename(prepared)
    return prepared


def _batches(files: GeneratedFiles) -> Iterator[pa.RecordBatch]:
    for path in files.paths:
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches()


def _schema() -> RecordSchema:
    kinds = column_kinds(typed=True).items()
    return RecordSchema(tuple(Column(name=name, type=_TYPES[kind]) for name, kind in kinds))


def _part_files(files: GeneratedFiles) -> Iterator[PartFile]:
    records, count = files.facts.records, len(files.paths)
    for number, path in enumerate(files.paths):
        yield described(path, records * (number + 1) // count - records * number // count)


if __name__ == "__main__":
    main()
