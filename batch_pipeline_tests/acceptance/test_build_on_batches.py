"""The tutorial "Build on batches": its commands and files create a project that is materialized."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from textwrap import dedent

import pyarrow.parquet as pq
import pytest

from batch_pipeline_tests.acceptance.graphql import answers
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import program_output, wait_until
from batch_pipeline_tests.docs.pages import PROJECT, PageText, blocks

pytestmark = pytest.mark.long

FIRST = "00000001-00000002"
# Evaluates the automation condition and materializes the assets as a user would. It runs in another
# process because the project's Spark session belongs to the process.
STEPS = dedent(
    """
    import sys, warnings
    warnings.simplefilter("ignore")
    import dagster as dg
    from shop.definitions import defs, sales_by_city

    KEY = sys.argv[1]
    with dg.DagsterInstance.get() as instance:
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
        job = defs.resolve_implicit_global_asset_job_def()
        run = job.execute_in_process(
            instance=instance, asset_selection=[sales_by_city.key], partition_key=KEY
        )
        assert run.success
"""
)


@dataclass(frozen=True)
class Project:
    """The folder of the tutorial's project."""

    folder: Path
    database_url: str

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of its commands; `dg` and `dagster` are those of this environment."""
        return {
            **os.environ,
            "DAGSTER_HOME": str(self.folder),
            "BATCH_PIPELINE_HOME": str(self.folder / "home"),
            "BATCH_PIPELINE_INVENTORY_CONN": self.database_url,
            "PYTHONPATH": os.pathsep.join([str(self.folder / "src"), *sys.path]),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def write(self, text: str) -> None:
        """Write the file that is named by the first line of a block."""
        path = self.folder / text.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def shell(self, line: str) -> None:
        """Run a console line of the page."""
        words = ("/bin/sh", "-c", line.replace("uv run ", ""))
        program_output(*words, cwd=self.folder, env=self.environment)

    def serve(self, line: str) -> None:
        """Run a line that starts Dagster, at another port, until its pages are served."""
        port = free_port()
        command = f"exec env {line.replace('uv run ', '')} --port {port}"
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(lambda: answers(port) or process.poll() is not None, line)
            assert process.poll() is None, f"{line} ended"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()

    def first_run(self) -> None:
        """Materialize the first partition, as the sensors of the page do."""
        words = (sys.executable, "-c", STEPS, FIRST)
        program_output(*words, cwd=self.folder, env=self.environment)

    def by_city(self) -> dict[str, float]:
        """Return the amounts that the downstream asset wrote."""
        rows = pq.read_table(self.folder / "by_city" / FIRST).to_pylist()
        return {row["city"]: row["amount"] for row in rows}


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Project:
    """The project that the first block creates; it is resolved, but not installed again."""
    out = str(tmp_path / "dist")
    program_output("uv", "build", "--wheel", "--quiet", "--out-dir", out, cwd=PROJECT)
    text = re.sub(r"^\$ ", "", _page("console")[0].text, flags=re.M)
    program_output(
        *("/bin/sh", "-e", "-c", text.replace("@latest", f"@{version('dagster')}")),
        cwd=tmp_path,
        env={**os.environ, "UV_FIND_LINKS": out, "UV_NO_SYNC": "1"},
        stdin=None,
        input="n\n",  # do not install Dagster again
    )
    return Project(tmp_path / "shop", database_url)


def _page(*languages: str) -> list[PageText]:
    return [block for block in blocks(*languages) if block.page.stem == "build_on_batches"]


def test_tutorial_project_is_materialized_and_recomputed(project: Project) -> None:
    *files, change = (block.text for block in _page("python", "yaml"))
    lines = re.findall(r"^\$ (.+)$", "".join(block.text for block in _page("console")), re.M)
    _, _, _, make_folder, serve, first_file, second_file, launch = lines
    for text in files:
        project.write(text)
    project.shell(make_folder)
    project.serve(serve)
    for line in (first_file, second_file):
        project.shell(line)
    project.first_run()
    assert project.by_city() == {"Bern": 5.5, "Wien": 4.0}
    project.write(change)
    project.shell(launch)
    assert project.by_city() == {"Bern": 5.09, "Wien": 3.7}
    manifests = sorted(path.name for path in project.folder.glob("batches/manifests/*"))
    assert [name.rsplit(".", 2)[1] for name in manifests] == ["g1", "g2"]
