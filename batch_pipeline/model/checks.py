"""Checks of a stream and their results.

`Check` lists the checks. The `evaluate_*` functions compute the `CheckResult` of those that need
only values from the inventory; `pipeline.verify` computes the ones that read files. `Finding` is
the result of a diagnosis of the installation. Presentation is left to the callers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

from batch_pipeline.model.audit import Audit
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.errors import InvariantError, PipelineError, resume_step
from batch_pipeline.model.status import (
    BatchTotals,
    RecentBatch,
    StreamStatus,
    Stuck,
    Tiling,
)


class Check(StrEnum):
    """Checks of a stream."""

    PART_FILES = "part_files"
    CHECKSUMS = "checksums"
    POINTERS = "pointers"
    CONSERVATION = "conservation"
    QUARANTINE = "quarantine"
    COVERAGE = "coverage"
    BACKLOG = "backlog"

    @property
    def description(self) -> str:
        """Return the condition that the check verifies, as a sentence for people."""
        return _DESCRIPTIONS[self]

    @property
    def is_severe(self) -> bool:
        """Return whether a batch that fails the check must not be loaded."""
        return self in _SEVERE


_DESCRIPTIONS = {
    Check.PART_FILES: "All files of the published batches exist and have their published size.",
    Check.CHECKSUMS: "All files of the published batches match their published SHA-256.",
    Check.POINTERS: "Every published batch has a manifest file that matches the inventory.",
    Check.CONSERVATION: "Every record that was read was written, filtered or quarantined.",
    Check.QUARANTINE: "The share of quarantined records is within its limit.",
    Check.COVERAGE: "Every item below the bookmark is in exactly one live batch.",
    Check.BACKLOG: "No item waits, and no batch has failed, for longer than the limit.",
}
_SEVERE = {Check.PART_FILES, Check.CHECKSUMS, Check.CONSERVATION}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of a check.

    `summary` describes the result, `worst` names the worst offender and `next_step` the action to
    take; both are None if the check passed. A key of `numbers` has the same meaning in all checks.
    If a check could not be completed, `is_conclusive` is false: it does not pass, but does not
    block batches either.
    """

    check: Check
    passed: bool
    summary: str
    worst: str | None = None
    next_step: str | None = None
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    is_conclusive: bool = True

    @property
    def is_severe(self) -> bool:
        """Return whether a failure means that the batch must not be loaded."""
        return self.check.is_severe and self.is_conclusive

    @property
    def sentence(self) -> str:
        """Return description, summary, worst offender and next step in one line."""
        parts = [self.check.description, self.summary]
        if self.worst is not None:
            parts.append(f"Worst: {self.worst}.")
        if self.next_step is not None:
            parts.append(self.next_step)
        return " ".join(parts)


def judged(
    check: Check,
    numbers: Mapping[str, int | float],
    *,
    passed: bool,
    text: str,
    worst: str | None,
    next_step: str,
) -> CheckResult:
    """Return a result, with the worst offender and the next step unless the check passed."""
    return CheckResult(
        check=check,
        passed=passed,
        summary=f"{'Passed' if passed else 'Failed'}: {text}",
        worst=None if passed else worst,
        next_step=None if passed else next_step,
        numbers=numbers,
    )


def inconclusive(check: Check, reason: str) -> CheckResult:
    """Return the result of a check that could not be completed because of an error."""
    return CheckResult(
        check=check,
        passed=False,
        summary=f"The check could not be completed: {reason}",
        next_step="Nothing was changed. Correct the cause and run the check again.",
        is_conclusive=False,
    )


def format_age(age: timedelta) -> str:
    """Format an age for people, in a single unit."""
    for unit, seconds in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if age.total_seconds() >= 2 * seconds:
            return f"{age.total_seconds() / seconds:.0f} {unit}"
    return f"{age.total_seconds():.0f} seconds"


_NEED_A_PERSON = (BatchState.FAILED, BatchState.DEAD)


def evaluate_quarantine(recent: Sequence[RecentBatch], limit: float) -> CheckResult:
    """Evaluate the share of quarantined records in all recent batches."""
    read = sum(batch.read for batch in recent)
    quarantined = sum(batch.quarantined for batch in recent)
    ratio = quarantined / read if read else 0.0
    numbers = {
        "batches_checked": len(recent),
        "records_read": read,
        "records_quarantined": quarantined,
        "quarantined_ratio": ratio,
        "max_quarantined_ratio": limit,
    }
    if not recent:
        return _nothing(Check.QUARANTINE, numbers)
    worst = max(recent, key=lambda batch: batch.quarantined_ratio)
    return judged(
        Check.QUARANTINE,
        numbers,
        passed=ratio <= limit,
        text=f"quarantined records: {quarantined:,} of {read:,} ({ratio:.2%}) in batches: "
        f"{len(recent)}; allowed: {limit:.2%}.",
        worst=f"batch {worst.label} with {worst.quarantined:,} of {worst.read:,}",
        next_step="Look at its quarantine file, which has each record with its reason; correct the "
        "source, or set `dagster.max_quarantined_ratio` to what is normal.",
    )


def evaluate_backlog(
    stream: str, status: StreamStatus, stuck: Stuck, limit: timedelta
) -> CheckResult:
    """Evaluate the age of the oldest unpublished item and of failed batches."""
    waiting, oldest = status.waiting, status.oldest
    numbers: dict[str, int | float] = {
        "items_unpublished": waiting.items,
        "bytes_unpublished": waiting.size_bytes,
        "batches_failed": status.batches(BatchState.FAILED),
        "batches_dead": status.batches(BatchState.DEAD),
        "batches_stuck": stuck.batches,
        "max_backlog_age_seconds": limit.total_seconds(),
        "oldest_unpublished_seconds": 0.0 if oldest is None else round(oldest.total_seconds(), 1),
    }
    too_old = oldest is not None and oldest > limit
    text = _describe_backlog(status)
    if waiting.items:
        since = "" if oldest is None else f", the oldest for {format_age(oldest)}"
        text += f"{since}; allowed: {format_age(limit)}"
    text += "."
    if stuck.batches:
        text += f" Batches failed or dead for longer than that: {stuck.batches:,}."
    passed = not (too_old or stuck.batches)
    worst, step = _oldest_offender(status, stuck), _backlog_step(stream, stuck)
    return judged(Check.BACKLOG, numbers, passed=passed, text=text, worst=worst, next_step=step)


def _describe_backlog(status: StreamStatus) -> str:
    """Describe the backlog; list batches that require manual action separately, as `jobs` does."""
    stopped = [(state, status.states.get(state, BatchTotals())) for state in _NEED_A_PERSON]
    count = status.waiting.items - sum(amount.items for _, amount in stopped)
    parts = [f"items waiting: {count:,}" if count else "nothing waits"]
    for state, amount in stopped:
        if amount.batches:
            parts.append(f"batches {state}: {amount.batches:,} (items: {amount.items:,})")
    return ", ".join(parts)


def _oldest_offender(status: StreamStatus, stuck: Stuck) -> str:
    if stuck.first is not None:
        return f"batch {stuck.first}" + (f" ({stuck.error})" if stuck.error else "")
    unplanned, planned = status.not_planned_for, status.not_published_for
    if planned is not None and (unplanned is None or planned >= unplanned):
        return f"batch {status.oldest_batch}, planned {format_age(planned)} ago"
    return "items that are in no batch yet"


def _backlog_step(stream: str, stuck: Stuck) -> str:
    if stuck.paused is not None:
        reason = f" ({stuck.paused})" if stuck.paused else ""
        return f"The stream is paused{reason}. {resume_step(stream, stuck.paused)}".rstrip()
    if stuck.batches:
        return (
            "Correct what the error names, then materialize the partition, or run "
            f"`batch-pipeline jobs retry {stream}`."
        )
    return "Check that the sensor is on and that runs start; `batch-pipeline status` shows more."


def evaluate_coverage(tiling: Tiling, audit: Audit | None) -> CheckResult:
    """Evaluate whether each item is in exactly one batch; `audit` is None if nothing is planned."""
    if audit is None:
        return _nothing(Check.COVERAGE, {"batches_checked": 0})
    late, broken = audit.late.count + audit.refused.count, tiling.overlaps + tiling.holes
    numbers = {
        "batches_checked": tiling.batches,
        "batches_compared": audit.batches,
        "batches_left_out": audit.left_out,
        "overlaps": tiling.overlaps,
        "holes": tiling.holes,
        "items_in_two_batches": tiling.doubled_items,
        "items_late": late,
        "items_gone": audit.missing.count,
    }
    passed = not (audit.other_table or late or broken or tiling.doubled_items)
    text = f"batches: {tiling.batches:,}, compared with the table: {audit.batches:,}"
    if not passed:
        text = (
            f"overlaps: {tiling.overlaps}, gaps: {tiling.holes}, items in two batches: "
            f"{tiling.doubled_items}, items in no batch: {late} ({text})"
        )
    worst: str | None
    if audit.other_table:
        text, worst = audit.other_table[0], "the ids of the batches refer to rows of another table"
        step = "`batch-pipeline reconcile` shows what to do."
    elif broken or tiling.doubled_items:
        worst, step = tiling.worst, "This is a bug: please report it."
    else:
        unseen = audit.late if audit.late.count else audit.refused
        worst = f"items {unseen}, which appeared after their ids had been planned"
        step = "`batch-pipeline reconcile` plans them as late batches, or says why not."
    return judged(
        Check.COVERAGE, numbers, passed=passed, text=f"{text}.", worst=worst, next_step=step
    )


def _nothing(check: Check, numbers: Mapping[str, int | float]) -> CheckResult:
    summary = "Nothing to check yet: nothing is published or planned."
    return CheckResult(check=check, passed=True, summary=summary, numbers=numbers)


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"  # works, but needs attention
    FAIL = "fail"  # does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one diagnosis; `text` has the observation and, for a problem, the next step."""

    subject: str
    level: Level
    text: str


def fine(subject: str, text: str, level: Level = Level.OK) -> Finding:
    """Return a finding that the subject works."""
    return Finding(subject=subject, level=level, text=text)


warning = partial(fine, level=Level.WARN)
failure = partial(fine, level=Level.FAIL)


def attempted(subject: str, diagnose: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a diagnosis; an error in it becomes the last finding."""
    try:
        yield from diagnose()
    except InvariantError:
        raise
    except PipelineError as error:
        yield failure(subject, str(error))
    except Exception as error:  # noqa: BLE001 - the other diagnoses must still run
        reason = str(error).partition("\n")[0] or "no reason given"
        text = f"this could not be checked ({type(error).__name__}: {reason}). Please report it."
        yield warning(subject, text)


def compare_clocks(other: str, other_time: datetime, local_time: datetime) -> Iterator[Finding]:
    """Warn if another clock differs from this machine's by more than a minute."""
    apart = abs((other_time - local_time).total_seconds())
    if apart > 60:
        text = (
            f"this machine's clock differs from {other} by {apart:,.0f} seconds. This affects ages "
            f"of files, not leases, which use the database's clock only; stores refuse requests "
            f"from 15 minutes on. Synchronize the clocks by NTP."
        )
        yield warning("clock", text)
