"""What a wide range stands for, and which neighbours become one."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.roll_up import RollUp, Tiling, wide_range
from batch_pipeline_tests.factories import NOON


def _ids(first_id: int, last_id: int) -> IdRange:
    return IdRange(first_id=first_id, last_id=last_id)


TENS = [_ids(start, start + 9) for start in (1, 11, 21, 31)]


def _tiling(unpublished: tuple[int, ...] = (), split: tuple[IdRange, ...] = ()) -> Tiling:
    published = {ids for place, ids in enumerate(TENS) if place not in unpublished}
    return Tiling(live=TENS, published=published, split=split)


def test_wide_range_stands_for_the_batches_within_it() -> None:
    """Expect two and more neighbours, and nothing for a batch, a cut one or a range of no batch."""
    tiling = _tiling()
    assert list(tiling.under(_ids(11, 30))) == TENS[1:3]
    assert list(tiling.under(_ids(1, 40))) == TENS
    for other in (_ids(11, 20), _ids(12, 30), _ids(11, 29), _ids(31, 50), _ids(21, 20 + 5)):
        assert list(tiling.under(other)) == []


def test_range_with_a_batch_that_is_not_published_is_not_wide() -> None:
    """Expect a key over unfinished work, which somebody typed, to stand for nothing."""
    tiling = _tiling(unpublished=(2,))
    assert list(tiling.under(_ids(1, 20))) == TENS[:2]
    assert list(tiling.under(_ids(11, 30))) == []
    assert list(tiling.under(_ids(1, 40))) == []


def test_range_of_a_split_batch_is_not_wide() -> None:
    """Expect the key of a batch whose halves tile it to stay the key of a split one."""
    tiling = _tiling(split=(_ids(1, 20),))
    assert list(tiling.under(_ids(1, 20))) == []
    assert list(tiling.under(_ids(1, 30))) == TENS[:3]


def test_groups_are_full_and_of_neighbours_only() -> None:
    """Expect what is not chosen or not published to part groups, and the rest to stay narrow."""
    assert _tiling().groups({*TENS}, 2) == [TENS[:2], TENS[2:]]
    assert _tiling().groups({*TENS}, 3) == [TENS[:3]]
    assert _tiling().groups({*TENS[1:]}, 2) == [TENS[1:3]]
    assert _tiling(unpublished=(1,)).groups({*TENS}, 2) == [TENS[2:]]


def test_newest_are_the_last_in_id_order() -> None:
    """Expect as many as asked for, all when there are fewer, none for none."""
    assert _tiling().newest(2) == {*TENS[2:]}
    assert _tiling().newest(9) == {*TENS}
    assert _tiling().newest(0) == set()


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=30),
    unpublished=st.sets(st.integers(0, 29)),
    width=st.integers(2, 6),
)
def test_every_group_is_what_its_wide_range_stands_for(
    sizes: list[int], unpublished: set[int], width: int
) -> None:
    """Expect the way from a group to its key and back to end where it began."""
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    live = [_ids(end - size + 1, end) for end, size in zip(ends, sizes, strict=True)]
    published = {ids for place, ids in enumerate(live) if place not in unpublished}
    tiling = Tiling(live=live, published=published, split=())
    groups = tiling.groups({*live}, width)
    assert all(len(group) == width for group in groups)
    assert [list(tiling.under(wide_range(group))) for group in groups] == [*map(list, groups)]


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"keep": 1, "before": NOON},
        {"keep": -1},
        {"keep": 1, "width": 1},
        {"before": datetime(2026, 3, 1)},  # noqa: DTZ001 - a time without a zone is the point
    ],
)
def test_roll_up_that_makes_no_sense_is_refused(words: dict[str, Any]) -> None:
    """Expect both or neither, and numbers out of bounds, to be told."""
    with pytest.raises(InvalidValueError):
        RollUp(**words)
