"""The commands and the code of the README, run in their order."""

import re

import pytest

from batch_pipeline_tests.acceptance.console_page import README, Command, steps
from batch_pipeline_tests.acceptance.sandbox import Sandbox
from batch_pipeline_tests.defs.dg_project import make_dg_project

_, _, AFTER = README.partition("\n## Already on Dagster?\n")
DAGSTER, _, REST = AFTER.partition("\n## When to use it\n")


def commands(text: str) -> list[Command]:
    return [step for step in steps(text) if isinstance(step, Command)]


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


def test_readme_is_short_and_names_the_two_main_commands() -> None:
    assert len(README.split()) <= 600
    assert "$ uv run batch-pipeline demo" in README
    assert "$ uv run pytest" in REST
