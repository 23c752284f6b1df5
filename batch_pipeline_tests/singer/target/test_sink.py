"""Stream files that the target writes for the streams of a tap."""

from typing import Any

import pytest
from singer_sdk.exceptions import InvalidRecord

from batch_pipeline.cli.target import scaffold
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.singer.target.config import AnnouncedStream, stream_name
from batch_pipeline.singer.target.sink import CompiledValidator


@pytest.mark.parametrize(
    ("name", "key", "problem"),
    [
        ("orders", "a\0", "has the key property 'a\\x00': a name with a NUL cannot be"),
        ("orders", "\ud800", "has the key property '\\ud800': a name with an unpaired surrogate"),
        ("a\0", "id", "has the Singer name 'a\\x00': a name with a NUL cannot be"),
    ],
)
def test_scaffold_rejects_unsupported_names(name: str, key: str, problem: str) -> None:
    announced = AnnouncedStream(name=name, schema={}, key_properties=("id", key))
    with pytest.raises(ConfigurationError) as caught:
        scaffold(announced, stream_name(name), "file:///landing")
    assert problem in str(caught.value)


def test_deep_record_that_violates_a_recursive_schema_is_invalid() -> None:
    validator = CompiledValidator({"properties": {"a": {"$ref": "#"}}, "required": ["b"]})
    record: dict[str, Any] = {}
    for _ in range(900):
        record = {"a": record}
    with pytest.raises(InvalidRecord, match="violates the schema inside nested objects"):
        validator.validate(record)
