"""Asset checks: their results and their texts."""

from datetime import timedelta
from typing import Any

import pytest

from batch_pipeline.model.audit import Audit, CountedNames
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.checks import (
    Check,
    evaluate_backlog,
    evaluate_coverage,
    evaluate_quarantine,
    format_age,
    inconclusive,
)
from batch_pipeline.model.errors import OLDER, JobPausedError
from batch_pipeline.model.status import (
    BatchTotals,
    RecentBatch,
    StreamStatus,
    Stuck,
    Tiling,
    sparkline,
)

HOUR = timedelta(hours=1)
DEAD = {BatchState.DEAD: BatchTotals(batches=1, items=3)}
ONE = CountedNames(count=1, first=(7,))


def recent(label: str = "b", **overrides: Any) -> RecentBatch:
    """Return a batch of ten records that took two seconds."""
    facts: dict[str, Any] = {"read": 10, "written": 10, "quarantined": 0, "seconds": 2.0}
    return RecentBatch(label=label, **(facts | overrides))


def waiting(age: timedelta | None) -> StreamStatus:
    """Return the status of a stream with one planned batch of three items."""
    amount = BatchTotals(batches=1, items=3, size_bytes=30)
    return StreamStatus(
        states={BatchState.PLANNED: amount}, not_published_for=age, oldest_batch="000001-000003"
    )


def test_inconclusive_check_does_not_pass() -> None:
    result = inconclusive(Check.PART_FILES, "the table is gone.")
    assert (result.passed, result.is_severe) == (False, False)
    assert result.sentence.startswith(f"{Check.PART_FILES.description} The check could not be ")
    assert "could not be completed: the table is gone. Nothing was changed." in result.sentence


def test_only_checks_of_batch_integrity_are_severe() -> None:
    assert {check for check in Check if check.is_severe} == {
        Check.PART_FILES,
        Check.CHECKSUMS,
        Check.CONSERVATION,
    }


def test_format_age_uses_a_unit_of_at_least_two() -> None:
    ages = [format_age(timedelta(seconds=number)) for number in (0, 119, 120, 7_200, 172_800)]
    assert ages == ["0 seconds", "119 seconds", "2 minutes", "2 hours", "2 days"]


@pytest.mark.parametrize(
    ("quarantined", "limit", "passed"),
    [(0, 0.0, True), (1, 0.0, False), (1, 0.05, True), (2, 0.05, False)],
)
def test_quarantine_check(quarantined: int, limit: float, passed: bool) -> None:
    result = evaluate_quarantine([recent(), recent("worst", quarantined=quarantined)], limit)
    assert result.passed is passed
    assert result.numbers["quarantined_ratio"] == quarantined / 20
    assert ("Worst: batch worst with" in result.sentence) is not passed
    assert ("Look at its quarantine file" in result.sentence) is not passed
    assert evaluate_quarantine([], 0.0).passed


@pytest.mark.parametrize(
    ("age", "stuck", "passed"),
    [
        (None, 0, True),
        (HOUR, 0, True),
        (HOUR + timedelta(seconds=1), 0, False),
        (timedelta(0), 1, False),
    ],
)
def test_backlog_check(age: timedelta | None, stuck: int, passed: bool) -> None:
    assert evaluate_backlog("orders", waiting(age), Stuck(batches=stuck), HOUR).passed is passed


def test_backlog_check_names_reason_of_pause_or_oldest_items() -> None:
    """The advice to resume is left out where a job would be paused again."""
    for reason, step in (("disk is full", " `batch-pipeline jobs resume orders`"), (OLDER, "")):
        stuck = Stuck(batches=1, first="7", paused=reason)
        sentence = evaluate_backlog("orders", waiting(HOUR), stuck, HOUR).sentence
        assert f"paused ({reason}).{step}" in sentence
        assert ("jobs resume" in str(JobPausedError("orders", reason))) is bool(step)

    status = StreamStatus(items_not_planned=1, not_planned_for=2 * HOUR, not_published_for=HOUR)
    assert (
        evaluate_backlog("orders", status, Stuck(), HOUR).worst == "items that are in no batch yet"
    )


def test_backlog_check_counts_dead_batches_separately() -> None:
    """Dead batches await an operator, not a worker."""
    result = evaluate_backlog("orders", StreamStatus(states=DEAD), Stuck(), HOUR)
    dead = "batches dead: 1 (items: 3); allowed: 60 minutes."
    assert result.summary == f"Passed: nothing waits, {dead}"
    others = {
        BatchState.PLANNED: BatchTotals(batches=1, items=1),
        BatchState.FAILED: BatchTotals(batches=2, items=4),
    }
    result = evaluate_backlog("orders", StreamStatus(states=DEAD | others), Stuck(), HOUR)
    assert result.summary == f"Passed: items waiting: 1, batches failed: 2 (items: 4), {dead}"
    assert (result.numbers["items_unpublished"], result.numbers["batches_dead"]) == (8, 1)


@pytest.mark.parametrize(
    ("tiling", "audit", "passed"),
    [
        (Tiling(), None, True),
        (Tiling(batches=2), {}, True),
        (Tiling(batches=2), {"missing": ONE}, True),
        (Tiling(batches=2), {"late": ONE}, False),
        (Tiling(batches=2), {"refused": ONE}, False),
        (Tiling(batches=2, holes=1, worst="ids 1..2"), {}, False),
        (Tiling(batches=2, overlaps=1, worst="ids 1..2"), {}, False),
        (Tiling(batches=2, doubled_items=1, worst="item 1"), {}, False),
    ],
)
def test_coverage_check(tiling: Tiling, audit: dict[str, Any] | None, passed: bool) -> None:
    report = None if audit is None else Audit(job="orders", late_job="orders.late", **audit)
    result = evaluate_coverage(tiling, report)
    assert result.passed is passed
    assert (result.worst is None) is passed


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([1, 2]) == "▅█"
    assert sparkline([]) == ""


def test_batch_without_a_duration_has_no_pace() -> None:
    """A negative pace would have no place in a sparkline."""
    paces = [recent(seconds=seconds).records_per_second for seconds in (2.0, 0.0, -0.001)]
    assert paces == [5.0, 0.0, 0.0]
    assert sparkline(paces) == "█▁▁"
