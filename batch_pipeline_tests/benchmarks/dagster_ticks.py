"""Idle sensor ticks and pages with many files and batches, and the size of Dagster's events.

A tick is evaluated as by the code server, which opens the inventory for it. The first tick in a
process compares everything. Pages are queried from a separate webserver.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from batch_pipeline.defs.instance.dagster_home import prepare_dagster_home
from batch_pipeline.defs.names import run_tags
from batch_pipeline.defs.partitions import batches_of
from batch_pipeline.spark.session import close_session, open_session
from batch_pipeline_tests.acceptance.graphql import answers, ask
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import wait_until
from batch_pipeline_tests.benchmarks.benchmark_home import BenchmarkHome, benchmark_home

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
    with benchmark_home(max_count=files // batches) as home:
        home.land(files)
        first, result = home.tick(SENSOR)
        added = sum(len(add.partition_keys) for add in result.dynamic_partitions_requests or ())
        yield f"| {batches} | the first of all, {added} keys | {first:.2f} | | |"
        home.publish_all()
        yield _idle_tick(home, batches, repeats)
        if pages:
            yield from _pages(home, batches, repeats)
        size = home.number("SELECT pg_total_relation_size('batch_pipeline.item')") / files
        yield f"| {batches} | {size:.0f} bytes an item | | | |"


def _idle_tick(home: BenchmarkHome, batches: int, repeats: int) -> str:
    cold, result = home.tick(SENSOR)
    assert not result.run_requests, result
    wall_seconds, processor_seconds = [], []
    for _ in range(repeats):
        processor = time.process_time()
        tick_seconds, result = home.tick(SENSOR, result.cursor)
        processor_seconds.append(time.process_time() - processor)
        wall_seconds.append(tick_seconds)
    quiet, processor = statistics.median(wall_seconds), statistics.median(processor_seconds)
    return f"| {batches} | {SENSOR} | {cold:.2f} | {quiet:.3f} | {processor:.3f} |"


def _pages(home: BenchmarkHome, batches: int, repeats: int) -> Iterator[str]:
    with _webserver(home) as (port, seconds):
        yield f"| {batches} | webserver and code location | {seconds:.2f} | | |"
        variables = {"key": {"path": ["orders", "batches"]}}
        wall_seconds = []
        for _ in range(repeats + 1):
            started = time.perf_counter()
            node = ask(port, _PAGE, variables)["assetNodeOrError"]
            wall_seconds.append(time.perf_counter() - started)
        materialized = node["assetPartitionStatuses"]["materializedPartitions"]
        assert len(materialized) == batches, len(materialized)
        first, later = wall_seconds[0], statistics.median(wall_seconds[1:])
        yield f"| {batches} | page of orders/batches | {first:.2f} | {later:.3f} | |"


def event_bytes(batches: int) -> str:
    """Encode batches of one record in a run; return the size of a materialization's events."""
    with benchmark_home(max_count=1) as home:
        home.land(batches)
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
