"""The whole way of wide records into a table of Postgres: Singer SDK programs beside ours.

The same jsonl.gz files of records of 150 columns are the source of all ways. Peers: a small tap of
the SDK, which reads them, into `target-postgres` of MeltanoLabs with COPY, both from PyPI in an
environment of their own; `batch-10` is BATCH messages of ten files. Ours: the files are encoded on
a warm Spark session with their columns known and then loaded. The starts of programs count, that
of the session does not. What a bare COPY takes is measured by `load`.

All ways use the same two cores and the same embedded server, whose processor seconds are left out.
After each, number and sums of the rows are compared, and the last STATE of the peers has to be that
of the last record. Peak MB are those of the largest process.

Run `python -m batch_pipeline_tests.benchmarks singer [--records 50000] [--rounds 1] [--only
record …]`.
"""

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from batch_pipeline.model.load import WriteMode
from batch_pipeline_tests.benchmarks.measures import MB, Spent, pin_to_two_cores
from batch_pipeline_tests.benchmarks.servers import database, server
from batch_pipeline_tests.benchmarks.singer_ways import Peer, Stage, encode_and_load
from batch_pipeline_tests.benchmarks.workload import CACHE, Source, Workload, made

PEERS = {
    "record": Peer(),
    "record-unchecked": Peer(validated=False),
    "batch-10": Peer(files=10),
    "batch-1": Peer(files=1),
    "parquet-10": Peer(files=10, format="parquet"),
}
WAYS: dict[str, Callable[[Stage], list[Spent]]] = {
    **{name: peer.run for name, peer in PEERS.items()},
    "ours-append": partial(encode_and_load, mode=WriteMode.APPEND),
    "ours-upsert": partial(encode_and_load, mode=WriteMode.UPSERT),
}
HEADER = f"{'way':18} {'wall s':>8} {'record':>8} {'CPU s':>7} {'peak MB':>8}  steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a way took from its start to its end, and its two steps."""

    seconds: float
    steps: list[Spent]


def main() -> None:
    """Measure what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--files", type=int, default=10, help="source files")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=WAYS, nargs="+", default=list(WAYS))
    parser.add_argument("--cache", type=Path, default=CACHE)
    given = parser.parse_args()
    pin_to_two_cores()
    runs: dict[str, list[Run]] = defaultdict(list)
    with server() as url:
        for number in range(given.rounds):
            first = number % len(given.only)  # none is always the first one
            for name in given.only[first:] + given.only[:first]:
                runs[name].append(_run(url, name, given))
                sys.stderr.write(f"{name} {runs[name][-1].seconds:.2f} s\n")  # progress
    print(f"{given.records:,} records of 150 columns, {given.rounds} rounds\n{HEADER}")
    for name in given.only:
        print(_row(name, runs))


def _run(url: str, name: str, given: argparse.Namespace) -> Run:
    """Run a way in an empty folder and an empty database."""
    workload = Workload(source=Source.JSONL, records=given.records, files=given.files)
    files = made(workload, given.cache)
    with tempfile.TemporaryDirectory(prefix="bp-") as folder, database(url) as warehouse:
        stage = Stage(url=warehouse, folder=Path(folder), cache=given.cache, files=files)
        steps = WAYS[name](stage)
    # The steps of a peer are a pipe, in which the tap's seconds are among the target's.
    together = max if name in PEERS else sum
    return Run(seconds=together(step.seconds for step in steps), steps=steps)


def _row(name: str, runs: dict[str, list[Run]]) -> str:
    """Return the line of a way: the run of median time, and what its steps took."""
    run = sorted(runs[name], key=lambda one: one.seconds)[(len(runs[name]) - 1) // 2]
    record = [one.seconds for one in runs.get("record", [])]
    ratio = f"{statistics.median_low(record) / run.seconds:.2f} ×" if record else ""
    processor = sum(step.processor_seconds for step in run.steps)
    peak = max(step.peak_bytes for step in run.steps) / MB
    steps = ", ".join(
        f"{title} {step.seconds:.1f} s {step.peak_bytes / MB:.0f} MB"
        for title, step in zip(
            ("tap", "target") if name in PEERS else ("encode", "load"), run.steps, strict=True
        )
    )
    return f"{name:18} {run.seconds:8.1f} {ratio:>8} {processor:7.1f} {peak:8.0f}  {steps}"


if __name__ == "__main__":
    main()
