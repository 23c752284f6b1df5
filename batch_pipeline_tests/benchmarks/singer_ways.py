"""Loads of wide records from files into a Postgres table: Singer SDK programs and the product."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_pipeline.model.load import WriteMode
from batch_pipeline.model.location import to_uri
from batch_pipeline_tests.acceptance.real_targets import installed
from batch_pipeline_tests.benchmarks.encode_ours import items, open_encoder
from batch_pipeline_tests.benchmarks.load_published import TABLE, load_in_process, loading_of
from batch_pipeline_tests.benchmarks.measures import Cost, SparkMeter
from batch_pipeline_tests.benchmarks.peer_runs import foreign_environment
from batch_pipeline_tests.benchmarks.servers import check_table
from batch_pipeline_tests.benchmarks.wide_records import column_kinds
from batch_pipeline_tests.benchmarks.workload import JSONL_GZIP, GeneratedFiles

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
