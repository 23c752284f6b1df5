"""A backfill of tiny partitions: the overhead of Dagster over encoding the same batches in a loop.

Both run alternately in one process on one warm Spark session. Then the backfill is launched in a
running `dev` and measured from the first run's start to the last run's end.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from batch_pipeline.defs.names import run_tags
from batch_pipeline.defs.partitions import batches_of
from batch_pipeline.pipeline.attempt import encode
from batch_pipeline.spark.session import close_session, open_session
from batch_pipeline_tests.acceptance.graphql import BACKFILL, LAUNCH, ask
from batch_pipeline_tests.acceptance.sandbox import manifests, new_sandbox, wait_until
from batch_pipeline_tests.benchmarks.benchmark_home import BenchmarkHome, benchmark_home
from batch_pipeline_tests.benchmarks.dagster_latency import running_dev

_RUNS = """
query Runs { runsOrError { ... on Runs { results {
  status startTime endTime tags { key value }
} } } }
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


def in_process(batches: int, rounds: int) -> list[str]:
    """Compare a plain loop with a run of all batches; return the lines of a table."""
    with benchmark_home(max_count=1) as home:
        home.land(batches)
        home.tick("orders_new_files")
        session = open_session(home.pipeline.spark)
        try:
            loop, run = partial(_loop, home, session), partial(_run, home)
            loop()
            run()  # warm up both
            times = [(_seconds(loop), _seconds(run)) for _ in range(rounds)]
            event_bytes = home.number(_EVENT_BYTES)
        finally:
            close_session()
    plain = statistics.median(loop_seconds for loop_seconds, _ in times)
    in_run = statistics.median(run_seconds for _, run_seconds in times)
    ratio = statistics.median(run_seconds / loop_seconds for loop_seconds, run_seconds in times)
    return [
        f"{batches} partitions, {event_bytes:,.0f} bytes of Dagster's events a materialization:",
        "",
        "| way | seconds | a partition | of the loop |",
        "|---|---:|---:|---:|",
        f"| plain loop | {plain:.1f} | {plain / batches:.3f} | 1 |",
        f"| one run, in this process | {in_run:.1f} | {in_run / batches:.3f} | {ratio:.2f} |",
    ]


def through_dev(batches: int) -> list[str]:
    """Launch the backfill in a `dev` with defaults; return the line of the table."""
    with new_sandbox() as sandbox:
        sandbox.write_stream("orders", batch={"max_count": 1})
        files = {f"{number:03d}.csv": b"id\n1\n" for number in range(batches)}
        sandbox.land("orders", files)
        with running_dev(sandbox) as port:
            storage = sandbox.storage("orders")
            wait_until(lambda: len(manifests(storage)) == batches, "all is published")
            keys = sorted({manifest["batch_id"] for manifest in manifests(storage)})
            _backfill(port, keys)
            runs = ask(port, _RUNS, {})["runsOrError"]["results"]
    backfill_runs = [
        run for run in runs if any(tag["key"] == "dagster/backfill" for tag in run["tags"])
    ]
    span = max(run["endTime"] for run in backfill_runs) - min(
        run["startTime"] for run in backfill_runs
    )
    way = f"`dev`, {len(backfill_runs)} runs, {batches / span * 60:.0f} partitions a minute"
    return [f"| {way} | {span:.1f} | {span / batches:.3f} | |"]


def _loop(home: BenchmarkHome, session: Any) -> None:
    pipeline, stream = home.pipeline, home.stream
    context = pipeline.encode_context(stream, lambda: session)
    for status in pipeline.database.batches.statuses(stream.name):
        encode(context, status.batch, run_id="loop")


def _run(home: BenchmarkHome) -> None:
    asset = batches_of(home.stream)
    keys = home.instance.get_dynamic_partitions(asset.set_name)
    job = home.definitions.resolve_job_def(asset.job)
    tags = run_tags(home.stream, keys[0], keys[-1])
    result = job.execute_in_process(instance=home.instance, tags=tags, run_config=_QUIET)
    assert result.success


def _seconds(function: Callable[[], None]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _backfill(port: int, keys: list[str]) -> None:
    parameters = {
        "assetSelection": [{"path": ["orders", "batches"]}],
        "partitionNames": keys,
    }
    launched = ask(port, LAUNCH, {"parameters": parameters})["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    ended = {"COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED"}

    def status() -> str:
        variables = {"id": launched["backfillId"]}
        return str(ask(port, BACKFILL, variables)["partitionBackfillOrError"]["status"])

    wait_until(lambda: status() in ended, "the backfill ends", pause_seconds=1)
    assert status() == "COMPLETED_SUCCESS"
