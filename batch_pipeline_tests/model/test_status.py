"""What monitoring counts: sums that only grow, and lags by their bounds."""

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
    """An attempt of the stream `orders`."""
    return EndedAttempt(stream="orders", kind=JobKind.INCREMENTAL, status=status, **facts)


def test_totals_add_up_what_attempts_did() -> None:
    totals = Totals()
    totals.add([ended(written=5, quarantined=1, size_bytes=100, lag_seconds=40)])
    totals.add([ended(written=7, size_bytes=10), ended(AttemptStatus.FAILED)])
    assert totals.attempts == {
        (*OWN, AttemptStatus.SUCCEEDED): 2,
        (*OWN, AttemptStatus.FAILED): 1,
    }
    assert (totals.records[*OWN, WRITTEN], totals.records[*OWN, QUARANTINED]) == (12, 1)
    assert (totals.size_bytes, totals.lags["orders"].total_seconds) == ({OWN: 110}, 40)


def test_totals_begin_at_zero_for_streams_that_did_nothing() -> None:
    totals = Totals()
    totals.add([ended(written=5)])
    totals.begin(["orders", "lines"])
    assert totals.records[*OWN, WRITTEN] == 5
    assert ("lines", JobKind.INCREMENTAL, AttemptStatus.FAILED) in totals.attempts
    assert AttemptStatus.RUNNING not in {status for _, _, status in totals.attempts}


def test_lag_is_counted_by_the_first_bound_that_holds_it() -> None:
    lags = Lags()
    for seconds in (10, 10.5, 86_401, -1):
        lags.add(seconds)
    assert lags.counts[:2] == [2, 1]
    assert lags.counts[-1] == 1
    assert len(lags.counts) == len(LAG_BOUNDS) + 1
    assert lags.total_seconds == 10 + 10.5 + 86_401
