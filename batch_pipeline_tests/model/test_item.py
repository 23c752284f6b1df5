"""Ranges of bytes in locations: written, read back, and never taken for a name."""

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
    lambda start, size, rest, told: FileRange(
        start, start + size, start + size + rest if told else None
    ),
    st.integers(0, 2**40),
    st.integers(1, 2**40),
    st.integers(0, 2**40),
    st.booleans(),
)
names = st.text(st.sampled_from("ab#=%,- bytes0123é"), min_size=1, max_size=30)
paths = st.lists(names, min_size=1, max_size=3).map(lambda some: "/" + "/".join(some))


@given(path=paths, part=ranges)
def test_range_of_any_file_comes_back_from_its_location(path: str, part: FileRange) -> None:
    """Expect file and range whatever is in the name, as we write it and from a user's table."""
    uri = to_uri(path)
    location = uri + part.fragment
    assert split_location(location) == (uri, part)
    assert split_location(uri) == (uri, None)
    assert to_location(location) == location
    assert to_path(location) == to_path(uri)


def test_range_counts_first_and_last_byte() -> None:
    assert FileRange(0, 100, 250).fragment == "#bytes=0-99,size=250"
    assert FileRange(100, 101).fragment == "#bytes=100-100"
    assert FileRange(100, 250, 250).size_bytes == 150


@pytest.mark.parametrize("fragment", ["#bytes=5-3", "#bytes=0-9,size=9", "#bytes=1-0"])
def test_range_that_no_file_can_have_is_refused(fragment: str) -> None:
    location = f"file:///in/a.csv{fragment}"
    for read in (split_location, to_location, to_path):
        with pytest.raises(InvalidValueError, match="expected a range of bytes of its file"):
            read(location)
    assert (LandedFile(location=location).uri, LandedFile(location=location).range) == (
        location,
        None,
    )


def test_range_in_digits_of_other_scripts_is_part_of_a_name() -> None:
    """Expect one way to write a range, so that no two locations mean the same bytes."""
    location = "s3://bucket/a.csv#bytes=٠-٩"
    assert split_location(location) == (location, None)


def test_range_with_zeros_in_front_is_written_without_them() -> None:
    for uri in ("s3://bucket/a.csv", "file:///in/a.csv"):
        assert to_location(f"{uri}#bytes=007-09") == f"{uri}#bytes=7-9"


def test_item_of_a_range_weighs_its_bytes() -> None:
    file = found_file(size_bytes=250)
    part = replace(file, location=file.location + FileRange(100, 250, 250).fragment)
    assert (Item(id=1, file=part).weight, part.uri) == (150, file.location)
    assert Item(id=1, file=LandedFile(location=part.location)).weight == 150
    assert Item(id=1, file=part, row_weight=7).weight == 7


def test_numbers_of_records_in_a_file_do_not_go_with_ranges() -> None:
    """Expect a refusal: nobody has counted the records in front of a range."""
    source = Source(uri="file:///landing", max_item_bytes=100)
    assert stream(source=source).max_item_bytes == 100
    assert stream().max_item_bytes is None
    with pytest.raises(InvalidValueError, match="none beside `lineage: "):
        stream(source=source, lineage=(LineageColumn.RECORD_NUMBER,))
