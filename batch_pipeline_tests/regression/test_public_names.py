"""Names that users write are unchanged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.config.stream_file import describe_stream
from batch_pipeline.defs.build import build_definitions
from batch_pipeline_tests.regression import public_names
from batch_pipeline_tests.regression.snapshots import compare


@pytest.mark.parametrize(
    ("file", "collect"),
    [
        ("python_names.json", public_names.python_names),
        ("commands.json", public_names.commands),
        ("environment.json", public_names.settings),
        ("stream_file.json", public_names.stream_file_keys),
    ],
)
def test_public_names_are_unchanged(file: str, collect: Callable[[], dict[str, Any]]) -> None:
    compare(file, collect())


def test_dagster_definition_names_are_unchanged(tmp_path: Path) -> None:
    target = {"command": "target-csv"}
    stream = describe_stream(
        "orders", folder=tmp_path, source={"uri": "landing"}, targets={"csv": target}
    )
    scheduled = describe_stream(
        "daily",
        folder=tmp_path,
        source={"uri": "daily"},
        storage={"root": "daily_batches"},
        dagster={"schedule": "0 6 * * *"},
    )
    compare("dagster_names.json", public_names.definitions(build_definitions([stream, scheduled])))
