"""Every YAML block of the pages is read by what it is written for."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config
from dagster._core.workspace.config_schema import process_workspace_config

from batch_pipeline import build_definitions, describe_stream
from batch_pipeline.config.stream_attributes import StreamAttributes
from batch_pipeline.config.stream_file import read_stream_file, stream_of
from batch_pipeline.model.errors import PipelineError
from batch_pipeline_tests.docs.pages import Found, blocks

KEYS = {field.alias or name for name, field in StreamAttributes.model_fields.items()}
# What a fragment of a stream file is laid over, so that the whole is one.
WHOLE: dict[str, Any] = {
    "stream": "orders",
    "source": {"uri": "./landing"},
    "key_properties": ["order_id"],
    "targets": {"warehouse": {"postgres": {"conn": "$WAREHOUSE_URL"}}},
}

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]


def _kind(value: Mapping[str, Any]) -> str:
    """Tell what a block is for; settings are told by a key that they always have."""
    if "attributes" in value:
        return "stream file"
    if "custom" in value.get("storage", {}):
        return "concurrency"  # a dagster.yaml
    if set(value) <= KEYS:
        return "fragment"
    return next(
        (key for key in ("ops", "concurrency", "plugins", "load_from") if key in value), "unknown"
    )


BLOCKS: dict[str, list[tuple[Found, dict[str, Any]]]] = defaultdict(list)
for one in blocks("yaml"):
    given = yaml.safe_load(one.text)
    BLOCKS[_kind(given)].append((one, given))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for stream files, with the JSON Schema that examples name."""
    properties = '{"order_id": {"type": "integer"}}'
    schema = f'{{"type": "object", "properties": {properties}}}'
    (tmp_path / "orders.schema.json").write_text(schema)
    return tmp_path


def test_each_block_is_of_a_known_kind() -> None:
    """Expect stream files, fragments of them, and settings of Dagster and Meltano, nothing else."""
    assert [str(block) for block, _ in BLOCKS["unknown"]] == []
    assert len(BLOCKS["plugins"]) == 1  # run by test_meltano.py


def test_stream_files_of_pages_are_accepted(folder: Path) -> None:
    """Expect the loader to take each as it is written."""
    assert len(BLOCKS["stream file"]) >= 2
    path, problems = folder / "defs.yaml", []
    for block, _ in BLOCKS["stream file"]:
        path.write_text(block.text, encoding="utf-8")
        try:
            read_stream_file(path)
        except PipelineError as error:
            problems.append(f"{block}\n{error}")
    assert problems == []


def test_fragments_of_stream_files_fit_into_a_whole_one(folder: Path) -> None:
    """Expect their keys to be accepted beside the required ones."""
    assert len(BLOCKS["fragment"]) > 15
    problems = []
    for block, value in BLOCKS["fragment"]:
        try:
            stream_of(_completed(value), folder)
        except PipelineError as error:
            problems.append(f"{block}\n{error}")
    assert problems == []


def test_run_configurations_are_accepted_by_their_job() -> None:
    """Expect each block for the Launchpad to name the step of a Dagster job, and its settings."""
    stream = describe_stream("orders", source=WHOLE["source"], dagster={"backfills": True})
    jobs = build_definitions([stream]).get_repository_def().get_all_jobs()
    assert len(BLOCKS["ops"]) >= 3
    for block, value in BLOCKS["ops"]:
        fitting = [job for job in jobs if {*value["ops"]} <= {one.name for one in job.graph.nodes}]
        assert len(fitting) == 1, str(block)
        dg.validate_run_config(fitting[0], value)


def test_settings_of_dagster_are_accepted(tmp_path: Path) -> None:
    """Expect each block for `dagster.yaml` to have Dagster's own names and values."""
    assert BLOCKS["concurrency"]
    for block, value in BLOCKS["concurrency"]:
        (tmp_path / "dagster.yaml").write_text(block.text, encoding="utf-8")
        settings, _ = dagster_instance_config(str(tmp_path))
        assert settings.keys() >= value.keys()


def test_workspaces_are_accepted(tmp_path: Path) -> None:
    assert BLOCKS["load_from"]
    for _, value in BLOCKS["load_from"]:
        result = process_workspace_config(value)
        assert result.success, result.errors


def _completed(fragment: Mapping[str, Any]) -> dict[str, Any]:
    source = fragment.get("source", {})
    place = {} if "meta_table" in source else WHOLE["source"]
    return {**WHOLE, **fragment, "source": {**place, **source}}
