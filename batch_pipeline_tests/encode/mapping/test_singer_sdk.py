"""Mapped records equal those of the Singer SDK; rules that are rejected fail there, too."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.mapping.mapper import Mapper
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.record_rules import RecordMapping
from batch_pipeline_tests.encode.mapping.singer_sdk_cases import LINES, MAPS, flat, prop
from batch_pipeline_tests.encode.mapping.singer_sdk_mapper import (
    FAILED,
    mapped_by_mapper,
    mapped_by_sdk,
    mapper_of,
    table_of,
)
from batch_pipeline_tests.encode.writers.part_factories import json_records
from batch_pipeline_tests.factories import stream

# Only the SDK's schema shows whether the absent address of a record would be an object.
ONLY_WITH_AN_ADDRESS = {"flatten over an object"}
LINES_WITH_AN_ADDRESS = LINES[:4]


@pytest.mark.parametrize("name", MAPS)
def test_mapped_json_records_equal_singer_sdk(name: str) -> None:
    lines = LINES_WITH_AN_ADDRESS if name in ONLY_WITH_AN_ADDRESS else LINES
    assert mapped_by_mapper(lines, MAPS[name]) == mapped_by_sdk(lines, MAPS[name])


def test_flattening_without_depth_equals_singer_sdk_at_any_depth() -> None:
    lines = [*LINES, b'{"a":' * 90 + b'{"b":[{"c":1}]}' + b"}" * 90]
    all_levels = {"flattening_enabled": True, "flattening_separator": "."}
    assert mapped_by_mapper(lines, all_levels) == mapped_by_sdk(
        lines, {**all_levels, "flattening_max_depth": 99}
    )


@pytest.mark.parametrize(
    ("depth", "line"),
    [
        (1, b'{"b":null,"id":1,"a":{"id":null,"b":null},"a__b":{}}'),
        (2, b'{"a":{"b":null},"a__b":{"b":{"id":1}}}'),
    ],
)
def test_flattening_to_name_of_another_object_equals_singer_sdk(depth: int, line: bytes) -> None:
    assert mapped_by_mapper([line], flat(depth)) == mapped_by_sdk([line], flat(depth))


KEYED = {
    "as they are": prop(email=None),
    "kept by else": prop(id="id", qty="qty * 2", __else__=None),
    "kept while a list changes": prop(id="id", n="tags.append(1)", __else__=None),
    "other keys": prop(__key_properties__=["name"], id=None),
    "no keys": prop(__key_properties__=None, id=None),
    "empty list": prop(__key_properties__=[], id=None),
    "new keys": prop(__key_properties__=["new"], new="md5(name)"),
    "keys of another stream": {"stream_maps": {"customers": {"id": None}}},
    "flattened": flat(1, email=None),
}


@pytest.mark.parametrize("name", KEYED)
def test_key_properties_equal_singer_sdk(name: str) -> None:
    config = KEYED[name]
    assert mapped_by_mapper(LINES, config, keys=["id"]) == mapped_by_sdk(LINES, config, keys=["id"])


SELECTIONS: dict[str, tuple[list[str], list[str]]] = {
    "one out": (["!email"], ["email"]),
    "one out of all": (["*", "!email"], ["email"]),
    "nested out": (["*", "!address.geo"], ["address.geo"]),
    "deeply nested out": (["!address.geo.lat"], ["address.geo.lat"]),
    "all nested out": (["!address.*"], ["address.city", "address.geo"]),
    "only some": (
        ["id", "name", "qty"],
        ["email", "status", "amount", "tags", "address", "ok", "extra"],
    ),
    "an object": (["*", "!address", "!extra"], ["address", "extra"]),
    "in again": (["!*", "*", "!ok"], ["ok"]),
    "by pattern": (["!*a*"], ["email", "name", "amount", "status", "tags", "address", "extra"]),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selection_equals_singer_sdk(name: str) -> None:
    patterns, deselected = SELECTIONS[name]
    by_sdk = mapped_by_sdk(LINES, {}, deselected=deselected)
    assert mapped_by_mapper(LINES, {"select": patterns}) == by_sdk


def test_stream_map_cannot_read_deselected_properties() -> None:
    config = prop(a="email", b="address['geo']")
    ours = mapped_by_mapper(LINES, {**config, "select": ["!email", "!address.geo"]})
    assert ours == mapped_by_sdk(LINES, config, deselected=["email", "address.geo"])


FULL_LINES = [LINES[0], LINES[1], LINES[3].replace(b',"extra":{"deep":{"er":[1,{"a":1.0}]}}', b"")]
ONLY_BY_RECORD = {"flatten one moved after", "flatten a long name", "missing property"}


@pytest.mark.parametrize("name", sorted(set(MAPS) - ONLY_BY_RECORD))
def test_mapped_json_columns_equal_singer_sdk(name: str) -> None:
    lines = [json.dumps(dict(sorted(json.loads(line).items()))).encode() for line in FULL_LINES]
    ours = mapped_by_mapper(table_of(lines), MAPS[name])
    sdks = mapped_by_sdk(lines, MAPS[name])
    assert [_unordered(one) for one in ours.outcomes] == [_unordered(o) for o in sdks.outcomes]
    assert (ours.alias, ours.keys) == (sdks.alias, sdks.keys)


def _unordered(outcome: Any) -> Any:
    if isinstance(outcome, str):
        return outcome
    return {name: value for name, value in outcome["object"] if value is not None}


OBJECT = b'{"id":1,"value":{"city":"x"}}'
SCALAR = b'{"id":1,"value":"x"}'
NULL = b'{"id":2,"value":null}'


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([OBJECT, NULL], id="null in a column of objects"),
        pytest.param([SCALAR, b'{"id":2}'], id="absent from a column of texts"),
    ],
)
@pytest.mark.parametrize("text", ["{'a': {'b': id}}", "dict(a=1)"])
def test_object_assigned_to_null_column_is_flattened_like_singer_sdk(
    lines: list[bytes], text: str
) -> None:
    config: dict[str, Any] = flat(2, value=text)
    assert mapped_by_mapper(lines, config) == mapped_by_sdk(lines, config)


@pytest.mark.parametrize(
    ("rules", "key", "words"),
    [
        ({"x": "name +"}, "x", "one expression"),
        ({"x": " name"}, "x", "one expression"),
        ({"x": ""}, "x", "this is none"),
        ({"x": 5}, "x", "an expression as text"),
        ({"x": "f(1)"}, "x", "no function 'f'"),
        ({"x": "a; b"}, "x", "more than one"),
        ({"x": "a = 1"}, "x", "this is none"),
        ({"x": "fake.name()"}, "x", "not installed"),
        ({"x": "(lambda: 1)()"}, "x", "only functions and methods"),
        ({"x": "name.__class__"}, "x", "`.__class__` is not available"),
        ({"x": "'{}'.format(id)"}, "x", "`.format` is not available"),
        ({"x": "tags[0]()"}, "x", "only functions and methods"),
        ({"x": "id @ id"}, "x", "MatMult is not available"),
        ({"__filter__": 5}, "__filter__", "an expression as text"),
        ({"__else__": "x"}, "__else__", "null, or nothing"),
        ({"__key_properties__": "id"}, "__key_properties__", "a list of properties"),
        ({"__alias__": "a b"}, "__alias__", "a name, or an expression"),
        ({"id": None}, "id", "it is a key"),
        ({"name": "name", "__else__": None}, "__else__", "a map of the key 'id' too"),
    ],
)
def test_invalid_rule_of_stream_map_is_rejected(
    rules: dict[str, Any], key: str, words: str
) -> None:
    try:
        outcomes = mapped_by_sdk(LINES[:1], prop(**rules), keys=["id"]).outcomes
    except Exception:  # noqa: BLE001 - the SDK raises all kinds
        outcomes = [FAILED]
    assert outcomes == [FAILED]
    with pytest.raises(InvalidValueError) as caught:
        mapper_of(prop(**rules), keys=["id"])
    assert caught.value.name == f"stream_maps.orders.{key}"
    assert words in caught.value.expected


@pytest.mark.parametrize(
    ("maps", "key", "words"),
    [
        ({"orders": None}, "orders", "keeps 'orders'"),
        ({"*": "__NULL__"}, "*", "keeps 'orders'"),
        ({"a": {}, "__else__": None}, "__else__", "keeps 'orders'"),
        ({"__else__": "x"}, "__else__", "null"),
        ({"__x__": None}, "__x__", "the name of a stream"),
        ({"orders": "x"}, "orders", "a mapping of properties"),
        ({"c": {"__source__": "orders"}}, "c.__source__", "create a stream file"),
        ({"orders": {"__alias__": "5"}}, "orders.__alias__", "it returns 5"),
    ],
)
def test_invalid_entry_of_stream_maps_is_rejected(
    maps: dict[str, Any], key: str, words: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        mapper_of({"stream_maps": maps})
    assert caught.value.name == f"stream_maps.{key}"
    assert words in caught.value.expected


@pytest.mark.parametrize(
    ("record_mapping", "name"),
    [
        *((RecordMapping(select=one), "select") for one in [(), ("",), ("*", "!"), ("*", "!id")]),
        (RecordMapping(flattening_enabled=True, flattening_max_depth=-1), "flattening_max_depth"),
    ],
)
def test_invalid_selection_or_depth_is_rejected(record_mapping: RecordMapping, name: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Mapper.of(stream(mapping=record_mapping, key_properties=("id",)))
    assert caught.value.name == name


names = st.sampled_from(["id", "email", "a", "b", "address", "self", "record", "date", "a__b"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.text(max_size=4)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
EXPRESSIONS = [
    *("id", "self", "a + b", "a * 2", "md5(email)", "str(a)", "int(b)", "a == b", "a < b", "a[0]"),
    *("a or b", "a and not b", "a in b", "a is None", "b if a else id", "address.a", "record['a']"),
    *("record.get('b', 1)", "record", "email.lower()", "[a, b]", "-a", "a % 3", "address['a'][0]"),
    *("a ** 2", "a - b", "f'{a}'", "[x for x in a]", "'x'", "bool(a)", "a[1:]", "date", "a.pop()"),
]
rules = st.dictionaries(names, st.none() | st.sampled_from(EXPRESSIONS), max_size=4)


@given(
    record=st.dictionaries(names, values, max_size=6),
    rules=rules,
    condition=st.none() | st.sampled_from(EXPRESSIONS),
    drops=st.booleans(),
    depth=st.sampled_from([None, 1, 2]),
)
@settings(max_examples=200, deadline=None)
def test_any_mapped_record_equals_singer_sdk(
    record: dict[str, Any],
    rules: dict[str, str | None],
    condition: str | None,
    drops: bool,
    depth: int | None,
) -> None:
    """Both return the same record, or both fail.

    If flattening produces two values of one name, the SDK drops the first. The product quarantines
    such a record, unless the dropped value is null or an empty object.
    """
    line = msgspec.json.Encoder(decimal_format="number").encode(record)
    options: dict[str, str | None] = {"__filter__": condition} if condition is not None else {}
    options |= {"__else__": None} if drops else {}
    config: dict[str, Any] = {"stream_maps": {"orders": {**options, **rules}}}
    if depth is not None:
        config |= {"flattening_enabled": True, "flattening_max_depth": depth}
    try:
        expected = mapped_by_sdk([line], config).outcomes
    except ValueError:  # two properties get the same name in the flattened schema
        return
    ours = mapped_by_mapper([line], config).outcomes
    if ours == [FAILED] and expected != ours:
        assert _is_flattened_twice(line, config)
        return
    # The type of a null is unknown: `schema_of` assumes a string, the mapper an object.
    objects = {name for name, value in record.items() if isinstance(value, dict)}
    nulls = {name for name, value in record.items() if value is None}
    if depth is not None and any(rules.get(name) in objects for name in nulls):
        return
    assert ours == expected


def _is_flattened_twice(line: bytes, config: dict[str, Any]) -> bool:
    mapper = mapper_of(config)
    assert mapper is not None
    [bad] = mapper.mapped(json_records(line)).bad
    return b"a__b" in line and bad.reason.startswith(
        ("flattening produces two properties 'a__b'", "cannot be flattened")
    )
