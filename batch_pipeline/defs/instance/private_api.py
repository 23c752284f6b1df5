"""Functions that definitions need and that the public API of Dagster does not provide."""

import atexit
import multiprocessing
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.util import Finalize
from typing import Any

import dagster as dg

FORK_RUNS = "BATCH_PIPELINE_FORK_RUNS"  # set by `dev` for its code server
# What a run imports. None opens anything or starts a thread, except for those of OpenBLAS and
# jemalloc, which both prepare for forks.
_IMPORTED_BY_RUNS = [
    "dagster._grpc.impl",
    "batch_pipeline.defs.build",
    "batch_pipeline.defs.instance.launcher",
    "batch_pipeline.defs.instance.storage",
    "batch_pipeline.spark.encoder",
    "pyspark.sql.connect.session",
]
_MATERIALIZATION = dg.DagsterEventType.ASSET_MATERIALIZATION


def materialized_keys(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, keys: Collection[str] | None
) -> Collection[str]:
    """Return the partitions, among `keys` or all, that have events, without reading any event.

    `get_status_by_partition`, which is public, updates a cache of the whole asset.
    """
    if keys is None:
        return instance.get_materialized_partitions(asset_key)
    storage = instance.event_log_storage
    return storage.get_latest_storage_id_by_partition(
        asset_key, _MATERIALIZATION, partitions={*keys}
    )


def latest_tags(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, tag: str, keys: Sequence[str] | None
) -> Mapping[str, str]:
    """Return the tag of the latest event by partition, for some partitions or all."""
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        asset_key, _MATERIALIZATION, [tag], asset_partitions=keys
    )
    return {key: values[tag] for key, values in tags.items()}


def have_failed(instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]) -> bool:
    """Return whether the last completed evaluation of one of these checks failed.

    The run that calls this, and runs that are queued, may have planned later ones.
    """
    summaries = instance.event_log_storage.get_asset_check_summary_records(checks)
    completed = (one.last_completed_check_execution_record for one in summaries.values())
    return any(last is not None and last.status.value == "FAILED" for last in completed)


_MOST_PLANS = 1_000
_planned: dict[str, Collection[dg.AssetKey]] = {}  # by the digest of an execution plan


def planned_assets(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Collection[dg.AssetKey]:
    """Return the assets that a run was created to materialize.

    Runs of a Dagster job have the same execution plan, so that there are few of them to read.
    """
    plan = run.execution_plan_snapshot_id
    if plan is None:
        return ()
    assets = _planned.get(plan)
    if assets is None:
        assets = instance.get_execution_plan_snapshot(plan).asset_selection
        if len(_planned) >= _MOST_PLANS:
            _planned.clear()
        _planned[plan] = assets
    return assets


def is_backfill_failed(instance: dg.DagsterInstance, backfill_id: str) -> bool:
    """Return whether Dagster gave up a backfill, and cancels its runs."""
    backfill = instance.get_backfill(backfill_id)
    return backfill is not None and backfill.status.value in ("FAILING", "FAILED")


_DIED = (
    "The process of this run exited without reporting. What it had published stays published; the "
    "other batches are encoded by another run."
)
_CANCELLED = "A user cancelled this run, whose process then exited without reporting."


def report_dead(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Report a run whose process died as failed, or as cancelled if it was being cancelled."""
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, _CANCELLED)
    else:
        instance.report_run_failed(run, _DIED)


def last_event_at(instance: dg.DagsterInstance, record: dg.RunRecord) -> float:
    """Return when a run last changed or had an event, in seconds since 1970."""
    run_id = record.dagster_run.run_id
    events = instance.get_records_for_run(run_id, limit=1, ascending=False).records
    return max([record.update_timestamp.timestamp(), *(event.timestamp for event in events)])


def tag_run(instance: dg.DagsterInstance, run_id: str, tag: str, value: str) -> None:
    """Add a tag to a run."""
    instance.add_run_tags(run_id, {tag: value})


def materialized_by_run(context: Any) -> Collection[dg.AssetKey]:
    """Return the assets that the run of a step or check materializes."""
    keys: Collection[dg.AssetKey] = context.job_def.asset_layer.selected_asset_keys
    return keys


def is_awaited(context: dg.AssetExecutionContext, own_checks: Collection[str]) -> bool:
    """Return whether a step of the run needs the output of this one.

    That is the step of an asset directly downstream, or of a check of a user's, whose name is not
    among `own_checks`.
    """
    layer, key = context.job_def.asset_layer, context.asset_key
    if not layer.get(key).child_keys.isdisjoint(materialized_by_run(context)):
        return True
    checks = (check for data in layer.data for check in data.assets_def.check_keys)
    return any(check.asset_key == key and check.name not in own_checks for check in checks)


def location_of_sensor(context: dg.SensorEvaluationContext) -> str | None:
    """Return the code location of a sensor; None outside of a code location."""
    origin = context.code_location_origin
    return None if origin is None else origin.location_name


def location_of_run(run: dg.DagsterRun) -> str | None:
    """Return the code location that a run was launched from; None if from Python."""
    origin = run.remote_job_origin
    return None if origin is None else origin.location_name


def keep_interrupts_from_log_processes(instance: dg.DagsterInstance) -> None:
    """Keep Ctrl-C from the processes that copy the output of steps.

    Dagster starts them in the terminal's process group, and they print tracebacks if interrupted.
    Processes that are started while interrupts are blocked never receive any.
    """
    manager = instance.compute_log_manager
    capture_logs = manager.capture_logs

    @contextmanager
    def capture(log_key: Sequence[str]) -> Iterator[Any]:
        with ExitStack() as stack:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                context = stack.enter_context(capture_logs(log_key))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield context

    manager.capture_logs = capture  # type: ignore[method-assign]


def fork_runs() -> None:
    """Make the code server of this process fork the processes of runs.

    Dagster starts an interpreter for each run, whose imports take longer than encoding a small
    file. They are forked from a process that has only imported what runs need, and no module of
    users: each run imports their current version.
    """
    if multiprocessing.parent_process() is not None:  # this is a run
        # A fork does not call the functions that were registered for the exit.
        Finalize(None, atexit._run_exitfuncs, exitpriority=0)  # noqa: SLF001
        return
    from dagster._grpc.server import DagsterApiServer

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED_BY_RUNS)
    # A property, because the constructor assigns the context that starts interpreters.
    DagsterApiServer._mp_ctx = property(lambda _: context, lambda *_: None)  # type: ignore[assignment] # noqa: SLF001
