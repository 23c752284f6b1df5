"""Metrics: lags by histogram bound."""

from batch_pipeline.model.status import LAG_BOUNDS, Lags


def test_lag_is_counted_in_its_first_bound() -> None:
    lags = Lags()
    for seconds in (10, 10.5, 86_401, -1):
        lags.add(seconds)
    assert lags.counts[:2] == [2, 1]
    assert lags.counts[-1] == 1
    assert len(lags.counts) == len(LAG_BOUNDS) + 1
    assert lags.total_seconds == 10 + 10.5 + 86_401
