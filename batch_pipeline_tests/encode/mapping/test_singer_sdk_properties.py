"""For any records, the mapping equals that of the Singer SDK's own mapper."""

from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline_tests.encode.mapping.singer_sdk_mapper import (
    FAILED,
    json_records,
    mapped_by_mapper,
    mapped_by_sdk,
    mapper_of,
)

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


# The name of an object is also that of a flattened property of another one.
@example(
    record={
        **dict.fromkeys(["b", "address", "self", "record"]),
        "a": {"id": None, "b": None},
        "a__b": {},
    },
    rules={},
    condition=None,
    drops=False,
    depth=1,
)
@example(
    record={"a__b": {"b": {"id": 1}}, "a": {"b": None}},
    rules={},
    condition=None,
    drops=False,
    depth=2,
)
@example(
    record={"a": {"b": None}, "a__b": {"b": {"id": 1}}},
    rules={},
    condition=None,
    drops=False,
    depth=2,
)
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
    [bad] = mapper.mapped(json_records([line])).bad
    return b"a__b" in line and bad.reason.startswith(
        ("flattening produces two properties 'a__b'", "cannot be flattened")
    )
