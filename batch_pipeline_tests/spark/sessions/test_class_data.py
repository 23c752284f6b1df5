"""Paths of the class-data archive, and whose archive is used."""

import os
from pathlib import Path

import psutil
import pytest

from batch_pipeline.spark.sessions import class_data_builder
from batch_pipeline.spark.sessions.class_data import archive_options, archive_paths, find_archive
from batch_pipeline.spark.sessions.java import find_java_home


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A Java runtime with only its `release` file."""
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


def write_archive(path: Path) -> Path:
    """Write a file where an archive would be."""
    path.parent.mkdir(parents=True)
    path.write_bytes(b"classes")
    return path


def test_find_archive_in_the_cache_serves_every_home(
    tmp_path: Path, java: Path, cache: Path
) -> None:
    path = write_archive(archive_paths(tmp_path / "a", java)[0])
    assert path.is_relative_to(cache / "batch-pipeline")
    assert find_archive(tmp_path / "a", java) == find_archive(tmp_path / "b", java) == path
    assert archive_options(tmp_path / "b", java) == (f'"-XX:SharedArchiveFile={path}"',)


def test_archive_paths_of_a_wrapper_are_those_of_its_runtime(tmp_path: Path, java: Path) -> None:
    """Wrappers below two homes share the archive of their runtime."""
    wrappers = [tmp_path / name / "java" for name in ("a", "b")]
    for wrapper in wrappers:
        wrapper.mkdir(parents=True)
        (wrapper / "release").symlink_to(java / "release")
    shared, *same = [archive_paths(tmp_path, one)[0] for one in (java, *wrappers)]
    assert same == [shared, shared]


def test_find_archive_without_a_cache_takes_that_of_the_home(tmp_path: Path, java: Path) -> None:
    path = write_archive(archive_paths(tmp_path / "a", java)[1])
    assert find_archive(tmp_path / "a", java) == path
    assert find_archive(tmp_path / "b", java) is None


def test_find_archive_of_another_user_is_none(
    tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes that another user wrote are not run."""
    write_archive(archive_paths(tmp_path, java)[0])
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert find_archive(tmp_path, java) is None
    assert archive_options(tmp_path, java) == ()


def builders() -> list[psutil.Process]:
    """Return the running builders that this process started."""
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and class_data_builder.__name__ in child.cmdline()
    ]


@pytest.mark.parametrize("suffix", [".archive", ".started"])
def test_build_later_starts_nothing_with_an_archive_or_while_one_is_built(
    tmp_path: Path, suffix: str
) -> None:
    path = archive_paths(tmp_path, find_java_home(tmp_path, os.environ))[0]
    write_archive(path.with_suffix(suffix))
    class_data_builder.build_later(tmp_path)
    assert builders() == []


@pytest.mark.long
def test_build_later_builds_once_in_a_process_that_ends(tmp_path: Path) -> None:
    java = find_java_home(tmp_path, os.environ)
    class_data_builder.build_later(tmp_path)
    class_data_builder.build_later(tmp_path)
    (builder,) = builders()
    assert builder.wait(300) == 0
    archive = find_archive(tmp_path, java)
    assert archive is not None
    assert archive.stat().st_size > 50 * 2**20
    assert [path.name for path in archive.parent.glob("classes-*.started")] == []
