"""What the last work on a stream adds up to, with numbers that one can check by eye."""

from datetime import timedelta

import pytest

from batch_pipeline.domain.recent_work import Outlook, PublishedAttempt, RecentWork
from batch_pipeline.domain.standing import Amount
from batch_pipeline_tests.factories import NOON
from batch_pipeline_tests.report_scene import MINUTE, published, waits, work

WAITING = Amount(batches=2, items=6, size_bytes=1200)


def seen(one: RecentWork) -> list[tuple[float, int, int]]:
    """Give the backlog as minutes after noon, batches and bytes."""
    return [((point.at - NOON) / MINUTE, point.batches, point.weight) for point in one.backlog()]


def test_backlog_goes_up_when_planned_and_down_when_published() -> None:
    """Expect a point for each change and one for now."""
    one = work(9, published(1), published(4), waiting=(waits(2, batches=3, weight=50),))
    assert seen(one) == [(0, 2, 1200), (1, 1, 600), (2, 4, 650), (4, 3, 50), (9, 3, 50)]


def test_backlog_of_a_cut_past_begins_where_it_is_known() -> None:
    """Expect nothing before the first batch that was read, and what waited then all the same."""
    one = work(9, published(1), published(4), is_whole=False, waiting=(waits(-7),))
    assert seen(one) == [(1, 2, 1200), (4, 1, 600), (9, 1, 600)]


def test_backlog_leaves_out_what_was_published_before() -> None:
    """Expect a second generation to have been no backlog."""
    one = work(9, published(1), published(4, generation=2))
    assert seen(one) == [(0, 1, 600), (1, 0, 0), (9, 0, 0)]


def test_backlog_without_batches_is_empty() -> None:
    """Expect no point when nothing was ever planned."""
    assert work(9).backlog() == ()


def test_forecast_of_a_burst_is_what_waits_at_the_rate_of_work() -> None:
    """Expect 1,200 bytes at 10 a second to be two minutes, however long ago the last batch was."""
    told = work(600, published(1), published(2), waiting=(waits(0),)).forecast(WAITING)
    assert (told.outlook, told.capacity, told.arrivals) == (Outlook.SHRINKS, 10.0, 0.0)
    assert told.empty_after == timedelta(minutes=2)


def test_forecast_takes_off_what_arrives_meanwhile() -> None:
    """Expect 10 bytes a second less 5 that were planned since the first publish."""
    one = work(3, published(1), published(2), waiting=(waits(2),))
    told = one.forecast(WAITING)
    assert (told.capacity, told.arrivals) == (10.0, 5.0)
    assert told.empty_after == timedelta(minutes=4)


def test_forecast_of_more_arrivals_than_work_grows() -> None:
    """Expect no end to be told."""
    told = work(2, published(1), waiting=(waits(1.5),)).forecast(WAITING)
    assert (told.outlook, told.arrivals, told.empty_after) == (Outlook.GROWS, 10.0, None)


def test_forecast_counts_batches_that_were_done_side_by_side_once() -> None:
    """Expect two in the same minute to be twice the rate."""
    told = work(2, published(1), published(1)).forecast(WAITING)
    assert told.capacity == 20.0


def test_forecast_goes_by_the_last_twenty_batches() -> None:
    """Expect a slow past to be forgotten."""
    slow = [published(minute, weight=1) for minute in range(1, 31)]
    fast = [published(minute, weight=6000) for minute in range(31, 51)]
    assert work(51, *slow, *fast).forecast(WAITING).capacity == 100.0


@pytest.mark.parametrize(
    ("attempts", "waiting", "outlook"),
    [
        ((), WAITING, Outlook.UNKNOWN),
        ((published(1, seconds=0.0),), WAITING, Outlook.UNKNOWN),
        ((published(1, weight=0),), WAITING, Outlook.UNKNOWN),
        ((published(1),), Amount(), Outlook.NOTHING_WAITS),
    ],
)
def test_forecast_without_a_rate_or_a_backlog_says_so(
    attempts: tuple[PublishedAttempt, ...], waiting: Amount, outlook: Outlook
) -> None:
    """Expect no number where there is none."""
    told = RecentWork(at=NOON + MINUTE, published=attempts).forecast(waiting)
    assert (told.outlook, told.capacity, told.empty_after) == (outlook, None, None)


def test_pace_and_share_of_an_attempt_follow_from_its_counters() -> None:
    """Expect records and bytes a second of work, and the quarantined share of what was read."""
    one = published(1)
    assert (one.records_per_second, one.bytes_per_second) == (1.5, 5.0)
    assert one.quarantined_ratio == 0.1
    assert published(1, seconds=0.0).records_per_second == 0
    assert published(1, read=0).quarantined_ratio == 0


def test_quarantined_ratio_is_of_all_records_read() -> None:
    """Expect large batches to count more, and None of no records."""
    one = work(9, published(1), published(2, read=900, quarantined=0))
    assert one.quarantined_ratio == 0.01
    assert work(9, published(1, read=0, written=0, quarantined=0)).quarantined_ratio is None
