"""Private temporary folders: permissions, and removal even after a kill."""

import os
import tempfile
from pathlib import Path

import pytest

from batch_pipeline.storage.local import PrivateFolder
from batch_pipeline_tests.concurrency import next_line, python

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
