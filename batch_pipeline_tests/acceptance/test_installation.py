"""The wheel in user environments: without extras, and beside other packages."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from batch_pipeline.defs.instance import OLDEST
from batch_pipeline_tests.acceptance.test_readme import DAGSTER, commands

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


CORE = ("dagster", "dagster-pipes", "dagster-shared")
PROGRAMS = ("dagster", "dagster-dg-cli", "dagster-webserver")
LIBRARIES = ("dagster-aws", "dagster-postgres", "dagster-pyspark")
SUBSET = (
    *("test_backfill_sensor.py", "test_build.py", "test_checks.py", "test_code_locations.py"),
    *("test_component.py", "test_component_schema.py", "test_downstream.py"),
    *("test_materialized_by_hand.py", "test_partition_sync.py", "test_services.py"),
)


def test_oldest_dagster_is_the_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = {f"{name}>=0.29.{OLDEST.split('.')[2]},<0.30" for name in LIBRARIES}
    assert {*project["dependencies"]} >= {f"dagster>={OLDEST},<1.14", *bounds}


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that the user of the embedded server may enter, unlike pytest's when run as root."""
    with TemporaryDirectory(prefix="bp-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.mark.parametrize("release", ["oldest", "newest"])
def test_definitions_work_with_other_releases_of_dagster(release: str, public: Path) -> None:
    """The newest core may be ahead of the libraries, which warn about it and refuse to resolve."""
    python, requirements = public / "venv/bin/python", public / "requirements.txt"
    locked = _uv(
        *("export", "--frozen", "--quiet", "--no-hashes", "--no-emit-project"),
        *("--all-extras", "--all-groups"),
    ).splitlines()
    wanted: list[str] = []
    if release == "oldest":
        # An older `dg` needs an older tomlkit.
        locked = [line for line in locked if not line.startswith(("dagster", "tomlkit"))]
        library = f"0.29.{OLDEST.split('.')[2]}"
        wanted = [
            *(f"{one}=={OLDEST}" for one in PROGRAMS),
            *(f"{one}=={library}" for one in LIBRARIES),
        ]
    requirements.write_text("\n".join([*locked, *wanted]), encoding="utf-8")
    _uv("venv", "--quiet", "--python", sys.executable, str(public / "venv"))
    install = ("pip", "install", "--quiet", "--python", str(python))
    _uv(*install, "--requirements", str(requirements))
    if release == "newest":
        _uv(*install, "--no-deps", "--upgrade", *(f"{name}<1.14" for name in CORE))
    _uv(*install, "--no-deps", "--editable", str(ROOT))
    ignored = "ignore:Found version mismatch:UserWarning"
    tests = [f"batch_pipeline_tests/defs/{name}" for name in SUBSET]
    result = subprocess.run(
        [python, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-W", ignored, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5_000:]


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


def test_command_of_the_readme_installs_in_a_new_dagster_project(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's folder stands in for a package index with the wheel."""
    add, *_ = commands(DAGSTER)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    _uv("tool", "run", "create-dagster@1.13.27", "project", "shop", "--no-uv-sync", cwd=tmp_path)
    monkeypatch.setenv("UV_FIND_LINKS", str(wheel.parent))
    words = shlex.split(add.command)
    assert words[:2] == ["uv", "add"]
    _uv(*words[1:], cwd=tmp_path / "shop")
    components = _uv("run", "dg", "list", "components", cwd=tmp_path / "shop")
    assert "BatchStream" in components


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
