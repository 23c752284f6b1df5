"""The checks of the machine and its folders: each problem with what to do about it."""

import os
import shutil
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from batch_pipeline.cli.doctor_checks import (
    check_configuration,
    check_disks,
    check_home,
    check_java,
    check_places,
    check_port,
    check_versions,
)
from batch_pipeline.config.environment import load_settings
from batch_pipeline.config.home import Home
from batch_pipeline.model.checks import Finding, attempted, compare_clocks, fine
from batch_pipeline.model.errors import InvariantError, SettingError
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Source, Storage, Stream
from batch_pipeline_tests.factories import NOON, stream
from batch_pipeline_tests.pipeline.garbage_fixture import names_below

VERSIONS = {
    "dagster": "1.13.27",
    "dagster-webserver": "1.13.27",
    "dagster-graphql": "1.13.27",
    "dagster-postgres": "0.29.27",
    "dagster-aws": "0.29.27",
    "dagster-pyspark": "0.29.27",
    "pyspark": "4.3.0",
    "sqlalchemy": "2.0.1",
    "psycopg": "3.3.1",
}


def found(findings: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Return level, subject and text of each finding."""
    return [(one.level.value, one.subject, one.text) for one in findings]


def configured(**environment: str) -> list[tuple[str, str, str]]:
    """Check variables."""
    settings = load_settings(environment=environment)
    return found(check_configuration(settings, environment))


def placed(folder: Path) -> Stream:
    """A stream whose landing and storage are below a folder."""
    source = Source(uri=to_uri(folder / "landing"))
    return stream(source=source, storage=Storage(root=to_uri(folder / "batches")))


def test_unknown_variable_is_reported_with_the_nearest_name_and_no_value() -> None:
    findings = configured(BATCH_PIPELINE_INVENTORY_CON="postgresql://me:secret@there/db")
    [(level, subject, text), rest] = findings
    assert (level, subject, rest[0]) == ("warn", "settings", "ok")
    assert "BATCH_PIPELINE_INVENTORY_CON is set, but there is no such setting" in text
    assert "Did you mean BATCH_PIPELINE_INVENTORY_CONN?" in text
    assert "secret" not in str(findings)


def test_known_variables_are_one_finding() -> None:
    given = {"BATCH_PIPELINE_HOME": "/home/me/bp", "BATCH_PIPELINE_JAVA": "auto"}
    [(level, _, text)] = configured(**given)
    assert level == "ok"
    assert text.startswith("home /home/me/bp, streams ")
    assert text.endswith("set: BATCH_PIPELINE_HOME, BATCH_PIPELINE_JAVA.")


def test_failpoints_are_reported() -> None:
    findings = configured(BATCH_PIPELINE_FAILPOINTS="publish.before_commit=kill")
    assert findings[0][2].startswith("BATCH_PIPELINE_FAILPOINTS is set: processes end")


def test_dot_env_file_that_others_can_read_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "my.env"
    path.write_text("BATCH_PIPELINE_META_CONN=postgresql://me:secret@there/db\n")
    path.chmod(0o640)
    (level, _, text), _ = configured(BATCH_PIPELINE_ENV_FILE=str(path))
    assert level == "warn"
    assert text.endswith(f"(mode 0640), which may have passwords. Run `chmod 600 {path}`.")
    path.chmod(0o600)
    assert len(configured(BATCH_PIPELINE_ENV_FILE=str(path))) == 1


def test_versions_that_belong_together_are_one_finding() -> None:
    [(level, _, text)] = found(check_versions(VERSIONS.__getitem__))
    assert level == "ok"
    assert text.endswith("Dagster 1.13.27, PySpark 4.3.0.")
    assert [one.level.value for one in check_versions()] == ["ok"]  # of this environment


def test_library_of_another_release_of_dagster_is_named() -> None:
    mixed = VERSIONS | {"dagster-postgres": "0.28.3", "dagster-webserver": "1.12.3"}
    (level, _, text), _ = found(check_versions(mixed.__getitem__))
    assert level == "warn"
    assert "does not belong with dagster-webserver 1.12.3, dagster-postgres 0.28.3" in text
    assert "`uv sync`" in text


def test_missing_package_fails() -> None:
    def installed(name: str) -> str:
        if name == "dagster-aws":
            raise PackageNotFoundError(name)
        return VERSIONS[name]

    (level, _, text), other = found(check_versions(installed))
    assert (level, other[0]) == ("fail", "ok")
    assert "dagster-aws is not installed" in text


def test_java_is_checked_by_the_file_beside_it(tmp_path: Path) -> None:
    settings = load_settings(environment={})
    new, old = java(tmp_path, "21"), java(tmp_path, "11")
    environment = {"JAVA_HOME": str(new), "PATH": ""}
    assert found(check_java(settings, environment)) == [
        ("ok", "java", f"Java 21, JAVA_HOME={new}.")
    ]
    environment = {"JAVA_HOME": str(old), "PATH": "", "BATCH_PIPELINE_JAVA": "system"}
    [(level, _, text)] = found(check_java(settings, environment))
    assert level == "fail"
    assert f"tried JAVA_HOME={old} (Java 11). Install one" in text
    remote = load_settings(environment={"BATCH_PIPELINE_SPARK_REMOTE": "sc://there:15002"})
    assert [one.level.value for one in check_java(remote, environment)] == ["ok"]


def java(folder: Path, version: str) -> Path:
    """Create a JAVA_HOME of a version."""
    home = folder / f"java-{version}"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}.0.1"\n')
    return home


def test_home_that_others_can_read_is_reported(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "home")
    home.ensure()
    assert found(check_home(home)) == [("ok", "home", f"{home.path}; not in use.")]
    home.path.chmod(0o710)
    assert len(found(check_home(home))) == 1
    home.path.chmod(0o750)
    (level, _, text), _ = found(check_home(home))
    assert level == "warn"
    assert "(mode 0750)" in text
    assert text.endswith(f"Run `chmod 700 {home.path}`.")


def test_home_in_use_is_reported_with_its_holder(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "home")
    with home.lock("batch-pipeline dev", since=NOON):
        [(level, _, text)] = found(check_home(home))
    assert level == "ok"
    assert f"`batch-pipeline dev` (process {os.getpid()}, since " in text


def test_missing_home_is_not_created_by_the_check(tmp_path: Path) -> None:
    assert [level for level, _, _ in found(check_home(Home(path=tmp_path / "some/home")))] == ["ok"]
    assert list(tmp_path.iterdir()) == []


def test_places_are_checked_without_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's answer about rights is made up, since root may do everything."""
    one = placed(tmp_path)
    storage, source = found(check_places(one, NOON))
    assert (storage[0], source[0]) == ("ok", "warn")
    assert source[2].startswith(f"{tmp_path}/landing does not exist (source.uri), so no files")
    for name in ("landing", "batches"):
        (tmp_path / name).mkdir()
    assert found(check_places(one, NOON)) == []
    assert list((tmp_path / "batches").iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda _path, _mode: False)
        storage, source = found(check_places(one, NOON))
    assert (storage[0], source[0]) == ("fail", "fail")
    assert f"{tmp_path}/batches cannot be written (storage.root). Give the user " in storage[2]
    assert f"{tmp_path}/landing cannot be read (source.uri)." in source[2]
    for name in ("landing", "batches"):
        (tmp_path / name).rmdir()
        (tmp_path / name).write_text("")
    storage, source = found(check_places(one, NOON))
    assert (storage[0], source[0]) == ("fail", "fail")
    assert storage[2].startswith(f"{tmp_path}/batches is not a folder (storage.root).")


@pytest.mark.parametrize("place", ["", "-gone"])
@pytest.mark.parametrize("ahead", [0, 10])
def test_bucket_is_checked_with_its_clock_and_without_writing(
    bucket: str, place: str, ahead: int
) -> None:
    root = bucket + place
    one = stream(source=Source(uri=f"{root}/landing"), storage=Storage(root=f"{root}/batches"))
    findings = found(check_places(one, datetime.now(UTC) + timedelta(minutes=ahead)))
    assert names_below(bucket) == []
    if place:
        assert [level for level, _, _ in findings] == ["fail", "fail"]
        assert findings[0][2].startswith(f"{root}/batches cannot be listed (storage.root): ")
        assert "no such bucket" in findings[0][2]
    elif ahead:
        assert [finding[:2] for finding in findings] == [("warn", "clock")] * 2
        assert f"seconds apart from the store of {root}/batches" in findings[0][2]
    else:
        assert findings == []


@pytest.mark.parametrize(
    ("free", "level"), [(2**30, "ok"), (2**30 - 1, "warn"), (100 * 2**20 - 1, "fail")]
)
def test_disk_that_is_almost_full_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    usage = SimpleNamespace(total=2**40, used=0, free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    findings = found(check_disks(Home(path=tmp_path / "home"), [placed(tmp_path)]))
    mine = next(one for one in findings if one[1] == "disk" and "the home" in one[2])
    assert mine[0] == level
    assert "files of orders" in mine[2]
    assert ("batch-pipeline gc --dry-run" in mine[2]) is (level != "ok")


def test_clock_may_be_a_minute_apart() -> None:
    minute = timedelta(seconds=60)
    assert found(compare_clocks("the store", NOON + minute, NOON)) == []
    for other in (NOON + 2 * minute, NOON - 2 * minute):
        [(level, subject, text)] = found(compare_clocks("the store", other, NOON))
        assert (level, subject) == ("warn", "clock")
        assert text.startswith("this machine is 120 seconds apart from the store.")


def test_port_in_use_is_reported_with_its_process() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        [(level, subject, text)] = found(check_port(port))
    assert (level, subject) == ("warn", "ports")
    assert f"(process {os.getpid()})" in text
    assert text.endswith(f"run `batch-pipeline dev --port {port + 1}`.")
    assert [one.level.value for one in check_port(port)] == ["ok"]


def test_check_that_fails_hides_no_other() -> None:
    """An error of the operator fails, another one is reported, and a bug of ours stops all."""

    def broken(error: Exception) -> Iterator[Finding]:
        yield fine("a", "seen.")
        raise error

    wrong = SettingError("NAME", "here", "is wrong", "Correct it.")
    assert [level for level, _, _ in found(attempted("a", lambda: broken(wrong)))] == ["ok", "fail"]
    _, other = found(attempted("a", lambda: broken(OSError("no such device\nsecond line"))))
    text = "this could not be checked (OSError: no such device). Please report it."
    assert other == ("warn", "a", text)
    with pytest.raises(InvariantError):
        list(attempted("a", lambda: broken(InvariantError())))
