"""Runs that are repeated: when a step is tried again, and what it need not make a second time.

Dagster repeats a step that asks for it, within its run, and a run whose process died.
"""

import dagster as dg

from batch_pipeline.defs.assets.reasons import told
from batch_pipeline.defs.names import DRAIN_TAG, LAUNCH_TAG, RETRY_TAG
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.errors import PipelineError, RetryableError
from batch_pipeline.model.manifest import Manifest

_MOST_REPEATS = 3
_PAUSE_SECONDS = 5


def surroundings_failed(
    context: dg.AssetExecutionContext | dg.OpExecutionContext, *errors: PipelineError
) -> Exception:
    """Give what to raise when the rest of a run's batches would fail as well.

    A server or Spark that is gone may come back: the step is tried again, at most three times,
    unless one of several errors is none that goes by itself. What is left then is not lost: sensors
    launch it again, after ever longer pauses.
    """
    said = told(errors)
    come_back = all(isinstance(error, RetryableError) for error in errors)
    if come_back and DRAIN_TAG not in context.run.tags and context.retry_number < _MOST_REPEATS:
        context.log.warning(said)
        return dg.RetryRequested(max_retries=_MOST_REPEATS, seconds_to_wait=_PAUSE_SECONDS)
    return dg.Failure(said, allow_retries=False)


def repeated(run: dg.DagsterRun) -> set[str]:
    """Give the ids of a run and of those whose process died and that it repeats."""
    ids = {run.run_id}
    if RETRY_TAG in run.tags:
        ids |= {one for one in (run.parent_run_id, run.root_run_id) if one is not None}
    return ids


def made_before(
    context: dg.AssetExecutionContext, database: Database, batch: Batch
) -> Manifest | None:
    """Give the manifest of a batch that this run need not encode, None when it has to.

    A run for what is new leaves out all that is published; one that is repeated leaves out what it
    has published itself, in an earlier try or as the run whose process died.
    """
    run = context.run
    if run.tags.get(LAUNCH_TAG) == "new":
        return _with_origin(database, database.manifests.of_batch(batch))
    if not context.retry_number and RETRY_TAG not in run.tags:
        return None
    found = database.manifests.of_batch(batch)
    is_made = found is not None and database.manifests.run_of(found) in repeated(run)
    return _with_origin(database, found) if is_made else None


def _with_origin(database: Database, found: Manifest | None) -> Manifest | None:
    return None if found is None else database.manifests.with_origin(found)
