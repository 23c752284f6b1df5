"""The Singer SDK's standard target tests, unmodified, with a real inventory."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from singer_sdk.testing import get_target_test_class

from batch_pipeline.cli.target import TargetBatchPipeline
from batch_pipeline_tests.singer.target.target_fixture import TargetHome


@pytest.fixture(autouse=True)
def home(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TargetHome]:
    """A new home; the signal handlers that the SDK replaces are restored."""
    home = TargetHome(root=tmp_path, database_url=database_url)
    for name, value in home.environment.items():
        monkeypatch.setenv(name, value)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield home
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(number, handler)


class TestStandard(get_target_test_class(TargetBatchPipeline, config={})):  # type: ignore[misc]
    """Every test of the suite, unmodified."""
