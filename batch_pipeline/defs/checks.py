"""Asset checks of a stream, and the Dagster job that runs the checks of all streams."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
from pydantic import Field

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.instance.private_api import have_failed, materialized_by_run
from batch_pipeline.defs.names import CHECK_STREAMS_JOB, CHECKS_RESOURCE, files_key
from batch_pipeline.defs.partitions import PartitionedAsset, backfills_of, batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.runs import UNFINISHED
from batch_pipeline.model.checks import Check, CheckResult
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.job import OWN_KINDS, JobKind
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.verify import Scope, verify_stream

_BATCH_CHECKS = (Check.PART_FILES, Check.CONSERVATION, Check.QUARANTINE)
_RECENT_BATCHES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetChecks:
    """The checks of an asset of a stream; they consider batches of jobs of these `kinds`."""

    stream: Stream
    asset_key: dg.AssetKey
    checks: tuple[Check, ...]
    kinds: tuple[JobKind, ...]

    @classmethod
    def of_batches(cls, asset: PartitionedAsset) -> "AssetChecks":
        """Return the checks of an asset of batches."""
        key, kinds = asset.asset_key, asset.kinds
        return cls(stream=asset.stream, asset_key=key, checks=_BATCH_CHECKS, kinds=kinds)

    @classmethod
    def of_files(cls, stream: Stream) -> "AssetChecks":
        """Return the checks of a stream's files."""
        key = files_key(stream)
        return cls(stream=stream, asset_key=key, checks=(Check.BACKLOG,), kinds=OWN_KINDS)

    @property
    def keys(self) -> list[dg.AssetCheckKey]:
        """Keys of the checks."""
        return [dg.AssetCheckKey(self.asset_key, check.value) for check in self.checks]

    def verify(
        self, pipeline: Pipeline, scope: Scope, selected: Collection[Check] | None = None
    ) -> Iterator[CheckResult]:
        """Run the selected checks, or all; see `verify_stream`."""
        checks = self.checks if selected is None else selected
        return verify_stream(pipeline.database, self.stream, checks, scope, pipeline.meta_table)


def checks_of_stream(stream: Stream) -> list[AssetChecks]:
    """Return the checks of all assets of a stream."""
    backfills = [backfills_of(stream)] if stream.dagster.backfills else []
    files = AssetChecks.of_files(stream)
    return [files, *(AssetChecks.of_batches(asset) for asset in (batches_of(stream), *backfills))]


def evaluate_run_checks(
    context: dg.AssetExecutionContext, pipeline: Pipeline, checks: AssetChecks
) -> list[str]:
    """Evaluate the checks of an asset at the end of a run that encoded its batches.

    Considers the 50 newest batches, or as many as the run has tried; the 1,000 newest if the last
    evaluation failed, so that a good run does not hide an earlier failure. The run does not fail:
    its batches are published. Returns the descriptions of blocking checks that failed.
    """
    scope = Scope(kinds=checks.kinds)
    if _have_passed(context.instance, checks):
        scope = replace(scope, newest=max(_RECENT_BATCHES, len(context.partition_keys)))
    try:
        results = list(checks.verify(pipeline, scope))
    except PipelineError as error:
        context.log.warning("The checks were not evaluated: %s", error)
        return []
    for event in _evaluations(results, checks):
        context.log_event(event)
    return [result.sentence for result in results if result.is_severe and not result.passed]


def evaluate_file_checks(pipeline: Pipeline, stream: Stream) -> list[dg.AssetCheckEvaluation]:
    """Evaluate the checks of a stream's files after new ones were registered.

    Raises:
        PipelineError: the user's table cannot be read.
    """
    checks = AssetChecks.of_files(stream)
    return _evaluations(checks.verify(pipeline, Scope(kinds=checks.kinds)), checks)


def _evaluations(
    results: Iterable[CheckResult], checks: AssetChecks
) -> list[dg.AssetCheckEvaluation]:
    return [
        dg.AssetCheckEvaluation(
            asset_key=checks.asset_key, blocking=result.check.is_severe, **_evaluation(result)
        )
        for result in results
    ]


def _have_passed(instance: dg.DagsterInstance, checks: AssetChecks) -> bool:
    """Return whether the last evaluations passed, and the Dagster job is not checking all streams.

    Its results would count as older than that of a run that ends before it.
    """
    checking = dg.RunsFilter(job_name=CHECK_STREAMS_JOB, statuses=UNFINISHED)
    severe = [key for key in checks.keys if Check(key.name).is_severe]
    return not (instance.get_run_records(checking, limit=1) or have_failed(instance, severe))


def _evaluation(result: CheckResult, check: Check | None = None) -> dict[str, Any]:
    """Return the fields that Dagster's classes for results of checks share."""
    texts = {"worst": result.worst, "next_step": result.next_step}
    is_severe = result.is_severe
    return {
        "check_name": (check or result.check).value,
        "passed": result.passed,
        "severity": dg.AssetCheckSeverity.ERROR if is_severe else dg.AssetCheckSeverity.WARN,
        "description": result.sentence,
        "metadata": {**result.numbers, **{name: text for name, text in texts.items() if text}},
    }


class CheckScope(dg.ConfigurableResource[Any]):
    """What the checks consider when they are executed by themselves, as in the hourly job."""

    newest: int = Field(
        default=1_000, ge=0, description="Newest published batches to check; 0 for all."
    )
    checksums: bool = Field(
        default=False, description="Read all part files and compare their SHA-256."
    )


def check_definitions(stream: Stream) -> list[dg.AssetChecksDefinition]:
    """Build the asset checks of a stream: one step per asset, which can execute a subset."""
    return [_checks_definition(checks) for checks in checks_of_stream(stream)]


def check_streams_job(streams: Sequence[Stream]) -> Any:
    """Build the Dagster job that executes the checks of all streams."""
    keys = [key for stream in streams for checks in checks_of_stream(stream) for key in checks.keys]
    return dg.define_asset_job(
        CHECK_STREAMS_JOB,
        selection=dg.AssetSelection.checks(*keys),
        executor_def=dg.in_process_executor,
        description=(
            f"Runs the checks of all streams. Compares sizes of part files; with `checksums` "
            f"in the configuration of the resource {CHECKS_RESOURCE} also their SHA-256."
        ),
    )


def _checks_definition(checks: AssetChecks) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name=f"{checks.stream.identifier}_{checks.asset_key.path[-1]}_checks",
        specs=[
            dg.AssetCheckSpec(
                check.value,
                asset=checks.asset_key,
                description=check.description,
                blocking=check.is_severe,
            )
            for check in checks.checks
        ],
        can_subset=True,
    )
    def execute(
        context: dg.AssetCheckExecutionContext,
        batch_pipeline: PipelineResource,
        batch_pipeline_checks: CheckScope,
    ) -> Iterator[dg.AssetCheckResult]:
        is_encoded_by_run = checks.asset_key in materialized_by_run(context)
        if is_encoded_by_run and checks.asset_key != files_key(checks.stream):
            context.log.info("The step that encodes evaluates the checks of its batches.")
            return
        selected = {Check(key.name) for key in context.selected_asset_check_keys}
        if batch_pipeline_checks.checksums and Check.PART_FILES in selected:
            selected = selected - {Check.PART_FILES} | {Check.CHECKSUMS}  # which includes sizes
        scope = Scope(kinds=checks.kinds, newest=batch_pipeline_checks.newest or None)
        for result in checks.verify(batch_pipeline.pipeline, scope, selected):
            check = Check.PART_FILES if result.check is Check.CHECKSUMS else result.check
            yield dg.AssetCheckResult(asset_key=checks.asset_key, **_evaluation(result, check))

    return execute
