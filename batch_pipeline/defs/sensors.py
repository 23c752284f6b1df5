"""The sensor of a stream: what lands is registered, planned and launched in one tick."""

import json
from collections.abc import Sequence

import dagster as dg

from batch_pipeline.defs.discover import Discovered, discover
from batch_pipeline.defs.metadata import discovery_materialization, discovery_metadata
from batch_pipeline.defs.names import (
    LAUNCH_TAG,
    RANGE_END_TAG,
    RANGE_START_TAG,
    STREAM_TAG,
    batches_job,
    identifier,
    partitions,
    run_tags,
)
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.domain.batch import BatchStatus
from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.domain.stream import Stream
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.steps.plan import MAX_ATTEMPTS, due, neighbours

INTERVAL_SECONDS = 10
_RUNS_PER_TICK = 10
UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def new_files_sensor(stream: Stream) -> dg.SensorDefinition:
    """Watch a stream's landing. Safe to repeat and to lose anywhere: the inventory remembers."""

    @dg.sensor(
        name=f"{identifier(stream)}_new_files",
        job_name=batches_job(stream),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=_description(stream),
    )
    def new_files(
        context: dg.SensorEvaluationContext, pipeline: PipelineResource
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            found = discover(pipeline.pipeline, stream, context.instance, drain=False)
        except PipelineError as error:
            return dg.SkipReason(str(error))
        news = _news(pipeline.pipeline, stream, found)
        return _requests(context, stream, found, news)

    return new_files


def _description(stream: Stream) -> str:
    if stream.user_table is not None:
        return f"Plans and launches what the table {stream.source.place} lists."
    return f"Registers, plans and launches what lands in {stream.source.place}."


def _news(pipeline: Pipeline, stream: Stream, found: Discovered) -> list[dg.AssetMaterialization]:
    """Tell Dagster of new items, and of published batches that it has not heard of."""
    has_news = found.registered.new_items if stream.user_table is None else found.planned.batches
    if not has_news:
        return list(found.unseen)
    waiting = pipeline.database.batches.backlog(pipeline.meta_table(stream))
    facts = discovery_metadata(found.registered, found.planned.batches, *waiting)
    return [discovery_materialization(stream, facts), *found.unseen]


def _requests(
    context: dg.SensorEvaluationContext,
    stream: Stream,
    found: Discovered,
    news: list[dg.AssetMaterialization],
) -> dg.SensorResult | dg.SkipReason:
    launches: dict[str, int] = json.loads(context.cursor) if context.cursor else {}
    waiting = _not_yet_launched(context, stream, found.statuses)
    chosen = [status for status in waiting if launches.get(status.batch.key, 0) < MAX_ATTEMPTS]
    groups = neighbours(chosen, found.statuses, most=stream.partitions_per_run)[:_RUNS_PER_TICK]
    launched = {status.batch.key for group in groups for status in group}
    counts = {
        status.batch.key: launches.get(status.batch.key, 0) + (status.batch.key in launched)
        for status in waiting
    }
    if not (groups or found.new_keys or news):
        files = f"{found.registered.found} files known, " if stream.user_table is None else ""
        return dg.SkipReason(f"{files}nothing is due.")
    set_name = partitions(stream)
    return dg.SensorResult(
        run_requests=[_run_request(stream, group, counts) for group in groups],
        dynamic_partitions_requests=[set_name.build_add_request(list(found.new_keys))],
        asset_events=news,
        cursor=json.dumps({key: count for key, count in counts.items() if count}),
    )


def _not_yet_launched(
    context: dg.SensorEvaluationContext, stream: Stream, statuses: Sequence[BatchStatus]
) -> list[BatchStatus]:
    """Choose the due batches that no queued or running run of the stream covers."""
    runs = context.instance.get_runs(
        dg.RunsFilter(tags={STREAM_TAG: stream.name}, statuses=UNFINISHED)
    )
    ranges = [
        (run.tags[RANGE_START_TAG], run.tags[RANGE_END_TAG])
        for run in runs
        if RANGE_START_TAG in run.tags
    ]
    return [
        status
        for status in due(statuses, retry_failed=False)
        if not any(first <= status.batch.key <= last for first, last in ranges)
    ]


def _run_request(
    stream: Stream, group: Sequence[BatchStatus], counts: dict[str, int]
) -> dg.RunRequest:
    first, last = group[0].batch.key, group[-1].batch.key
    launch = max(counts[status.batch.key] + status.attempts for status in group)
    return dg.RunRequest(
        run_key=f"{stream.name}:{first}:{last}:{launch}",
        tags={LAUNCH_TAG: "new", **run_tags(stream, first, last)},
    )
