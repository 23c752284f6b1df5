"""Verify published batches: their files, counters and coverage of the meta table.

Nothing is changed. Memory is bounded by a page of batches.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from batch_pipeline.model.audit import Audit
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.checks import (
    Check,
    CheckResult,
    evaluate_backlog,
    evaluate_coverage,
    evaluate_quarantine,
    inconclusive,
    judged,
)
from batch_pipeline.model.errors import PipelineError, UnknownJobError
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.progress import is_enabled, track
from batch_pipeline.model.status import PublishedBatch
from batch_pipeline.model.stream import Stream
from batch_pipeline.storage.verification import manifest_file_problem, size_problem, verify_contents

if TYPE_CHECKING:
    from batch_pipeline.inventory.database import Database
    from batch_pipeline.inventory.meta_tables.own_table import OwnMetaTable
    from batch_pipeline.inventory.meta_tables.sources import UserMetaTable

BatchCheck = Callable[[PublishedBatch], Iterable[str]]  # returns the problems of a batch
OpenMetaTable = Callable[[Stream], "OwnMetaTable | UserMetaTable"]

ALL_KINDS = (JobKind.INCREMENTAL, JobKind.BACKFILL, JobKind.LATE)
_TRY_AGAIN = "Materialize the partition again: its next generation replaces this one."
_NEXT_STEPS = {
    Check.CONSERVATION: f"Do not load these batches. {_TRY_AGAIN} Please report it.",
    Check.POINTERS: "Programs that read manifest files miss these batches, or misread them. "
    f"{_TRY_AGAIN}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The published batches to verify; None means all.

    Files and counters of the `newest` batches are checked. The meta table is compared with batches
    published within `since`.
    """

    kinds: Sequence[JobKind] = ALL_KINDS
    newest: int | None = 1_000
    since: timedelta | None = timedelta(days=7)


def verify_stream(
    database: "Database",
    stream: Stream,
    checks: Collection[Check],
    scope: Scope,
    open_meta_table: OpenMetaTable,
) -> Iterator[CheckResult]:
    """Run checks of a stream in the order of `Check`; an error in one does not stop the others."""
    in_order = [check for check in Check if check in checks]
    of_batches = [check for check in in_order if check in _BATCH_CHECKS]
    if of_batches:
        yield from _verify_published(database, stream, of_batches, scope)
    for check in in_order:
        if check in _BATCH_CHECKS:
            continue
        try:
            yield _verify_stream(check, database, stream, scope, open_meta_table)
        except PipelineError as error:
            yield inconclusive(check, str(error))


def verify(
    batches: Iterable[PublishedBatch],
    checks: Mapping[Check, BatchCheck],
    *,
    total: int | None = None,
) -> dict[Check, CheckResult]:
    """Run checks of single batches on all batches, in one pass.

    If the files of a batch were removed on purpose, only its counters are checked. `total` is the
    number of batches, for progress, if it is known.
    """
    tallies = {check: _Tally(check=check) for check in checks}
    for batch in track(batches, "checking batches", total=total):
        for check, problems_of in checks.items():
            if batch.files_removed and check is not Check.CONSERVATION:
                tallies[check].gone += 1
            else:
                tallies[check].add(batch, list(problems_of(batch)))
    return {check: tally.result() for check, tally in tallies.items()}


def of_files(file_check: Callable[[PartFile], str | None]) -> BatchCheck:
    """Return a check that checks each file of a batch."""
    return lambda batch: filter(None, map(file_check, batch.files))


@dataclass(slots=True, kw_only=True)
class _Tally:
    """The problems that one check has found so far."""

    check: Check
    batches: int = 0
    files: int = 0
    size_bytes: int = 0
    bad_batches: int = 0
    problems: int = 0
    worst: str | None = None
    worst_count: int = 0
    gone: int = 0

    def add(self, batch: PublishedBatch, problems: Sequence[str]) -> None:
        """Add a batch and its problems."""
        self.batches += 1
        self.files += len(batch.files)
        self.size_bytes += sum(part.size_bytes for part in batch.files)
        if not problems:
            return
        self.bad_batches += 1
        self.problems += len(problems)
        if len(problems) > self.worst_count:
            self.worst_count = len(problems)
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self.worst = f"batch {batch.label}, generation {batch.generation}: {problems[0]}{more}"

    def result(self) -> CheckResult:
        """Return the result of the check."""
        numbers: dict[str, int | float] = {
            "batches_checked": self.batches,
            "batches_wrong": self.bad_batches,
            "problems": self.problems,
        }
        text = f"batches checked: {self.batches:,}"
        if self.check is not Check.CONSERVATION:
            numbers |= {"files_checked": self.files, "size_bytes": self.size_bytes}
            text += f", files: {self.files:,}"
        if self.bad_batches:
            bad = f"problems: {self.problems:,}, batches with problems: {self.bad_batches:,}"
            text = f"{bad}, {text}"
        text += "."
        if self.gone:
            numbers["batches_removed"] = self.gone
            text += f" Files of {self.gone:,} more were removed once they were loaded."
        step = _NEXT_STEPS.get(self.check, f"Do not load these batches. {_TRY_AGAIN}")
        result = judged(
            self.check,
            numbers,
            passed=not self.bad_batches,
            text=text,
            worst=self.worst,
            next_step=step,
        )
        if self.batches or self.gone:
            return result
        return replace(result, summary="Nothing to check yet: nothing is published.")


def _verify_published(
    database: "Database", stream: Stream, checks: Sequence[Check], scope: Scope
) -> Iterator[CheckResult]:
    batches = database.published.of_stream(stream.name, scope.kinds, newest=scope.newest)
    try:
        total = _count_published(database, stream, scope) if is_enabled() else None
        results = verify(batches, {check: _BATCH_CHECKS[check] for check in checks}, total=total)
    except PipelineError as error:
        results = {check: inconclusive(check, str(error)) for check in checks}
    yield from results.values()


def _count_published(database: "Database", stream: Stream, scope: Scope) -> int:
    states = database.stream_statuses.states(stream.name, scope.kinds)
    count = states.get(BatchState.PUBLISHED, 0)
    return count if scope.newest is None else min(count, scope.newest)


def _verify_stream(
    check: Check,
    database: "Database",
    stream: Stream,
    scope: Scope,
    open_meta_table: OpenMetaTable,
) -> CheckResult:
    statuses = database.stream_statuses
    if check is Check.QUARANTINE:
        recent = database.published.recent(stream.name, scope.kinds)
        return evaluate_quarantine(recent, stream.dagster.max_quarantined_ratio)
    if check is Check.BACKLOG:
        limit = stream.dagster.max_backlog_age
        status = statuses.status(stream.name, open_meta_table(stream))
        return evaluate_backlog(stream.name, status, statuses.stuck(stream.name, limit), limit)
    tiling = statuses.tiling(stream.name)
    table = open_meta_table(stream).reflected()
    audit: Audit | None = None
    with suppress(UnknownJobError):  # nothing was planned yet
        audit = database.late_arrivals.audit(stream.name, table, since=scope.since, dry_run=True)
    return evaluate_coverage(tiling, audit)


_BATCH_CHECKS: dict[Check, BatchCheck] = {
    Check.PART_FILES: of_files(size_problem),
    Check.CHECKSUMS: of_files(verify_contents),
    Check.POINTERS: lambda batch: filter(None, [manifest_file_problem(batch)]),
    Check.CONSERVATION: PublishedBatch.contradictions,
}
