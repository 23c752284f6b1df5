"""Scratch and socket folders of a JVM, and the command that starts it."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from batch_pipeline.spark.sessions.launch import (
    DriverCommand,
    create_scratch,
    delete_scratch,
    local_conf,
)

SOCKETS_ENABLED = "spark.python.unix.domain.socket.enabled"
SOCKET_FOLDER = "spark.python.unix.domain.socket.dir"


def test_local_conf_of_a_short_home_has_sockets_in_its_scratch_folder() -> None:
    """A killed process then leaves nothing in other folders."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home:  # a short path
        scratch = create_scratch(Path(home))
        conf = local_conf(Path(home), scratch, [], {})

    assert conf[SOCKETS_ENABLED] == "true"
    assert conf[SOCKET_FOLDER] == str(scratch)


def test_local_conf_of_a_deep_home_has_sockets_in_a_private_folder(
    tmp_path: Path,
) -> None:
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


def driver_command(home: Path, memory: str = "1g", **variables: str) -> DriverCommand:
    """A command with a scratch folder of its own."""
    conf = {"spark.driver.memory": memory}
    environment = {"JAVA_HOME": str(home / "java"), **variables}
    return DriverCommand(home, create_scratch(home), conf, environment, "pyspark-shell")


def test_stored_command_is_used_for_equal_settings_only(tmp_path: Path) -> None:
    first = driver_command(tmp_path)
    assert first.words()[0].endswith("spark-submit")
    first.store(os.getpid())  # in place of the JVM
    running = psutil.Process().cmdline()
    assert driver_command(tmp_path).words() == running
    for other in (
        driver_command(tmp_path, memory="2g"),
        driver_command(tmp_path, HADOOP_CONF_DIR="/etc/hadoop"),
    ):
        assert other.words()[0].endswith("spark-submit")
    [stored] = tmp_path.glob("spark/command-*.json")
    stored.write_text("no command")
    assert driver_command(tmp_path).words()[0].endswith("spark-submit")


def test_stored_command_names_the_scratch_folder_of_the_new_jvm(tmp_path: Path) -> None:
    command = driver_command(tmp_path)
    script = "import sys, time; print(flush=True); time.sleep(60)"
    options = command.words()[1:]
    with subprocess.Popen(
        [sys.executable, "-c", script, *options], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        command.store(process.pid)
        process.kill()
    again = driver_command(tmp_path)
    scratch = max((tmp_path / "spark" / "scratch").iterdir(), key=lambda path: path.stat().st_ctime)
    assert str(scratch / "spark.properties") in again.words()


def test_command_is_not_stored_where_spark_submit_reads_a_script(tmp_path: Path) -> None:
    (tmp_path / "spark-env.sh").touch()
    command = driver_command(tmp_path, SPARK_CONF_DIR=str(tmp_path))
    command.store(os.getpid())
    assert list(tmp_path.glob("spark/command-*")) == []


def test_settings_are_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    driver_command(tmp_path, memory="3g")
    [file] = tmp_path.glob("spark/scratch/*/spark.properties")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "spark.driver.memory=3g" in file.read_text()
