"""Project rules that no linter checks."""

import re
import subprocess
import sys
from pathlib import Path

import batch_pipeline

PROJECT = Path(__file__).parents[2]


def test_layers_import_only_lower_layers() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_package_docstring_names_existing_paths() -> None:
    package = PROJECT / "batch_pipeline"
    named = re.findall(r"\b[a-z_]+/[a-z_/]*(?:\.py|\.sql)?", str(batch_pipeline.__doc__))
    assert len(named) > 30
    assert [place for place in named if not (package / place).exists()] == []


def test_dagster_files_of_the_project_are_links_to_the_packaged_ones() -> None:
    packaged = PROJECT / "batch_pipeline/defs/instance"
    for name in ("dagster.yaml", "workspace.yaml"):
        assert (packaged / name).samefile(PROJECT / name)


def test_command_line_imports_no_heavy_packages() -> None:
    script = (
        "import sys, batch_pipeline.cli;"
        "print([m for m in ('dagster', 'pyspark', 'pyarrow', 'alembic') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
