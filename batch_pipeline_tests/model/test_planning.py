"""Cutting items into batches, and proposed limits."""

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.batch import IdRange
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.planning import Cut, Limits, Machine, cut, limits_for
from batch_pipeline_tests.factories import limits

WeightedIds = list[tuple[int, int]]


@st.composite
def weighted_ids(draw: st.DrawFn) -> tuple[int, WeightedIds, int]:
    """Draw a bookmark, ascending ids after it with their weights, and a high watermark."""
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


def naive_cut(
    items: WeightedIds, *, after_id: int, high_watermark: int, limits: Limits
) -> list[Cut]:
    """Group items first, then compute the range of each group."""
    groups: list[WeightedIds] = []
    for one in items:
        group = [*groups[-1], one] if groups else [one]
        fits = sum(weight for _, weight in group) <= limits.max_weight
        if groups and fits and len(group) <= limits.max_count:
            groups[-1] = group
        else:
            groups.append([one])
    starts = [after_id + 1, *(group[0][0] for group in groups[1:])]
    ends = [*(start - 1 for start in starts[1:]), high_watermark]
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
@given(weighted_ids(), bounds)
def test_cut_equals_naive_cut(case: tuple[int, WeightedIds, int], of: Limits) -> None:
    """The ranges tile the ids. A batch exceeds the weight limit only if it has a single item."""
    after_id, items, high_watermark = case
    cuts = list(cut(items, after_id=after_id, high_watermark=high_watermark, limits=of))
    assert cuts == naive_cut(items, after_id=after_id, high_watermark=high_watermark, limits=of)
    assert bool(cuts) == bool(items)
    if cuts:
        ends = (cuts[0].id_range.first_id, cuts[-1].id_range.last_id)
        assert ends == (after_id + 1, high_watermark)
    for left, right in pairwise(cuts):
        assert right.id_range.first_id == left.id_range.last_id + 1
    for one in cuts:
        assert 1 <= one.count <= of.max_count
        assert one.weight <= of.max_weight or one.count == 1


def test_cut_is_lazy() -> None:
    """Items can be streamed, so that memory is constant."""
    items = iter([(1, 60), (2, 60), (3, 60)])
    first = next(cut(items, after_id=0, high_watermark=3, limits=limits(max_weight=100)))
    assert first == Cut(id_range=IdRange(first_id=1, last_id=1), weight=60, count=1, closed=True)
    assert next(items) == (3, 60)


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([50, 50, 1], [2, 1]),  # the limit itself is allowed
        ([50, 51], [1, 1]),
        ([101, 0, 0], [1, 2]),  # an oversized item is alone, even before items without weight
        ([0, 101], [1, 1]),  # and after them
        ([0, 0, 0, 0], [3, 1]),  # only the count limits items without weight
    ],
)
def test_cut_at_the_limits(weights: list[int], counts: list[int]) -> None:
    items = list(enumerate(weights, start=1))
    of = limits(max_weight=100, max_count=3)
    cuts = cut(items, after_id=0, high_watermark=len(items), limits=of)
    assert [one.count for one in cuts] == counts


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_weight", 0), ("max_count", 0), ("min_weight", -1), ("min_weight", 101)],
)
def test_impossible_limits_are_rejected(name: str, value: int) -> None:
    with pytest.raises(InvalidValueError) as caught:
        limits(**{name: value})
    assert caught.value.name == f"batch.{name}"


def test_smallest_limits_are_accepted() -> None:
    assert Limits(max_weight=1, max_count=1, min_weight=1, max_wait=timedelta(0)).max_count == 1


MIB = 2**20
SMALL = Machine(cores=2, memory_bytes=8 * 2**30)


def proposed_limits(*sizes: int, machine: Machine = SMALL, growth: float = 1.0) -> tuple[int, int]:
    """Return the proposed weight limit in MiB and the proposed count for these files."""
    proposal = limits_for(sizes, machine, growth=growth)
    assert proposal.max_weight % MIB == 0
    return proposal.max_weight // MIB, proposal.max_count


def test_proposed_limits_grow_with_cores_within_memory() -> None:
    assert proposed_limits(MIB) == (256, 500)
    assert proposed_limits(MIB, machine=Machine(cores=8, memory_bytes=64 * 2**30))[0] == 1024
    assert proposed_limits(MIB, machine=Machine(cores=8, memory_bytes=1024 * MIB))[0] == 256


def test_proposed_weight_depends_on_expanded_size_heaviest_files_and_their_number() -> None:
    assert proposed_limits(MIB, growth=6.0)[0] == 64
    assert proposed_limits(*[400 * MIB] * 40)[0] == 512
    assert proposed_limits(*[MIB] * 39, 3000 * MIB)[0] == 256
    assert proposed_limits(*[16 * MIB] * 2**20)[0] == 2048


def test_proposed_count_is_larger_for_tiny_files() -> None:
    assert proposed_limits(*[1024] * 9)[1] == 1000
    assert proposed_limits(*[100 * MIB] * 9)[1] == 100
    assert proposed_limits(*[MIB] * 39, *[100 * MIB] * 3)[1] == 500  # by the median
    assert proposed_limits(0, 0) == (256, 1000)


@given(
    st.lists(st.integers(0, 2**45), min_size=1, max_size=50),
    st.integers(1, 256),
    st.integers(2**20, 2**44),
    st.floats(1, 10),
)
def test_proposed_limits_are_always_valid(
    sizes: list[int], cores: int, memory: int, growth: float
) -> None:
    proposal = limits_for(sizes, Machine(cores=cores, memory_bytes=memory), growth=growth)
    assert isinstance(proposal, Limits)
    assert 64 * MIB <= proposal.max_weight <= 4096 * MIB
    assert 100 <= proposal.max_count <= 1000
