"""Project rules that no linter checks."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._annotations import is_public

import batch_pipeline
from batch_pipeline_tests.acceptance.sandbox import program_output, run_program

PROJECT = Path(__file__).parents[2]
PACKAGE = Path(batch_pipeline.__file__).parent
TOUR = batch_pipeline.__doc__ or ""  # the table of contents of the package
# Attributes of contexts and runs that are not documented. Those of instances are looked up.
NOT_PUBLIC = {
    "asset_layer",
    "at_path",
    "code_location_origin",
    "is_complete_and_waiting_to_retry",
    "repository_origin",
}


def test_tour_names_every_step_of_the_lifecycle_and_existing_paths() -> None:
    steps = [line.split()[1] for line in TOUR.splitlines() if re.match(r"\d\. ", line)]
    assert steps == [
        "land", "register", "plan", "partition", "claim", "encode", "publish", "emit", "load",
    ]  # fmt: skip
    paths = re.findall(r"(?<![\w./])(?:\w+/)+(?:\w+\.(?:py|sql))?", TOUR)
    assert len(paths) > 50
    for path in paths:
        entry = PACKAGE / path
        assert entry.is_dir() if path.endswith("/") else entry.is_file(), path


def test_layers_import_only_lower_layers() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    program_output(*command, cwd=PROJECT)


def test_version_is_that_of_the_project_and_has_its_changes_listed() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert batch_pipeline.__version__ == project["version"]
    changelog = (PACKAGE / "docs/changelog.md").read_text(encoding="utf-8")
    assert f"\n## [{project['version']}] - 20" in changelog


def test_dagster_files_of_the_project_are_links_to_the_packaged_ones() -> None:
    for name in ("dagster.yaml", "workspace.yaml"):
        assert (PACKAGE / "defs/instance" / name).samefile(PROJECT / name)


def private_uses(source: str) -> Iterator[str]:
    """Yield the private names of Dagster that Python source uses."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "dagster":
                yield f"from {module}"
            case ast.Attribute(
                attr=name, value=ast.Name(id="instance") | ast.Attribute(attr="instance")
            ) if not is_public(getattr(dg.DagsterInstance, name, None)):
                yield f"instance.{name}"
            case ast.Attribute(attr=name, value=ast.Name(id="dg")) if not hasattr(dg, name):
                yield f"dg.{name}"
            case ast.Attribute(attr=name) if name in NOT_PUBLIC or name.startswith("_dagster"):
                yield name
            case _:
                pass


def test_definitions_use_only_public_dagster_api() -> None:
    """Uses of private API are in `defs/instance`, which checks the version of Dagster."""
    modules = [*PACKAGE.glob("defs/*.py"), PACKAGE / "definitions.py"]
    uses = {(path.name, use) for path in modules for use in private_uses(path.read_text("utf-8"))}
    assert uses == set()


@pytest.mark.parametrize(
    ("source", "use"),
    [
        ("from dagster.components.core.decl import YamlDecl", "from dagster.components.core.decl"),
        ("context.instance.event_log_storage", "instance.event_log_storage"),
        ("instance.get_runs()", "instance.get_runs"),
        ("dg.YamlDecl", "dg.YamlDecl"),
        ("context.job_def.asset_layer", "asset_layer"),
    ],
)
def test_private_dagster_api_is_detected(source: str, use: str) -> None:
    assert [*private_uses(source)] == [use]


def test_other_series_of_dagster_is_refused() -> None:
    """Loading any module that uses private parts of Dagster checks the version."""
    script = (
        "import importlib.metadata as metadata; version = metadata.version\n"
        "metadata.version = lambda name: '1.14.2' if name == 'dagster' else version(name)\n"
        "import batch_pipeline.defs.instance.storage"
    )
    result = run_program(sys.executable, "-c", script)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].endswith(
        "ConfigurationError: Dagster 1.14.2 is installed; batch-pipeline uses parts of Dagster "
        "that are not public, and is tested with 1.13.7 to 1.13.29. Nothing was loaded. Install "
        "another release of Dagster, for example with `uv add 'dagster~=1.13.0'`, or a newer one "
        "of batch-pipeline."
    )
