"""The tests of each promise are unchanged."""

from batch_pipeline_tests.regression.promises import marked_tests
from batch_pipeline_tests.regression.snapshots import as_entries, compare


def test_tests_of_promises_are_unchanged() -> None:
    compare(
        "guarantees.json",
        as_entries(
            f"{promise} {test}" for promise, tests in marked_tests().items() for test in tests
        ),
    )
