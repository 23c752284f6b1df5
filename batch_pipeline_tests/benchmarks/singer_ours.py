"""Our ways into a Postgres table, from source files and from a tap, and the floor beneath them."""

import pickle
import sys
from dataclasses import dataclass

import psycopg
from psycopg import sql

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.load import Loading
from batch_pipeline.domain.target import WriteMode
from batch_pipeline.postgres.tables import KEPT_WHOLE
from batch_pipeline_tests import factories
from batch_pipeline_tests.acceptance.workplace import command, new_workplace
from batch_pipeline_tests.benchmarks.bench_load import TABLE, bare_copy, prepared_csv
from batch_pipeline_tests.benchmarks.encode_ours import opened
from batch_pipeline_tests.benchmarks.encode_workload import Source
from batch_pipeline_tests.benchmarks.process_meter import Meter
from batch_pipeline_tests.benchmarks.singer_peers import tap, written
from batch_pipeline_tests.benchmarks.singer_runs import Command, Run, Step, bookmark, piped
from batch_pipeline_tests.benchmarks.singer_stage import (
    Stage,
    expected_of_files,
    expected_of_tap,
)
from batch_pipeline_tests.benchmarks.tree_memory import TreeMemory

_GZIP = Encoding(format=Format.JSONL, compression=Compression.GZIP)
_STREAM = "infinity"


@dataclass(frozen=True, slots=True, kw_only=True)
class FromFiles:
    """Files are encoded on a warm session, their columns known, and then loaded by COPY."""

    mode: WriteMode

    def run(self, stage: Stage) -> Run:
        """Encode and load, and check the table."""
        files = stage.made(Source.JSONL)
        expected = expected_of_files(files)
        learned, batches = stage.folder / "learned", stage.folder / "batches"
        for folder in (learned, batches):
            folder.mkdir(parents=True)
        with opened() as ours:
            schema, _ = ours.learn(files.paths, learned, _GZIP)
            meter, memory = Meter(), TreeMemory()
            result = ours.encode(files.paths, batches, _GZIP, schema)
            spent = meter.spent()
            encode = Step(
                name="encode",
                seconds=spent.seconds,
                processor_seconds=spent.processor_seconds,
                peak_bytes=memory.peak_bytes(),
            )
        manifest = factories.manifest(
            encoding=_GZIP, schema=schema, key_properties=("id",), part_files=result.part_files
        )
        loading = Loading(
            stream=_STREAM,
            publish_number=1,
            label="000000000001-000000000010",
            manifest=manifest,
            message_name=_STREAM,
        )
        (batches / "loading").write_bytes(pickle.dumps(loading))
        module = "batch_pipeline_tests.benchmarks.load_published"
        words = (sys.executable, "-m", module, stage.url, self.mode, str(batches / "loading"))
        load = piped(
            stage.folder,
            Command(name="load", words=words),
            environment=stage.environment,
        )
        stage.check(f"public.{_STREAM}", expected)
        return Run(
            seconds=encode.seconds + load.seconds,
            steps=(encode, *load.steps),
            state=int((stage.folder / "said").read_text()),
        )


def from_tap(stage: Stage) -> Run:
    """Land what the tap says as RECORD, run the pipeline and load, all by their commands."""
    expected = expected_of_tap(stage.records, stage.cache)
    with new_workplace() as workplace:
        place = workplace.given(BATCH_PIPELINE_INVENTORY_CONN=stage.url, WAREHOUSE_URL=stage.url)
        warehouse = {"postgres": {"conn": "$WAREHOUSE_URL", "schema": "ours", "mode": "upsert"}}
        place.write_stream(
            _STREAM,
            source={"include": ["*.jsonl.gz"], "format": "jsonl"},
            batch={"max_weight": "100GiB", "max_count": 100_000},
            key_properties=["id"],
            targets={"warehouse": warehouse},
        )
        place.done("migrate")
        environment = {**place.environment, "PYTHONWARNINGS": "ignore"}

        def step(*commands: Command) -> Run:
            return piped(stage.folder, *commands, environment=environment)

        config = written(stage.folder / "ours.config.json", {"max_records": stage.records // 10})
        words = (sys.executable, "-m", "batch_pipeline.cli.target", "--config", config)
        landed = step(tap(stage), Command(name="target", words=words))
        state = bookmark(stage.folder / "said")
        encoded = step(Command(name="run", words=command("run")))
        loaded = step(Command(name="load", words=command("load", _STREAM)))
    stage.check(f"ours.{_STREAM}", expected)
    runs = (landed, encoded, loaded)
    return Run(
        seconds=sum(run.seconds for run in runs),
        steps=tuple(each for run in runs for each in run.steps),
        state=state,
    )


def floor(stage: Stage) -> Run:
    """Copy a prepared CSV into a table with the storage parameters of ours."""
    return _copied(stage, KEPT_WHOLE)


def floor_default(stage: Stage) -> Run:
    """Copy a prepared CSV into a table with the server's default storage parameters."""
    return _copied(stage, sql.SQL(""))


def _copied(stage: Stage, kept: sql.SQL) -> Run:
    prepared = prepared_csv(stage.made(Source.TYPED))
    with psycopg.connect(stage.url, autocommit=True) as connection:
        spent = bare_copy(connection, prepared, kept)
    stage.check(f"public.{TABLE}", expected_of_files(stage.made(Source.JSONL)))
    copy = Step(
        name="copy",
        seconds=spent.seconds,
        processor_seconds=spent.processor_seconds,
        peak_bytes=0,
    )
    return Run(seconds=spent.seconds, steps=(copy,))
