"""Verifies a stream: reads the facts that checks ask for and has them judged.

What is read and how far back is said here; what it means is said in `steps.verify` and in
`model.checks`. Nothing is changed.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from batch_pipeline.model.audit import Audit
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.checks import (
    Check,
    CheckResult,
    evaluate_backlog,
    evaluate_coverage,
    evaluate_quarantine,
    evaluate_schema,
    inconclusive,
)
from batch_pipeline.model.errors import PipelineError, UnknownJobError
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.progress import is_enabled
from batch_pipeline.model.stream import Stream
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.steps.verify import BatchLook, Look, verify
from batch_pipeline.storage.manifest_files import manifest_file_problem
from batch_pipeline.storage.verification import size_problem, verify_contents

ALL_KINDS = (JobKind.INCREMENTAL, JobKind.BACKFILL, JobKind.LATE)
_LOOKS: dict[Check, Look] = {
    Check.PART_FILES: size_problem,
    Check.CHECKSUMS: verify_contents,
}
_BATCH_LOOKS: dict[Check, BatchLook] = {Check.POINTERS: manifest_file_problem}
_OF_BATCHES = {*_LOOKS, *_BATCH_LOOKS, Check.CONSERVATION}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How far back a verification goes.

    Files and counters are those of the `newest` published batches; the meta table is compared with
    batches that were published within `since`. None takes everything. The newest schema is compared
    with the one before the last `run` batches.
    """

    kinds: Sequence[JobKind] = ALL_KINDS
    newest: int | None = 1_000
    since: timedelta | None = timedelta(days=7)
    run: int = 1


def verdicts(
    pipeline: Pipeline, stream: Stream, checks: Collection[Check], scope: Scope
) -> Iterator[CheckResult]:
    """Answer checks of a stream, in the order of `Check`; one that fails does not stop the rest."""
    asked = [check for check in Check if check in checks]
    of_batches = [check for check in asked if check in _OF_BATCHES]
    if of_batches:
        yield from _of_batches(pipeline, stream, of_batches, scope)
    for check in asked:
        if check not in _OF_BATCHES:
            try:
                yield _ONE_BY_ONE[check](pipeline, stream, scope)
            except PipelineError as error:
                yield inconclusive(check, str(error))


def _of_batches(
    pipeline: Pipeline, stream: Stream, checks: Sequence[Check], scope: Scope
) -> Iterator[CheckResult]:
    looks = {check: look for check, look in _LOOKS.items() if check in checks}
    wholes = {check: look for check, look in _BATCH_LOOKS.items() if check in checks}
    batches = pipeline.database.published.of_stream(stream.name, scope.kinds, newest=scope.newest)
    try:
        total = _published(pipeline, stream, scope) if is_enabled() else None
        found = verify(batches, looks, wholes, total=total)
    except PipelineError as error:
        found = {check: inconclusive(check, str(error)) for check in checks}
    yield from (found[check] for check in checks)


def _published(pipeline: Pipeline, stream: Stream, scope: Scope) -> int:
    """Count the batches that are looked at, of all kinds."""
    states = pipeline.database.stream_statuses.states(stream.name)
    backfills = pipeline.database.backfills.of_stream(stream.name)
    every = [states, *(one.states for one in backfills)]
    count = sum(some.get(BatchState.PUBLISHED, 0) for some in every)
    return count if scope.newest is None else min(count, scope.newest)


def _quarantine(pipeline: Pipeline, stream: Stream, scope: Scope) -> CheckResult:
    recent = pipeline.database.published.recent(stream.name, scope.kinds)
    return evaluate_quarantine(recent, stream.dagster.max_quarantined_ratio)


def _schema(pipeline: Pipeline, stream: Stream, scope: Scope) -> CheckResult:
    return evaluate_schema(pipeline.database.published.schema_step(stream.name, newest=scope.run))


def _backlog(pipeline: Pipeline, stream: Stream, _: Scope) -> CheckResult:
    limit, statuses = stream.dagster.max_backlog_age, pipeline.database.stream_statuses
    standing = statuses.status(stream.name, pipeline.meta_table(stream))
    return evaluate_backlog(standing, statuses.stuck(stream.name, limit), limit)


def _coverage(pipeline: Pipeline, stream: Stream, scope: Scope) -> CheckResult:
    tiling = pipeline.database.stream_statuses.tiling(stream.name)
    table = pipeline.meta_table(stream).reflected()
    audit: Audit | None = None
    with suppress(UnknownJobError):  # nothing of it was ever planned
        audit = pipeline.database.late_arrivals.preview(stream.name, table, since=scope.since)
    return evaluate_coverage(tiling, audit)


_ONE_BY_ONE: dict[Check, Callable[[Pipeline, Stream, Scope], CheckResult]] = {
    Check.QUARANTINE: _quarantine,
    Check.SCHEMA_DRIFT: _schema,
    Check.COVERAGE: _coverage,
    Check.BACKLOG: _backlog,
}
