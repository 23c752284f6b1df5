"""Trimming Dagster's own history: logs and events of old runs that no page of partitions needs.

Which events these are is said in `inventory.upkeep.dagster_history`; here are what steps printed,
which Dagster keeps elsewhere, and the runs that may go as a whole.
"""

import dagster as dg

from batch_pipeline.defs.names import (
    COLLECT_GARBAGE_JOB,
    PLAN_BACKFILL_JOB,
    RECONCILE_JOB,
    ROLL_UP_JOB,
)
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.inventory.upkeep.dagster_history import DagsterHistory, Trimmed
from batch_pipeline.settings.pipeline import Pipeline

_UPKEEP = (COLLECT_GARBAGE_JOB, PLAN_BACKFILL_JOB, RECONCILE_JOB, ROLL_UP_JOB)


def trim_history(
    pipeline: Pipeline, instance: dg.DagsterInstance, *, dry_run: bool
) -> Trimmed | None:
    """Delete what `keep_logs` does not keep of ended runs; None where it keeps everything.

    A hundred runs are a transaction; what steps printed goes before, so that whoever is stopped is
    gone on from. Safe beside runs, and beside others who do the same.
    """
    keep = pipeline.settings.keep_logs
    if keep is None:
        return None
    history = DagsterHistory(pipeline.database.engine, keep, _UPKEEP)
    done, after = Trimmed(), 0
    while history.is_there() and (runs := history.page(after)):
        after = runs[-1].id
        if dry_run:
            done += history.price(runs)
            continue
        for run in runs:
            instance.compute_log_manager.delete_logs(prefix=[run.run_id])
        failpoint("trim.logs_gone")
        done += history.forget(runs)
    return done
