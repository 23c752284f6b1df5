"""The warm server: who may use it, who starts it, what it exposes, and when it ends."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from batch_pipeline.model.errors import RetryableError, SparkUnavailableError
from batch_pipeline.spark import warm_server
from batch_pipeline.spark.session import SparkSettings, open_session
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
    for started, keeper in warm_server._keepers.items():
        if started.home == tmp_path:
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
    server = server_of(spec(home))
    assert {(rows, pid) for rows, pid, _ in answers} == {(3, server.pid)}
    assert (home / FILE).stat().st_mode & 0o777 == 0o600
    # An unshared session does not see views of the shared session, and vice versa.
    rows, pid, views = answer_of(start_user(home, "unshared"))
    assert (rows, pid, views) == (3, server.pid, 1)


@pytest.fixture(scope="module")
def in_use(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSpec]:
    """A server that this process uses. Afterwards its keeper is killed: no process may be left."""
    running = spec(tmp_path_factory.mktemp("home"))
    used = use_running(running)
    processes = tree_of(used.server)
    yield running
    used.close()
    warm_server._keepers[running].kill()
    warm_server._keepers[running].wait()
    eventually(lambda: not any(map(is_running, processes)))
    assert (running.home / FILE).exists()
    assert find(running.home) is None


def server_of(running: ServerSpec) -> WarmServer:
    server = find(running.home)
    assert server is not None
    return server


def test_server_in_use_is_neither_stopped_nor_replaced(in_use: ServerSpec) -> None:
    remote = server_of(in_use).remote
    with pytest.raises(RetryableError, match=r"is in use\. Nothing was changed"):
        stop(in_use.home)
    assert use(replace(in_use, keep_seconds=2 * HOUR)) is None
    check(remote)


@pytest.mark.guarantee("S3")
def test_connect_session_with_wrong_token_is_rejected(in_use: ServerSpec) -> None:
    """The message does not repeat the token."""
    remote = server_of(in_use).remote.replace("token=", "token=wrong")
    with pytest.raises(SparkUnavailableError, match="it refuses the token") as raised:
        open_session(SparkSettings(home=in_use.home, remote=remote))
    assert "wrong" not in str(raised.value)


@pytest.mark.guarantee("S3")
def test_connect_session_without_token_is_rejected(in_use: ServerSpec) -> None:
    remote = server_of(in_use).remote.partition("/;")[0]
    with pytest.raises(SparkUnavailableError, match="it requires a token"):
        open_session(SparkSettings(home=in_use.home, remote=remote))


def listeners_of(process: psutil.Process) -> set[tuple[str, int]]:
    """Return the addresses and ports on which a process listens."""
    with suppress(psutil.Error):  # it has ended
        connections = process.net_connections(kind="inet")
        return {(one.laddr.ip, one.laddr.port) for one in connections if one.status == "LISTEN"}
    return set()


@pytest.mark.guarantee("S3")
def test_connect_server_listens_on_loopback_only(in_use: ServerSpec) -> None:
    family = psutil.Process().children(recursive=True)
    addresses = {address for process in family for address, _ in listeners_of(process)}
    assert addresses
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def unauthenticated_response(port: int) -> bytes:
    """Send a request of Spark's own protocol without a secret and return the response."""
    body = b"an arbitrary object"
    head = struct.pack(">qbqi", 21 + len(body), 3, 1, len(body))  # length, RPC request, its id
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head + body)
        return connection.recv(400)


@pytest.mark.guarantee("S3")
def test_driver_rejects_objects_without_secret(in_use: ServerSpec) -> None:
    """The ports of driver and block manager, which deserialize Java objects, authenticate first."""
    connect_port = int(server_of(in_use).remote.partition("/;")[0].rpartition(":")[2])
    ports_of_each = [
        {port for _, port in listeners_of(process)}
        for process in tree_of(server_of(in_use))
        if process.name() == "java"  # another may build the class-data archive
    ]
    [ports] = [ports for ports in ports_of_each if connect_port in ports]
    answers = [unauthenticated_response(port) for port in ports - {connect_port}]
    assert len(answers) == 2
    assert all(b"Expected SaslMessage" in answer for answer in answers), answers


@pytest.mark.guarantee("S2")
def test_connect_server_does_not_expose_its_token(in_use: ServerSpec) -> None:
    """The token is on no command line and in no log."""
    token = server_of(in_use).remote.partition("token=")[2].partition(";")[0]
    lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert any("SparkConnectServer" in line for line in lines)
    assert not any(token in line for line in lines)
    logs = [path.read_text() for path in (in_use.home / "logs").iterdir()]
    assert logs
    assert not any(token in text for text in logs)


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


@pytest.mark.long
def test_server_of_killed_keeper_is_replaced(home: Path) -> None:
    first = use_running(spec(home))
    first.close()
    os.kill(first.server.pid, signal.SIGKILL)
    eventually(lambda: find(home) is None)
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


@pytest.mark.parametrize("text", ["{", "[]", '{"pid": 1}'])
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
