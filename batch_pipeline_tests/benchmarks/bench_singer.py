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
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from batch_pipeline.model.load import WriteMode
from batch_pipeline.model.location import to_uri
from batch_pipeline_tests.acceptance.real_targets import installed
from batch_pipeline_tests.benchmarks.encode_ours import items, open_encoder
from batch_pipeline_tests.benchmarks.load_published import TABLE, load_in_process, loading_of
from batch_pipeline_tests.benchmarks.measures import (
    MB,
    Cost,
    SparkMeter,
    pin_to_two_cores,
    rotations,
)
from batch_pipeline_tests.benchmarks.peer_runs import foreign_environment
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

_REQUIREMENTS = ("meltanolabs-target-postgres==0.8.1", "singer-sdk==0.54.9")
_TAP = Path(__file__).with_name("wide_tap.py")
_WATCH_COMMAND = [sys.executable, "-m", "batch_pipeline_tests.benchmarks.watched_command"]
_PROJECT = Path(__file__).parents[2]
_TIMEOUT_SECONDS = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInput:
    """Source files, an empty folder and an empty database for one run."""

    url: str
    folder: Path
    cache: Path
    files: GeneratedFiles

    def write_config(self, name: str, config: dict[str, Any]) -> str:
        """Write a config file and return its path."""
        path = self.folder / name
        path.write_text(json.dumps(config))
        return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An SDK tap and `target-postgres`; `files` is the number of BATCH files, 0 for RECORDs."""

    files: int = 0

    def run(self, run_input: RunInput) -> list[Cost]:
        """Pipe the tap into the target, check the table and the STATE, and return both costs."""
        programs = installed(run_input.cache, _REQUIREMENTS)
        tap: dict[str, Any] = {
            "paths": [str(path) for path in run_input.files.paths],
            "columns": column_kinds(typed=True),
        }
        if self.files:
            tap["batch_config"] = {
                "encoding": {"format": "jsonl", "compression": "gzip"},
                "storage": {"root": to_uri(run_input.folder / "batches")},
                "batch_size": -(-run_input.files.facts.records // self.files),
            }
        target = {
            "sqlalchemy_url": run_input.url.replace("postgresql://", "postgresql+psycopg://"),
            "default_target_schema": "peers",
            "use_copy": True,
        }
        costs = _pipe(
            run_input.folder,
            [str(programs / "python"), str(_TAP), "--config", run_input.write_config("tap", tap)],
            [
                str(programs / "target-postgres"),
                "--config",
                run_input.write_config("target", target),
            ],
        )
        check_table(run_input.url, f"peers.{TABLE}", run_input.files.facts)
        state = (run_input.folder / "state").read_text().splitlines()[-1]
        bookmark = json.loads(state)["bookmarks"][TABLE]["replication_key_value"]
        assert bookmark == run_input.files.facts.records, f"the last STATE is {state}"
        return costs


def _pipe(folder: Path, tap: list[str], target: list[str]) -> list[Cost]:
    """Pipe a tap into a target, whose output goes to the file `state` of the folder."""
    reports = [folder / "tap.json", folder / "target.json"]
    environment = foreign_environment() | {"PYTHONWARNINGS": "ignore"}
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        state = stack.enter_context((folder / "state").open("wb"))

        def start(report: Path, words: list[str], **streams: Any) -> "subprocess.Popen[bytes]":
            command = [*_WATCH_COMMAND, str(report), *words]
            return stack.enter_context(
                subprocess.Popen(command, cwd=_PROJECT, env=environment, stderr=log, **streams)
            )

        first = start(reports[0], tap, stdout=subprocess.PIPE)
        last = start(reports[1], target, stdin=first.stdout, stdout=state)
        assert first.stdout is not None
        first.stdout.close()  # so that the tap ends when the target does
        codes = [last.wait(_TIMEOUT_SECONDS), first.wait(_TIMEOUT_SECONDS)]
    assert codes == [0, 0], (folder / "log").read_text()[-2_000:]
    return [Cost(**json.loads(report.read_text())) for report in reports]


def encode_and_load(run_input: RunInput, mode: WriteMode) -> list[Cost]:
    """Encode files on a warm session with known columns, load them, and check the table."""
    items_ = items(run_input.files.paths)
    samples, batches = run_input.folder / "learned", run_input.folder / "batches"
    samples.mkdir()
    batches.mkdir()
    with open_encoder() as ours:
        schema = ours.infer_schema(items_, to_uri(samples), JSONL_GZIP)
        meter = SparkMeter()
        result = ours.encode(items_, to_uri(batches), JSONL_GZIP, schema)
        encoded = meter.stop()
    started = time.perf_counter()
    loading = loading_of(schema, JSONL_GZIP, result.part_files)
    loaded = load_in_process(run_input.url, mode, loading)
    whole = Cost(
        seconds=time.perf_counter() - started,  # including the start of its process
        processor_seconds=loaded.processor_seconds,
        peak_bytes=loaded.peak_bytes,
    )
    check_table(run_input.url, f"public.{TABLE}", run_input.files.facts)
    return [encoded, whole]


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
