"""Counts of finished tasks, and when they are reported."""

from collections.abc import Callable

from batch_pipeline.spark.spark_job import ProgressReporter, TaskCount


def clock_of(*times: float) -> Callable[[], float]:
    """Return a clock that shows these times, one for each call."""
    remaining = iter(times)
    return lambda: next(remaining)


def test_task_count_of_several_stages_takes_the_largest() -> None:
    """A stage that only distributes payloads has fewer tasks and does not count."""
    count = TaskCount(10)

    count.update([(2, 2)])
    before = (count.done, count.total)
    count.update([(2, 2), (10, 4)])

    assert before == (0, 10)
    assert (count.done, count.total) == (4, 10)


def test_progress_reporter_of_a_short_job_reports_nothing() -> None:
    """The first report comes after five seconds."""
    reported: list[tuple[int, int]] = []
    reporter = ProgressReporter(
        lambda done, total: reported.append((done, total)), clock_of(0, 1, 4.9)
    )
    count = TaskCount(10)

    for done in (1, 9):
        count.done = done
        reporter.report(count)

    assert reported == []


def test_progress_reporter_of_a_long_job_reports_changes_every_few_seconds() -> None:
    """At most once in five seconds, and not if nothing has changed."""
    reported: list[tuple[int, int]] = []
    clock = clock_of(0, 6, 6, 8, 12, 12)
    reporter = ProgressReporter(lambda done, total: reported.append((done, total)), clock)
    count = TaskCount(10)

    for done in (1, 2, 1, 3):  # at 6, 8, (the clock is not read: no change), 12
        count.done = done
        reporter.report(count)

    assert reported == [(1, 10), (3, 10)]
