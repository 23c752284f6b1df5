"""`dg` commands in a user's project: listing, scaffolding and checking streams."""

import json
import re
from pathlib import Path

import pytest

from batch_pipeline_tests.defs.dg_project import make_dg_project
from batch_pipeline_tests.docs.pages import blocks

# Tests that do not run `dg`: test_scaffold.py, test_component.py, test_streams_folder.py.
pytestmark = pytest.mark.long
COMPONENT = "batch_pipeline.BatchStream"
BROKEN = """\
type: batch_pipeline.BatchStream
attributes:
  stream: broken
  source: {uri: ./landing}
  batch:
    max_wieght: 64MiB
    max_count: many
"""


def test_commands_of_the_page_scaffold_and_check_streams(tmp_path: Path) -> None:
    project = make_dg_project(tmp_path, "shop")
    options = ["--stream", "refunds.v2", "--source-uri", "/data/in", "--source-format", "csv"]
    [page] = [block.text for block in blocks("console") if block.page.stem == "dagster"]
    scaffold, check = (line.split() for line in re.findall(r"^\$ dg (.+)$", page, re.MULTILINE))
    refunds = ["scaffold", "defs", COMPONENT, "team/refunds", *options]
    for words in (refunds, scaffold, check):
        completed = project.dg(*words)
        assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "All component YAML validated successfully." in completed.stdout
    listed = project.dg("list", "components", "--json")
    components = {entry["key"]: entry["summary"] for entry in json.loads(listed.stdout)["items"]}
    ours = {key: text for key, text in components.items() if key.startswith("batch_pipeline")}
    assert sorted(ours) == ["batch_pipeline.BatchResources", COMPONENT]
    assert ours[COMPONENT].startswith("Files of a folder")
    listed = project.dg("list", "defs", "--json")
    assets = {entry["asset_key"] for entry in json.loads(listed.stdout)["assets"]}
    assert {"sales/batches", "sales/files", "refunds.v2/batches"} <= assets


def test_dg_check_reports_mistakes_with_file_and_line(tmp_path: Path) -> None:
    project = make_dg_project(tmp_path, "broken_shop")
    path = project.write("broken/defs.yaml", BROKEN)
    by_schema = project.dg("check", "yaml")
    assert by_schema.returncode == 1
    assert f"{path}:6 - batch_pipeline.BatchStream attributes.batch" in by_schema.stdout
    assert f"{path}:7 - batch_pipeline.BatchStream attributes.batch.max_count" in by_schema.stdout
    by_loading = project.dg("check", "defs", "--no-check-yaml")
    assert by_loading.returncode == 1
    output = by_loading.stdout + by_loading.stderr
    assert f"{path}:6: unknown key `max_wieght` in `batch`; did you mean `max_weight`?" in output
    assert "line 7: `batch.max_count` is 'many'; expected a whole number." in output
