"""Project rules that no linter checks."""

import subprocess
import sys
import tomllib
from pathlib import Path

import batch_pipeline

PROJECT = Path(__file__).parents[2]


def test_layers_import_only_lower_layers() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_version_is_that_of_the_project_and_has_its_changes_listed() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert batch_pipeline.__version__ == project["version"]
    changelog = (PROJECT / "batch_pipeline/docs/changelog.md").read_text(encoding="utf-8")
    assert f"\n## [{project['version']}] - 20" in changelog


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
