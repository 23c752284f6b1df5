"""Loading wide records into a table of Postgres beside a bare COPY of a prepared CSV.

The same 100,000 records of 150 columns go into the same table (bigint, double precision, text,
timestamptz), on an embedded server with its usual flush: as a prepared CSV, by `COPY` alone, into a
table with the storage parameters of those that loads create (`copy-whole`, which the other ways are
compared with first) and into one with the server's defaults (`copy`); and by the load step from
published part files, checked by their SHA-256, with its bookkeeping, in one transaction. The peak
is that of the process that loads; the server is left out. Each load runs in a process of its own.

Run `python -m batch_pipeline_tests.benchmarks load [--records 100000] [--files 10] [--rounds 3]
[--only copy,jsonl,…]`.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv, parquet

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.load import Loading
from batch_pipeline.domain.location import to_uri
from batch_pipeline.domain.manifest import Manifest, PartFile
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema
from batch_pipeline.domain.target import PostgresTarget, WriteMode
from batch_pipeline.postgres.loader import PostgresLoader
from batch_pipeline.postgres.tables import KEPT_WHOLE
from batch_pipeline_tests import factories
from batch_pipeline_tests.benchmarks.bench_encode import MB, names
from batch_pipeline_tests.benchmarks.encode_workload import CACHE, Made, Source, Workload, made
from batch_pipeline_tests.benchmarks.server import server
from batch_pipeline_tests.benchmarks.wide_records import CHECKED, column_kinds

TABLE = "wide"
COPY = "copy"
COPY_WHOLE = "copy-whole"
_MODULE = "batch_pipeline_tests.benchmarks.bench_load"
_PIECE_BYTES = 2**20
_TYPES = {
    "integer": ColumnType.INTEGER,
    "float": ColumnType.NUMBER,
    "text": ColumnType.STRING,
    "timestamp": ColumnType.TIMESTAMP,
}
SCHEMA = RecordSchema(
    tuple(Column(name=n, type=_TYPES[kind]) for n, kind in column_kinds(typed=True).items())
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What is loaded, and how."""

    source: Source
    encoding: Encoding
    mode: WriteMode = WriteMode.APPEND


_GZIP = Encoding(format=Format.JSONL, compression=Compression.GZIP)
_SNAPPY = Encoding(format=Format.PARQUET, compression=Compression.SNAPPY)
WAYS = {
    "jsonl": Way(source=Source.JSONL, encoding=_GZIP),
    "parquet": Way(source=Source.TYPED, encoding=_SNAPPY),
    "jsonl-upsert": Way(source=Source.JSONL, encoding=_GZIP, mode=WriteMode.UPSERT),
    "parquet-upsert": Way(source=Source.TYPED, encoding=_SNAPPY, mode=WriteMode.UPSERT),
}
ALL = [COPY, COPY_WHOLE, *WAYS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a load took."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


def main() -> None:
    """Measure what the arguments ask for and print it."""
    if sys.argv[1:2] == ["--load"]:
        _load_once(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=names(ALL), default=ALL)
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
        print(_line(name, each, [spent.get(COPY_WHOLE), spent.get(COPY)]))


def _run(url: str, name: str, given: argparse.Namespace) -> Spent:
    """Load into an empty server, check what is there, and give what it took."""
    source = WAYS[name].source if name in WAYS else Source.TYPED
    files = made(Workload(source=source, records=given.records, files=given.files), given.cache)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}, batch_pipeline_load")
        connection.execute("CHECKPOINT")
        if name not in WAYS:
            kept = KEPT_WHOLE if name == COPY_WHOLE else sql.SQL("")
            spent = bare_copy(connection, prepared_csv(files), kept)
        else:
            command = [
                sys.executable,
                "-m",
                _MODULE,
                "--load",
                url,
                name,
                str(files.paths[0].parent),
            ]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            spent = Spent(**json.loads(output))
        found = connection.execute(
            sql.SQL("SELECT count(*), sum(id), sum({}) FROM {}").format(
                sql.Identifier(CHECKED), sql.Identifier(TABLE)
            )
        ).fetchone()
    facts = files.facts
    assert found == (facts.records, facts.sum_of_ids, facts.sum_of_integers), found
    return spent


def bare_copy(
    connection: "psycopg.Connection[tuple[object, ...]]",
    prepared: Path,
    kept: sql.SQL,
) -> Spent:
    """Copy a CSV into a new table, whose rows are kept as `kept` says."""
    types = {"integer": "bigint", "float": "double precision", "timestamp": "timestamptz"}
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(types.get(kind, "text")))
        for name, kind in column_kinds(typed=True).items()
    ]
    create = sql.SQL("CREATE TABLE {} ({}) {}")
    connection.execute(create.format(sql.Identifier(TABLE), sql.SQL(", ").join(columns), kept))
    started, processor = time.perf_counter(), time.process_time()
    statement = sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(sql.Identifier(TABLE))
    with connection.cursor().copy(statement) as copy, prepared.open("rb") as file:
        while octets := file.read(_PIECE_BYTES):
            copy.write(octets)
    return Spent(
        seconds=time.perf_counter() - started,
        processor_seconds=time.process_time() - processor,
        peak_bytes=0,
    )


def prepared_csv(files: Made) -> Path:
    """Give the records of typed parquet files as one CSV beside them; it is made once."""
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


def _load_once(url: str, name: str, folder: str) -> None:
    """Load in this process, and print what it took."""
    way = WAYS[name]
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE", table=TABLE, mode=way.mode)
    loading = Loading(
        stream="wide",
        publish_number=1,
        label="000000000001-000000000010",
        manifest=_manifest(way, Path(folder)),
        message_name=TABLE,
    )
    started, processor = time.perf_counter(), time.process_time()
    with closing(PostgresLoader(target, url)) as loader:
        loader.load(loading, folder)
    spent = Spent(
        seconds=time.perf_counter() - started,
        processor_seconds=time.process_time() - processor,
        peak_bytes=_peak_bytes(),
    )
    print(json.dumps(asdict(spent)))


def _peak_bytes() -> int:
    # Not what getrusage says, which goes on with the peak of the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _manifest(way: Way, folder: Path) -> Manifest:
    paths = sorted(folder.glob(f"*.{way.source.suffix}"))
    records = json.loads((folder / "facts.json").read_text())["records"]
    parts = (
        PartFile(
            uri=to_uri(path),
            records=records * (number + 1) // len(paths) - records * number // len(paths),
            size_bytes=path.stat().st_size,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for number, path in enumerate(paths)
    )
    return factories.manifest(
        encoding=way.encoding, schema=SCHEMA, key_properties=("id",), part_files=tuple(parts)
    )


def _line(name: str, each: list[Spent], floors: list[list[Spent] | None]) -> str:
    seconds = [one.seconds for one in each]
    median = statistics.median(seconds)
    processor = statistics.median(one.processor_seconds for one in each)
    ratios = [
        f"{median / statistics.median(one.seconds for one in floor):.2f} ×" if floor else ""
        for floor in floors
    ]
    peak = max(one.peak_bytes for one in each) / MB
    return (
        f"{name:16} {median:8.2f} {min(seconds):7.2f} {max(seconds):7.2f} {processor:7.2f} "
        f"{peak:8.0f} {ratios[0]:>12} {ratios[1]:>12}"
    )


HEADER = (
    f"{'way':16} {'median s':>8} {'from':>7} {'to':>7} {'CPU s':>7} {'peak MB':>8} "
    f"{'of copy-whole':>12} {'of copy':>11}"
)


if __name__ == "__main__":
    main()
