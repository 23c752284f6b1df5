"""The wheel in user environments: without extras, and beside other packages."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = """
[project]
name = "shop"
requires-python = ">=3.10,<3.15"
version = "0.1.0"
dependencies = [
    "dagster==1.13.27",
    "batch-pipeline[embedded,singer,metrics] @ {wheel} ; python_version >= '3.11'",
    "dbt-core ; python_version >= '3.11'",
    "dlt ; python_version >= '3.11'",
    "pandas>=3 ; python_version >= '3.11'",
]

[dependency-groups]
dev = ["dagster-dg-cli", "dagster-webserver"]
"""

pytestmark = pytest.mark.long


def _uv(*arguments: str, cwd: Path = ROOT) -> str:
    result = subprocess.run(
        [str(shutil.which("uv")), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    _uv("build", "--wheel", "--quiet", "--out-dir", str(folder))
    [path] = folder.glob("*.whl")
    return path


def test_links_of_the_readme_in_the_wheel_are_absolute(wheel: Path) -> None:
    """A package index shows the README without the files beside it."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode("utf-8")
    targets = re.findall(r"\]\(([^)]+)\)", metadata)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith("https://")] == []


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with the wheel and without extras."""
    folder = tmp_path_factory.mktemp("core") / "venv"
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    _uv("pip", "install", "--quiet", "--python", str(folder), str(wheel))
    return folder / "bin"


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_dependency_bounds_resolve(version: str, resolution: str) -> None:
    options = ["--all-extras", "--quiet", "--only-binary=:all:", "--no-binary=pyspark"]
    versions = _uv(
        *("pip", "compile", "pyproject.toml", *options),
        *("--resolution", resolution, "--python-version", version),
    )
    assert "dagster==1.13." in versions


def test_wheel_resolves_beside_dbt_dlt_and_pandas(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT.format(wheel=wheel.as_uri()))
    _uv("lock", cwd=tmp_path)
    locked = (tmp_path / "uv.lock").read_text()
    assert all(f'name = "{name}"' in locked for name in ("batch-pipeline", "dbt-core", "dlt"))


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("batch-pipeline demo", "embedded"),
        ("batch-pipeline dev", "embedded"),
        ("batch-pipeline metrics", "metrics"),
        ("tap-batch-pipeline --about", "singer"),
        ("target-batch-pipeline --about", "singer"),
    ],
)
def test_missing_extra_error_names_the_install_command(
    programs: Path, tmp_path: Path, command: str, extra: str
) -> None:
    program, *arguments = command.split()
    result = subprocess.run(
        [programs / program, *arguments],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert f"Install it with `uv add 'batch-pipeline[{extra}]'`" in result.stderr
    assert "Traceback" not in result.stderr


def test_definitions_load_without_extras(programs: Path, tmp_path: Path) -> None:
    code = (
        "import batch_pipeline.encode.task, batch_pipeline.spark.encoder, batch_pipeline.cli.run\n"
        "from batch_pipeline import build_definitions, describe_stream\n"
        f"stream = describe_stream('orders', source={{'uri': {str(tmp_path / 'in')!r}}})\n"
        "print(build_definitions([stream]).get_repository_def().has_job('orders_encode'))"
    )
    result = subprocess.run(
        [programs / "python", "-W", "ignore", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "True\n", result.stderr
