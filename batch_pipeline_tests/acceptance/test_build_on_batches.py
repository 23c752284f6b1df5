"""The tutorial "Build on batches": its files make a project whose assets are materialized."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from batch_pipeline_tests.docs.pages import blocks

pytestmark = pytest.mark.long

FIRST = "00000001-00000002"
# Evaluates the automation condition and materializes the assets as a user would. It runs in another
# process because the project's Spark session belongs to the process.
STEPS = dedent("""
    import json, sys, warnings
    warnings.simplefilter("ignore")
    import dagster as dg
    from shop.definitions import defs, sales_by_city

    KEY, TAGS = sys.argv[1], {"dagster/partition": sys.argv[1]}
    with dg.DagsterInstance.get() as instance:
        if sys.argv[2] == "first":
            register = defs.resolve_job_def("sales_register")
            assert register.execute_in_process(instance=instance).success
            tick = lambda cursor: dg.evaluate_automation_conditions(
                defs=defs, instance=instance, cursor=cursor,
                asset_selection=dg.AssetSelection.assets(sales_by_city),
            )
            before = tick(None)
            encode = defs.resolve_job_def("sales_encode")
            assert encode.execute_in_process(instance=instance, partition_key=KEY).success
            after = tick(before.cursor)
            requested = after.get_requested_partitions(sales_by_city.key)
            assert (before.total_requested, requested) == (0, {KEY}), (before, requested)
            selection = [sales_by_city.key]
        else:
            selection = [dg.AssetKey(["sales", "batches"]), sales_by_city.key]
        job = defs.resolve_implicit_global_asset_job_def()
        run = job.execute_in_process(
            instance=instance, asset_selection=selection, partition_key=KEY
        )
        assert run.success
        events = run.get_asset_materialization_events()
        print(json.dumps([event.asset_key.to_user_string() for event in events]))
    import pyarrow.parquet as pq
    rows = pq.read_table(f"by_city/{KEY}").to_pylist()
    print(json.dumps({row["city"]: row["amount"] for row in rows}, sort_keys=True))
""")


@dataclass(frozen=True)
class Project:
    """The folder of the tutorial's project."""

    folder: Path
    database_url: str

    def write(self, text: str) -> None:
        """Write the file that is named by the first line of a block."""
        path = self.folder / text.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def shell(self, line: str) -> None:
        """Run a console line of the page."""
        subprocess.run(["/bin/sh", "-c", line], cwd=self.folder, check=True)

    def step(self, name: str) -> list[str]:
        """Execute a step, and return the lines that it prints."""
        return self.python("-c", STEPS, FIRST, name)

    def python(self, *arguments: str) -> list[str]:
        """Run Python in the project, and return the lines that it prints."""
        source = self.folder / "src"
        result = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "DAGSTER_HOME": str(self.folder),
                "BATCH_PIPELINE_HOME": str(self.folder / "home"),
                "BATCH_PIPELINE_INVENTORY_CONN": self.database_url,
                "PYTHONPATH": os.pathsep.join([str(source), *sys.path]),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-4_000:]
        return result.stdout.splitlines()


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Project:
    return Project(tmp_path, database_url)


def test_tutorial_project_is_materialized_and_recomputed(project: Project) -> None:
    page = [
        block for block in blocks("python", "yaml", "console") if "build_on_batches" in str(block)
    ]
    files = [block.text for block in page if block.language != "console"]
    lines = "".join(block.text for block in page if block.language == "console").splitlines()
    for text in files[:-1]:
        project.write(text)
    for line in lines:
        if line.startswith(("$ mkdir", "$ printf")):
            project.shell(line.removeprefix("$ "))
    project.python("-m", "dagster", "definitions", "validate", "-m", "shop.definitions")
    assert project.step("first") == ['["sales_by_city"]', '{"Bern": 5.5, "Wien": 4.0}']
    project.write(files[-1])
    assert project.step("again") == [
        '["sales/batches", "sales_by_city"]',
        '{"Bern": 5.09, "Wien": 3.7}',
    ]
    manifests = sorted(path.name for path in project.folder.glob("batches/manifests/*"))
    assert [name.rsplit(".", 2)[1] for name in manifests] == ["g1", "g2"]
