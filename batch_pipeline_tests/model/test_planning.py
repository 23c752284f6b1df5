"""Cutting items into batches, and the limits that are proposed."""

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.planning import Cut, Limits, Machine, cut, limits_for
from batch_pipeline_tests.factories import limits

Weighed = list[tuple[int, int]]


@st.composite
def weighed_ids(draw: st.DrawFn) -> tuple[int, Weighed, int]:
    """A bookmark, ascending ids behind it with their weights, and a ceiling."""
    after_id = draw(st.integers(0, 2**40))
    gaps = draw(st.lists(st.integers(1, 5) | st.integers(1, 2**50), max_size=40))
    weights = st.integers(0, 12) | st.integers(0, 2**50)
    items, item_id = [], after_id
    for gap in gaps:
        item_id += gap
        items.append((item_id, draw(weights)))
    return after_id, items, item_id + draw(st.integers(0, 3))


bounds = st.builds(
    Limits, max_weight=st.integers(1, 30) | st.integers(1, 2**52), max_count=st.integers(1, 6)
)


def naive(items: Weighed, *, after_id: int, ceiling: int, limits: Limits) -> list[Cut]:
    """Cut with lists and a second look: group first, then give each group its range."""
    groups: list[Weighed] = []
    for one in items:
        group = [*groups[-1], one] if groups else [one]
        fits = sum(weight for _, weight in group) <= limits.max_weight
        if groups and fits and len(group) <= limits.max_count:
            groups[-1] = group
        else:
            groups.append([one])
    starts = [after_id + 1, *(group[0][0] for group in groups[1:])]
    ends = [*(start - 1 for start in starts[1:]), ceiling]
    result = []
    for number, group in enumerate(groups):
        weight = sum(weight for _, weight in group)
        is_last = number == len(groups) - 1
        full = weight >= limits.max_weight or len(group) == limits.max_count
        id_range = IdRange(first_id=starts[number], last_id=ends[number])
        result.append(
            Cut(id_range=id_range, weight=weight, count=len(group), closed=full or not is_last)
        )
    return result


@pytest.mark.guarantee("G6")
@given(weighed_ids(), bounds)
def test_cut_of_anything_equals_the_naive_cut(case: tuple[int, Weighed, int], of: Limits) -> None:
    """Expect one pass to give what the slow and obvious way gives."""
    after_id, items, ceiling = case
    found = list(cut(items, after_id=after_id, high_watermark=ceiling, limits=of))
    assert found == naive(items, after_id=after_id, ceiling=ceiling, limits=of)


@given(weighed_ids(), bounds)
def test_cut_of_anything_tiles_the_ids(case: tuple[int, Weighed, int], of: Limits) -> None:
    after_id, items, ceiling = case
    ranges = [
        one.id_range for one in cut(items, after_id=after_id, high_watermark=ceiling, limits=of)
    ]
    assert bool(ranges) == bool(items)
    if ranges:
        assert (ranges[0].first_id, ranges[-1].last_id) == (after_id + 1, ceiling)
    for left, right in pairwise(ranges):
        assert right.first_id == left.last_id + 1


@pytest.mark.guarantee("G6")
@given(weighed_ids(), bounds)
def test_cut_of_anything_keeps_the_limits(case: tuple[int, Weighed, int], of: Limits) -> None:
    """Expect both limits to hold, but for an item that is too heavy itself and stands alone."""
    after_id, items, ceiling = case
    for one in cut(items, after_id=after_id, high_watermark=ceiling, limits=of):
        assert 1 <= one.count <= of.max_count
        assert one.weight <= of.max_weight or one.count == 1


@given(weighed_ids(), bounds, st.data())
def test_cut_in_two_plans_ends_where_closed_batches_end(
    case: tuple[int, Weighed, int], of: Limits, data: st.DataObject
) -> None:
    after_id, items, ceiling = case
    whole = list(cut(items, after_id=after_id, high_watermark=ceiling, limits=of))
    if not whole:
        return
    taken = data.draw(st.integers(1, len(whole)))
    bookmark = whole[taken - 1].id_range.last_id
    rest = [one for one in items if one[0] > bookmark]
    assert whole[taken:] == list(cut(rest, after_id=bookmark, high_watermark=ceiling, limits=of))


def test_cut_reads_its_input_once_and_only_as_far_as_asked() -> None:
    """Expect a stream of items to be enough, so that memory stays constant."""
    items = iter([(1, 60), (2, 60), (3, 60)])
    first = next(cut(items, after_id=0, high_watermark=3, limits=limits(max_weight=100)))
    assert first == Cut(id_range=IdRange(first_id=1, last_id=1), weight=60, count=1, closed=True)
    assert next(items) == (3, 60)


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([50, 50, 1], [2, 1]),  # exactly full is full
        ([50, 51], [1, 1]),
        ([101, 0, 0], [1, 2]),  # nothing joins an oversized item, however light
        ([0, 101], [1, 1]),  # and it joins nothing
        ([0, 0, 0, 0], [3, 1]),  # the count closes what the weight never would
    ],
)
def test_cut_at_the_edge_of_a_limit_follows_the_rule(weights: list[int], counts: list[int]) -> None:
    items = list(enumerate(weights, start=1))
    cuts = cut(
        items, after_id=0, high_watermark=len(items), limits=limits(max_weight=100, max_count=3)
    )
    assert [one.count for one in cuts] == counts


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max_weight": 0}, "batch.max_weight"),
        ({"max_count": 0}, "batch.max_count"),
        ({"min_weight": -1}, "batch.min_weight"),
        ({"min_weight": 101}, "batch.min_weight"),
    ],
)
def test_limits_that_no_batch_can_keep_are_refused(values: dict[str, int], named: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        limits(**values)
    assert caught.value.name == named


def test_limits_at_their_edges_are_accepted() -> None:
    edge = Limits(max_weight=1, max_count=1, min_weight=1, max_wait=timedelta(0))
    assert (edge.max_weight, edge.max_count, edge.min_weight) == (1, 1, 1)


MIB = 2**20
SMALL = Machine(cores=2, memory_bytes=8 * 2**30)


def proposed(*sizes: int, machine: Machine = SMALL, growth: float = 1.0) -> tuple[int, int]:
    """Return the limits for some files, in MiB and items."""
    found = limits_for(sizes, machine, growth=growth)
    assert found.max_weight % MIB == 0
    return found.max_weight // MIB, found.max_count


def test_limits_grow_with_cores_and_not_above_the_memory() -> None:
    assert proposed(MIB) == (256, 500)
    assert proposed(MIB, machine=Machine(cores=8, memory_bytes=64 * 2**30))[0] == 1024
    assert proposed(MIB, machine=Machine(cores=8, memory_bytes=1024 * MIB))[0] == 256


def test_limits_of_compressed_files_count_what_they_become() -> None:
    assert proposed(MIB, growth=6.0)[0] == 64


def test_limits_take_most_of_heavy_files_in_batches_of_several() -> None:
    assert proposed(*[400 * MIB] * 40)[0] == 512
    assert proposed(*[MIB] * 39, 3000 * MIB)[0] == 256


def test_limits_of_a_long_past_keep_the_number_of_batches_down() -> None:
    assert proposed(*[16 * MIB] * 2**20)[0] == 2048


def test_limits_of_tiny_files_hold_more_of_them() -> None:
    assert proposed(*[1024] * 9)[1] == 1000
    assert proposed(*[100 * MIB] * 9)[1] == 100
    assert proposed(0, 0) == (256, 1000)


@given(
    st.lists(st.integers(0, 2**45), min_size=1, max_size=50),
    st.integers(1, 256),
    st.integers(2**20, 2**44),
    st.floats(1, 10),
)
def test_limits_are_always_ones_that_a_stream_takes(
    sizes: list[int], cores: int, memory: int, growth: float
) -> None:
    found = limits_for(sizes, Machine(cores=cores, memory_bytes=memory), growth=growth)
    assert isinstance(found, Limits)
    assert 64 * MIB <= found.max_weight <= 4096 * MIB
    assert 100 <= found.max_count <= 1000
