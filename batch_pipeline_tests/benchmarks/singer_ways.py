"""The ways of wide records from files into a table of Postgres: Singer SDK programs, and ours."""

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
from batch_pipeline_tests.benchmarks.encode_ours import items, opened
from batch_pipeline_tests.benchmarks.load_published import TABLE, load_apart, loading_of
from batch_pipeline_tests.benchmarks.measures import SparkMeter, Spent
from batch_pipeline_tests.benchmarks.peer_runs import foreign_environment
from batch_pipeline_tests.benchmarks.servers import check_table
from batch_pipeline_tests.benchmarks.wide_records import column_kinds
from batch_pipeline_tests.benchmarks.workload import JSONL_GZIP, Made

_REQUIREMENTS = ("meltanolabs-target-postgres==0.8.1", "singer-sdk[parquet]==0.54.9")
_TAP = Path(__file__).with_name("wide_tap.py")
_WATCHED = [sys.executable, "-m", "batch_pipeline_tests.benchmarks.watched_command"]
_PROJECT = Path(__file__).parents[2]
_LONGEST_SECONDS = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Source files, an empty folder and an empty database for one run of a way."""

    url: str
    folder: Path
    cache: Path
    files: Made

    def written(self, name: str, config: dict[str, Any]) -> str:
        """Write a config file and return its path."""
        path = self.folder / name
        path.write_text(json.dumps(config))
        return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An SDK tap into `target-postgres`; `files` is how many BATCH files, 0 for RECORD messages."""

    files: int = 0
    format: str = "jsonl"
    validated: bool = True

    def run(self, stage: Stage) -> list[Spent]:
        """Pipe the tap into the target, check the table and the STATE, and return both costs."""
        programs = installed(stage.cache, _REQUIREMENTS)
        tap = {"paths": [str(path) for path in stage.files.paths], **self._batch_config(stage)}
        tap["columns"] = column_kinds(typed=True)
        target = {
            "sqlalchemy_url": stage.url.replace("postgresql://", "postgresql+psycopg://"),
            "default_target_schema": "peers",
            "use_copy": True,
            "validate_records": self.validated,
        }
        spent = _piped(
            stage.folder,
            [str(programs / "python"), str(_TAP), "--config", stage.written("tap", tap)],
            [str(programs / "target-postgres"), "--config", stage.written("target", target)],
        )
        check_table(stage.url, f"peers.{TABLE}", stage.files.facts)
        state = (stage.folder / "state").read_text().splitlines()[-1]
        bookmark = json.loads(state)["bookmarks"][TABLE]["replication_key_value"]
        assert bookmark == stage.files.facts.records, f"the last STATE is {state}"
        return spent

    def _batch_config(self, stage: Stage) -> dict[str, Any]:
        if not self.files:
            return {}
        compression = {"compression": "gzip"} if self.format == "jsonl" else {}
        batch = {
            "encoding": {"format": self.format, **compression},
            "storage": {"root": to_uri(stage.folder / "batches")},
            "batch_size": -(-stage.files.facts.records // self.files),
        }
        return {"batch_config": batch}


def _piped(folder: Path, tap: list[str], target: list[str]) -> list[Spent]:
    """Run a tap into a target, whose output goes into the file `state` of the folder."""
    reports = [folder / "tap.json", folder / "target.json"]
    environment = foreign_environment() | {"PYTHONWARNINGS": "ignore"}
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        state = stack.enter_context((folder / "state").open("wb"))

        def started(report: Path, words: list[str], **streams: Any) -> "subprocess.Popen[bytes]":
            command = [*_WATCHED, str(report), *words]
            return stack.enter_context(
                subprocess.Popen(command, cwd=_PROJECT, env=environment, stderr=log, **streams)
            )

        first = started(reports[0], tap, stdout=subprocess.PIPE)
        last = started(reports[1], target, stdin=first.stdout, stdout=state)
        assert first.stdout is not None
        first.stdout.close()  # so that the tap ends when its reader does
        codes = [last.wait(_LONGEST_SECONDS), first.wait(_LONGEST_SECONDS)]
    assert codes == [0, 0], (folder / "log").read_text()[-2_000:]
    return [Spent(**json.loads(report.read_text())) for report in reports]


def encode_and_load(stage: Stage, mode: WriteMode) -> list[Spent]:
    """Encode files on a warm session, their columns known, load them, and check the table."""
    found = items(stage.files.paths)
    learned, batches = stage.folder / "learned", stage.folder / "batches"
    learned.mkdir()
    batches.mkdir()
    with opened() as ours:
        schema = ours.learn(found, to_uri(learned), JSONL_GZIP)
        meter = SparkMeter()
        result = ours.encode(found, to_uri(batches), JSONL_GZIP, schema)
        encoded = meter.spent()
    started = time.perf_counter()
    loading = loading_of(schema, JSONL_GZIP, result.part_files)
    loaded = load_apart(stage.url, mode, loading)
    whole = Spent(
        seconds=time.perf_counter() - started,  # with the start of its process
        processor_seconds=loaded.processor_seconds,
        peak_bytes=loaded.peak_bytes,
    )
    check_table(stage.url, f"public.{TABLE}", stage.files.facts)
    return [encoded, whole]
