"""Where the class-data archive of a Java lies, and whose is used."""

import os
from pathlib import Path

import pytest

from batch_pipeline.spark.sessions.class_data import archive, archive_options, places


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A Java runtime, as far as it tells its version."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    (folder / "release").write_text('JAVA_VERSION="17.0.15"\n')
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def put(path: Path) -> Path:
    """Write what is no archive, but lies where one would."""
    path.parent.mkdir(parents=True)
    path.write_bytes(b"classes")
    return path


def test_archive_in_the_cache_serves_every_home(tmp_path: Path, java: Path, cache: Path) -> None:
    """Expect one file for two homes, and an option that names it."""
    path = put(places(tmp_path / "a", java)[0])
    assert path.is_relative_to(cache / "batch-pipeline")
    assert archive(tmp_path / "a", java) == archive(tmp_path / "b", java) == path
    assert archive_options(tmp_path / "b", java) == (f'"-XX:SharedArchiveFile={path}"',)


def test_archive_of_a_wrapper_is_that_of_its_runtime(tmp_path: Path, java: Path) -> None:
    """Expect wrappers below two homes, which have the release of one runtime, to share it."""
    wrappers = [tmp_path / name / "java" for name in ("a", "b")]
    for wrapper in wrappers:
        wrapper.mkdir(parents=True)
        (wrapper / "release").symlink_to(java / "release")
    shared, *same = [places(tmp_path, one)[0] for one in (java, *wrappers)]
    assert same == [shared, shared]


def test_archive_below_the_home_is_found_without_a_cache(tmp_path: Path, java: Path) -> None:
    """Expect a machine whose user has no cache to use one of the home's own."""
    path = put(places(tmp_path / "a", java)[1])
    assert archive(tmp_path / "a", java) == path
    assert archive(tmp_path / "b", java) is None


def test_archive_of_another_user_is_none(
    tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect classes that somebody else has put there not to be run."""
    put(places(tmp_path, java)[0])
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert archive(tmp_path, java) is None
    assert archive_options(tmp_path, java) == ()
