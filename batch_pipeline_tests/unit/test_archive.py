"""Moving files to an archive: on one file system, on two, after crashes, and never over another."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.domain.failpoint import VARIABLE, FailpointError
from batch_pipeline.files.archive import move


@pytest.fixture(params=["same", "other"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One file system, or two between which nothing can be linked."""
    if request.param == "other":
        monkeypatch.setattr(os, "link", elsewhere)
    return str(request.param)


def elsewhere(*_: Any, **__: Any) -> None:
    """Say that the other place is on another file system."""
    raise OSError(errno.EXDEV, "invalid cross-device link")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of ten bytes, written long ago."""
    path = tmp_path / "batches" / "a.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"ten bytes.")
    os.utime(path, (1_000_000, 1_000_000))
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Its place in an archive that is not there yet."""
    return tmp_path / "archive" / "deep" / "a.jsonl"


def test_file_is_moved_as_it_is(system: str, source: Path, target: Path) -> None:
    """Expect bytes and time of writing, one file, and nothing beside it."""
    move(source, target)
    assert (target.read_bytes(), int(target.stat().st_mtime)) == (b"ten bytes.", 1_000_000)
    assert not source.exists()
    assert [path.name for path in target.parent.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("content", [b"other byte", b"more than ten bytes"])
def test_file_is_never_moved_over_another(
    system: str, source: Path, target: Path, content: bytes
) -> None:
    """Expect both to stay, also when their sizes are the same."""
    target.parent.mkdir(parents=True)
    target.write_bytes(content)
    with pytest.raises(OSError, match="another file has its name there"):
        move(source, target)
    assert (source.read_bytes(), target.read_bytes()) == (b"ten bytes.", content)


@pytest.mark.parametrize("failpoint", ["archive.copied", "archive.before_unlink"])
def test_move_that_was_interrupted_is_finished_by_the_next(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    """Expect the file to be whole in its place until it is whole in the other."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", elsewhere)
        patched.setenv(VARIABLE, f"{failpoint}=raise")
        with pytest.raises(FailpointError):
            move(source, target)
    assert source.read_bytes() == b"ten bytes."
    move(source, target)
    assert (target.read_bytes(), source.exists()) == (b"ten bytes.", False)
    assert [path.name for path in target.parent.iterdir()] == ["a.jsonl"]


def test_file_is_not_moved_to_where_it_is(source: Path, tmp_path: Path) -> None:
    """Expect it to survive, whatever name its folder goes by."""
    alias = tmp_path / "alias"
    alias.symlink_to(source.parent)
    with pytest.raises(OSError, match="the folder it lies in"):
        move(source, alias / source.name)
    assert source.exists()


def test_copy_that_fails_leaves_the_file_and_nothing_else(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect a full disk to cost nothing."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "link", elsewhere)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        move(source, target)
    assert source.exists()
    assert list(target.parent.iterdir()) == []


def test_file_that_is_gone_is_told(target: Path, tmp_path: Path) -> None:
    """Expect the caller to learn that somebody else was faster."""
    with pytest.raises(FileNotFoundError):
        move(tmp_path / "nothing", target)
