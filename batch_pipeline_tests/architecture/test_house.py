"""The rules of the house that no linter knows."""

import re
import subprocess
import sys
from pathlib import Path

import batch_pipeline

PROJECT = Path(__file__).parents[2]


def test_import_law_holds() -> None:
    """Expect every layer to see only the layers below it."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_first_page_names_places_that_exist() -> None:
    """Expect every file and folder of the package's own table of contents to be there."""
    package = PROJECT / "batch_pipeline"
    named = re.findall(r"\b[a-z_]+/[a-z_/]*(?:\.py|\.sql)?", str(batch_pipeline.__doc__))
    assert len(named) > 30
    assert [place for place in named if not (package / place).exists()] == []


def test_project_files_of_dagster_are_the_packaged_ones() -> None:
    """Expect one file behind both names, so that they cannot differ."""
    packaged = PROJECT / "batch_pipeline/defs/instance"
    for name in ("dagster.yaml", "workspace.yaml"):
        assert (packaged / name).samefile(PROJECT / name)


def test_light_commands_leave_heavy_packages_alone() -> None:
    """Expect the command line to start without Dagster, Spark or pyarrow."""
    script = (
        "import sys, batch_pipeline.cli;"
        "print([m for m in ('dagster', 'pyspark', 'pyarrow', 'alembic') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
