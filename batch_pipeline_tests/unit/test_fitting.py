"""Which weight limit batches are cut by so that they take about as long as one wants."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.fitting import NEWEST, Fitted, Learned, Timed, fitted
from batch_pipeline.domain.id_range import MAX_ID
from batch_pipeline.domain.planning import Limits
from batch_pipeline_tests.factories import limits

MOST = 6_400
TARGETED = limits(max_weight=MOST, max_count=10_000, target_seconds=60)

timed = st.builds(
    Timed,
    weight=st.integers(0, 2**40),
    seconds=st.floats(0, 10**6) | st.floats(0, 100),
    max_weight=st.integers(1, MOST) | st.integers(0, MAX_ID),
)
targeted = st.builds(
    lambda most, parts, target: Limits(
        max_weight=most, max_count=1, min_weight=most // parts, target_seconds=target
    ),
    st.integers(1, MOST) | st.integers(1, 2**62),
    st.integers(1, 200),
    st.floats(1, 86_400),
)


def full(seconds: float, *, limit: int = MOST) -> Timed:
    """A batch that was cut by a limit and has all of it."""
    return Timed(weight=limit, seconds=seconds, max_weight=limit)


def limit_after(*past: Timed, of: Limits = TARGETED) -> int:
    """The limit of the next batch; the past has its newest batch first."""
    return fitted(of, past).limits.max_weight


@given(targeted, st.lists(timed, max_size=NEWEST))
def test_fitted_limit_of_any_past_is_within_its_bounds(
    asked: Limits, past: Sequence[Timed]
) -> None:
    """Expect no more than is configured, no crumbs, and all other limits as they were."""
    found = fitted(asked, past)
    chosen = found.limits.max_weight
    assert max(1, asked.min_weight, asked.max_weight // 64) <= chosen <= asked.max_weight
    assert found.limits.max_count == asked.max_count
    assert found.most_weight == asked.max_weight
    assert fitted(asked, past) == found
    assert Learned.of_config(found.config()) == found.learned


@given(st.lists(st.floats(0.01, 10**6).map(full), min_size=3, max_size=NEWEST))
def test_fitted_limit_moves_by_a_factor_of_two_at_most(past: Sequence[Timed]) -> None:
    """Expect half of the last limit at least, whatever full batches took."""
    assert MOST // 2 <= limit_after(*past) <= MOST


def test_limits_without_a_target_stay_as_they_are() -> None:
    """Expect the configured limit, nothing learned, and no word about it with the batches."""
    found = fitted(limits(max_weight=MOST), [full(600)] * 5)
    assert found == Fitted(limits=limits(max_weight=MOST))
    assert found.config() == {
        "max_weight": "6400", "max_count": "10", "min_weight": "0", "max_wait": "0:05:00",
    }  # fmt: skip


def test_before_three_batches_tell_the_limit_stays() -> None:
    """Expect the configured limit at first, then the one of the newest batch."""
    assert limit_after() == MOST
    assert limit_after(full(600), full(600)) == MOST
    assert limit_after(full(600, limit=1_000), full(600)) == 1_000
    assert limit_after(full(600), full(600), full(600)) == MOST // 2


def test_one_slow_batch_changes_nothing() -> None:
    """Expect the median, also when the slow one is the newest."""
    usual = [full(60, limit=1_000)] * 4
    assert limit_after(full(6_000, limit=1_000), *usual) == 1_000


def test_batches_that_are_not_full_do_not_tell() -> None:
    """Expect last and single files, which are mostly fixed cost, to leave the limit alone."""
    small = Timed(weight=10, seconds=5, max_weight=1_000)
    assert limit_after(*[small] * NEWEST) == 1_000
    assert limit_after(*[small] * 9, *[full(30, limit=1_000)] * 3) == 2_000


def test_light_batches_that_took_too_long_do_tell() -> None:
    """Expect a smaller limit where the number of items fills batches, and they take too long."""
    heavy_work = Timed(weight=100, seconds=120, max_weight=1_000)
    assert limit_after(*[heavy_work] * 3) == 500
    assert limit_after(*[Timed(weight=100, seconds=120, max_weight=100)] * 3) == 100  # the least


def test_weights_that_are_all_zero_tell_nothing() -> None:
    """Expect the limit to stay where items weigh nothing."""
    assert limit_after(*[Timed(weight=0, seconds=600, max_weight=MOST)] * 5) == MOST


def test_weights_that_are_counts_are_limits_of_counts() -> None:
    """Expect 12 rows, and not a share of one, for 60 s at 5 s a row."""
    counted = Limits(max_weight=20, max_count=100, target_seconds=60)
    past = [Timed(weight=20, seconds=100, max_weight=20)] * 3
    assert limit_after(*past, of=counted) == 12


@pytest.mark.parametrize("fixed_seconds", [0, 5, 20])
@pytest.mark.parametrize(("before", "after"), [(0.02, 0.1), (0.1, 0.02), (0.05, 0.4)])
def test_batches_settle_within_a_quarter_of_the_target(
    fixed_seconds: float, before: float, after: float
) -> None:
    """Expect 45 to 75 s from the tenth batch on, and again ten after bytes cost another time."""
    past: list[Timed] = []
    took = []
    for seconds_per_byte in [before] * 20 + [after] * 20:
        limit = limit_after(*past[:NEWEST])
        took.append(fixed_seconds + seconds_per_byte * limit)
        past.insert(0, full(took[-1], limit=limit))
    assert all(45 <= seconds <= 75 for seconds in took[10:20] + took[30:])


@pytest.mark.parametrize("target", [0, -60, 0.5, 86_401, float("nan"), float("inf")])
def test_targets_that_make_no_sense_are_refused(target: float) -> None:
    """Expect the key and what it may be."""
    with pytest.raises(InvalidValueError, match="a number of seconds from 1 to 86400"):
        limits(target_seconds=target)


@pytest.mark.parametrize(
    "change",
    [
        {"target_seconds": "nan"},
        {"target_seconds": "1e300"},
        {"weight_per_second": "inf"},
        {"max_weight": str(2**70)},
        {"most_weight": None},
        {"learned_from": "x"},
    ],
)
def test_what_was_learned_is_not_read_from_nonsense(change: dict[str, object]) -> None:
    """Expect nothing where a batch keeps what no planner writes."""
    sound = fitted(TARGETED, [full(60)] * 3).config()
    assert Learned.of_config(sound) is not None
    assert Learned.of_config(sound | change) is None
    assert Learned.of_config({}) is None


@pytest.mark.parametrize(
    ("weight_per_second", "max_weight", "is_least"),
    [(None, 100, False), (1.0, 100, True), (10.0, 100, False), (1.0, 200, False)],
)
def test_limit_rests_at_its_least_when_less_is_wanted(
    weight_per_second: float | None, max_weight: int, is_least: bool
) -> None:
    """Expect a 64th of the configured limit, and not a step on the way there."""
    learned = Learned(
        target_seconds=60,
        max_weight=max_weight,
        most_weight=6_400,
        weight_per_second=weight_per_second,
        attempts=3,
    )
    assert learned.is_least is is_least
