"""Names that users write are unchanged."""

from collections.abc import Callable
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


def test_dagster_definitions_are_unchanged() -> None:
    orders = describe_stream(
        "orders",
        source={"uri": "/landing/orders"},
        storage={"root": "/batches"},
        targets={"csv": {"command": "target-csv"}},
        dagster={
            "backfills": True,
            "group": "sales",
            "owners": ["team:sales"],
            "tags": {"tier": "gold"},
            "partitions_per_run": 7,
        },
    )
    daily = describe_stream(
        "daily",
        source={"uri": "/landing/daily"},
        storage={"root": "s3://bucket/batches"},
        dagster={"schedule": "0 6 * * *"},
    )
    loaded = public_names.definitions(build_definitions([orders, daily]))
    compare("dagster_definitions.json", loaded)
