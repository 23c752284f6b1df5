"""A whole command: `batch-pipeline run`, compared with PySpark, Polars and DuckDB.

The product registers, plans, encodes with every record validated, publishes and reports to Dagster;
the peers are short scripts that convert all files of a folder with default settings. All infer the
types, run on the same two cores and alternate; the output is read back. Seconds are those of the
command, peak memory that of all its processes and, for the product, of the embedded Postgres, which
is started before, except for the cold rows. Medians are printed, as on the page on performance.

Run `python -m batch_pipeline_tests.benchmarks end_to_end [--rows one-file nothing-new …]
[--ways ours polars …] [--repeat 3] [--records 100000] [--small-files 20000]`. The rows of a
million have ten times as many records. All rows need about 15 GB below the temporary directory.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batch_pipeline.config.stream_attributes import BatchAttributes
from batch_pipeline.inventory import embedded_server
from batch_pipeline.spark.java import find_java_home
from batch_pipeline_tests.acceptance.sandbox import command, new_sandbox
from batch_pipeline_tests.benchmarks import end_to_end_peers
from batch_pipeline_tests.benchmarks.encode_check import check
from batch_pipeline_tests.benchmarks.measures import (
    MB,
    PAGE_HEADER,
    Cost,
    page_row,
    pin_to_two_cores,
    rotations,
)
from batch_pipeline_tests.benchmarks.wide_records import CHECKED
from batch_pipeline_tests.benchmarks.workload import (
    CACHE,
    Facts,
    GeneratedFiles,
    Source,
    Workload,
    generate,
)

OURS = "ours"
WAYS = [OURS, *end_to_end_peers.PEERS]
_SUFFIXES = (".parquet", ".gz")
_SMALL_RECORDS = 50  # in a file of 2 KB


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The input of a command: files and, for the product, a home.

    `source` is None for narrow csv files, whose stream has published a file before. A home that is
    not `prepared` is new; if not `is_up`, the command starts and stops Postgres.
    """

    title: str
    source: Source | None = None
    records: int = 500
    files: int = 1
    prepared: bool = True
    is_up: bool = True

    @property
    def conversion(self) -> str:
        """The formats of input and output."""
        return "jsonl-jsonl" if self.source is Source.JSONL else "csv-parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A command to measure, and its output folder."""

    words: list[str]
    environment: dict[str, str]
    output: Path
    beside: int | None = None  # process id of a server


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", choices=_rows(1, 1), nargs="+", default=list(_rows(1, 1)))
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=WAYS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--small-files", type=int, default=20_000)
    parser.add_argument("--cache", type=Path, default=CACHE)
    args = parser.parse_args()
    pin_to_two_cores()
    rows = _rows(args.records, args.small_files)
    print(f"two cores, load {os.getloadavg()[0]:.1f} at the start, {args.repeat} times each")
    print(f"\n{PAGE_HEADER}", flush=True)
    for row in (rows[name] for name in args.rows):
        print(_page_row(row, _measure(row, args), args), flush=True)


def _rows(records: int, small_files: int) -> dict[str, Row]:
    rows = {
        "one-file": Row(title="one new csv file of 500 records"),
        "nothing-new": Row(title="nothing new", records=0, files=0),
        "cold-home": Row(title="500 records, first run of a home", prepared=False, is_up=False),
        "second-run": Row(title="500 records, second run, Postgres not up", is_up=False),
    }
    for source, to in ((Source.CSV, "parquet"), (Source.JSONL, "jsonl.gz")):
        for name, count, files in (
            *((f"{source}-{files}", records, files) for files in (1, 10, 200)),
            (f"{source}-million", 10 * records, 10),
        ):
            title = f"{source.suffix} → {to}, {count:,} × 150 in {files} files"
            rows[name] = Row(title=title, source=source, records=count, files=files)
    count = small_files * _SMALL_RECORDS
    title = f"{small_files:,} csv files of 2 KB"
    return rows | {"small-files": Row(title=title, records=count, files=small_files)}


Runs = dict[str, list[Cost | None]]


def _measure(row: Row, args: argparse.Namespace) -> Runs:
    """Measure a row, alternating between the ways; None is a run of a peer that failed."""
    runs: dict[str, list[Cost | None]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        files = _files(row, Path(folder), args.cache)
        for ways in rotations(args.ways, args.repeat):
            for way in ways:
                runs[way].append(_run(way, row, files))
                sys.stderr.write(f"{row.title} {way} {runs[way][-1]}\n")  # progress
    return runs


def _page_row(row: Row, runs: Runs, args: argparse.Namespace) -> str:
    results: dict[str, tuple[float, float] | None] = {}
    for way in args.ways:
        costs = [cost for cost in runs[way] if cost is not None]
        results[way] = None
        if len(costs) == args.repeat:
            peak = statistics.median(cost.peak_bytes for cost in costs) / MB
            results[way] = statistics.median(cost.seconds for cost in costs), peak
    return page_row(row.title, "total", results)


def _run(way: str, row: Row, files: GeneratedFiles) -> Cost | None:
    """Measure one command and check its output; return None if a peer fails.

    Raises:
        AssertionError: the product failed, or the output is wrong.
    """
    with _ours(row, files) if way == OURS else _peer(way, row, files) as task:
        before = set(task.output.rglob("*"))
        report = task.output / "report.json"
        watch_command = [sys.executable, "-m", "batch_pipeline_tests.benchmarks.watched_command"]
        beside = [] if task.beside is None else ["--beside", str(task.beside)]
        result = subprocess.run(
            [*watch_command, *beside, str(report), *task.words],
            cwd=Path(__file__).parents[2],
            env=task.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            sys.stderr.write(result.stdout + result.stderr[-4_000:])
            assert way != OURS, "batch-pipeline run failed"
            return None
        new = {path for path in task.output.rglob("*") if path.suffix in _SUFFIXES} - before
        assert bool(new) == bool(row.records), f"{way} wrote {new}"
        if new:
            check(new, files.facts)
        return Cost(**json.loads(report.read_text()))


@contextmanager
def _ours(row: Row, files: GeneratedFiles) -> Iterator[Task]:
    """Prepare a home whose stream `orders` has published one file."""
    stream = "orders" if row.source is None else "wide"
    parquet = {"format": "parquet", "compression": "snappy"}  # default compressions everywhere
    batch = {"max_count": BatchAttributes().max_count}  # the default
    encoding = parquet if row.conversion == "csv-parquet" else {}
    with new_sandbox() as sandbox:
        postgres = sandbox.home / "postgres"
        sandbox.write_stream("orders", batch=batch, encoding=parquet)
        if stream == "wide":
            source = {"include": ["wide-*"], "format": "auto"}
            sandbox.write_stream("wide", source=source, batch=batch, encoding=encoding)
        for name in ("orders", stream):
            sandbox.landing(name).mkdir(parents=True, exist_ok=True)
            sandbox.storage(name).mkdir(parents=True, exist_ok=True)
        if row.is_up:
            embedded_server.ensure_running(postgres)
        try:
            if row.prepared:
                sandbox.land("orders", {"before.csv": _csv(range(500))})
                sandbox.output_of("run")
            _link(files, sandbox.landing(stream))
            server = embedded_server.find_server(postgres) if row.is_up else None
            yield Task(
                words=command("run", stream),
                environment=sandbox.environment,
                output=sandbox.storage(stream),
                beside=None if server is None else server.pid,
            )
        finally:
            embedded_server.release(postgres)


@contextmanager
def _peer(way: str, row: Row, files: GeneratedFiles) -> Iterator[Task]:
    with tempfile.TemporaryDirectory(prefix="bp-") as name:
        landing, output = Path(name) / "landing", Path(name) / "out"
        landing.mkdir()
        output.mkdir()
        _link(files, landing)
        java = str(find_java_home(Path(name), os.environ))
        script = end_to_end_peers.__file__
        yield Task(
            words=[sys.executable, script, way, row.conversion, str(landing), str(output)],
            environment=dict(os.environ) | {"JAVA_HOME": java},
            output=output,
        )


def _link(files: GeneratedFiles, folder: Path) -> None:
    """Link files into a folder, or copy them where it is on another file system."""
    for path in files.paths:
        try:
            (folder / path.name).hardlink_to(path)
        except OSError:
            shutil.copy2(path, folder)


def _files(row: Row, folder: Path, cache: Path) -> GeneratedFiles:
    """Return the wide files of the cache, or write narrow ones into the folder."""
    if row.source is not None:
        return generate(Workload(source=row.source, records=row.records, files=row.files), cache)
    bounds = [row.records * number // max(row.files, 1) for number in range(row.files + 1)]
    paths = tuple(folder / f"orders-{number:05}.csv" for number in range(row.files))
    for number, path in enumerate(paths):
        path.write_bytes(_csv(range(bounds[number], bounds[number + 1])))
    sum_of_ids = sum(range(row.records))
    facts = Facts(records=row.records, sum_of_ids=sum_of_ids, sum_of_integers=2 * sum_of_ids)
    return GeneratedFiles(paths=paths, facts=facts)


def _csv(ids: range) -> bytes:
    lines = (f"{number},{2 * number},name {number},{number / 7:.12f}\n" for number in ids)
    return "".join([f"id,{CHECKED},name,amount\n", *lines]).encode()


if __name__ == "__main__":
    main()
