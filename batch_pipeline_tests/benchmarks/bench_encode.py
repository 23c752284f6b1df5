"""Encoding wide records on Spark, compared with the Singer SDK, DuckDB, Polars and PySpark.

All convert the same generated files on the same two cores, alternately; the output is read back and
checked each time. Peers run in separate processes, get the types, and are timed without their
start; the product runs on a warm session with known columns. Peaks are of all processes, shared
pages counted once. The benchmark fails if a Spark worker exceeds 512 MB, however large a file is
(`--files 1`), but never because of a time. The last table is for the page on performance.

Run `python -m batch_pipeline_tests.benchmarks encode [--records 100000] [--files 10] [--rounds 2]
[--only jsonl-jsonl …] [--peers [sdk …]]`. The files (about 1 GB for 100,000 records) are cached
below the temporary directory.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import psutil

from batch_pipeline.model.encoding import Format
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.spark.java import find_java_home
from batch_pipeline_tests.benchmarks import encode_peers
from batch_pipeline_tests.benchmarks.encode_check import check
from batch_pipeline_tests.benchmarks.encode_ours import ProductEncoder, items, open_encoder
from batch_pipeline_tests.benchmarks.encode_peers import PEERS, THREADS
from batch_pipeline_tests.benchmarks.measures import (
    MB,
    PAGE_HEADER,
    Cost,
    PeakMemory,
    SparkMeter,
    page_row,
    pin_to_two_cores,
    rotations,
    tree,
)
from batch_pipeline_tests.benchmarks.wide_records import column_kinds
from batch_pipeline_tests.benchmarks.workload import (
    CACHE,
    CONVERSIONS,
    Conversion,
    GeneratedFiles,
    Workload,
    generate,
)

OURS = "ours"
MAX_WORKER_MB = 512  # of a worker
HEADER = f"{'conversion':14} {'way':8} {'median s':>8} {'out MB':>8} {'peak MB':>8} {'ours is':>9}"


@dataclass(slots=True, kw_only=True)
class Case:
    """One conversion of some files; costs and output sizes by way."""

    conversion: Conversion
    files: GeneratedFiles
    schema: RecordSchema
    costs: dict[str, list[Cost]] = field(default_factory=lambda: defaultdict(list))
    size_bytes: dict[str, int] = field(default_factory=dict)

    def is_done_by(self, way: str) -> bool:
        """Return whether a way supports the conversion; the SDK's batcher supports only one."""
        return way != "sdk" or self.conversion.name == "jsonl-jsonl"

    def seconds(self, way: str) -> float:
        """Return the median seconds of a way."""
        return statistics.median(cost.seconds for cost in self.costs[way])

    def peak_mb(self, way: str) -> float:
        """Return the highest peak of a way."""
        return max(cost.peak_bytes for cost in self.costs[way]) / MB

    def page_row(self) -> str:
        """Return the line of the page."""
        conversion, facts = self.conversion, self.files.facts
        target = "jsonl.gz" if conversion.encoding.format is Format.JSONL else "parquet"
        work = (
            f"{conversion.source.suffix} → {target}, {facts.records:,} × 150 "
            f"in {len(self.files.paths)} files"
        )
        return page_row(
            work, "warm", {way: (self.seconds(way), self.peak_mb(way)) for way in self.costs}
        )

    def row(self, way: str) -> str:
        """Return the table line of a way."""
        ratio = "" if way == OURS else f"{self.seconds(way) / self.seconds(OURS):.2f} ×"
        return (
            f"{self.conversion.name:14} {way:8} {self.seconds(way):8.2f} "
            f"{self.size_bytes[way] / MB:8.1f} {self.peak_mb(way):8.0f} {ratio:>9}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The resources of runs, which write into `folder`."""

    ours: ProductEncoder
    folder: Path

    def case(self, conversion: Conversion, files: GeneratedFiles) -> Case:
        """Infer the columns with the product, which is not timed, and return the case."""
        self._empty()
        landed = items(files.paths)
        schema = self.ours.infer_schema(landed, to_uri(self.folder), conversion.encoding)
        return Case(conversion=conversion, files=files, schema=schema)

    def run(self, way: str, case: Case) -> None:
        """Convert once, check the output, and add the costs to the case."""
        self._empty()
        conversion, paths = case.conversion, case.files.paths
        if way == OURS:
            meter = SparkMeter()
            root = to_uri(self.folder)
            self.ours.encode(items(paths), root, conversion.encoding, case.schema)
            cost = meter.stop()
        else:
            cost = _run_peer(way, conversion, paths, self.folder)
        # Spark also writes `_SUCCESS` and hidden checksum files.
        outputs = (path for path in self.folder.rglob("[!._]*") if path.is_file())
        case.size_bytes[way] = check(outputs, case.files.facts)
        case.costs[way].append(cost)
        sys.stderr.write(f"{conversion.name} {way} {cost.seconds:.2f} s\n")  # progress

    def _empty(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()


def _run_peer(peer: str, conversion: Conversion, paths: Sequence[Path], folder: Path) -> Cost:
    """Convert files into a folder by a peer in a process of its own."""
    job = {
        "peer": peer,
        "source": conversion.source.value,
        "to_json": conversion.encoding.format is Format.JSONL,
        "paths": [str(path) for path in paths],
        "folder": str(folder),
        "columns": column_kinds(),
    }
    java = find_java_home(Path(tempfile.gettempdir()), os.environ)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", encode_peers.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"POLARS_MAX_THREADS": str(THREADS), "JAVA_HOME": str(java)},
    ) as process:
        root = psutil.Process(process.pid)
        memory = PeakMemory(lambda: tree(root))
        output, errors = process.communicate(json.dumps(job))
        peak_bytes = memory.stop()
    assert process.returncode == 0, errors[-2_000:]
    return Cost(seconds=float(output), peak_bytes=peak_bytes)


def main() -> None:
    """Run the benchmark with the options of the command line."""
    args = _arguments()
    pin_to_two_cores()
    packages = ("singer-sdk", "duckdb", "polars", "pyspark")
    print("two cores;", ", ".join(f"{name} {version(name)}" for name in packages), flush=True)
    with tempfile.TemporaryDirectory(prefix="bp-") as folder, open_encoder() as ours:
        cases = _compare(Bench(ours=ours, folder=Path(folder) / "out"), args)
    print(f"{args.records:,} records in {args.files:,} files, {args.rounds} rounds\n\n{HEADER}")
    for case in cases:
        for way in case.costs:
            print(case.row(way))
    print("", PAGE_HEADER, *(case.page_row() for case in cases), sep="\n")
    costs = [cost for case in cases for cost in case.costs[OURS]]
    print(f"\nlargest Spark worker: {max(cost.worker_bytes for cost in costs) / MB:.0f} MB")
    if any(cost.worker_bytes > MAX_WORKER_MB * MB for cost in costs):
        sys.exit(f"a Spark worker took more than {MAX_WORKER_MB} MB")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=CONVERSIONS, nargs="+", default=list(CONVERSIONS))
    parser.add_argument("--peers", choices=PEERS, nargs="*", default=list(PEERS))
    parser.add_argument("--cache", type=Path, default=CACHE)
    return parser.parse_args()


def _compare(bench: Bench, args: argparse.Namespace) -> list[Case]:
    """Measure all ways, conversion by conversion within each round."""
    cases = []
    for conversion in (CONVERSIONS[name] for name in args.only):
        workload = Workload(source=conversion.source, records=args.records, files=args.files)
        cases.append(bench.case(conversion, generate(workload, args.cache)))
    ways = [OURS, *args.peers]
    for order in rotations(ways, args.rounds):
        for case in cases:
            for way in order:
                if case.is_done_by(way):
                    bench.run(way, case)
    return cases


if __name__ == "__main__":
    main()
