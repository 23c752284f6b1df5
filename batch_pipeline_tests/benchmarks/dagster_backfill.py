"""A backfill of tiny partitions: what Dagster adds to encoding the same batches in a loop.

Both in one process on one warm Spark session, in turns; then through a live `dev`, as a person
launches it, from the first run's start to the last run's end.
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
from batch_pipeline_tests.benchmarks.dagster_latency import live
from batch_pipeline_tests.benchmarks.dagster_stage import Stage, stage

_RUNS = """
query Runs { runsOrError { ... on Runs { results {
  status startTime endTime tags { key value }
} } } }
"""
# Events of a partition, with their share of the indexes; those of the run alone are left out.
_EVENT_BYTES = """
SELECT pg_total_relation_size('public.event_logs')
       * sum(pg_column_size(event)) FILTER (WHERE partition IS NOT NULL)
       / sum(pg_column_size(event))
       / count(*) FILTER (WHERE dagster_event_type = 'ASSET_MATERIALIZATION')
  FROM public.event_logs
"""
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def in_process(batches: int, rounds: int) -> list[str]:
    """Compare a plain loop with a run of all batches; gives lines of a table."""
    with stage(max_count=1) as opened:
        opened.land(batches)
        opened.tick("orders_new_files")
        session = open_session(opened.pipeline.spark)
        try:
            loop, run = partial(_loop, opened, session), partial(_run, opened)
            loop()
            run()  # both are warm now
            times = [(_seconds(loop), _seconds(run)) for _ in range(rounds)]
            event_bytes = opened.number(_EVENT_BYTES)
        finally:
            close_session()
    plain = statistics.median(one for one, _ in times)
    in_run = statistics.median(other for _, other in times)
    ratio = statistics.median(other / one for one, other in times)
    return [
        f"{batches} partitions, {event_bytes:,.0f} bytes of Dagster's events a materialization:",
        "",
        "| way | seconds | a partition | of the loop |",
        "|---|---:|---:|---:|",
        f"| plain loop | {plain:.1f} | {plain / batches:.3f} | 1 |",
        f"| one run, in this process | {in_run:.1f} | {in_run / batches:.3f} | {ratio:.2f} |",
    ]


def through_dev(batches: int) -> list[str]:
    """Launch the backfill in a `dev` with defaults; gives a line of the table."""
    with new_sandbox() as sandbox:
        sandbox.write_stream("orders", batch={"max_count": 1})
        files = {f"{number:03d}.csv": b"id\n1\n" for number in range(batches)}
        sandbox.land("orders", files)
        with live(sandbox) as port:
            storage = sandbox.storage("orders")
            wait_until(lambda: len(manifests(storage)) == batches, "all is published")
            keys = sorted({manifest["batch_id"] for manifest in manifests(storage)})
            _backfill(port, keys)
            runs = ask(port, _RUNS, {})["runsOrError"]["results"]
    mine = [run for run in runs if any(tag["key"] == "dagster/backfill" for tag in run["tags"])]
    span = max(run["endTime"] for run in mine) - min(run["startTime"] for run in mine)
    way = f"`dev`, {len(mine)} runs, {batches / span * 60:.0f} partitions a minute"
    return [f"| {way} | {span:.1f} | {span / batches:.3f} | |"]


def _loop(opened: Stage, session: Any) -> None:
    pipeline, stream = opened.pipeline, opened.stream
    workshop = pipeline.encode_context(stream, lambda: session)
    for status in pipeline.database.batches.statuses(stream.name):
        encode(workshop, status.batch, run_id="loop")


def _run(opened: Stage) -> None:
    asset = batches_of(opened.stream)
    keys = opened.instance.get_dynamic_partitions(asset.set_name)
    job = opened.definitions.resolve_job_def(asset.job)
    tags = run_tags(opened.stream, keys[0], keys[-1])
    done = job.execute_in_process(instance=opened.instance, tags=tags, run_config=_QUIET)
    assert done.success


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _backfill(port: int, keys: list[str]) -> None:
    parameters = {
        "assetSelection": [{"path": ["orders", "batches"]}],
        "partitionNames": keys,
    }
    launched = ask(port, LAUNCH, {"parameters": parameters})["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    ended = {"COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED"}

    def status() -> str:
        asked = {"id": launched["backfillId"]}
        return str(ask(port, BACKFILL, asked)["partitionBackfillOrError"]["status"])

    wait_until(lambda: status() in ended, "the backfill ends", pause_seconds=1)
    assert status() == "COMPLETED_SUCCESS"
