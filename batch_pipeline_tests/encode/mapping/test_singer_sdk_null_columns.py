"""Flattening of objects that a stream map assigns to columns that are null in a record.

The SDK decides by the type in its schema, which knows all records, whether such an object is
flattened. `Mapper` sees one record and takes a null for an object and an absent column for text.
"""

from typing import Any

import pytest

from batch_pipeline_tests.encode.mapping.singer_sdk_cases import flat
from batch_pipeline_tests.encode.mapping.singer_sdk_mapper import mapped_by_mapper, mapped_by_sdk

OBJECT = b'{"id":1,"value":{"city":"x"}}'
SCALAR = b'{"id":1,"value":"x"}'
NULL = b'{"id":2,"value":null}'
ABSENT = b'{"id":2}'
DIFFERS = pytest.mark.xfail(strict=True, reason="the mapper does not know the column's type")


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([OBJECT, NULL], id="null in a column of objects"),
        pytest.param([SCALAR, ABSENT], id="absent from a column of texts"),
        pytest.param([SCALAR, NULL], id="null in a column of texts", marks=DIFFERS),
        pytest.param([NULL], id="null in all records", marks=DIFFERS),
        pytest.param([OBJECT, ABSENT], id="absent from a column of objects", marks=DIFFERS),
    ],
)
@pytest.mark.parametrize("text", ["{'a': {'b': id}}", "dict(a=1)"])
def test_object_assigned_to_a_null_column_is_flattened_as_by_the_singer_sdk(
    lines: list[bytes], text: str
) -> None:
    config: dict[str, Any] = flat(2, value=text)
    assert mapped_by_mapper(lines, config) == mapped_by_sdk(lines, config)
