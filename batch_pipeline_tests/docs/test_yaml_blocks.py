"""Every YAML block of the pages is accepted by its reader."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config
from dagster._core.workspace.config_schema import process_workspace_config

from batch_pipeline import BatchResources, build_definitions, describe_stream
from batch_pipeline.config.stream_attributes import StreamAttributes
from batch_pipeline.config.stream_file import read_stream_file, stream_of
from batch_pipeline.model.errors import PipelineError
from batch_pipeline_tests.docs.pages import PageText, blocks

KEYS = {field.alias or name for name, field in StreamAttributes.model_fields.items()}
# Defaults that complete a fragment of a stream file.
DEFAULTS: dict[str, Any] = {
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
    """Return the kind of a block; settings are recognized by a key that they always have."""
    if "attributes" in value:
        return "resources" if value["type"].endswith("Resources") else "stream file"
    if "custom" in value.get("storage", {}) or "run_launcher" in value:
        return "concurrency"  # a dagster.yaml
    if set(value) <= KEYS:
        return "fragment"
    return next(
        (key for key in ("ops", "concurrency", "plugins", "load_from", "sources") if key in value),
        "unknown",
    )


BLOCKS: dict[str, list[tuple[PageText, dict[str, Any]]]] = defaultdict(list)
for yaml_block in blocks("yaml"):
    content = yaml.safe_load(yaml_block.text)
    BLOCKS[_kind(content)].append((yaml_block, content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for stream files, with the JSON Schema file of the examples."""
    properties = '{"order_id": {"type": "integer"}}'
    schema = f'{{"type": "object", "properties": {properties}}}'
    (tmp_path / "orders.schema.json").write_text(schema)
    return tmp_path


def test_each_block_has_a_known_kind() -> None:
    assert [str(block) for block, _ in BLOCKS["unknown"]] == []
    assert len(BLOCKS["plugins"]) == 1  # run by test_meltano.py
    assert len(BLOCKS["sources"]) == 1  # run by test_published_batches.py


def test_resources_are_valid() -> None:
    assert BLOCKS["resources"]
    for _, value in BLOCKS["resources"]:
        BatchResources.from_attributes_dict(attributes=value["attributes"])


def test_stream_files_are_valid(folder: Path) -> None:
    assert len(BLOCKS["stream file"]) >= 2
    path, problems = folder / "defs.yaml", []
    for block, _ in BLOCKS["stream file"]:
        path.write_text(block.text, encoding="utf-8")
        try:
            read_stream_file(path)
        except PipelineError as error:
            problems.append(f"{block}\n{error}")
    assert problems == []


def test_fragments_of_stream_files_are_valid(folder: Path) -> None:
    assert len(BLOCKS["fragment"]) > 15
    problems = []
    for block, value in BLOCKS["fragment"]:
        try:
            stream_of(_completed(value), folder)
        except PipelineError as error:
            problems.append(f"{block}\n{error}")
    assert problems == []


def test_run_configurations_are_valid_for_one_job() -> None:
    stream = describe_stream("orders", source=DEFAULTS["source"], dagster={"backfills": True})
    jobs = build_definitions([stream]).get_repository_def().get_all_jobs()
    assert len(BLOCKS["ops"]) >= 3
    for block, value in BLOCKS["ops"]:
        matching = [
            job for job in jobs if {*value["ops"]} <= {node.name for node in job.graph.nodes}
        ]
        assert len(matching) == 1, str(block)
        dg.validate_run_config(matching[0], value)


def test_dagster_settings_are_valid(tmp_path: Path) -> None:
    assert BLOCKS["concurrency"]
    for block, value in BLOCKS["concurrency"]:
        (tmp_path / "dagster.yaml").write_text(block.text, encoding="utf-8")
        settings, _ = dagster_instance_config(str(tmp_path))
        assert settings.keys() >= value.keys()


def test_workspaces_are_valid(tmp_path: Path) -> None:
    assert BLOCKS["load_from"]
    for _, value in BLOCKS["load_from"]:
        result = process_workspace_config(value)
        assert result.success, result.errors


def _completed(fragment: Mapping[str, Any]) -> dict[str, Any]:
    source = fragment.get("source", {})
    place = {} if "meta_table" in source else DEFAULTS["source"]
    return {**DEFAULTS, **fragment, "source": {**place, **source}}
