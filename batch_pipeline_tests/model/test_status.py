"""Metrics: monotonic totals, and lags by histogram bound."""

from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.status import (
    LAG_BOUNDS,
    QUARANTINED,
    WRITTEN,
    EndedAttempt,
    Lags,
    Totals,
)

OWN = ("orders", JobKind.INCREMENTAL)


def ended(status: AttemptStatus = AttemptStatus.SUCCEEDED, **facts: int) -> EndedAttempt:
    """Return an ended attempt of the stream `orders`."""
    return EndedAttempt(stream="orders", kind=JobKind.INCREMENTAL, status=status, **facts)


def test_totals_are_sums_over_attempts() -> None:
    totals = Totals()
    totals.add([ended(written=5, quarantined=1, size_bytes=100, lag_seconds=40)])
    totals.add([ended(written=7, size_bytes=10), ended(AttemptStatus.FAILED)])
    assert totals.attempts == {
        (*OWN, AttemptStatus.SUCCEEDED): 2,
        (*OWN, AttemptStatus.FAILED): 1,
    }
    assert (totals.records[*OWN, WRITTEN], totals.records[*OWN, QUARANTINED]) == (12, 1)
    assert (totals.size_bytes, totals.lags["orders"].total_seconds) == ({OWN: 110}, 40)


def test_totals_are_zero_for_streams_without_attempts() -> None:
    totals = Totals()
    totals.add([ended(written=5)])
    totals.begin(["orders", "lines"])
    assert totals.records[*OWN, WRITTEN] == 5
    assert ("lines", JobKind.INCREMENTAL, AttemptStatus.FAILED) in totals.attempts
    assert AttemptStatus.RUNNING not in {status for _, _, status in totals.attempts}


def test_lag_is_counted_in_its_first_bound() -> None:
    lags = Lags()
    for seconds in (10, 10.5, 86_401, -1):
        lags.add(seconds)
    assert lags.counts[:2] == [2, 1]
    assert lags.counts[-1] == 1
    assert len(lags.counts) == len(LAG_BOUNDS) + 1
    assert lags.total_seconds == 10 + 10.5 + 86_401
