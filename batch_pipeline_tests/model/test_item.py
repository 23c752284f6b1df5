"""Byte ranges in locations: round trips, and no confusion with file names."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import FileRange, split_location, to_location, to_path, to_uri
from batch_pipeline.model.record_rules import LineageColumn
from batch_pipeline.model.stream import Source
from batch_pipeline_tests.factories import found_file, stream

ranges = st.builds(
    lambda start, size, rest, has_file_size: FileRange(
        start, start + size, start + size + rest if has_file_size else None
    ),
    st.integers(0, 2**40),
    st.integers(1, 2**40),
    st.integers(0, 2**40),
    st.booleans(),
)
names = st.text(st.sampled_from("ab#=%,- bytes0123é"), min_size=1, max_size=30)
paths = st.lists(names, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(path=paths, part=ranges)
def test_range_of_any_file_round_trips_through_location(path: str, part: FileRange) -> None:
    uri = to_uri(path)
    location = uri + part.fragment
    assert split_location(location) == (uri, part)
    assert split_location(uri) == (uri, None)
    assert to_location(location) == location
    assert to_path(location) == to_path(uri)


def test_range_fragment_includes_first_and_last_byte() -> None:
    assert FileRange(0, 100, 250).fragment == "#bytes=0-99,size=250"
    assert FileRange(100, 101).fragment == "#bytes=100-100"
    assert FileRange(100, 250, 250).size_bytes == 150


@pytest.mark.parametrize("fragment", ["#bytes=5-3", "#bytes=0-9,size=9", "#bytes=1-0"])
def test_impossible_range_is_rejected(fragment: str) -> None:
    location = f"file:///in/a.csv{fragment}"
    for read in (split_location, to_location, to_path):
        with pytest.raises(InvalidValueError, match="expected a range of bytes of its file"):
            read(location)
    file = LandedFile(location=location)
    assert (file.uri, file.range) == (location, None)


def test_no_two_locations_mean_the_same_bytes() -> None:
    """Digits of another script are part of the name; leading zeros are removed."""
    location = "s3://bucket/a.csv#bytes=٠-٩"
    assert split_location(location) == (location, None)
    for uri in ("s3://bucket/a.csv", "file:///in/a.csv"):
        assert to_location(f"{uri}#bytes=007-09") == f"{uri}#bytes=7-9"


def test_weight_of_item_is_that_of_its_row_or_its_bytes() -> None:
    file = found_file(size_bytes=250)
    part = replace(file, location=file.location + FileRange(100, 250, 250).fragment)
    assert (Item(id=1, file=part).weight, part.uri) == (150, file.location)
    assert Item(id=1, file=LandedFile(location=part.location)).weight == 150
    assert Item(id=1, file=part, row_weight=7).weight == 7
    assert Item(id=1, file=file).weight == 250
    unknown = LandedFile(location="file:///a")
    assert Item(id=1, file=unknown, row_weight=0).weight == 0
    with pytest.raises(InvalidValueError, match="row_weight is None"):
        Item(id=1, file=unknown)


def test_record_number_lineage_of_ranged_items_is_rejected() -> None:
    """The records before a range are not counted."""
    source = Source(uri="file:///landing", max_item_bytes=100)
    assert stream(source=source).max_item_bytes == 100
    assert stream().max_item_bytes is None
    with pytest.raises(InvalidValueError, match="none with `lineage: "):
        stream(source=source, lineage=(LineageColumn.RECORD_NUMBER,))
