"""Idle sensor ticks and pages of the asset with many files, batches and partitions.

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
from batch_pipeline_tests.acceptance.graphql import answers, ask
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import wait_until
from batch_pipeline_tests.benchmarks.benchmark_home import BenchmarkHome, benchmark_home

SENSORS = ("orders_new_files", "orders_backfill")
_PAGE = """
query Page($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionKeysByDimension { name partitionKeys }
  assetPartitionStatuses { ... on DefaultPartitionStatuses {
    materializedPartitions failedPartitions unmaterializedPartitions materializingPartitions
  } }
} } }
"""


def ticks_and_pages(files: int, batches: int, repeats: int, *, pages: bool) -> Iterator[str]:
    """Fill a home and measure there; yield the lines of a table."""
    with benchmark_home(max_count=files // batches) as home:
        home.land(files)
        first, result = home.tick("orders_new_files")
        added = sum(len(add.partition_keys) for add in result.dynamic_partitions_requests or ())
        yield f"| {batches} | the first of all, {added} keys | {first:.2f} | | |"
        home.plan_backfill("history", files, max_count=files // batches)
        home.publish_all()
        for sensor in SENSORS:
            yield _idle_tick(home, sensor, batches, repeats)
        if pages:
            yield from _pages(home, batches, repeats)
        size = home.number("SELECT pg_total_relation_size('batch_pipeline.item')") / files
        yield f"| {batches} | {size:.0f} bytes an item | | | |"


def _idle_tick(home: BenchmarkHome, sensor: str, batches: int, repeats: int) -> str:
    cold, result = home.tick(sensor)
    assert not result.run_requests, result
    wall_seconds, processor_seconds = [], []
    for _ in range(repeats):
        processor = time.process_time()
        tick_seconds, result = home.tick(sensor, result.cursor)
        processor_seconds.append(time.process_time() - processor)
        wall_seconds.append(tick_seconds)
    quiet, processor = statistics.median(wall_seconds), statistics.median(processor_seconds)
    return f"| {batches} | {sensor} | {cold:.2f} | {quiet:.3f} | {processor:.3f} |"


def _pages(home: BenchmarkHome, batches: int, repeats: int) -> Iterator[str]:
    with _webserver(home) as (port, seconds):
        yield f"| {batches} | webserver and code location | {seconds:.2f} | | |"
        for name in ("batches", "backfill"):
            variables = {"key": {"path": ["orders", name]}}
            wall_seconds = []
            for _ in range(repeats + 1):
                started = time.perf_counter()
                node = ask(port, _PAGE, variables)["assetNodeOrError"]
                wall_seconds.append(time.perf_counter() - started)
            materialized = node["assetPartitionStatuses"]["materializedPartitions"]
            assert len(materialized) == batches, len(materialized)
            first, later = wall_seconds[0], statistics.median(wall_seconds[1:])
            yield f"| {batches} | page of orders/{name} | {first:.2f} | {later:.3f} | |"


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
