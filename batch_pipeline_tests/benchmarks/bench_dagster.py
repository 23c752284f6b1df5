"""The Dagster surface: idle ticks, pages, latency in `dev`, and the size of events.

Run `python -m batch_pipeline_tests.benchmarks dagster [--part ticks|pages|latency|events …]
[--files 100000] [--batches 1000 10000] [--landing 10] [--partitions 50] [--repeats 3]` on an
otherwise idle machine.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg
import sqlalchemy as sa

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.instance.dagster_home import open_instance, prepare_dagster_home
from batch_pipeline.defs.names import run_tags
from batch_pipeline.defs.partitions import batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.model.stream import Stream
from batch_pipeline.spark.session import close_session, open_session
from batch_pipeline_tests.acceptance.graphql import answers, ask
from batch_pipeline_tests.acceptance.live_dev import live_dev
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import Sandbox, manifests, new_sandbox, wait_until

_PUBLISH = [
    """
    INSERT INTO batch_pipeline.attempt (batch_id, number, token, liveness_key, status, run_id,
        lease_until, finished_at, generation, publish_number, encoding, key_properties, facts,
        pointer_uri)
    SELECT b.id, 1, gen_random_uuid(), 1, 'succeeded', 'past', now(), now(), 1,
        row_number() OVER (PARTITION BY b.job_id ORDER BY b.id),
        '{"format": "jsonl", "compression": "gzip"}', '[]',
        '{"items": 1, "read": 1, "written": 1, "filtered": 0, "quarantined": 0}', 'file:///past'
      FROM batch_pipeline.batch b JOIN batch_pipeline.batch_state s ON s.batch_id = b.id
     WHERE s.state = 'planned'
    """,
    """
    UPDATE batch_pipeline.batch_state SET state = 'published', attempts = 1, generation = 1
     WHERE state = 'planned'
    """,
    """
    UPDATE batch_pipeline.job j SET publish_count = coalesce((
        SELECT max(a.publish_number) FROM batch_pipeline.attempt a
          JOIN batch_pipeline.batch b ON b.id = a.batch_id WHERE b.job_id = j.id), 0)
    """,
]
# The inventory's engine pins the search path, so Dagster's tables need their schema.
_COPY_EVENTS = """
INSERT INTO public.event_logs
       (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
SELECT e.run_id, replace(e.event, :first, p.partition), e.dagster_event_type, e.timestamp,
       e.step_key, e.asset_key, p.partition
  FROM public.event_logs e, public.dynamic_partitions p
 WHERE e.partition = :first AND e.asset_key = :asset
   AND p.partitions_def_name = :name AND p.partition <> :first
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkHome:
    """An open home; its environment variables are set in this process."""

    pipeline: Pipeline
    stream: Stream
    instance: dg.DagsterInstance
    definitions: dg.Definitions

    def tick(self, name: str, cursor: str | None = None) -> tuple[float, dg.SensorResult]:
        """Evaluate a sensor as the code server does; return the seconds and the result.

        Its requests are executed afterwards, as by the daemon, except for the runs.
        """
        sensor = self.definitions.resolve_sensor_def(name)
        started = time.perf_counter()
        resources = {"batch_pipeline": PipelineResource()}
        with dg.build_sensor_context(
            instance=self.instance, cursor=cursor, resources=resources
        ) as context:
            result = sensor(context)
        seconds = time.perf_counter() - started
        assert isinstance(result, dg.SensorResult), result
        for add in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(add.partitions_def_name, add.partition_keys)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return seconds, result

    def publish_all(self) -> None:
        """Publish every batch as if by an earlier run that was reported to Dagster."""
        engine = self.pipeline.database.engine
        with engine.begin() as connection:
            for statement in _PUBLISH:
                connection.execute(sa.text(statement))
        self._report_materializations(engine)
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(sa.text("VACUUM ANALYZE"))

    def _report_materializations(self, engine: sa.Engine) -> None:
        asset = batches_of(self.stream)
        keys = [asset.key_of(status.batch) for status in asset.statuses(self.pipeline.database)]
        for start in range(0, len(keys), 10_000):
            chunk = keys[start : start + 10_000]
            self.instance.add_dynamic_partitions(asset.set_name, chunk)
        event = dg.AssetMaterialization(asset_key=asset.asset_key, partition=keys[0])
        self.instance.report_runless_asset_event(event)
        values = {"asset": asset.asset_key.to_string(), "name": asset.set_name, "first": keys[0]}
        with engine.begin() as connection:
            connection.execute(sa.text(_COPY_EVENTS), values)

    def number(self, query: str) -> float:
        """Return the number that a query on the shared database yields."""
        with self.pipeline.database.engine.connect() as connection:
            return float(connection.execute(sa.text(query)).scalar_one())


@contextmanager
def benchmark_home(*, files: int, max_count: int) -> Iterator[BenchmarkHome]:
    """Open a new home whose stream `orders` has landed files; delete it at the end."""
    with new_sandbox() as sandbox:
        sandbox.write_stream("orders", batch={"max_weight": "1GiB", "max_count": max_count})
        sandbox.land("orders", {f"orders-{n:07d}.csv": b"id\n1\n" for n in range(1, files + 1)})
        os.environ.update(sandbox.environment)
        pipeline = Pipeline.from_environment()
        stream = pipeline.stream("orders")
        try:
            with open_instance(pipeline.home) as instance:
                definitions = build_definitions([stream])
                yield BenchmarkHome(
                    pipeline=pipeline, stream=stream, instance=instance, definitions=definitions
                )
        finally:
            pipeline.close()


SENSOR = "orders_new_files"
_PAGE = """
query Page($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionKeysByDimension { name partitionKeys }
  assetPartitionStatuses { ... on DefaultPartitionStatuses {
    materializedPartitions failedPartitions unmaterializedPartitions materializingPartitions
  } }
} } }
"""
# Events of a partition with their share of the indexes, without events of the run only.
_EVENT_BYTES = """
SELECT pg_total_relation_size('public.event_logs')
       * sum(pg_column_size(event)) FILTER (WHERE partition IS NOT NULL)
       / sum(pg_column_size(event))
       / count(*) FILTER (WHERE dagster_event_type = 'ASSET_MATERIALIZATION')
  FROM public.event_logs
"""
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def ticks_and_pages(files: int, batches: int, repeats: int, *, pages: bool) -> Iterator[str]:
    """Fill a home and measure there; yield the lines of a table."""
    with benchmark_home(files=files, max_count=files // batches) as home:
        first, result = home.tick(SENSOR)
        added = sum(len(add.partition_keys) for add in result.dynamic_partitions_requests or ())
        yield f"| {batches} | the first of all, {added} keys | {first:.2f} | |"
        home.publish_all()
        yield _idle_tick(home, batches, repeats)
        if pages:
            yield from _pages(home, batches, repeats)
        size = home.number("SELECT pg_total_relation_size('batch_pipeline.item')") / files
        yield f"| {batches} | {size:.0f} bytes an item | | |"


def _idle_tick(home: BenchmarkHome, batches: int, repeats: int) -> str:
    cold, result = home.tick(SENSOR)
    assert not result.run_requests, result
    seconds = []
    for _ in range(repeats):
        tick_seconds, result = home.tick(SENSOR, result.cursor)
        seconds.append(tick_seconds)
    return f"| {batches} | {SENSOR} | {cold:.2f} | {statistics.median(seconds):.3f} |"


def _pages(home: BenchmarkHome, batches: int, repeats: int) -> Iterator[str]:
    with _webserver(home) as (port, seconds):
        yield f"| {batches} | webserver and code location | {seconds:.2f} | |"
        variables = {"key": {"path": ["orders", "batches"]}}
        wall_seconds = []
        for _ in range(repeats + 1):
            started = time.perf_counter()
            node = ask(port, _PAGE, variables)["assetNodeOrError"]
            wall_seconds.append(time.perf_counter() - started)
        materialized = node["assetPartitionStatuses"]["materializedPartitions"]
        assert len(materialized) == batches, len(materialized)
        first, later = wall_seconds[0], statistics.median(wall_seconds[1:])
        yield f"| {batches} | page of orders/batches | {first:.2f} | {later:.3f} |"


def event_bytes(batches: int) -> str:
    """Encode batches of one record in a run; return the size of a materialization's events."""
    with benchmark_home(files=batches, max_count=1) as home:
        home.tick(SENSOR)
        asset = batches_of(home.stream)
        keys = home.instance.get_dynamic_partitions(asset.set_name)
        job = home.definitions.resolve_job_def(asset.job)
        tags = run_tags(home.stream, keys[0], keys[-1])
        open_session(home.pipeline.spark)
        try:
            run = job.execute_in_process(instance=home.instance, tags=tags, run_config=_QUIET)
            assert run.success
            size = home.number(_EVENT_BYTES)
        finally:
            close_session()
    return f"{batches} partitions, {size:,.0f} bytes of Dagster's events a materialization"


@contextmanager
def _webserver(home: BenchmarkHome) -> Iterator[tuple[int, float]]:
    port = free_port()
    product_home = home.pipeline.home
    environment = os.environ | {"DAGSTER_HOME": str(prepare_dagster_home(product_home))}
    command = [sys.executable, "-m", "dagster_webserver", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--module-name", "batch_pipeline.definitions"]
    started = time.perf_counter()
    with (product_home.path / "webserver.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: answers(port), "the webserver answers")
        yield port, time.perf_counter() - started
    finally:
        process.terminate()
        process.wait()


def latency(files: int, seed: int) -> str:
    """Land files in a new `dev`; return median and maximum of the seconds until publication."""
    choose = random.Random(seed)  # noqa: S311 - not for security
    seconds = []
    with new_sandbox() as sandbox:
        sandbox.write_stream("orders")
        sandbox.landing("orders").mkdir(parents=True)
        with live_dev(sandbox):
            _land_and_wait(sandbox, 0)  # warms up
            for number in range(1, files + 1):
                time.sleep(choose.uniform(0, 10))
                seconds.append(_land_and_wait(sandbox, number))
    median, longest = statistics.median(seconds), max(seconds)
    return f"{files} files, landed to published: median {median:.1f} s, at most {longest:.1f} s"


def _land_and_wait(sandbox: Sandbox, number: int) -> float:
    """Land a file and return the seconds until it is published."""
    path = sandbox.landing("orders") / f"orders-{number:04d}.csv"
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(f"id,name\n{number},one\n")
    landed = time.time()
    unfinished.rename(path)
    storage = sandbox.storage("orders")
    wait_until(lambda: len(manifests(storage)) > number, f"{path.name} is published")
    return max(path.stat().st_mtime for path in storage.glob("manifests/*.json")) - landed


PARTS = ("ticks", "pages", "latency", "events")


def main() -> None:
    """Measure the selected parts and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--files", type=int, default=100_000, help="registered, for ticks")
    parser.add_argument("--batches", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--landing", type=int, default=10, help="files, for latency")
    parser.add_argument("--partitions", type=int, default=50, help="materialized, for events")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    warnings.simplefilter("ignore", category=dg.BetaWarning)
    print_lines([f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start", ""])
    if {"ticks", "pages"} & {*args.part}:
        print_lines(["| batches | what | first s | then s |", "|---:|---|---:|---:|"])
        for batches in args.batches:
            pages = "pages" in args.part
            print_lines(ticks_and_pages(args.files, batches, args.repeats, pages=pages))
        print_lines([""])
    if "latency" in args.part:
        print_lines([latency(args.landing, args.seed), ""])
    if "events" in args.part:
        print_lines([event_bytes(args.partitions)])


def print_lines(lines: Iterable[str]) -> None:
    """Print lines and flush each."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
