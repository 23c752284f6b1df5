"""Scratch and socket folders of a JVM."""

import stat
import tempfile
from pathlib import Path

import pytest

from batch_pipeline.spark.sessions.launch import create_scratch, delete_scratch, local_conf

SOCKETS_ENABLED = "spark.python.unix.domain.socket.enabled"
SOCKET_FOLDER = "spark.python.unix.domain.socket.dir"


def test_local_conf_of_a_short_home_has_sockets_in_its_scratch_folder() -> None:
    """A killed process then leaves nothing in other folders."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home:  # a short path
        scratch = create_scratch(Path(home))
        conf = local_conf(Path(home), scratch, [], {})

    assert conf[SOCKETS_ENABLED] == "true"
    assert conf[SOCKET_FOLDER] == str(scratch)


def test_local_conf_of_a_deep_home_has_sockets_in_a_private_folder(tmp_path: Path) -> None:
    """A socket's path has 107 bytes at most. The folder is deleted with the scratch folder."""
    home = tmp_path / ("deep" * 10)
    scratch = create_scratch(home)
    folder = Path(local_conf(home, scratch, [], {})[SOCKET_FOLDER])

    assert len(str(folder)) <= 60
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert local_conf(home, scratch, [], {})[SOCKET_FOLDER] == str(folder)
    delete_scratch(scratch)
    assert not folder.exists()
    assert not scratch.exists()


def test_local_conf_without_a_short_folder_has_no_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark then uses TCP, which is slower."""
    home = tmp_path / ("deep" * 10)
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))

    conf = local_conf(home, create_scratch(home), [], {})

    assert SOCKETS_ENABLED not in conf
