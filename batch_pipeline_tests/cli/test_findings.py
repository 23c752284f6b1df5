"""Looks at settings, versions, folders, disks and ports: each trouble with what to do about it."""

import os
import shutil
import socket
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NamedTuple

import pytest

from batch_pipeline.cli.findings import (
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


class Usage(NamedTuple):
    """What a disk tells."""

    total: int
    used: int
    free: int


def told(found: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Return what was found as plain tuples."""
    return [(one.level.value, one.subject, one.text) for one in found]


def configured(**environment: str) -> list[tuple[str, str, str]]:
    """Look at variables."""
    settings = load_settings(environment=environment)
    return told(check_configuration(settings, environment))


def landing(folder: Path) -> Stream:
    """A stream whose landing and storage are folders that are there."""
    for name in ("landing", "batches"):
        (folder / name).mkdir()
    return placed(folder)


def placed(folder: Path) -> Stream:
    """A stream whose landing and storage are below a folder."""
    source = Source(uri=to_uri(folder / "landing"))
    return stream(source=source, storage=Storage(root=to_uri(folder / "batches")))


def test_variable_that_means_nothing_is_told_with_what_was_meant() -> None:
    """Expect a warning that names both, and no value of any variable."""
    found = configured(BATCH_PIPELINE_INVENTORY_CON="postgresql://me:secret@there/db")
    [(level, subject, text), rest] = found
    assert (level, subject) == ("warn", "settings")
    assert "BATCH_PIPELINE_INVENTORY_CON is set, but there is no such setting" in text
    assert "Did you mean BATCH_PIPELINE_INVENTORY_CONN?" in text
    assert "secret" not in str(found)
    assert rest[0] == "ok"


def test_variables_in_order_are_one_finding() -> None:
    """Expect those that are set, also ones that are no fields of the settings."""
    given = {"BATCH_PIPELINE_HOME": "/home/me/bp", "BATCH_PIPELINE_JAVA": "auto"}
    [(level, _, text)] = configured(**given)
    assert level == "ok"
    assert text.startswith("home /home/me/bp, streams ")
    assert text.endswith("set: BATCH_PIPELINE_HOME, BATCH_PIPELINE_JAVA.")


def test_failpoints_are_told() -> None:
    """Expect somebody who forgot them to hear of it."""
    found = configured(BATCH_PIPELINE_FAILPOINTS="publish.before_commit=kill")
    assert found[0][2].startswith("BATCH_PIPELINE_FAILPOINTS is set: processes end")


def test_dot_env_file_that_others_may_read_is_told(tmp_path: Path) -> None:
    """Expect its mode and what changes it; none once it is ours alone."""
    path = tmp_path / "my.env"
    path.write_text("BATCH_PIPELINE_META_CONN=postgresql://me:secret@there/db\n")
    path.chmod(0o640)
    (level, _, text), _ = configured(BATCH_PIPELINE_ENV_FILE=str(path))
    assert level == "warn"
    assert text.endswith(f"(mode 0640), which may have passwords. Run `chmod 600 {path}`.")
    path.chmod(0o600)
    assert len(configured(BATCH_PIPELINE_ENV_FILE=str(path))) == 1


def test_versions_that_belong_together_are_one_finding() -> None:
    """Expect Python, Dagster and PySpark, of this environment too."""
    [(level, _, text)] = told(check_versions(VERSIONS.__getitem__))
    assert level == "ok"
    assert text.endswith("Dagster 1.13.27, PySpark 4.3.0.")
    assert [one.level.value for one in check_versions()] == ["ok"]


def test_library_of_another_release_of_dagster_is_named() -> None:
    """Expect those that are apart, and what brings them together."""
    mixed = VERSIONS | {"dagster-postgres": "0.28.3", "dagster-webserver": "1.12.3"}
    (level, _, text), _ = told(check_versions(mixed.__getitem__))
    assert level == "warn"
    assert "does not belong with dagster-webserver 1.12.3, dagster-postgres 0.28.3" in text
    assert "`uv sync`" in text


def test_package_that_is_missing_fails() -> None:
    """Expect its name, and the others to be compared all the same."""

    def found(name: str) -> str:
        if name == "dagster-aws":
            raise PackageNotFoundError(name)
        return VERSIONS[name]

    (level, _, text), other = told(check_versions(found))
    assert (level, other[0]) == ("fail", "ok")
    assert "dagster-aws is not installed" in text


def java(folder: Path, version: str) -> Path:
    """Make what looks like a Java of a version; gives its JAVA_HOME."""
    home = folder / f"java-{version}"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}.0.1"\n')
    return home


def test_java_is_told_without_starting_it(tmp_path: Path) -> None:
    """Expect its version from the file beside it, and where it comes from."""
    home = java(tmp_path, "21")
    environment = {"JAVA_HOME": str(home), "PATH": ""}
    settings = load_settings(environment={})
    assert told(check_java(settings, environment)) == [
        ("ok", "java", f"Java 21, JAVA_HOME={home}.")
    ]


def test_java_that_is_too_old_fails_where_no_other_may_be_used(tmp_path: Path) -> None:
    """Expect its version and what to do; none where Spark is elsewhere."""
    home = java(tmp_path, "11")
    environment = {"JAVA_HOME": str(home), "PATH": "", "BATCH_PIPELINE_JAVA": "system"}
    [(level, _, text)] = told(check_java(load_settings(environment={}), environment))
    assert level == "fail"
    assert f"tried JAVA_HOME={home} (Java 11). Install one" in text
    remote = load_settings(environment={"BATCH_PIPELINE_SPARK_REMOTE": "sc://there:15002"})
    [(level, _, _)] = told(check_java(remote, environment))
    assert level == "ok"


def test_home_that_others_may_read_is_told(tmp_path: Path) -> None:
    """Expect its mode and what changes it; a home of ours alone is one finding."""
    home = Home(path=tmp_path / "home")
    home.ensure()
    assert told(check_home(home)) == [("ok", "home", f"{home.path}; not in use.")]
    home.path.chmod(0o710)
    assert len(told(check_home(home))) == 1
    home.path.chmod(0o750)
    (level, _, text), _ = told(check_home(home))
    assert level == "warn"
    assert "(mode 0750)" in text
    assert text.endswith(f"Run `chmod 700 {home.path}`.")


def test_home_that_is_in_use_is_told_with_who_works_in_it(tmp_path: Path) -> None:
    """Expect the command and its process while it holds the home, and nobody afterwards."""
    home = Home(path=tmp_path / "home")
    with home.lock("batch-pipeline dev", since=NOON):
        [(level, _, text)] = told(check_home(home))
        assert level == "ok"
        assert f"`batch-pipeline dev` (process {os.getpid()}, since " in text
    assert home.holder() is None


def test_lock_of_a_process_that_is_gone_is_nobody(tmp_path: Path) -> None:
    """Expect what a killed process left in the file to count for nothing."""
    home = Home(path=tmp_path / "home")
    home.ensure()
    line = '{"pid": 4194305, "purpose": "batch-pipeline dev", "since": "2026-01-01T00:00:00+00:00"}'
    home.lock_file.write_text(line)
    assert home.holder() is None
    home.lock_file.write_text("{")
    assert home.holder() is None


def test_home_that_is_not_there_is_made_by_who_needs_it(tmp_path: Path) -> None:
    """Expect nothing to be made by looking."""
    found = told(check_home(Home(path=tmp_path / "some" / "home")))
    assert [level for level, _, _ in found] == ["ok"]
    assert list(tmp_path.iterdir()) == []


def test_place_that_is_no_folder_fails(tmp_path: Path) -> None:
    """Expect the path and the key of the stream file."""
    (tmp_path / "landing").write_text("")
    (tmp_path / "batches").write_text("")
    found = told(check_places(placed(tmp_path), NOON))
    assert [level for level, _, _ in found] == ["fail", "fail"]
    assert found[0][2].startswith(f"{tmp_path}/batches is not a folder (storage.root).")


def test_landing_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Expect a warning for where files are to come from, and none for what we make ourselves."""
    storage, source = told(check_places(placed(tmp_path), NOON))
    assert storage[0] == "ok"
    assert source[0] == "warn"
    assert source[2].startswith(
        f"{tmp_path}/landing does not exist (source.uri), so no files land."
    )


def test_place_without_the_right_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect path, key and user; the system's answer is made up, since root may do everything."""
    one = landing(tmp_path)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    (level, _, storage), (_, _, source) = told(check_places(one, NOON))
    assert level == "fail"
    assert f"{tmp_path}/batches cannot be written (storage.root). Give the user " in storage
    assert f"{tmp_path}/landing cannot be read (source.uri)." in source


def test_places_in_order_are_no_finding(tmp_path: Path) -> None:
    """Expect nothing to be said, and nothing to be written."""
    one = landing(tmp_path)
    assert told(check_places(one, NOON)) == []
    assert list((tmp_path / "batches").iterdir()) == []


@pytest.mark.parametrize(
    ("free", "level"), [(2**30, "ok"), (2**30 - 1, "warn"), (100 * 2**20 - 1, "fail")]
)
def test_disk_that_is_almost_full_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    """Expect one finding for the places of one disk, and what makes room."""
    usage = Usage(total=2**40, used=0, free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    home = Home(path=tmp_path / "home")
    found = [one for one in told(check_disks(home, [placed(tmp_path)])) if one[1] == "disk"]
    mine = next(one for one in found if "the home" in one[2])
    assert mine[0] == level
    assert "files of orders" in mine[2]
    assert ("batch-pipeline gc --dry-run" in mine[2]) is (level != "ok")


def test_clock_that_is_apart_is_told() -> None:
    """Expect a minute to be let pass, whichever clock is ahead."""
    minute = timedelta(seconds=60)
    assert told(compare_clocks("the store", NOON + minute, NOON)) == []
    for other in (NOON + 2 * minute, NOON - 2 * minute):
        [(level, subject, text)] = told(compare_clocks("the store", other, NOON))
        assert (level, subject) == ("warn", "clock")
        assert text.startswith("this machine is 120 seconds apart from the store.")


def test_port_that_is_taken_is_told_with_who_has_it() -> None:
    """Expect this process to be named, and another port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        [(level, subject, text)] = told(check_port(port))
    assert (level, subject) == ("warn", "ports")
    assert f"(process {os.getpid()})" in text
    assert text.endswith(f"run `batch-pipeline dev --port {port + 1}`.")
    assert [one.level.value for one in check_port(port)] == ["ok"]


def test_look_that_fails_hides_no_other() -> None:
    """Expect an operator's error to fail, any other to be told, and a bug of ours to stop all."""

    def broken(error: Exception) -> Iterator[Finding]:
        yield fine("a", "seen.")
        raise error

    wrong = SettingError("NAME", "here", "is wrong", "Correct it.")
    assert [level for level, _, _ in told(attempted("a", lambda: broken(wrong)))] == ["ok", "fail"]
    found = told(attempted("a", lambda: broken(OSError("no such device\nsecond line"))))
    assert found[1][0] == "warn"
    assert found[1][2] == ("this could not be checked (OSError: no such device). Please report it.")
    with pytest.raises(InvariantError):
        list(attempted("a", lambda: broken(InvariantError())))
