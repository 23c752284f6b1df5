"""Asset checks of a stream, and the jobs that run them for all streams."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.names import (
    CHECK_CHECKSUMS_JOB,
    CHECK_STREAMS_JOB,
    backfill_asset_key,
    batches_key,
    identifier,
    late_key,
    meta_table_key,
)
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.sensors.run_requests import schedule_tags
from batch_pipeline.model.checks import Check, CheckResult
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.verify import Scope, verify_stream

_FILES = (Check.PART_FILES, Check.CHECKSUMS, Check.CONSERVATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetCheckSet:
    """An asset and its checks; `kinds` are the jobs whose batches it shows."""

    asset_key: dg.AssetKey
    checks: tuple[Check, ...]
    kinds: tuple[JobKind, ...]

    @property
    def in_runs(self) -> tuple[Check, ...]:
        """What a run that encodes asks at its end: all but what reads every byte again."""
        return tuple(check for check in self.checks if check is not Check.CHECKSUMS)

    def keys(self, checks: Iterable[Check]) -> list[dg.AssetCheckKey]:
        """Return the keys of the given checks that the asset has."""
        chosen = [check for check in self.checks if check in set(checks)]
        return [dg.AssetCheckKey(self.asset_key, check.value) for check in chosen]


def batches_checks(stream: Stream) -> AssetCheckSet:
    """Return the checks of a stream's own batches."""
    checks = (*_FILES, Check.QUARANTINE, Check.SCHEMA_DRIFT)
    key = batches_key(stream)
    return AssetCheckSet(asset_key=key, checks=checks, kinds=(JobKind.INCREMENTAL,))


def backfill_checks(stream: Stream) -> AssetCheckSet:
    """Return the checks of the batches of a stream's backfills."""
    key = backfill_asset_key(stream)
    return AssetCheckSet(
        asset_key=key, checks=(*_FILES, Check.QUARANTINE), kinds=(JobKind.BACKFILL,)
    )


def late_checks(stream: Stream) -> AssetCheckSet:
    """Return the checks of the batches of late arrivals."""
    return AssetCheckSet(asset_key=late_key(stream), checks=_FILES, kinds=(JobKind.LATE,))


def meta_table_checks(stream: Stream) -> AssetCheckSet:
    """Return the checks of a stream's items."""
    checks = (Check.COVERAGE, Check.BACKLOG)
    key = meta_table_key(stream)
    return AssetCheckSet(asset_key=key, checks=checks, kinds=(JobKind.INCREMENTAL, JobKind.LATE))


def all_check_sets(stream: Stream) -> tuple[AssetCheckSet, ...]:
    """Return the checks of all assets of a stream."""
    return (
        meta_table_checks(stream),
        batches_checks(stream),
        backfill_checks(stream),
        late_checks(stream),
    )


_FEW = 50
_PASSED = "SUCCEEDED"


def check_result(asked: AssetCheckSet, verdict: CheckResult) -> dg.AssetCheckResult:
    """Return the result of a check that was run by its own step."""
    return dg.AssetCheckResult(
        asset_key=asked.asset_key,
        check_name=verdict.check.value,
        passed=verdict.passed,
        severity=_severity(verdict),
        description=verdict.sentence,
        metadata=_metadata(verdict),
    )


def evaluate_run_checks(
    context: dg.AssetExecutionContext, pipeline: Pipeline, stream: Stream, asked: AssetCheckSet
) -> list[str]:
    """Answer the cheap checks of an asset at the end of a run that encoded its batches.

    Looks at what the run has published; where the last answer was no, as far back as a check that
    is run by itself does, so that a good run hides nothing. No answer fails the run: what it has
    published is published. Returns the sentences of blocking checks that failed.
    """
    tried = len(context.partition_keys) if context.has_partition_key_range else 1
    scope = Scope(kinds=asked.kinds, run=tried)
    if _were_fine(context.instance, asked):
        scope = replace(scope, newest=max(_FEW, tried))
    try:
        found = list(
            verify_stream(pipeline.database, stream, asked.in_runs, scope, pipeline.meta_table)
        )
    except PipelineError as error:
        context.log.warning("The checks were left out: %s", error)
        return []
    for verdict in found:
        context.log_event(
            dg.AssetCheckEvaluation(
                asset_key=asked.asset_key,
                check_name=verdict.check.value,
                passed=verdict.passed,
                severity=_severity(verdict),
                description=verdict.sentence,
                metadata=_metadata(verdict),
                blocking=verdict.check.is_severe,
            )
        )
    return [one.sentence for one in found if one.is_severe and not one.passed]


def _were_fine(instance: dg.DagsterInstance, asked: AssetCheckSet) -> bool:
    """Return whether the last recorded results passed; a running evaluation is not a result."""
    records = map(
        instance.get_latest_asset_check_evaluation_record,
        asked.keys(check for check in asked.in_runs if check.is_severe),
    )
    return all(record is None or record.status.value == _PASSED for record in records)


def _severity(verdict: CheckResult) -> dg.AssetCheckSeverity:
    is_severe = verdict.is_severe
    return dg.AssetCheckSeverity.ERROR if is_severe else dg.AssetCheckSeverity.WARN


def _metadata(verdict: CheckResult) -> dict[str, Any]:
    words = {"worst": verdict.worst, "next_step": verdict.next_step}
    return {**verdict.numbers, **{name: text for name, text in words.items() if text is not None}}


_HOURLY = "17 * * * *"
_WEEKLY = "37 3 * * 0"


class CheckScope(dg.ConfigurableResource[Any]):
    """How far back checks look; the Launchpad can change it for one run."""

    newest: int = Field(
        default=1_000, ge=0, description="Published batches, newest first; 0 takes all."
    )
    days: int = Field(default=7, ge=0, description="Days of which items are compared; 0 takes all.")

    def of(self, asked: AssetCheckSet) -> Scope:
        """Return the scope for the batches of an asset."""
        since = timedelta(days=self.days) if self.days else None
        return Scope(kinds=asked.kinds, newest=self.newest or None, since=since)


def checks_of(stream: Stream) -> list[dg.AssetChecksDefinition]:
    """Build the asset checks of a stream: one step for each asset, which can run a subset."""
    return [_checks(stream, asked) for asked in all_check_sets(stream)]


def check_jobs(streams: Sequence[Stream]) -> dg.Definitions:
    """Build the Dagster jobs that run checks of all streams, and their schedules."""
    asked = [one for stream in streams for one in all_check_sets(stream)]
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
            tags_fn=schedule_tags,
            default_status=dg.DefaultScheduleStatus.RUNNING,
        ),
        dg.ScheduleDefinition(
            name=f"{CHECK_CHECKSUMS_JOB}_weekly",
            job=read,
            cron_schedule=_WEEKLY,
            tags_fn=schedule_tags,
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


def _checks(stream: Stream, asked: AssetCheckSet) -> dg.AssetChecksDefinition:
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
