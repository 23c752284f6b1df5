"""The warm server: who may use it, who starts it, and when it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from batch_pipeline.model.errors import RetryableError
from batch_pipeline.spark import warm_server
from batch_pipeline.spark.spark_connect import check
from batch_pipeline.spark.warm_server import ServerSpec, WarmServer, find, stop, use
from batch_pipeline_tests.concurrency import eventually, is_running

HOUR = 3600.0
FILE = Path("spark", "warm-server.json")

# Runs a job in the shared session of the warm server, and prints which server it is.
USER = """
import sys
from pathlib import Path
from batch_pipeline.spark.session import SparkSettings, close_session, open_session
from batch_pipeline.spark.warm_server import find

settings = SparkSettings(home=Path(sys.argv[1]), master="local[1]", keep_minutes=60)
if sys.argv[2:] == ["unshared"]:
    settings = settings.unshared()
session = open_session(settings)
session.range(1).createOrReplaceTempView("left_by_user")
print(session.range(3).count(), find(settings.home).pid, len(session.catalog.listTables()))
close_session()
"""


def spec(home: Path, keep_seconds: float = HOUR) -> ServerSpec:
    return ServerSpec(home=home, master="local[1]", packed=None, conf=(), keep_seconds=keep_seconds)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose server is ended afterwards."""
    yield tmp_path
    stop(tmp_path)
    for keeper in warm_server._keepers.values():
        keeper.wait()


def use_running(wanted: ServerSpec) -> warm_server.ServerUse:
    used = use(wanted)
    assert used is not None, (wanted.home / "logs" / "spark-warm.log").read_text()
    return used


def start_user(home: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", USER, str(home), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer_of(user: "subprocess.Popen[str]") -> list[int]:
    output, _ = user.communicate(timeout=300)
    assert user.returncode == 0
    return [int(number) for number in output.split()]


def tree_of(server: WarmServer) -> list[psutil.Process]:
    """Return the keeper and all its descendants."""
    keeper = psutil.Process(server.pid)
    tree = [keeper, *keeper.children(recursive=True)]
    assert any("java" in process.name() for process in tree)
    return tree


def write_file(home: Path, process: psutil.Process, **changes: Any) -> None:
    """Write the file of a server whose keeper is a process."""
    server = WarmServer(
        remote="sc://localhost:1",
        pid=process.pid,
        created_at=process.create_time(),
        keep_seconds=HOUR,
        fingerprint="",
    )
    path = home / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(asdict(server) | changes))
    path.chmod(0o600)


@pytest.mark.long
def test_processes_that_start_together_and_later_share_one_server(home: Path) -> None:
    first, second = start_user(home), start_user(home)
    answers = [answer_of(first), answer_of(second), answer_of(start_user(home))]
    server = find(home)
    assert server is not None
    assert {(rows, pid) for rows, pid, _ in answers} == {(3, server.pid)}
    assert (home / FILE).stat().st_mode & 0o777 == 0o600
    # An unshared session does not see views of the shared session, and vice versa.
    rows, pid, views = answer_of(start_user(home, "unshared"))
    assert (rows, pid, views) == (3, server.pid, 1)


def test_server_in_use_is_neither_stopped_nor_replaced(home: Path) -> None:
    used = use_running(spec(home))
    with pytest.raises(RetryableError, match=r"is in use\. Nothing was changed"):
        stop(home)
    assert use(spec(home, keep_seconds=2 * HOUR)) is None
    check(used.server.remote)
    used.close()


@pytest.mark.long
def test_idle_server_with_other_settings_is_replaced(home: Path) -> None:
    first = use_running(spec(home))
    processes = tree_of(first.server)
    first.close()
    second = use_running(spec(home, keep_seconds=2 * HOUR))
    assert second.server.pid != first.server.pid
    assert [process for process in processes if is_running(process)] == []
    second.close()
    assert stop(home) == second.server
    assert find(home) is None


@pytest.mark.long
def test_server_ends_after_idle_time_and_not_while_it_is_used(home: Path) -> None:
    used = use_running(spec(home, keep_seconds=2))
    processes = tree_of(used.server)
    with pytest.raises(psutil.TimeoutExpired):
        processes[0].wait(timeout=4)
    used.close()
    eventually(lambda: not any(map(is_running, processes)))
    assert not (home / FILE).exists()


def test_killed_keeper_leaves_no_process_and_its_file_is_not_used(home: Path) -> None:
    first = use_running(spec(home))
    processes = tree_of(first.server)
    first.close()
    os.kill(first.server.pid, signal.SIGKILL)
    eventually(lambda: not any(map(is_running, processes)))
    assert (home / FILE).exists()
    assert find(home) is None
    second = use_running(spec(home))
    assert second.server.pid != first.server.pid
    second.close()


def test_server_that_cannot_start_is_no_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_JAVA", "none")
    assert use(spec(home)) is None
    assert "BATCH_PIPELINE_JAVA" in (home / "logs" / "spark-warm.log").read_text()


def test_file_whose_keeper_is_gone_is_no_server(tmp_path: Path) -> None:
    this_process = psutil.Process()
    write_file(tmp_path, this_process)
    assert find(tmp_path) is not None
    write_file(tmp_path, this_process, created_at=this_process.create_time() - 60)
    assert find(tmp_path) is None
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        write_file(tmp_path, psutil.Process(ended.pid))
        eventually(lambda: find(tmp_path) is None)  # before the process is reaped
    assert find(tmp_path) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602])
def test_file_that_others_can_read_or_write_is_no_server(tmp_path: Path, mode: int) -> None:
    write_file(tmp_path, psutil.Process())
    (tmp_path / FILE).chmod(mode)
    assert find(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_damaged_file_is_no_server(tmp_path: Path, text: str) -> None:
    write_file(tmp_path, psutil.Process())
    (tmp_path / FILE).write_text(text)
    assert find(tmp_path) is None


def test_environment_and_settings_are_part_of_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprint(wanted: ServerSpec) -> str:
        warm_server._fingerprint.cache_clear()
        return warm_server._fingerprint(wanted)

    first = fingerprint(spec(tmp_path))
    for name in ("SHLVL", "TERM", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.setenv(name, "other")
        assert fingerprint(spec(tmp_path)) == first
    assert fingerprint(replace(spec(tmp_path), conf=(("spark.x", "1"),))) != first
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert fingerprint(spec(tmp_path)) != first
