"""Verification of published batches: files and counters, in one pass."""

from typing import Any

import pytest

from batch_pipeline.model.checks import Check
from batch_pipeline.model.published import PublishedBatch, RecordCounts
from batch_pipeline.pipeline.verify import verify
from batch_pipeline.storage.verification import content_problem
from batch_pipeline_tests.factories import part_file

FIVE = RecordCounts(read=5, written=5)


def published(label: str = "b", **overrides: Any) -> PublishedBatch:
    """A batch of five records in one part file."""
    facts: dict[str, Any] = {
        "label": label,
        "generation": 1,
        "part_files": (part_file(),),
        "quarantine_files": (),
        "batch": FIVE,
        "items": FIVE,
    }
    return PublishedBatch(**(facts | overrides))


def test_batch_whose_counters_agree_has_no_contradiction() -> None:
    assert list(published().contradictions()) == []
    lost = RecordCounts(read=7, written=5, filtered=1, quarantined=1)
    assert list(published(batch=lost, items=lost).contradictions()) == []


def test_transformed_batch_writes_another_number_than_it_was_given() -> None:
    items = RecordCounts(read=9, written=9)
    batch = RecordCounts(read=9, written=5)
    one = published(batch=batch, items=items, given_to_transform=9)
    assert list(one.contradictions()) == []
    assert list(published(batch=batch, items=items, given_to_transform=8).contradictions())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"unbalanced": (3, 4)}, "for the items 3, 4"),
        ({"items": RecordCounts(read=5, written=4)}, "account for 4"),
        ({"batch": RecordCounts(read=6, written=5)}, "records read: 6, 5 by its items"),
        ({"part_files": ()}, "records written: 5, 0 in its part files"),
    ],
)
def test_counters_that_disagree_are_told(overrides: dict[str, Any], said: str) -> None:
    assert said in next(published(**overrides).contradictions())


def test_one_pass_answers_every_question() -> None:
    batches = iter([published("a"), published("b", batch=RecordCounts(read=6, written=5))])
    found = verify(batches, {Check.PART_FILES: lambda part: f"{part.uri} is missing"})
    files, counters = found[Check.PART_FILES], found[Check.CONSERVATION]
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


def test_worst_is_the_batch_with_most_problems() -> None:
    many = published("many", part_files=(part_file("x"), part_file("y")))
    found = verify([published("few"), many], {Check.PART_FILES: lambda part: part.uri})
    worst = found[Check.PART_FILES].worst
    assert worst == "batch many, generation 1: file:///batches/x (and 1 more)"


def test_quarantine_files_are_looked_at_too() -> None:
    one = published(quarantine_files=(part_file("q"),))
    found = verify([one], {Check.PART_FILES: lambda part: "gone" if "q" in part.uri else None})
    assert found[Check.PART_FILES].numbers["files_checked"] == 2
    assert not found[Check.PART_FILES].passed


def test_files_that_were_removed_on_purpose_are_not_missing() -> None:
    gone = published("a", files_removed=True, batch=RecordCounts(read=6, written=5))
    found = verify([gone, published("b")], {Check.PART_FILES: lambda _: None})
    files, counters = found[Check.PART_FILES], found[Check.CONSERVATION]
    assert (files.passed, counters.passed) == (True, False)
    assert files.summary == (
        "Yes: batches checked: 1, files: 1. Files of 1 more were removed once they were loaded."
    )
    assert (files.numbers["batches_checked"], files.numbers["batches_removed"]) == (1, 1)
    nothing = verify([gone], {Check.PART_FILES: lambda _: "missing"})[Check.PART_FILES]
    assert (nothing.passed, "nothing to judge" in nothing.summary) == (True, False)


def test_quarantine_files_that_were_removed_on_purpose_are_not_missing() -> None:
    one = published(quarantine_files=(part_file("q"),), quarantine_removed=True)
    found = verify([one], {Check.PART_FILES: lambda part: "gone" if "q" in part.uri else None})
    assert found[Check.PART_FILES].numbers["files_checked"] == 1
    assert found[Check.PART_FILES].passed


def test_look_at_a_batch_is_asked_once_for_each_batch() -> None:
    looks = {Check.POINTERS: lambda one: "no pointer" if one.label == "a" else None}
    found = verify([published("a"), published("b")], {}, looks)[Check.POINTERS]
    assert (found.passed, found.numbers["batches_wrong"]) == (False, 1)
    assert found.worst == "batch a, generation 1: no pointer"
    assert str(found.next_step).startswith("Programs that read manifest files miss these batches")


def test_nothing_published_passes_and_says_so() -> None:
    found = verify([], {Check.CHECKSUMS: content_problem})
    assert [one.passed for one in found.values()] == [True, True]
    assert all("Nothing to check yet" in one.summary for one in found.values())
