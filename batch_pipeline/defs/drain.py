"""Everything that has landed, through Dagster runs in this process, until nothing is left."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.left_runs import close_left_runs, drain_tags
from batch_pipeline.defs.names import batches_job, late_job, meta_table_job, run_tags
from batch_pipeline.domain.batch import BatchState, BatchStatus
from batch_pipeline.domain.errors import (
    OF_ONE_META_TABLE,
    JobPausedError,
    LandingUnavailableError,
    PipelineError,
    RetryableError,
    StorageUnavailableError,
)
from batch_pipeline.domain.stream import Stream
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.steps.plan import due, neighbours

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
_OF_ONE_STREAM = (
    JobPausedError,
    LandingUnavailableError,
    StorageUnavailableError,
    *OF_ONE_META_TABLE,
)
progress = logging.getLogger("batch_pipeline.progress")


@dataclass(slots=True, kw_only=True)
class Drained:
    """What draining one stream did; `tried` are the partition keys of this call in order.

    `tried_late` are the numbers of the batches of late arrivals that it tried.
    `error` is what ended the drain before its time.
    """

    stream: str
    files_found: int = 0
    items_registered: int = 0
    files_changed: int = 0
    batches_planned: int = 0
    tried: list[str] = field(default_factory=list)
    tried_late: list[int] = field(default_factory=list)
    statuses: list[BatchStatus] = field(default_factory=list)
    error: PipelineError | None = None

    @property
    def published(self) -> list[BatchStatus]:
        """Batches of this call that are published now."""
        return [s for s in self.statuses if s.state is BatchState.PUBLISHED]

    @property
    def failed(self) -> list[BatchStatus]:
        """Batches of this call that were tried and are not."""
        fine = {BatchState.PUBLISHED, BatchState.PLANNED}
        return [s for s in self.statuses if s.state not in fine]


def drain(
    pipeline: Pipeline, streams: Sequence[Stream], instance: dg.DagsterInstance
) -> Iterator[Drained]:
    """Register, plan, encode and publish stream by stream until nothing is left.

    Failed and interrupted batches of earlier calls are tried once more. A stream that is paused, or
    whose landing, table or storage is not in order, ends alone; after any other error (no database,
    no Spark) nothing more is tried. Errors are given, not raised.
    """
    with _quiet_dagster():
        close_left_runs(pipeline, instance)
        definitions = build_definitions(streams)
        for stream in streams:
            drained = Drained(stream=stream.name)
            try:
                _drain_stream(pipeline, stream, definitions, instance, drained)
            except PipelineError as error:
                drained.error = error
                with suppress(RetryableError):
                    _note_statuses(drained, pipeline)
            yield drained
            if not (drained.error is None or isinstance(drained.error, _OF_ONE_STREAM)):
                return


def _drain_stream(
    pipeline: Pipeline,
    stream: Stream,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    drained: Drained,
) -> None:
    register_job = definitions.resolve_job_def(meta_table_job(stream))
    encode_job = definitions.resolve_job_def(batches_job(stream))
    encode_late_job = definitions.resolve_job_def(late_job(stream))
    home = drain_tags(pipeline)
    jobs = pipeline.database.jobs
    while True:
        jobs.check_not_paused(stream.name)
        progress.info("looking for files", extra={"stream": stream.name})
        _note_arrivals(drained, _run(register_job, instance, tags=home))
        statuses = pipeline.database.batches.statuses(stream.name)
        left = [s for s in due(statuses, retry_failed=True) if s.batch.key not in drained.tried]
        late = due(pipeline.database.batches.late_statuses(stream.name), retry_failed=True)
        if late and not drained.tried_late:
            drained.tried_late += [status.batch.id for status in late]
            _run(encode_late_job, instance, tags=home)
        if not left:
            break
        progress.info("encoding", extra={"stream": stream.name, "total": len(left)})
        for group in neighbours(left, statuses, most=stream.partitions_per_run):
            jobs.check_not_paused(stream.name)
            drained.tried += [status.batch.key for status in group]
            tags = home | run_tags(stream, group[0].batch.key, group[-1].batch.key)
            _run(encode_job, instance, tags=tags)
    _note_statuses(drained, pipeline)


def _run(
    job: dg.JobDefinition, instance: dg.DagsterInstance, *, tags: dict[str, str]
) -> dg.ExecuteInProcessResult | None:
    """Run a job; batches that failed are in the inventory, anything else is raised.

    Raises:
        KeyboardInterrupt: the operator interrupted the run.
    """
    try:
        return job.execute_in_process(instance=instance, tags=tags, run_config=_QUIET)
    except dg.Failure as failure:
        if isinstance(failure.__cause__, PipelineError):
            raise failure.__cause__ from None
        return None
    except dg.DagsterExecutionInterruptedError:
        raise KeyboardInterrupt from None


def _note_statuses(drained: Drained, pipeline: Pipeline) -> None:
    tried = set(drained.tried)
    statuses = pipeline.database.batches.statuses(drained.stream)
    late = pipeline.database.batches.late_statuses(drained.stream)
    drained.statuses = [status for status in statuses if status.batch.key in tried]
    drained.statuses += [status for status in late if status.batch.id in drained.tried_late]


def _note_arrivals(drained: Drained, result: dg.ExecuteInProcessResult | None) -> None:
    if result is None:
        return
    for event in result.get_asset_materialization_events():
        facts: dict[str, Any] = {
            name: value.value for name, value in event.materialization.metadata.items()
        }
        if "files_found" in facts:
            drained.files_found = facts["files_found"]
            drained.files_changed = facts["files_changed"]
            drained.items_registered += facts["items_registered"]
            drained.batches_planned += facts["batches_planned"]


@contextmanager
def _quiet_dagster() -> Iterator[None]:
    """Keep Dagster's notes on beta parameters away from people who run a command."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        yield
