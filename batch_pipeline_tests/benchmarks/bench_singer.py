"""Wide records from files into a Postgres table: Singer SDK programs compared with the product.

The source is always the same jsonl.gz files of records with 150 columns. Peers: a small tap of the
SDK, piped into `target-postgres` of MeltanoLabs with COPY, both from PyPI in a separate
environment; `batch-10` sends BATCH messages of ten files. The product encodes the files on a warm
Spark session with known columns and then loads them. The start of programs counts, that of the
session does not. A plain COPY is measured by `load`.

All use the same two cores and the same embedded server. After each run, number and sums of the rows
are compared, and the last STATE of a peer must be that of the last record. Peak MB are of all
processes: of a tap and its target together, and of the larger of the product's two steps.

Run `python -m batch_pipeline_tests.benchmarks singer [--records 50000] [--rounds 1] [--only
record …]`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
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


def run_peer(run_input: RunInput, *, batches: int = 0) -> list[Cost]:
    """Pipe an SDK tap into `target-postgres`, check the table and the STATE; return both costs.

    `batches` is the number of BATCH files; 0 stands for RECORD messages.
    """
    facts, programs = run_input.files.facts, installed(run_input.cache, _REQUIREMENTS)
    tap: dict[str, Any] = {
        "paths": [str(path) for path in run_input.files.paths],
        "columns": column_kinds(typed=True),
    }
    if batches:
        tap["batch_config"] = {
            "encoding": {"format": "jsonl", "compression": "gzip"},
            "storage": {"root": to_uri(run_input.folder / "batches")},
            "batch_size": -(-facts.records // batches),
        }
    target = {
        "sqlalchemy_url": run_input.url.replace("postgresql://", "postgresql+psycopg://"),
        "default_target_schema": "peers",
        "use_copy": True,
    }
    tap_words = [str(programs / "python"), str(_TAP)]
    target_words = [str(programs / "target-postgres")]
    costs = _pipe(
        run_input.folder,
        [*tap_words, "--config", run_input.write_config("tap", tap)],
        [*target_words, "--config", run_input.write_config("target", target)],
    )
    check_table(run_input.url, f"peers.{TABLE}", facts)
    state = (run_input.folder / "state").read_text().splitlines()[-1]
    bookmark = json.loads(state)["bookmarks"][TABLE]["replication_key_value"]
    assert bookmark == facts.records, f"the last STATE is {state}"
    return costs


def _pipe(folder: Path, tap: list[str], target: list[str]) -> list[Cost]:
    """Pipe a tap into a target, whose output goes to the file `state` of the folder."""
    reports = [folder / "tap.json", folder / "target.json"]
    # Without the variables that point Python to the project.
    project_variables = ("VIRTUAL_ENV", "PYTHONPATH", "UV_PROJECT_ENVIRONMENT")
    environment = {name: text for name, text in os.environ.items() if name not in project_variables}
    environment["PYTHONWARNINGS"] = "ignore"
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
        peak_bytes=loaded.peak_bytes,
    )
    check_table(run_input.url, f"public.{TABLE}", run_input.files.facts)
    return [encoded, whole]


Way = Callable[[RunInput], list[Cost]]
PEERS: dict[str, Way] = {"record": run_peer, "batch-10": partial(run_peer, batches=10)}
WAYS: dict[str, Way] = {
    **PEERS,
    "ours-append": partial(encode_and_load, mode=WriteMode.APPEND),
    "ours-upsert": partial(encode_and_load, mode=WriteMode.UPSERT),
}
HEADER = f"{'way':18} {'wall s':>8} {'record':>8} {'peak MB':>8}  steps"


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
    runs: dict[str, list[tuple[float, list[Cost]]]] = defaultdict(list)
    with server() as url:
        for names in rotations(args.only, args.rounds):
            for name in names:
                runs[name].append(_run(url, name, args))
                sys.stderr.write(f"{name} {runs[name][-1][0]:.2f} s\n")  # progress
    print(f"{args.records:,} records of 150 columns, {args.rounds} rounds\n{HEADER}")
    medians = {
        name: sorted(runs[name], key=itemgetter(0))[(len(runs[name]) - 1) // 2]
        for name in args.only
    }
    for name, (seconds, steps) in medians.items():
        ratio = f"{medians['record'][0] / seconds:.2f} ×" if "record" in medians else ""
        peak = (sum if name in PEERS else max)(step.peak_bytes for step in steps) / MB
        titles = ("tap", "target") if name in PEERS else ("encode", "load")
        texts = (
            f"{title} {step.seconds:.1f} s {step.peak_bytes / MB:.0f} MB"
            for title, step in zip(titles, steps, strict=True)
        )
        print(f"{name:18} {seconds:8.1f} {ratio:>8} {peak:8.0f}  {', '.join(texts)}")


def _run(url: str, name: str, args: argparse.Namespace) -> tuple[float, list[Cost]]:
    """Run a way with an empty folder and an empty database; return its seconds and steps."""
    workload = Workload(source=Source.JSONL, records=args.records, files=args.files)
    files = generate(workload, args.cache)
    with tempfile.TemporaryDirectory(prefix="bp-") as folder, database(url) as warehouse:
        run_input = RunInput(url=warehouse, folder=Path(folder), cache=args.cache, files=files)
        steps = WAYS[name](run_input)
    # The steps of a peer run concurrently, the tap within the target's time.
    combine = max if name in PEERS else sum
    return combine(step.seconds for step in steps), steps


if __name__ == "__main__":
    main()
