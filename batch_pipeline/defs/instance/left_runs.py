"""Closing the Dagster runs whose process died without reporting its end."""

import hashlib
import platform

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.names import DRAIN_TAG

_BEGUN = [
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_UNFINISHED = [dg.DagsterRunStatus.NOT_STARTED, *_BEGUN]
_REASON = (
    "The process of this run ended without a word. What it had published stays published; the "
    "other batches are encoded by another run."
)
_CANCELLED = "A person cancelled this run, whose process then ended without a word."


def drain_tags(pipeline: Pipeline) -> dict[str, str]:
    """Tag a run that lives in the process which holds the lock of a home."""
    home = f"{platform.node()}:{pipeline.settings.home}"
    return {DRAIN_TAG: hashlib.sha256(home.encode()).hexdigest()[:16]}


def close_left_runs(pipeline: Pipeline, instance: dg.DagsterInstance) -> int:
    """Report as failed what a crash left unfinished; gives the number of runs.

    A run whose cancelling it kept from its end is cancelled, and its batches are called off. The
    caller holds the home's lock, so nothing of this home runs. An embedded database holds no
    runs but this home's; in a shared one, runs that do not say whose they are stay. Queued runs
    stay, too: the daemon goes on with them.
    """
    filters = [dg.RunsFilter(tags=dict(drain_tags(pipeline)), statuses=_UNFINISHED)]
    if pipeline.settings.inventory_conn is None:
        filters.append(dg.RunsFilter(statuses=_BEGUN))
    left = {run.run_id: run for one in filters for run in instance.get_runs(one)}
    for run in left.values():
        if run.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, _CANCELLED)
        else:
            instance.report_run_failed(run, _REASON)
    return len(left)
