"""Stream files that the target writes for the streams of a tap."""

import pytest

from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.singer.target.config import AnnouncedStream, stream_name
from batch_pipeline.singer.target.sink import scaffold


@pytest.mark.parametrize(
    ("name", "keys", "problem"),
    [
        ("orders", ("id", "a\0"), "has the key property 'a\\x00': a name with a NUL cannot be"),
        ("orders", ("\ud800",), "has the key property '\\ud800': a name with half of a surrogate"),
        ("a\0", (), "has the Singer name 'a\\x00': a name with a NUL cannot be"),
    ],
)
def test_scaffold_rejects_unsupported_names(name: str, keys: tuple[str, ...], problem: str) -> None:
    announced = AnnouncedStream(name=name, schema={}, key_properties=keys)

    with pytest.raises(ConfigurationError) as caught:
        scaffold(announced, stream_name(name), "file:///landing")

    assert problem in str(caught.value)
