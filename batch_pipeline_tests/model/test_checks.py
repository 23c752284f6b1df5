"""Judging facts: what passes, what fails, and what people are told."""

from datetime import timedelta
from typing import Any

import pytest

from batch_pipeline.model.audit import Audit, CountedNames
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.checks import (
    Check,
    CheckResult,
    evaluate_backlog,
    evaluate_coverage,
    evaluate_quarantine,
    evaluate_schema,
    format_age,
    inconclusive,
)
from batch_pipeline.model.status import (
    BatchTotals,
    RecentBatch,
    SchemaStep,
    StreamStatus,
    Stuck,
    Tiling,
    sparkline,
)

HOUR = timedelta(hours=1)


def recent(label: str = "b", **overrides: Any) -> RecentBatch:
    """A batch of ten records in two seconds."""
    facts: dict[str, Any] = {
        "label": label,
        "read": 10,
        "written": 10,
        "quarantined": 0,
        "seconds": 2.0,
    }
    return RecentBatch(**(facts | overrides))


def waits(age: timedelta | None) -> StreamStatus:
    """A stream of which one planned batch of three items waits."""
    amount = BatchTotals(batches=1, items=3, size_bytes=30)
    return StreamStatus(
        states={BatchState.PLANNED: amount}, not_published_for=age, oldest_batch="000001-000003"
    )


def test_sentence_has_description_summary_offender_and_next_step() -> None:
    verdict = CheckResult(
        check=Check.BACKLOG,
        passed=False,
        summary="Failed: 3 wait.",
        worst="batch 7",
        next_step="Look.",
    )
    assert verdict.sentence == f"{Check.BACKLOG.description} Failed: 3 wait. Worst: batch 7. Look."


def test_check_whose_surroundings_fail_does_not_pass() -> None:
    verdict = inconclusive(Check.PART_FILES, "the table is gone.")
    assert (verdict.passed, verdict.is_severe) == (False, False)
    assert "could not be completed: the table is gone. Nothing was changed." in verdict.sentence


def test_only_what_makes_a_batch_unfit_is_severe() -> None:
    assert {check for check in Check if check.is_severe} == {
        Check.PART_FILES,
        Check.CHECKSUMS,
        Check.CONSERVATION,
    }


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 seconds"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (7_200, "2 hours"),
        (172_800, "2 days"),
    ],
)
def test_age_in_words(seconds: int, words: str) -> None:
    """Expect a unit of which there are at least two."""
    assert format_age(timedelta(seconds=seconds)) == words


@pytest.mark.parametrize(
    ("quarantined", "limit", "passed"),
    [(0, 0.0, True), (1, 0.0, False), (1, 0.05, True), (2, 0.05, False)],
)
def test_share_of_quarantined_records(quarantined: int, limit: float, passed: bool) -> None:
    verdict = evaluate_quarantine([recent(), recent("worst", quarantined=quarantined)], limit)
    assert verdict.passed is passed
    assert verdict.numbers["quarantined_ratio"] == quarantined / 20
    assert ("batch worst" in verdict.sentence) is not passed
    assert evaluate_quarantine([], 0.0).passed


@pytest.mark.parametrize(
    ("step", "passed"),
    [
        (None, True),
        (SchemaStep(newest="b", version=1), True),
        (SchemaStep(newest="b", version=2, before="a", version_before=2), True),
        (SchemaStep(newest="b", version=3, before="a", version_before=2), False),
        (SchemaStep(newest="b", version=1, before="a", version_before=2), False),
    ],
)
def test_schema_of_the_newest_batch(step: SchemaStep | None, passed: bool) -> None:
    assert evaluate_schema(step).passed is passed


@pytest.mark.parametrize(
    ("age", "stuck", "passed"),
    [
        (None, 0, True),
        (HOUR, 0, True),
        (HOUR + timedelta(seconds=1), 0, False),
        (timedelta(0), 1, False),
    ],
)
def test_backlog(age: timedelta | None, stuck: int, passed: bool) -> None:
    assert evaluate_backlog(waits(age), Stuck(batches=stuck), HOUR).passed is passed


def test_backlog_of_a_paused_stream_names_the_pause() -> None:
    stuck = Stuck(batches=1, first="7", paused="disk is full")
    assert "paused (disk is full)" in evaluate_backlog(waits(HOUR), stuck, HOUR).sentence


def test_items_without_a_batch_are_the_worst_when_they_are_older() -> None:
    standing = StreamStatus(items_not_planned=1, not_planned_for=2 * HOUR, not_published_for=HOUR)
    assert evaluate_backlog(standing, Stuck(), HOUR).worst == "items that are in no batch yet"


@pytest.mark.parametrize(
    ("states", "found"),
    [
        (
            {BatchState.DEAD: BatchTotals(batches=1, items=3)},
            "Passed: nothing waits, batches dead: 1 (items: 3)",
        ),
        (
            {
                BatchState.PLANNED: BatchTotals(batches=1, items=1),
                BatchState.FAILED: BatchTotals(batches=2, items=4),
                BatchState.DEAD: BatchTotals(batches=1, items=3),
            },
            "Passed: items that wait: 1, batches failed: 2 (items: 4), batches dead: 1 (items: 3)",
        ),
    ],
)
def test_backlog_with_dead_batches_counts_them_as_jobs_does(
    states: dict[BatchState, BatchTotals], found: str
) -> None:
    """What waits for a person does not wait to be handed out."""
    verdict = evaluate_backlog(StreamStatus(states=states), Stuck(), HOUR)
    assert verdict.summary == f"{found}; allowed: 60 minutes."
    assert verdict.numbers["items_unpublished"] == sum(one.items for one in states.values())
    assert verdict.numbers["batches_dead"] == states[BatchState.DEAD].batches


@pytest.mark.parametrize(
    ("tiling", "audit", "passed"),
    [
        (Tiling(), None, True),
        (Tiling(batches=2), {}, True),
        (Tiling(batches=2), {"missing": CountedNames(count=1, first=(7,))}, True),
        (Tiling(batches=2), {"late": CountedNames(count=1, first=(7,))}, False),
        (Tiling(batches=2), {"refused": CountedNames(count=1, first=(7,))}, False),
        (Tiling(batches=2, holes=1, worst="ids 1..2"), {}, False),
        (Tiling(batches=2, overlaps=1, worst="ids 1..2"), {}, False),
        (Tiling(batches=2, doubled_items=1, worst="item 1"), {}, False),
    ],
)
def test_coverage(tiling: Tiling, audit: dict[str, Any] | None, passed: bool) -> None:
    found = None if audit is None else Audit(job="orders", late_job="orders.late", **audit)
    verdict = evaluate_coverage(tiling, found)
    assert verdict.passed is passed
    assert (verdict.worst is None) is passed


def test_sparkline_goes_from_nothing_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([1, 9], top=2) == "▅█"
    assert sparkline([]) == ""
