"""Verification of files and counters of published batches."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from batch_pipeline.model.checks import Check, CheckResult
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.status import PublishedBatch, RecordCounts
from batch_pipeline.pipeline.verify import of_files, verify
from batch_pipeline_tests.factories import part_file

FIVE = RecordCounts(read=5, written=5)


def published(label: str = "b", **overrides: Any) -> PublishedBatch:
    """Return a published batch of five records in one part file."""
    attributes: dict[str, Any] = {
        "label": label,
        "generation": 1,
        "part_files": (part_file(),),
        "quarantine_files": (),
        "batch": FIVE,
        "items": FIVE,
    }
    return PublishedBatch(**(attributes | overrides))


def check_files(
    batches: Iterable[PublishedBatch], problem: Callable[[PartFile], str | None]
) -> CheckResult:
    return verify(batches, {Check.PART_FILES: of_files(problem)})[Check.PART_FILES]


def test_transformed_batch_may_write_fewer_records_than_it_read() -> None:
    counts: dict[str, Any] = {
        "items": RecordCounts(read=9, written=9),
        "batch": RecordCounts(read=9, written=5),
    }
    assert list(published(**counts, given_to_transform=9).contradictions()) == []
    assert list(published(**counts, given_to_transform=8).contradictions())


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"unbalanced": (3, 4)}, "for the items 3, 4"),
        ({"items": RecordCounts(read=5, written=4)}, "account for 4"),
        ({"batch": RecordCounts(read=6, written=5)}, "records read: 6, 5 by its items"),
        ({"part_files": ()}, "records written: 5, 0 in its part files"),
    ],
)
def test_inconsistent_counters_are_reported(overrides: dict[str, Any], problem: str) -> None:
    assert problem in next(published(**overrides).contradictions())


def test_all_checks_run_in_one_pass() -> None:
    batches = iter([published("a"), published("b", batch=RecordCounts(read=6, written=5))])
    missing = of_files(lambda part: f"{part.uri} is missing")
    checks = {Check.PART_FILES: missing, Check.CONSERVATION: PublishedBatch.contradictions}
    files, counters = verify(batches, checks).values()
    assert (files.passed, counters.passed) == (False, False)
    assert files.numbers == {
        "batches_checked": 2,
        "batches_wrong": 2,
        "problems": 2,
        "files_checked": 2,
        "size_bytes": 200,
    }
    assert counters.worst is not None
    assert counters.worst.startswith("batch b, generation 1: records read: 6")


def test_worst_batch_has_the_most_problems() -> None:
    many = published("many", part_files=(part_file("x"), part_file("y")))
    result = check_files([published("few"), many], lambda part: part.uri)
    assert result.worst == "batch many, generation 1: file:///batches/x (and 1 more)"


@pytest.mark.parametrize("is_removed", [False, True])
def test_removed_quarantine_files_are_not_checked(*, is_removed: bool) -> None:
    batch = published(quarantine_files=(part_file("q"),), quarantine_removed=is_removed)
    result = check_files([batch], lambda part: "gone" if "q" in part.uri else None)
    assert result.numbers["files_checked"] == (1 if is_removed else 2)
    assert result.passed is is_removed


def test_batch_with_removed_files_only_has_its_counters_checked() -> None:
    gone = published("a", files_removed=True, batch=RecordCounts(read=6, written=5))
    result = check_files([gone, published("b")], lambda _: None)
    assert result.passed
    assert result.summary == (
        "Passed: batches checked: 1, files: 1. Files of 1 more were removed once they were loaded."
    )
    assert (result.numbers["batches_checked"], result.numbers["batches_removed"]) == (1, 1)
    assert check_files([gone], lambda _: "missing").passed
    counters = verify([gone], {Check.CONSERVATION: PublishedBatch.contradictions})
    assert not counters[Check.CONSERVATION].passed
