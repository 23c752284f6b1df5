"""Who gets to the embedded server: it asks for no password, so only its owner may reach it."""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from batch_pipeline.inventory import embedded_server
from batch_pipeline.inventory.embedded_server import private_socket_folder, subprocess_options

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


def test_server_listens_on_no_network(url: str) -> None:
    """Expect no address at all."""
    with psycopg.connect(url) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)


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
