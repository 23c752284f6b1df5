"""A Dagster project with the layout that `dg` creates."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import dagster as dg

PYPROJECT = """\
[project]
name = "{module}"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{module}"
"""

DEFINITIONS = """\
from pathlib import Path

import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""

QUIET = "telemetry:\n  enabled: false\nnux:\n  enabled: false\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DgProject:
    """A project whose package is `<root>/src/<module>`."""

    root: Path
    module: str

    @property
    def defs(self) -> Path:
        """The folder of the components."""
        return self.root / "src" / self.module / "defs"

    def write(self, name: str, text: str) -> Path:
        """Write a file below the folder of the components."""
        path = self.defs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    def load(self) -> dg.Definitions:
        """Load all components in this process, whose path must have the folder `src`."""
        return dg.load_from_defs_folder(path_within_project=self.root)

    def dg(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `dg` in the project."""
        environment = os.environ | {
            "DAGSTER_HOME": str(self.root / "home"),
            "PYTHONPATH": os.pathsep.join([str(self.root / "src"), *sys.path]),
            "VIRTUAL_ENV": sys.prefix,
        }
        command = [str(Path(sys.executable).with_name("dg")), *arguments]
        return subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )


def make_dg_project(root: Path, module: str) -> DgProject:
    """Create an empty project; its module name must be unique, because modules stay imported."""
    package = root / "src" / module
    (package / "defs").mkdir(parents=True)
    (root / "home").mkdir()
    (root / "home" / "dagster.yaml").write_text(QUIET)
    (root / "pyproject.toml").write_text(PYPROJECT.format(module=module))
    (package / "__init__.py").touch()
    (package / "defs" / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    return DgProject(root=root, module=module)
