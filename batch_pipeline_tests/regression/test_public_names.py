"""The names that users write are those of before."""

from pathlib import Path

import pytest

from batch_pipeline.config.stream_file import describe_stream
from batch_pipeline.defs.build import build_definitions
from batch_pipeline_tests.regression import public_names
from batch_pipeline_tests.regression.snapshots import compare

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]


def test_python_names_are_those_of_before() -> None:
    compare("python_names.json", public_names.python_names())


def test_commands_and_options_are_those_of_before() -> None:
    compare("commands.json", public_names.commands())


def test_environment_variables_are_those_of_before() -> None:
    compare("environment.json", public_names.settings())


def test_keys_of_stream_files_are_those_of_before() -> None:
    compare("stream_file.json", public_names.stream_file_keys())


def test_names_of_dagster_definitions_are_those_of_before(tmp_path: Path) -> None:
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
