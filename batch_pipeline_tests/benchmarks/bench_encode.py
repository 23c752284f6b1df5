"""Encoding wide records beside the Singer SDK, DuckDB, Polars and PySpark: same files, same cores.

Every way converts the same generated files on the same two cores, in turn, round after round; what
it wrote is read back and checked each time. Peers run in processes of their own, are told the
types, and are timed without their start; ours runs on a warm session with the columns known.
MB/s are of the records as JSON lines, whatever the source. The peak of ours is that of the largest
Spark worker, and the benchmark fails when it is above 512 MB, however large a file is (`--files
1`); it never fails because of a time.

Run `python -m batch_pipeline_tests.benchmarks encode [--records 100000] [--files 10] [--rounds 2]
[--only jsonl-jsonl …] [--peers [sdk …]]`. The files (about 1 GB for 100,000 records) and an
environment for the peers are made once, below the temporary directory.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from batch_pipeline.model.location import to_uri
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline_tests.benchmarks.encode_check import check
from batch_pipeline_tests.benchmarks.encode_ours import Ours, items, opened
from batch_pipeline_tests.benchmarks.encode_peers import PEERS
from batch_pipeline_tests.benchmarks.measures import MB, SparkMeter, Spent, pin_to_two_cores
from batch_pipeline_tests.benchmarks.peer_runs import Peers
from batch_pipeline_tests.benchmarks.workload import (
    CACHE,
    CONVERSIONS,
    Conversion,
    Made,
    Workload,
    made,
)

OURS = "ours"
MOST_MB = 512  # of a worker
HEADER = (
    f"{'conversion':14} {'way':8} {'median s':>8} {'from':>7} {'to':>7} {'CPU s':>7} {'MB/s':>7} "
    f"{'out MB':>8} {'peak MB':>8} {'ours is':>9}"
)


@dataclass(slots=True, kw_only=True)
class Case:
    """One conversion of some files, and by way what its runs took and the bytes it writes."""

    conversion: Conversion
    files: Made
    schema: RecordSchema
    spent: dict[str, list[Spent]] = field(default_factory=lambda: defaultdict(list))
    size_bytes: dict[str, int] = field(default_factory=dict)

    def is_done_by(self, way: str) -> bool:
        """Return whether a way takes part: the SDK's batcher knows but one conversion."""
        return way != "sdk" or self.conversion.name == "jsonl-jsonl"

    def seconds(self, way: str) -> float:
        """Return the median of a way."""
        return statistics.median(one.seconds for one in self.spent[way])

    def peak_mb(self, way: str) -> float:
        """Return the highest peak of a way."""
        return max(one.peak_bytes for one in self.spent[way]) / MB

    def row(self, way: str) -> str:
        """Return the line of the table."""
        seconds = [one.seconds for one in self.spent[way]]
        processor = statistics.median(one.processor_seconds for one in self.spent[way])
        ratio = "" if way == OURS else f"{self.seconds(way) / self.seconds(OURS):.2f} ×"
        return (
            f"{self.conversion.name:14} {way:8} {self.seconds(way):8.2f} {min(seconds):7.2f} "
            f"{max(seconds):7.2f} {processor:7.2f} "
            f"{self.files.facts.text_bytes / MB / self.seconds(way):7.0f} "
            f"{self.size_bytes[way] / MB:8.1f} {self.peak_mb(way):8.0f} {ratio:>9}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Everything that runs need; they write into `folder`."""

    ours: Ours
    peers: Peers
    folder: Path

    def case(self, conversion: Conversion, files: Made) -> Case:
        """Let ours find the columns, for which it is not timed."""
        self._empty()
        found = items(files.paths)
        schema = self.ours.learn(found, to_uri(self.folder), conversion.encoding)
        return Case(conversion=conversion, files=files, schema=schema)

    def run(self, way: str, case: Case) -> None:
        """Convert once, check what was written, and add the result to the case."""
        self._empty()
        conversion, paths = case.conversion, case.files.paths
        if way == OURS:
            meter = SparkMeter()
            root = to_uri(self.folder)
            self.ours.encode(items(paths), root, conversion.encoding, case.schema)
            spent = meter.spent()
        else:
            spent = self.peers.run(way, conversion, paths, self.folder)
        outputs = (
            path for path in self.folder.rglob("[!._]*") if path.is_file()
        )  # not Spark's own
        case.size_bytes[way] = check(outputs, case.files.facts)
        case.spent[way].append(spent)
        sys.stderr.write(f"{conversion.name} {way} {spent.seconds:.2f} s\n")  # progress

    def _empty(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()


def main() -> None:
    """Measure what the arguments ask for and print it."""
    given = _arguments()
    pin_to_two_cores()
    peers = Peers.installed(given.cache)
    print(f"two cores; {peers.versions()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="bp-") as folder, opened() as ours:
        cases = _compared(Bench(ours=ours, peers=peers, folder=Path(folder) / "out"), given)
    print(f"{given.records:,} records in {given.files:,} files, {given.rounds} rounds\n\n{HEADER}")
    for case in cases:
        for way in case.spent:
            print(case.row(way))
    if any(case.peak_mb(OURS) > MOST_MB for case in cases):
        sys.exit(f"a Spark worker took more than {MOST_MB} MB")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=CONVERSIONS, nargs="+", default=list(CONVERSIONS))
    parser.add_argument("--peers", choices=PEERS, nargs="*", default=list(PEERS))
    parser.add_argument("--cache", type=Path, default=CACHE)
    return parser.parse_args()


def _compared(bench: Bench, given: argparse.Namespace) -> list[Case]:
    """Measure ours and the peers, conversion by conversion within each round."""
    cases = []
    for conversion in (CONVERSIONS[name] for name in given.only):
        workload = Workload(source=conversion.source, records=given.records, files=given.files)
        cases.append(bench.case(conversion, made(workload, given.cache)))
    ways = [OURS, *given.peers]
    for number in range(given.rounds):
        first = number % len(ways)  # none is always the first one
        for case in cases:
            for way in ways[first:] + ways[:first]:
                if case.is_done_by(way):
                    bench.run(way, case)
    return cases


if __name__ == "__main__":
    main()
