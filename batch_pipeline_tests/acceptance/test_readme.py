"""The commands and the code of the README, run in their order."""

import re
import shlex
from pathlib import Path

import pytest

from batch_pipeline_tests.acceptance.console_page import Command, steps
from batch_pipeline_tests.acceptance.sandbox import Sandbox
from batch_pipeline_tests.defs.dg_project import make_dg_project

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BEFORE, _, AFTER = README.partition("\n## Already on Dagster?\n")
DAGSTER, _, REST = AFTER.partition("\n## When to use it\n")

# This checkout is the clone. `dev` is run by test_dev.py, which checks for the shown line.
RUN_ELSEWHERE = {
    "git clone https://github.com/batch-pipeline/batch-pipeline",
    "cd batch-pipeline",
    "uv run batch-pipeline dev",
}


def commands(text: str) -> list[Command]:
    return [step for step in steps(text) if isinstance(step, Command)]


def test_demo_prints_what_the_readme_shows(sandbox: Sandbox) -> None:
    [demo] = [step for step in commands(BEFORE) if step.command not in RUN_ELSEWHERE]
    words = shlex.split(demo.command)
    assert words[:3] == ["uv", "run", "batch-pipeline"]
    result = sandbox.with_variables(BATCH_PIPELINE_HOME=None).run(*words[3:], cwd=sandbox.folder)
    assert result.returncode == 0, result.stderr
    assert demo.matches(result.stdout), result.stdout


@pytest.mark.long
def test_stream_and_asset_of_the_readme_are_materialized(
    sandbox: Sandbox, empty_database_url: str, warm_spark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, export, migrate, scaffold = (step.command for step in commands(DAGSTER))
    assert add.startswith("uv add polars")  # run by test_installation.py
    project = make_dg_project(sandbox.folder / "shop", "readme_shop")
    assert export.startswith("export BATCH_PIPELINE_INVENTORY_CONN=postgresql://")
    variables = {
        "BATCH_PIPELINE_INVENTORY_CONN": empty_database_url,
        "BATCH_PIPELINE_STREAMS": str(project.defs),
        "BATCH_PIPELINE_SPARK_REMOTE": warm_spark,
        "BATCH_PIPELINE_HOME": str(sandbox.home),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    sandbox = sandbox.with_variables(**variables)
    sandbox.output_of(*migrate.removeprefix("uv run batch-pipeline ").split())
    landing = sandbox.landing("sales")
    words = scaffold.removeprefix("uv run dg ").replace("/data/sales", str(landing)).split()
    scaffolded = project.dg(*words)
    assert scaffolded.returncode == 0, scaffolded.stderr
    [code] = re.findall(r"```python\n(.+?)```", DAGSTER, re.DOTALL)
    assert len(code.splitlines()) <= 10
    project.write("by_city.py", code)
    sandbox.land("sales", {"1.csv": b"city,amount\nBern,2\nBern,3\nWien,4\n"})
    registered = project.dg("launch", "--job", "sales_register")
    assert registered.returncode == 0, registered.stderr
    assets = 'key:"sales/batches" or key:"by_city"'
    launched = project.dg("launch", "--assets", assets, "--partition", "00000001-00000001")
    assert launched.returncode == 0, launched.stderr
    assert re.search(r"Bern\W+5\b", launched.stdout), launched.stdout + launched.stderr


def test_readme_is_short() -> None:
    assert len(README.split()) <= 600


def test_readme_names_the_two_main_commands() -> None:
    assert "$ uv run batch-pipeline demo" in README
    assert "$ uv run pytest" in REST
