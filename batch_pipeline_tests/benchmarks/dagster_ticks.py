"""Ticks with nothing new and pages of the asset, at many files, batches and partitions.

A tick is evaluated as the code server does it, with an inventory that is opened for it. Its first
one in a process compares everything. Pages are asked of a webserver of their own.
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
from batch_pipeline_tests.benchmarks.dagster_stage import Stage, stage

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
    """Fill a stage and measure there; gives lines of a table."""
    with stage(max_count=files // batches) as opened:
        opened.land(files)
        first, result = opened.tick("orders_new_files")
        added = sum(len(add.partition_keys) for add in result.dynamic_partitions_requests or ())
        yield f"| {batches} | the first of all, {added} keys | {first:.2f} | | |"
        opened.plan_backfill("history", files, most=files // batches)
        opened.publish_all()
        for sensor in SENSORS:
            yield _quiet(opened, sensor, batches, repeats)
        if pages:
            yield from _pages(opened, batches, repeats)
        size = opened.number("SELECT pg_total_relation_size('batch_pipeline.item')") / files
        yield f"| {batches} | {size:.0f} bytes an item | | | |"


def _quiet(opened: Stage, sensor: str, batches: int, repeats: int) -> str:
    cold, result = opened.tick(sensor)
    assert not result.run_requests, result
    walls, works = [], []
    for _ in range(repeats):
        work = time.process_time()
        wall, result = opened.tick(sensor, result.cursor)
        works.append(time.process_time() - work)
        walls.append(wall)
    quiet, work = statistics.median(walls), statistics.median(works)
    return f"| {batches} | {sensor} | {cold:.2f} | {quiet:.3f} | {work:.3f} |"


def _pages(opened: Stage, batches: int, repeats: int) -> Iterator[str]:
    with _webserver(opened) as (port, seconds):
        yield f"| {batches} | webserver and code location | {seconds:.2f} | | |"
        for name in ("batches", "backfill"):
            variables = {"key": {"path": ["orders", name]}}
            walls = []
            for _ in range(repeats + 1):
                began = time.perf_counter()
                found = ask(port, _PAGE, variables)["assetNodeOrError"]
                walls.append(time.perf_counter() - began)
            done = found["assetPartitionStatuses"]["materializedPartitions"]
            assert len(done) == batches, len(done)
            first, later = walls[0], statistics.median(walls[1:])
            yield f"| {batches} | page of orders/{name} | {first:.2f} | {later:.3f} | |"


@contextmanager
def _webserver(opened: Stage) -> Iterator[tuple[int, float]]:
    port = free_port()
    home = opened.pipeline.home
    environment = os.environ | {"DAGSTER_HOME": str(prepare_dagster_home(home))}
    command = [sys.executable, "-m", "dagster_webserver", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--module-name", "batch_pipeline.definitions"]
    began = time.perf_counter()
    with (home.path / "webserver.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: answers(port), "the webserver answers")
        yield port, time.perf_counter() - began
    finally:
        process.terminate()
        process.wait()
