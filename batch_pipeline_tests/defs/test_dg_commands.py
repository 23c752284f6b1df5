"""`dg` in a project of somebody else: list, scaffold and check streams, as a person types it."""

import json
from pathlib import Path

import pytest

from batch_pipeline_tests.defs.dg_project import DgProject, make_dg_project

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


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> DgProject:
    """A project with two streams that `dg` has scaffolded."""
    project = make_dg_project(tmp_path_factory.mktemp("dg"), "shop")
    plain = project.dg("scaffold", "defs", COMPONENT, "sales")
    assert plain.returncode == 0, plain.stderr
    choices = ["--stream", "refunds.v2", "--source-uri", "/data/in", "--source-format", "csv"]
    chosen = project.dg("scaffold", "defs", COMPONENT, "team/refunds", *choices)
    assert chosen.returncode == 0, chosen.stderr
    return project


@pytest.mark.long
def test_dg_list_components_finds_the_stream_of_an_installed_package(project: DgProject) -> None:
    """Expect one component under the name that stands in files, and no second name for it."""
    listed = project.dg("list", "components", "--json")
    assert listed.returncode == 0, listed.stderr
    components = {one["key"]: one["summary"] for one in json.loads(listed.stdout)["items"]}
    ours = {key: text for key, text in components.items() if key.startswith("batch_pipeline")}
    assert list(ours) == [COMPONENT]
    assert ours[COMPONENT].startswith("Files of a folder")


def test_dg_check_defs_of_scaffolded_streams_is_green(project: DgProject) -> None:
    """Expect files that load as they were written, beside each other."""
    checked = project.dg("check", "defs")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "All component YAML validated successfully." in checked.stdout


def test_dg_list_defs_has_both_streams_and_what_they_share_once(project: DgProject) -> None:
    """Expect the assets of each stream, and one of each shared job, sensor and resource."""
    listed = project.dg("list", "defs", "--json")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    found = json.loads(listed.stdout)
    assets = {one["asset_key"] for one in found["assets"]}
    assert {"sales/batches", "sales/files", "refunds.v2/batches"} <= assets
    for kind, name in [
        ("jobs", "batch_pipeline_reconcile"),
        ("sensors", "batch_pipeline_run_ends"),
        ("resources", "batch_pipeline"),
        ("resources", "batch_pipeline_spark"),
    ]:
        assert [one["name"] for one in found[kind]].count(name) == 1


def test_dg_check_of_a_broken_file_gives_file_line_and_nearest_key(tmp_path: Path) -> None:
    """Expect both commands to name the lines, and the second one the key that was meant."""
    project = make_dg_project(tmp_path, "broken_shop")
    path = project.write("broken/defs.yaml", BROKEN)
    by_schema = project.dg("check", "yaml")
    assert by_schema.returncode == 1
    assert f"{path}:6 - batch_pipeline.BatchStream attributes.batch" in by_schema.stdout
    assert f"{path}:7 - batch_pipeline.BatchStream attributes.batch.max_count" in by_schema.stdout
    by_us = project.dg("check", "defs", "--no-check-yaml")
    assert by_us.returncode == 1
    told = by_us.stdout + by_us.stderr
    assert f"{path}:6: unknown key `max_wieght` in `batch`; did you mean `max_weight`?" in told
    assert "line 7: `batch.max_count` is 'many'; expected a whole number." in told
