"""Asset checks as steps of their own: run from the UI, by a schedule, or after the meta table."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from batch_pipeline.defs.checks.answers import check_result
from batch_pipeline.defs.checks.asked import Asked, all_asked
from batch_pipeline.defs.names import (
    CHECK_CHECKSUMS_JOB,
    CHECK_STREAMS_JOB,
    identifier,
    meta_table_key,
)
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.run_order import tags_at
from batch_pipeline.model.checks import Check
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.verify import Scope, verify_stream

_HOURLY = "17 * * * *"
_WEEKLY = "37 3 * * 0"


class CheckScope(dg.ConfigurableResource[Any]):
    """How far back checks look; the Launchpad can change it for one run."""

    newest: int = Field(
        default=1_000, ge=0, description="Published batches, newest first; 0 takes all."
    )
    days: int = Field(default=7, ge=0, description="Days of which items are compared; 0 takes all.")

    def of(self, asked: Asked) -> Scope:
        """Give the scope for the batches of an asset."""
        since = timedelta(days=self.days) if self.days else None
        return Scope(kinds=asked.kinds, newest=self.newest or None, since=since)


def checks_of(stream: Stream) -> list[dg.AssetChecksDefinition]:
    """Build the asset checks of a stream: one step for each asset, of which any part can be run."""
    return [_checks(stream, asked) for asked in all_asked(stream)]


def check_jobs(streams: Sequence[Stream]) -> dg.Definitions:
    """Build the Dagster jobs that run checks of all streams, and their schedules."""
    asked = [one for stream in streams for one in all_asked(stream)]
    if not asked:
        return dg.Definitions()
    cheap = [key for one in asked for key in one.keys(one.in_runs)]
    deep = [key for one in asked for key in one.keys({Check.CHECKSUMS})]
    look = _job(CHECK_STREAMS_JOB, cheap, "Checks all streams; reads no file.")
    read = _job(CHECK_CHECKSUMS_JOB, deep, "Reads published files again and compares SHA-256.")
    schedules = [
        dg.ScheduleDefinition(
            name=f"{CHECK_STREAMS_JOB}_hourly",
            job=look,
            cron_schedule=_HOURLY,
            tags_fn=tags_at,
            default_status=dg.DefaultScheduleStatus.RUNNING,
        ),
        dg.ScheduleDefinition(
            name=f"{CHECK_CHECKSUMS_JOB}_weekly",
            job=read,
            cron_schedule=_WEEKLY,
            tags_fn=tags_at,
        ),
    ]
    return dg.Definitions(jobs=[look, read], schedules=schedules)


def _job(name: str, keys: Sequence[dg.AssetCheckKey], description: str) -> Any:
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.checks(*keys),
        executor_def=dg.in_process_executor,
        description=description,
    )


def _checks(stream: Stream, asked: Asked) -> dg.AssetChecksDefinition:
    last = asked.asset_key.path[-1]
    is_table = asked.asset_key == meta_table_key(stream)  # nothing answers its checks beside these

    @dg.multi_asset_check(
        name=f"{identifier(stream)}_{last}_checks",
        specs=[
            dg.AssetCheckSpec(
                check.value,
                asset=asked.asset_key,
                description=check.question,
                blocking=check.is_severe,
            )
            for check in asked.checks
        ],
        can_subset=True,
    )
    def checks(
        context: dg.AssetCheckExecutionContext, pipeline: PipelineResource, check_scope: CheckScope
    ) -> Iterator[dg.AssetCheckResult]:
        if asked.asset_key in context.job_def.asset_layer.selected_asset_keys and not is_table:
            context.log.info("The step that encodes has answered the checks of its batches.")
            return
        chosen = [Check(key.name) for key in context.selected_asset_check_keys]
        for verdict in verify_stream(
            pipeline.pipeline.database,
            stream,
            chosen,
            check_scope.of(asked),
            pipeline.pipeline.meta_table,
        ):
            yield check_result(asked, verdict)

    return checks
