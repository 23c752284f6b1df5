"""Verifies a stream: reads the facts that checks ask for and has them judged.

What is read and how far back is said here; what it means is said in `steps.verify` and in
`domain.judgement`. Nothing is changed.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from batch_pipeline.domain.audit import Audit
from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.errors import PipelineError, UnknownJobError
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.judgement import (
    judge_backlog,
    judge_coverage,
    judge_quarantine,
    judge_schema,
)
from batch_pipeline.domain.progress import is_heard
from batch_pipeline.domain.stream import Stream
from batch_pipeline.domain.verdict import Check, Verdict, unanswered
from batch_pipeline.files.looks import deep_problem, size_problem
from batch_pipeline.files.pointer_looks import pointer_problem
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.steps.verify import BatchLook, Look, verify

ALL_KINDS = (JobKind.INCREMENTAL, JobKind.BACKFILL, JobKind.LATE)
_LOOKS: dict[Check, Look] = {
    Check.PART_FILES: size_problem,
    Check.CHECKSUMS: deep_problem,
}
_BATCH_LOOKS: dict[Check, BatchLook] = {Check.POINTERS: pointer_problem}
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
) -> Iterator[Verdict]:
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
                yield unanswered(check, str(error))


def _of_batches(
    pipeline: Pipeline, stream: Stream, checks: Sequence[Check], scope: Scope
) -> Iterator[Verdict]:
    looks = {check: look for check, look in _LOOKS.items() if check in checks}
    wholes = {check: look for check, look in _BATCH_LOOKS.items() if check in checks}
    batches = pipeline.database.published.of_stream(stream.name, scope.kinds, newest=scope.newest)
    try:
        total = _published(pipeline, stream, scope) if is_heard() else None
        found = verify(batches, looks, wholes, total=total)
    except PipelineError as error:
        found = {check: unanswered(check, str(error)) for check in checks}
    yield from (found[check] for check in checks)


def _published(pipeline: Pipeline, stream: Stream, scope: Scope) -> int:
    """Count the batches that are looked at, of all kinds."""
    states = pipeline.database.standings.states(stream.name)
    backfills = pipeline.database.backfills.of_stream(stream.name)
    every = [states, *(one.states for one in backfills)]
    count = sum(some.get(BatchState.PUBLISHED, 0) for some in every)
    return count if scope.newest is None else min(count, scope.newest)


def _quarantine(pipeline: Pipeline, stream: Stream, scope: Scope) -> Verdict:
    recent = pipeline.database.published.recent(stream.name, scope.kinds)
    return judge_quarantine(recent, stream.dagster.max_quarantined_ratio)


def _schema(pipeline: Pipeline, stream: Stream, scope: Scope) -> Verdict:
    return judge_schema(pipeline.database.published.schema_step(stream.name, newest=scope.run))


def _backlog(pipeline: Pipeline, stream: Stream, _: Scope) -> Verdict:
    limit, standings = stream.dagster.max_backlog_age, pipeline.database.standings
    standing = standings.standing(stream.name, pipeline.meta_table(stream))
    return judge_backlog(standing, standings.stuck(stream.name, limit), limit)


def _coverage(pipeline: Pipeline, stream: Stream, scope: Scope) -> Verdict:
    tiling = pipeline.database.standings.tiling(stream.name)
    table = pipeline.meta_table(stream).reflected()
    audit: Audit | None = None
    with suppress(UnknownJobError):  # nothing of it was ever planned
        audit = pipeline.database.late_arrivals.look(stream.name, table, since=scope.since)
    return judge_coverage(tiling, audit)


_ONE_BY_ONE: dict[Check, Callable[[Pipeline, Stream, Scope], Verdict]] = {
    Check.QUARANTINE: _quarantine,
    Check.SCHEMA_DRIFT: _schema,
    Check.COVERAGE: _coverage,
    Check.BACKLOG: _backlog,
}
