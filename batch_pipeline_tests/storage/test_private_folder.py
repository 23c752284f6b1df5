"""Temporary folders of one process: closed to others, and gone in the end, however that comes."""

import os
import tempfile
from pathlib import Path

import pytest

from batch_pipeline.storage.local import PrivateFolder
from batch_pipeline_tests.concurrency import python, said

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
    """Put temporary files into a folder of the test, in which everybody may write."""
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_folder_is_closed_to_others_and_gone_in_the_end() -> None:
    before = os.umask(0)
    try:
        with PrivateFolder("one") as folder:
            assert folder.path.stat().st_mode & 0o777 == 0o700
            assert [one.stat().st_mode & 0o777 for one in folder.path.iterdir()] == [0o600]
    finally:
        os.umask(before)
    assert not folder.path.exists()


def test_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    with python(HOLD) as holder:
        left = Path(said(holder))
        PrivateFolder("one").close()
        assert (left / "secret").exists()
        holder.kill()
        holder.wait()
        PrivateFolder("another").close()
    assert not left.exists()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_stay(tmp_path: Path) -> None:
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
