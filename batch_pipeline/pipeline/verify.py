"""Verify published batches: their files, counters, schema and coverage of the meta table.

Nothing is changed. Memory is bounded by a page of batches.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
    evaluate_schema,
    inconclusive,
)
from batch_pipeline.model.errors import PipelineError, UnknownJobError
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.progress import is_enabled, track
from batch_pipeline.model.published import PublishedBatch
from batch_pipeline.model.stream import Stream
from batch_pipeline.storage.verification import manifest_file_problem, size_problem, verify_contents

if TYPE_CHECKING:
    from batch_pipeline.inventory.database import Database
    from batch_pipeline.inventory.meta_tables.registered_table import OwnMetaTable
    from batch_pipeline.inventory.meta_tables.sources import UserMetaTable

FileCheck = Callable[[PartFile], str | None]
BatchCheck = Callable[[PublishedBatch], str | None]
OpenMetaTable = Callable[[Stream], "OwnMetaTable | UserMetaTable"]

ALL_KINDS = (JobKind.INCREMENTAL, JobKind.BACKFILL, JobKind.LATE)
_NO_BATCH_CHECKS: Mapping[Check, BatchCheck] = {}
_TRY_AGAIN = "Materialize the partition again: its next generation replaces this one."


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The published batches to verify; None means all.

    Files and counters of the `newest` batches are checked. The meta table is compared with batches
    published within `since`. The newest schema is compared with the one before the last `run`
    batches.
    """

    kinds: Sequence[JobKind] = ALL_KINDS
    newest: int | None = 1_000
    since: timedelta | None = timedelta(days=7)
    run: int = 1


def verify_stream(
    database: "Database",
    stream: Stream,
    checks: Collection[Check],
    scope: Scope,
    open_meta_table: OpenMetaTable,
) -> Iterator[CheckResult]:
    """Run checks of a stream in the order of `Check`; one that raises does not stop the others."""
    in_order = [check for check in Check if check in checks]
    of_batches = [check for check in in_order if check in _BATCH_CHECKS]
    if of_batches:
        yield from _verify_published(database, stream, of_batches, scope)
    for check in in_order:
        if check in _BATCH_CHECKS:
            continue
        try:
            yield _STREAM_CHECKS[check](database, stream, scope, open_meta_table)
        except PipelineError as error:
            yield inconclusive(check, str(error))


def verify(
    batches: Iterable[PublishedBatch],
    file_checks: Mapping[Check, FileCheck],
    batch_checks: Mapping[Check, BatchCheck] = _NO_BATCH_CHECKS,
    *,
    total: int | None = None,
) -> dict[Check, CheckResult]:
    """Verify the counters, files and manifest files of batches in one pass.

    A check returns what is wrong with a part file or a batch, or None. Files that were removed on
    purpose are not checked. `total` is the number of batches, for progress, if it is known.
    """
    counters = _Tally(check=Check.CONSERVATION)
    tallies = {check: _Tally(check=check) for check in (*file_checks, *batch_checks)}
    for batch in track(batches, "looking at batches", total=total):
        counters.add(batch, list(batch.contradictions()))
        if batch.files_removed:
            for tally in tallies.values():
                tally.gone += 1
            continue
        for check, file_check in file_checks.items():
            problems = [text for part in batch.files if (text := file_check(part)) is not None]
            tallies[check].add(batch, problems)
        for check, batch_check in batch_checks.items():
            problem = batch_check(batch)
            tallies[check].add(batch, [] if problem is None else [problem])
    return {tally.check: tally.result() for tally in (counters, *tallies.values())}


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
        checked = f"batches checked: {self.batches:,}"
        if self.check is not Check.CONSERVATION:
            numbers |= {"files_checked": self.files, "size_bytes": self.size_bytes}
            checked += f", files: {self.files:,}"
        removed, step = "", None
        if self.gone:
            numbers["batches_removed"] = self.gone
            removed = f" Files of {self.gone:,} more were removed once they were loaded."
        if self.bad_batches:
            bad = f"problems: {self.problems:,}, batches with problems: {self.bad_batches:,}"
            summary = f"No: {bad}, {checked}.{removed}"
            step = f"Do not load these batches. {_TRY_AGAIN}"
            if self.check is Check.CONSERVATION:
                step += " Please report it."
            elif self.check is Check.POINTERS:
                readers = "Programs that read manifest files miss these batches, or misread them."
                step = f"{readers} {_TRY_AGAIN}"
        elif self.batches or self.gone:
            summary = f"Yes: {checked}.{removed}"
        else:
            summary = "Nothing to check yet: nothing is published."
        return CheckResult(
            check=self.check,
            passed=not self.bad_batches,
            summary=summary,
            worst=self.worst,
            next_step=step,
            numbers=numbers,
        )


def _verify_published(
    database: "Database", stream: Stream, checks: Sequence[Check], scope: Scope
) -> Iterator[CheckResult]:
    of_files = {check: one for check, one in _FILE_CHECKS.items() if check in checks}
    of_manifests = {check: one for check, one in _MANIFEST_CHECKS.items() if check in checks}
    batches = database.published.of_stream(stream.name, scope.kinds, newest=scope.newest)
    try:
        total = _count_published(database, stream, scope) if is_enabled() else None
        results = verify(batches, of_files, of_manifests, total=total)
    except PipelineError as error:
        results = {check: inconclusive(check, str(error)) for check in checks}
    yield from (results[check] for check in checks)


def _count_published(database: "Database", stream: Stream, scope: Scope) -> int:
    """Count the batches to verify, of jobs of all kinds."""
    states = database.stream_statuses.states(stream.name)
    backfills = database.backfills.of_stream(stream.name)
    every = [states, *(one.states for one in backfills)]
    count = sum(some.get(BatchState.PUBLISHED, 0) for some in every)
    return count if scope.newest is None else min(count, scope.newest)


def _quarantine(
    database: "Database", stream: Stream, scope: Scope, _: OpenMetaTable
) -> CheckResult:
    recent = database.published.recent(stream.name, scope.kinds)
    return evaluate_quarantine(recent, stream.dagster.max_quarantined_ratio)


def _schema(database: "Database", stream: Stream, scope: Scope, _: OpenMetaTable) -> CheckResult:
    return evaluate_schema(database.published.schema_step(stream.name, newest=scope.run))


def _backlog(
    database: "Database", stream: Stream, _: Scope, open_meta_table: OpenMetaTable
) -> CheckResult:
    limit, statuses = stream.dagster.max_backlog_age, database.stream_statuses
    status = statuses.status(stream.name, open_meta_table(stream))
    return evaluate_backlog(status, statuses.stuck(stream.name, limit), limit)


def _coverage(
    database: "Database", stream: Stream, scope: Scope, open_meta_table: OpenMetaTable
) -> CheckResult:
    tiling = database.stream_statuses.tiling(stream.name)
    table = open_meta_table(stream).reflected()
    audit: Audit | None = None
    with suppress(UnknownJobError):  # nothing was planned yet
        audit = database.late_arrivals.preview(stream.name, table, since=scope.since)
    return evaluate_coverage(tiling, audit)


_FILE_CHECKS: dict[Check, FileCheck] = {
    Check.PART_FILES: size_problem,
    Check.CHECKSUMS: verify_contents,
}
_MANIFEST_CHECKS: dict[Check, BatchCheck] = {Check.POINTERS: manifest_file_problem}
_BATCH_CHECKS = {*_FILE_CHECKS, *_MANIFEST_CHECKS, Check.CONSERVATION}
_STREAM_CHECKS: dict[Check, Callable[["Database", Stream, Scope, OpenMetaTable], CheckResult]] = {
    Check.QUARANTINE: _quarantine,
    Check.SCHEMA_DRIFT: _schema,
    Check.COVERAGE: _coverage,
    Check.BACKLOG: _backlog,
}
