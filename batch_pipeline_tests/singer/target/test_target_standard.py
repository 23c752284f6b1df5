"""The Singer SDK's standard target tests, unmodified, with a real inventory."""

from collections.abc import Iterator

import pytest
from singer_sdk.testing import get_target_test_class

from batch_pipeline.cli.target import TargetBatchPipeline
from batch_pipeline_tests.singer.tap.tap_fixture import signals_restored


@pytest.fixture(autouse=True)
def _in_new_home(home: object) -> Iterator[None]:
    with signals_restored():
        yield


class TestStandard(get_target_test_class(TargetBatchPipeline, config={})):  # type: ignore[misc]
    """Every test of the suite, unmodified."""
