"""Progress of Spark jobs: counts of finished tasks and their reports."""

import pytest

from batch_pipeline.spark.spark_job import Progress


def test_progress_counts_tasks_of_largest_stage() -> None:
    """A stage that only distributes payloads has fewer tasks."""
    progress = Progress(10, None)

    progress.update([(2, 2)])
    before = progress.count
    progress.update([(2, 2), (10, 4)])

    assert before == (0, 10)
    assert progress.count == (4, 10)


@pytest.mark.parametrize(
    ("seconds", "counts", "expected"),
    [
        ((0, 1, 4.9), (1, 9), []),
        # At 6, 8 and 12 seconds; the clock is not read if the count has not changed.
        ((0, 6, 8, 12), (1, 2, 1, 3), [(1, 10), (3, 10)]),
    ],
    ids=["short job", "long job"],
)
def test_progress_reports_changes_at_most_every_five_seconds(
    seconds: tuple[float, ...], counts: tuple[int, ...], expected: list[tuple[int, int]]
) -> None:
    reported: list[tuple[int, int]] = []
    clock = iter(seconds)
    progress = Progress(10, lambda *counts: reported.append(counts), lambda: next(clock))

    for done in counts:
        progress.update([(10, done)])
        progress.report()

    assert reported == expected
