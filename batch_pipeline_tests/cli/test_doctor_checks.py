"""Checks of the machine and its folders: each problem comes with a fix."""

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from batch_pipeline.cli.dev import port_problem
from batch_pipeline.cli.doctor import (
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
from batch_pipeline.model.errors import InvariantError, SettingError, unusable_port
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Source, Storage, Stream
from batch_pipeline_tests.factories import NOON, stream
from batch_pipeline_tests.pipeline.garbage_fixture import names_below

VERSIONS = (
    dict.fromkeys(("dagster", "dagster-webserver", "dagster-graphql"), "1.13.27")
    | dict.fromkeys(("dagster-postgres", "dagster-aws", "dagster-pyspark"), "0.29.27")
    | {"pyspark": "4.3.0", "sqlalchemy": "2.0.1", "psycopg": "3.3.1"}
)


def as_tuples(findings: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Return level, subject and text of each finding."""
    return [(finding.level.value, finding.subject, finding.text) for finding in findings]


def check_environment(**environment: str) -> list[tuple[str, str, str]]:
    """Check environment variables."""
    settings = load_settings(environment=environment)
    return as_tuples(check_configuration(settings, environment))


def stream_in(folder: Path) -> Stream:
    """Return a stream whose landing and storage are below a folder."""
    source = Source(uri=to_uri(folder / "landing"))
    return stream(source=source, storage=Storage(root=to_uri(folder / "batches")))


def test_variables_are_one_finding_and_each_questionable_one_another() -> None:
    """No value of an unknown variable is shown."""
    known = {"BATCH_PIPELINE_HOME": "/home/me/bp", "BATCH_PIPELINE_JAVA": "auto"}
    [(level, _, text)] = check_environment(**known)
    assert level == "ok"
    assert text.startswith("home /home/me/bp, streams ")
    assert text.endswith("set: BATCH_PIPELINE_HOME, BATCH_PIPELINE_JAVA.")
    findings = check_environment(BATCH_PIPELINE_INVENTORY_CON="postgresql://me:secret@there/db")
    [(level, subject, text), other] = findings
    assert (level, subject, other[0]) == ("warn", "settings", "ok")
    assert "BATCH_PIPELINE_INVENTORY_CON is set, but there is no such setting" in text
    assert "Did you mean 'BATCH_PIPELINE_INVENTORY_CONN'?" in text
    assert "secret" not in str(findings)
    findings = check_environment(BATCH_PIPELINE_FAILPOINTS="publish.before_commit=kill")
    assert findings[0][2].startswith("BATCH_PIPELINE_FAILPOINTS is set, a test setting")


def test_env_file_readable_by_others_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "my own.env"
    path.write_text("BATCH_PIPELINE_META_CONN=postgresql://me:secret@there/db\n")
    path.chmod(0o640)
    (level, _, text), _ = check_environment(BATCH_PIPELINE_ENV_FILE=str(path))
    assert level == "warn"
    assert text.endswith(f"(mode 0640), which may have passwords. Run `chmod 600 '{path}'`.")
    path.chmod(0o600)
    assert len(check_environment(BATCH_PIPELINE_ENV_FILE=str(path))) == 1


def test_missing_or_mismatched_packages_are_reported() -> None:
    [(level, _, text)] = as_tuples(check_versions(VERSIONS.__getitem__))
    assert level == "ok"
    assert text.endswith("Dagster 1.13.27, PySpark 4.3.0.")
    assert [finding.level.value for finding in check_versions()] == ["ok"]  # the installed versions
    mixed = VERSIONS | {"dagster-postgres": "0.28.3", "dagster-webserver": "1.12.3"}
    (level, _, text), _ = as_tuples(check_versions(mixed.__getitem__))
    assert level == "warn"
    assert "does not match dagster-webserver 1.12.3, dagster-postgres 0.28.3" in text
    assert "`uv sync`" in text

    def installed(name: str) -> str:
        if name == "dagster-aws":
            raise PackageNotFoundError(name)
        return VERSIONS[name]

    (level, _, text), other = as_tuples(check_versions(installed))
    assert (level, other[0]) == ("fail", "ok")
    assert "dagster-aws is not installed" in text


def test_java_version_is_read_from_its_release_file(tmp_path: Path) -> None:
    settings = load_settings(environment={})
    new, old = make_java_home(tmp_path, "21"), make_java_home(tmp_path, "11")
    environment = {"JAVA_HOME": str(new), "PATH": ""}
    assert as_tuples(check_java(settings, environment)) == [
        ("ok", "java", f"Java 21, JAVA_HOME={new}.")
    ]
    environment = {"JAVA_HOME": str(old), "PATH": "", "BATCH_PIPELINE_JAVA": "system"}
    [(level, _, text)] = as_tuples(check_java(settings, environment))
    assert level == "fail"
    assert f"tried JAVA_HOME={old} (Java 11). Install one" in text
    remote = load_settings(environment={"BATCH_PIPELINE_SPARK_REMOTE": "sc://there:15002"})
    assert [level for level, _, _ in as_tuples(check_java(remote, environment))] == ["ok"]


def make_java_home(folder: Path, version: str) -> Path:
    """Create a JAVA_HOME of a version."""
    home = folder / f"java-{version}"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}.0.1"\n')
    return home


def test_home_readable_by_others_is_reported(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "my home")
    home.ensure()
    assert as_tuples(check_home(home)) == [("ok", "home", f"{home.path}; not in use.")]
    home.path.chmod(0o710)
    assert len(as_tuples(check_home(home))) == 1
    home.path.chmod(0o750)
    (level, _, text), _ = as_tuples(check_home(home))
    assert level == "warn"
    assert "(mode 0750)" in text
    assert text.endswith(f"Run `chmod 700 '{home.path}'`.")


def test_home_in_use_is_reported_with_its_holder(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "home")
    with home.lock("batch-pipeline dev", since=NOON):
        [(level, _, text)] = as_tuples(check_home(home))
    assert level == "ok"
    assert f"`batch-pipeline dev` (process {os.getpid()}, since " in text


def test_local_folders_are_checked_without_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`os.access` is patched because root may do everything."""
    stream_ = stream_in(tmp_path)
    storage, source = as_tuples(check_places(stream_, NOON))
    assert (storage[0], source[0]) == ("ok", "warn")
    assert source[2].startswith(f"{tmp_path}/landing does not exist (source.uri), so no files")
    for name in ("landing", "batches"):
        (tmp_path / name).mkdir()
    assert as_tuples(check_places(stream_, NOON)) == []
    assert list((tmp_path / "batches").iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda _path, _mode: False)
        storage, source = as_tuples(check_places(stream_, NOON))
    assert (storage[0], source[0]) == ("fail", "fail")
    assert f"{tmp_path}/batches cannot be written (storage.root). Grant user " in storage[2]
    assert f"{tmp_path}/landing cannot be read (source.uri)." in source[2]
    for name in ("landing", "batches"):
        (tmp_path / name).rmdir()
        (tmp_path / name).write_text("")
    storage, source = as_tuples(check_places(stream_, NOON))
    assert (storage[0], source[0]) == ("fail", "fail")
    assert storage[2].startswith(f"{tmp_path}/batches is not a folder (storage.root).")


def test_bucket_and_its_clock_are_checked_without_writing(bucket: str) -> None:
    def check(root: str, now: datetime) -> list[tuple[str, str, str]]:
        source, storage = Source(uri=f"{root}/landing"), Storage(root=f"{root}/batches")
        return as_tuples(check_places(stream(source=source, storage=storage), now))

    now, soon = datetime.now(UTC), datetime.now(UTC) + timedelta(minutes=10)
    assert check(bucket, now) == []
    findings = check(bucket, soon)
    assert [finding[:2] for finding in findings] == [("warn", "clock")] * 2
    assert f"differs from the store of {bucket}/batches by" in findings[0][2]
    findings = check(f"{bucket}-gone", now)
    assert [level for level, _, _ in findings] == ["fail", "fail"]
    assert findings[0][2].startswith(f"{bucket}-gone/batches cannot be listed (storage.root): ")
    assert "no such bucket" in findings[0][2]
    assert names_below(bucket) == []


@pytest.mark.parametrize(
    ("free", "level"), [(2**30, "ok"), (2**30 - 1, "warn"), (100 * 2**20 - 1, "fail")]
)
def test_low_disk_space_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    usage = SimpleNamespace(total=2**40, used=0, free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    findings = as_tuples(check_disks(Home(path=tmp_path / "home"), [stream_in(tmp_path)]))
    disk = next(
        finding for finding in findings if finding[1] == "disk" and "the home" in finding[2]
    )
    assert disk[0] == level
    assert "files of orders" in disk[2]
    assert ("batch-pipeline gc --dry-run" in disk[2]) is (level != "ok")


def test_clock_difference_above_a_minute_is_a_warning() -> None:
    minute = timedelta(seconds=60)
    assert as_tuples(compare_clocks("the store", NOON + minute, NOON)) == []
    for other in (NOON + 2 * minute, NOON - 2 * minute):
        [(level, subject, text)] = as_tuples(compare_clocks("the store", other, NOON))
        assert (level, subject) == ("warn", "clock")
        assert text.startswith("this machine's clock differs from the store by 120 seconds.")


def test_port_in_use_is_reported_with_its_process() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        [(level, subject, text)] = as_tuples(check_port(port))
    assert (level, subject) == ("warn", "ports")
    assert f"(process {os.getpid()})" in text
    assert text.endswith(f"run `batch-pipeline dev --port {port + 1}`.")
    assert [level for level, _, _ in as_tuples(check_port(port))] == ["ok"]


class _PrivilegedSocket(socket.socket):
    """A socket of a user who may not use the port, which no test can be for root."""

    def bind(self, address: object, /) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")


def test_port_that_may_not_be_used_has_a_reason_and_another_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", _PrivilegedSocket)
    problem = port_problem(80)
    assert problem == "cannot be used (Permission denied)"
    for port in (80, 65_535):
        text = str(unusable_port(port, problem))
        assert f"Port {port} on 127.0.0.1 cannot be used (Permission denied). Nothing was" in text
        assert "`batch-pipeline dev --port 3001`" in text


def test_failing_check_does_not_hide_others() -> None:
    """An unexpected error is reported as a warning; a bug of ours propagates."""

    def broken(error: Exception) -> Iterator[Finding]:
        yield fine("a", "seen.")
        raise error

    invalid = SettingError("NAME", "here", "is wrong", "Correct it.")
    assert [level for level, _, _ in as_tuples(attempted("a", lambda: broken(invalid)))] == [
        "ok",
        "fail",
    ]
    _, other = as_tuples(attempted("a", lambda: broken(OSError("no such device\nsecond line"))))
    text = "this could not be checked (OSError: no such device). Please report it."
    assert other == ("warn", "a", text)
    with pytest.raises(InvariantError):
        list(attempted("a", lambda: broken(InvariantError())))
