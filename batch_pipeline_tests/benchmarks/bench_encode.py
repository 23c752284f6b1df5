"""Encoding wide records on Spark beside the Singer SDK, DuckDB and Polars: same files, same cores.

Every way converts the same generated files on the same two cores, in turn, round after round; what
it wrote is read back and checked each time. Peers run in processes of their own, are told the
types, and are timed without their start; ours runs on a warm session with the columns known.
`typed` is parquet whose timestamps are no text; `duckdb-apart` is DuckDB without order, a file a
thread. MB/s are of the records as JSON lines, whatever the source.

Run `python -m batch_pipeline_tests.benchmarks encode [--records 100000] [--files 10] [--rounds 2]
[--only jsonl-jsonl,…]`. The files (about 1.5 GB for 100,000 records) and an environment for the
peers are made once, below the temporary directory.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline_tests.acceptance.workplace import new_workplace
from batch_pipeline_tests.benchmarks.encode_check import check
from batch_pipeline_tests.benchmarks.encode_conversion import CONVERSIONS, Conversion
from batch_pipeline_tests.benchmarks.encode_ours import Ours, opened
from batch_pipeline_tests.benchmarks.encode_peers import PEERS
from batch_pipeline_tests.benchmarks.encode_workload import CACHE, Made, Workload, made
from batch_pipeline_tests.benchmarks.peer_runs import Peers, open_peers
from batch_pipeline_tests.benchmarks.process_meter import Meter, Spent

MB = 1_000_000
CORES = 2
OURS = "ours"
USUAL_PEERS = ["sdk", "duckdb", "polars"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Everything that runs need; they write into `folder`."""

    ours: Ours
    peers: Peers
    folder: Path

    def case(self, conversion: Conversion, files: Made) -> "Case":
        """Let ours find the columns, which it is not timed for later."""
        self._empty()
        schema, seconds = self.ours.learn(files.paths, self.folder, conversion.encoding)
        return Case(conversion=conversion, files=files, schema=schema, learned_seconds=seconds)

    def run(self, way: str, case: "Case") -> None:
        """Convert once, check what was written, and add the result to the case."""
        self._empty()
        files = case.files
        if way == OURS:
            meter = Meter()
            self.ours.encode(files.paths, self.folder, case.conversion.encoding, case.schema)
            spent = meter.spent()
        else:
            spent = self.peers.run(way, case.conversion, files.paths, self.folder)
        outputs = (path for path in self.folder.rglob("*") if path.is_file())
        case.size_bytes[way] = check(outputs, files.facts)
        case.spent[way].append(spent)
        sys.stderr.write(f"{case.conversion.name} {way} {spent.seconds:.2f} s\n")  # progress

    def _empty(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()


@dataclass(slots=True, kw_only=True)
class Case:
    """One conversion of some files, and by way what its runs took and the bytes it writes."""

    conversion: Conversion
    files: Made
    schema: RecordSchema
    learned_seconds: float
    spent: dict[str, list[Spent]] = field(default_factory=lambda: defaultdict(list))
    size_bytes: dict[str, int] = field(default_factory=dict)

    def seconds(self, way: str) -> float:
        """Give the median of a way."""
        return statistics.median(one.seconds for one in self.spent[way])

    def row(self, name: str, way: str) -> str:
        """Write the line of the table."""
        seconds = [one.seconds for one in self.spent[way]]
        processor = statistics.median(one.processor_seconds for one in self.spent[way])
        ratio = "" if way == OURS else f"{self.seconds(way) / self.seconds(OURS):.2f} ×"
        return (
            f"{name:34} {way:12} {self.seconds(way):8.2f} {min(seconds):7.2f} {max(seconds):7.2f} "
            f"{processor:7.2f} {self.files.facts.text_bytes / MB / self.seconds(way):7.0f} "
            f"{self.size_bytes[way] / MB:8.1f} "
            f"{max(one.peak_bytes for one in self.spent[way]) / MB:8.0f} {ratio:>9}"
        )


def main() -> None:
    """Measure what the arguments ask for and print it."""
    given = _arguments()
    with suppress(AttributeError):  # not every system can pin a process
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    peers = open_peers(given.cache)
    versions = (f"{name} {version}" for name, version in peers.versions.items())
    print(f"two cores; {', '.join(versions)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="bp-") as folder, opened() as ours:
        print(
            f"session open after {ours.opened_seconds:.1f} s, warm after {ours.warm_seconds:.1f} s"
        )
        bench = Bench(ours=ours, peers=peers, folder=Path(folder) / "out")
        compare(bench, given)
        if given.scaling:
            scale(bench, given)
    if given.end_to_end:
        end_to_end(given)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", type=names(CONVERSIONS), default=list(CONVERSIONS))
    parser.add_argument("--peers", type=names(PEERS), default=USUAL_PEERS)
    parser.add_argument("--scaling", action="store_true", help="also 200 and 2,000 files, ours")
    parser.add_argument("--tenfold", action="store_true", help="with --scaling: 10 × the records")
    parser.add_argument("--end-to-end", action="store_true", help="also the command, start to end")
    parser.add_argument("--cache", type=Path, default=CACHE)
    return parser.parse_args()


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Give what reads some of the known names, with commas between, from the command line."""

    def parsed(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return chosen

    return parsed


def compare(bench: Bench, given: argparse.Namespace) -> None:
    """Measure ours and the peers, conversion by conversion within each round."""
    cases: list[Case] = []
    for name in given.only:
        conversion = CONVERSIONS[name]
        files = _made(conversion, given.records, given.files, given.cache)
        cases.append(bench.case(conversion, files))
        print(f"{name}: finding the columns takes {cases[-1].learned_seconds:.2f} s once")
    ways = [OURS, *given.peers]
    for number in range(given.rounds):
        first = number % len(ways)  # none is always the first one
        for case in cases:
            for way in ways[first:] + ways[:first]:
                if case.conversion.is_done_by(way):
                    bench.run(way, case)
    print(f"\n{given.records:,} records in {given.files:,} files, {given.rounds} rounds\n{HEADER}")
    for case in cases:
        for way in (way for way in ways if case.spent[way]):
            print(case.row(case.conversion.name, way))


def scale(bench: Bench, given: argparse.Namespace) -> None:
    """Measure ours with the same records in more files and, if asked for, with more records."""
    sizes = [(given.records, files) for files in (10, 200, 2_000)]
    if given.tenfold:
        sizes.append((10 * given.records, 10))
    print(f"\nours at other sizes\n{HEADER}")
    for name in given.only:
        for records, count in sizes:
            conversion = CONVERSIONS[name]
            case = bench.case(conversion, _made(conversion, records, count, given.cache))
            for _ in range(given.rounds):
                bench.run(OURS, case)
            print(case.row(f"{name}, {records:,} in {count:,}", OURS))


def end_to_end(given: argparse.Namespace) -> None:
    """Time `batch-pipeline run` on a new home: database, Dagster and Spark start and end in it."""
    print("\nbatch-pipeline run, a new home, first pass included")
    for name in given.only:
        conversion = CONVERSIONS[name]
        files = _made(conversion, given.records, given.files, given.cache)
        encoding = conversion.encoding
        with new_workplace() as place:
            place.write_stream(
                "wide",
                source={
                    "uri": str(files.paths[0].parent),
                    "include": [f"*.{conversion.source.suffix}"],
                    "format": conversion.source.stream_format.value,
                },
                batch={"max_weight": "100GiB", "max_count": 100_000},
                encoding={
                    "format": encoding.format.value,
                    "compression": encoding.compression.value,
                },
            )
            started = time.perf_counter()
            place.done("run")
            seconds = time.perf_counter() - started
            check(place.storage("wide").glob(f"*.{encoding.suffix}"), files.facts)
        print(f"{name:34} {seconds:8.2f} s", flush=True)


def _made(conversion: Conversion, records: int, files: int, cache: Path) -> Made:
    return made(Workload(source=conversion.source, records=records, files=files), cache)


HEADER = (
    f"{'conversion':34} {'way':12} {'median s':>8} {'from':>7} {'to':>7} {'CPU s':>7} {'MB/s':>7} "
    f"{'out MB':>8} {'peak MB':>8} {'ours is':>9}"
)


if __name__ == "__main__":
    main()
