"""The local file system, private temporary folders, and reasons of errors."""

import errno
import fcntl
import os
import re
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import IO

import pytest

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.location import to_uri
from batch_pipeline.storage import local
from batch_pipeline.storage.filesystem import UnreachableError, reason_of
from batch_pipeline.storage.local import LocalFileSystem, PrivateFolder, _copy_name, local_file
from batch_pipeline.storage.s3_client import translate_store_errors
from batch_pipeline_tests.concurrency import next_line, python

LOCAL = LocalFileSystem()


def test_local_file_is_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a b.csv"
    path.write_bytes(b"hello")
    os.utime(path, ns=(0, 1_500_000_000))
    with local_file(to_uri(path)) as local_path:
        assert local_path == path
    assert path.exists()
    facts = LOCAL.head(to_uri(path))
    assert (facts.size_bytes, facts.is_regular, facts.etag, facts.version) == (5, True, None, None)
    assert facts.modified_at.isoformat() == "1970-01-01T00:00:01.500000+00:00"
    assert not LOCAL.head(to_uri(tmp_path)).is_regular


@pytest.mark.parametrize("uri", ["http://host/a", "a.csv", "s3://b/a", "s3:///a"])
def test_unsupported_uri_is_rejected(uri: str) -> None:
    with pytest.raises(InvalidValueError):
        LOCAL.open(uri)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("in/a b.csv", "a b.csv"),
        ("in/..", "object"),
        ("in/", "object"),
        ("in/.locked", "object"),
        ("ä" * 127 + "b", "ä" * 127 + "b"),
        ("ä" * 128, "object"),
    ],
    ids=["usual", "dots", "none", "locked", "longest", "long"],
)
def test_local_copy_has_valid_file_name(key: str, name: str) -> None:
    assert _copy_name(f"s3://bucket/{key}") == name


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "no such file or directory"),
        (UnreachableError(errno.EBUSY, "the store is busy", "s3://b/a"), "the store is busy"),
        (OSError("Out of luck"), "Out of luck"),
        (OSError(), "OSError"),
    ],
    ids=["system", "store", "words", "nothing"],
)
def test_reason_of_error(error: OSError, reason: str) -> None:
    assert reason_of(error) == reason


def test_translate_store_errors_passes_own_errors_unchanged() -> None:
    for error in (FileExistsError("mine"), InvalidValueError("location", "a", "b"), KeyError("k")):
        with pytest.raises(type(error)) as failed, translate_store_errors("s3://bucket/a"):
            raise error
        assert failed.value is error


HOLD = """
import sys
from batch_pipeline.storage.local import PrivateFolder
folder = PrivateFolder("one")
(folder.path / "secret").write_text("hunter2")
print(folder.path)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a world-writable temporary folder of the test."""
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_staged_file_that_stays_visible_after_a_failed_commit_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that became read-only: its records would be read twice."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    staged = LocalFileSystem().stage(to_uri(tmp_path / "a.csv"))
    staged.file.write(b"id\n1\n")
    monkeypatch.setattr(local, "sync_folder", fail)
    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(OSError, match="Read-only"):
        staged.commit()
    assert staged.abort() is False


def test_file_of_dead_process_is_removed_on_nfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There an exclusive lock requires a file that is open for writing."""

    def flock(file: IO[bytes], operation: int) -> None:
        if not file.writable():
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(file, operation)

    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", flock)
    (tmp_path / ".a-1.csv.tmp").write_bytes(b"id")
    staged = LOCAL.stage(to_uri(tmp_path / "a-2.csv"))
    assert LOCAL.remove_abandoned(to_uri(tmp_path), re.compile(r"a-\d\.csv")) == 1
    assert [path.name for path in tmp_path.iterdir()] == [".a-2.csv.tmp"]
    assert staged.abort()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_folder_that_cannot_be_synced_is_accepted_unless_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fsync(_descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    with nullcontext() if code == errno.EINVAL else pytest.raises(OSError, match="output"):
        LOCAL.sync_folder(to_uri(tmp_path))


def test_private_folder_is_not_accessible_by_others_and_is_removed() -> None:
    before = os.umask(0)
    try:
        with PrivateFolder("one") as folder:
            assert folder.path.stat().st_mode & 0o777 == 0o700
            assert [one.stat().st_mode & 0o777 for one in folder.path.iterdir()] == [0o600]
    finally:
        os.umask(before)
    assert not folder.path.exists()


def test_private_folder_of_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    with python(HOLD) as holder:
        orphan = Path(next_line(holder))
        PrivateFolder("one").close()
        assert (orphan / "secret").exists()
        holder.kill()
        holder.wait()
        PrivateFolder("another").close()
    assert not orphan.exists()
    assert list(tmp_path.iterdir()) == []


def test_other_folders_are_kept(tmp_path: Path) -> None:
    own, elsewhere = tmp_path / "batch-pipeline-mine", tmp_path / "elsewhere"
    own.mkdir()
    elsewhere.mkdir()
    (elsewhere / ".locked").touch()
    (tmp_path / "batch-pipeline-link").symlink_to(elsewhere)
    with PrivateFolder("one"):
        pass
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        *("batch-pipeline-link", "batch-pipeline-mine", "elsewhere")
    ]
    assert (elsewhere / ".locked").exists()
