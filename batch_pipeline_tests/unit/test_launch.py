"""The folders of a JVM on this machine: its scratch folder, and where its sockets are."""

import stat
import tempfile
from pathlib import Path

import pytest

from batch_pipeline.spark.sessions.launch import local_conf, new_scratch, remove_scratch

ENABLED = "spark.python.unix.domain.socket.enabled"
FOLDER = "spark.python.unix.domain.socket.dir"


def test_sockets_of_a_short_home_are_in_its_scratch_folder() -> None:
    """Nothing is left elsewhere by a process that dies."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home:  # a short path
        scratch = new_scratch(Path(home))
        conf = local_conf(Path(home), scratch, [], {})

    assert conf[ENABLED] == "true"
    assert conf[FOLDER] == str(scratch)


def test_sockets_of_a_deep_home_are_in_a_private_folder_that_goes_with_the_scratch(
    tmp_path: Path,
) -> None:
    """A socket's path has 107 bytes at most; whoever connects must be the owner."""
    home = tmp_path / ("deep" * 10)
    scratch = new_scratch(home)
    folder = Path(local_conf(home, scratch, [], {})[FOLDER])

    assert len(str(folder)) <= 60
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert local_conf(home, scratch, [], {})[FOLDER] == str(folder)
    remove_scratch(scratch)
    assert not folder.exists()
    assert not scratch.exists()


def test_sockets_without_a_short_folder_are_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are then talked to over TCP: slower, and sure to work."""
    home = tmp_path / ("deep" * 10)
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))

    conf = local_conf(home, new_scratch(home), [], {})

    assert ENABLED not in conf
