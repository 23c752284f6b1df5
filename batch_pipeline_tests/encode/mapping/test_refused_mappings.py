"""Mappings that are refused before any record."""

from typing import Any

import pytest

from batch_pipeline.encode.mapping.mapper import Mapper
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.record_rules import RecordMapping
from batch_pipeline_tests.factories import stream


@pytest.mark.parametrize(
    ("maps", "key", "words"),
    [
        ({"orders": None}, "stream_maps.orders", "keeps 'orders'"),
        ({"*": "__NULL__"}, "stream_maps.*", "keeps 'orders'"),
        ({"a": {}, "__else__": None}, "stream_maps.__else__", "keeps 'orders'"),
        ({"c": {"__source__": "orders"}}, "stream_maps.c.__source__", "make a stream file"),
        ({"orders": {"x": "f(1)"}}, "stream_maps.orders.x", "no function 'f'"),
        ({"orders": {"x": "a; b"}}, "stream_maps.orders.x", "more than one"),
        ({"orders": {"x": "a = 1"}}, "stream_maps.orders.x", "this is none"),
        ({"orders": {"x": "fake.name()"}}, "stream_maps.orders.x", "not installed"),
        ({"orders": {"__alias__": "5"}}, "stream_maps.orders.__alias__", "it gives 5"),
        (
            {"orders": {"__key_properties__": "id"}},
            "stream_maps.orders.__key_properties__",
            "a list of properties",
        ),
    ],
)
def test_stream_maps_that_one_stream_cannot_have_are_refused(
    maps: dict[str, Any], key: str, words: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Mapper.of(stream(mapping=RecordMapping(stream_maps=maps), key_properties=()))
    assert caught.value.name == key
    assert words in caught.value.expected


@pytest.mark.parametrize("select", [(), ("",), ("*", "!"), ("*", "!id")])
def test_selection_that_cannot_be_meant_is_refused(select: tuple[str, ...]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Mapper.of(stream(mapping=RecordMapping(select=select), key_properties=("id",)))
    assert caught.value.name == "select"


def test_flattening_to_a_negative_depth_is_refused() -> None:
    how = RecordMapping(flattening_enabled=True, flattening_max_depth=-1)
    with pytest.raises(InvalidValueError) as caught:
        Mapper.of(stream(mapping=how))
    assert caught.value.name == "flattening_max_depth"
