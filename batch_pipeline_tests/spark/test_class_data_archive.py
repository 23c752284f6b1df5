"""The class-data archive: its path, its owner, and when it is built."""

import os
from pathlib import Path

import psutil
import pytest

from batch_pipeline.spark import class_data_archive
from batch_pipeline.spark.class_data_archive import is_complete
from batch_pipeline.spark.java import archive_options, archive_path, find_java_home
from batch_pipeline_tests.concurrency import eventually


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A Java runtime with only its `release` file."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    (folder / "release").write_text('JAVA_VERSION="17.0.15"\n')
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the user."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def write_archive(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"classes")
    return path


def test_archive_in_cache_is_used(java: Path, cache: Path) -> None:
    assert archive_options(java) == ()
    path = write_archive(archive_path(java))
    assert path.is_relative_to(cache / "batch-pipeline")
    assert archive_options(java) == (f'"-XX:SharedArchiveFile={path}"',)


def test_archive_path_of_wrapper_is_that_of_its_runtime(tmp_path: Path, java: Path) -> None:
    """Wrappers in two homes share the archive of their runtime."""
    wrapper = tmp_path / "home" / "java"
    wrapper.mkdir(parents=True)
    (wrapper / "release").symlink_to(java / "release")
    assert archive_path(wrapper) == archive_path(java)


def test_archive_of_another_user_is_not_used(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes that another user wrote must not run."""
    write_archive(archive_path(java))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert archive_options(java) == ()


def builders() -> list[psutil.Process]:
    """Return the running builders that this process started."""
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and class_data_archive.__name__ in child.cmdline()
    ]


@pytest.mark.parametrize("suffix", [".archive", ".started"])
def test_build_later_does_nothing_if_archive_exists_or_is_being_built(
    tmp_path: Path, suffix: str
) -> None:
    write_archive(archive_path(find_java_home(tmp_path, os.environ)).with_suffix(suffix))
    class_data_archive.build_later(tmp_path)
    assert builders() == []


def test_builder_that_cannot_be_started_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    class_data_archive.build_later(tmp_path)
    with class_data_archive.build_meanwhile(tmp_path):
        assert builders() == []


def test_archive_is_complete_only_with_its_header(tmp_path: Path) -> None:
    """The JVM writes it after the rest."""
    file = tmp_path / "archive"
    assert not is_complete(file)
    file.write_bytes(b"\0\0\0\0classes")
    assert not is_complete(file)
    file.write_bytes(b"\xf0\x0b\xa2\xdbclasses")
    assert is_complete(file)


def test_build_meanwhile_has_lowest_priority_and_leaves_no_process(tmp_path: Path) -> None:
    with class_data_archive.build_meanwhile(tmp_path):
        [builder] = builders()
        eventually(lambda: builder.nice() == 19)
    assert builders() == []


@pytest.mark.long
def test_build_later_builds_once_in_another_process(tmp_path: Path) -> None:
    archive = archive_path(find_java_home(tmp_path, os.environ))
    class_data_archive.build_later(tmp_path)
    class_data_archive.build_later(tmp_path)
    (builder,) = builders()
    assert builder.wait(900) == 0  # it has the lowest priority
    assert archive.stat().st_size > 50 * 2**20
    assert [path.name for path in archive.parent.glob("classes-*.started")] == []
