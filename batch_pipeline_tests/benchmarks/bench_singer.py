"""Wide records from files into a Postgres table: Singer SDK programs compared with the product.

The source is always the same jsonl.gz files of records with 150 columns. Peers: a small tap of the
SDK, piped into `target-postgres` of MeltanoLabs with COPY, both from PyPI in a separate
environment; `batch-10` sends BATCH messages of ten files. The product encodes the files on a warm
Spark session with known columns and then loads them. The start of programs counts, that of the
session does not. A plain COPY is measured by `load`.

All use the same two cores and the same embedded server, whose processor seconds are not counted.
After each run, number and sums of the rows are compared, and the last STATE of a peer must be that
of the last record. Peak MB are of all processes: of a tap and its target together, and of the
larger of the product's two steps.

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
from batch_pipeline_tests.benchmarks.measures import MB, Cost, pin_to_two_cores, rotations
from batch_pipeline_tests.benchmarks.servers import database, server
from batch_pipeline_tests.benchmarks.singer_ways import Peer, RunInput, encode_and_load
from batch_pipeline_tests.benchmarks.workload import CACHE, Source, Workload, generate

PEERS = {"record": Peer(), "batch-10": Peer(files=10)}
WAYS: dict[str, Callable[[RunInput], list[Cost]]] = {
    **{name: peer.run for name, peer in PEERS.items()},
    "ours-append": partial(encode_and_load, mode=WriteMode.APPEND),
    "ours-upsert": partial(encode_and_load, mode=WriteMode.UPSERT),
}
HEADER = f"{'way':18} {'wall s':>8} {'record':>8} {'CPU s':>7} {'peak MB':>8}  steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Seconds of a way from start to end, and the costs of its two steps."""

    seconds: float
    steps: list[Cost]


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--files", type=int, default=10, help="source files")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=WAYS, nargs="+", default=list(WAYS))
    parser.add_argument("--cache", type=Path, default=CACHE)
    args = parser.parse_args()
    pin_to_two_cores()
    runs: dict[str, list[Run]] = defaultdict(list)
    with server() as url:
        for names in rotations(args.only, args.rounds):
            for name in names:
                runs[name].append(_run(url, name, args))
                sys.stderr.write(f"{name} {runs[name][-1].seconds:.2f} s\n")  # progress
    print(f"{args.records:,} records of 150 columns, {args.rounds} rounds\n{HEADER}")
    for name in args.only:
        print(_row(name, runs))


def _run(url: str, name: str, args: argparse.Namespace) -> Run:
    """Run a way with an empty folder and an empty database."""
    workload = Workload(source=Source.JSONL, records=args.records, files=args.files)
    files = generate(workload, args.cache)
    with tempfile.TemporaryDirectory(prefix="bp-") as folder, database(url) as warehouse:
        run_input = RunInput(url=warehouse, folder=Path(folder), cache=args.cache, files=files)
        steps = WAYS[name](run_input)
    # The steps of a peer run concurrently, the tap within the target's time.
    combine = max if name in PEERS else sum
    return Run(seconds=combine(step.seconds for step in steps), steps=steps)


def _row(name: str, runs: dict[str, list[Run]]) -> str:
    """Return the line of a way: the run of median time and its steps."""
    run = sorted(runs[name], key=lambda each: each.seconds)[(len(runs[name]) - 1) // 2]
    record = [run.seconds for run in runs.get("record", [])]
    ratio = f"{statistics.median_low(record) / run.seconds:.2f} ×" if record else ""
    processor = sum(step.processor_seconds for step in run.steps)
    peak = (sum if name in PEERS else max)(step.peak_bytes for step in run.steps) / MB
    steps = ", ".join(
        f"{title} {step.seconds:.1f} s {step.peak_bytes / MB:.0f} MB"
        for title, step in zip(
            ("tap", "target") if name in PEERS else ("encode", "load"), run.steps, strict=True
        )
    )
    return f"{name:18} {run.seconds:8.1f} {ratio:>8} {processor:7.1f} {peak:8.0f}  {steps}"


if __name__ == "__main__":
    main()
