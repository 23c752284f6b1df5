"""Verdicts as Dagster hears them: passed or not, how bad, a sentence, and numbers to plot."""

from dataclasses import replace
from typing import Any

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.checks.asked import Asked
from batch_pipeline.model.checks import CheckResult
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.verify import Scope, verify_stream

_FEW = 50
_PASSED = "SUCCEEDED"


def check_result(asked: Asked, verdict: CheckResult) -> dg.AssetCheckResult:
    """Give the result of a check that a check's own step has run."""
    return dg.AssetCheckResult(
        asset_key=asked.asset_key,
        check_name=verdict.check.value,
        passed=verdict.passed,
        severity=_severity(verdict),
        description=verdict.sentence,
        metadata=_metadata(verdict),
    )


def evaluate_run_checks(
    context: dg.AssetExecutionContext, pipeline: Pipeline, stream: Stream, asked: Asked
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


def _were_fine(instance: dg.DagsterInstance, asked: Asked) -> bool:
    """Tell whether the last answers on record are good; one that is being asked for is none."""
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
