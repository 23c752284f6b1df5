"""The warm Spark server that a command leaves running for the next, for some idle minutes.

A detached process of this module, the keeper, runs a Spark Connect server below the home. The
keeper exits after the idle time, when its file is deleted, or when the server ends. If the keeper
is killed, the server ends as well (`run_while_parent_lives`).

The file holds the address and the token, and only its owner can read it. It names the keeper, so
that no process uses the file of a dead keeper. A process that uses the server holds a shared lock
on the file, which ends with that process. The keeper locks a second file, so that a home has one
server at a time.
"""

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import psutil

import batch_pipeline
from batch_pipeline.model.errors import RetryableError
from batch_pipeline.spark.java import spark_home, write_file

START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 30
_POLL_SECONDS = 0.5
_WAIT_SECONDS = 0.02
_CLOCK_CORRECTION_SECONDS = 5

# They differ from terminal to terminal, and nothing that Spark runs depends on them.
_TERMINAL_VARIABLES = frozenset(
    {"COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM", "WINDOWID", "XDG_SESSION_ID", "_"}
    | {"SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID"}
)

_keepers: "dict[ServerSpec, subprocess.Popen[bytes]]" = {}  # that this process started


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """The settings with which a server is started."""

    home: Path
    master: str
    packed: Path | None
    conf: tuple[tuple[str, str], ...] = field(repr=False)
    keep_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmServer:
    """A running server; `remote` is its address with the token.

    `pid` is that of its keeper, a process that was created at `created_at`, in seconds since 1970.
    """

    remote: str = field(repr=False)
    pid: int
    created_at: float
    keep_seconds: float
    fingerprint: str


class ServerUse:
    """The use of a warm server by this process, which keeps the server from ending."""

    def __init__(self, server: WarmServer, descriptor: int) -> None:
        self.server = server
        self._descriptor = descriptor

    def close(self) -> None:
        """End the use; the idle time begins."""
        with suppress(OSError):
            os.utime(self._descriptor)
        os.close(self._descriptor)


def find(home: Path) -> WarmServer | None:
    """Return the warm server of a home; None if there is none, or it is not this user's."""
    with suppress(OSError), _file(home).open("rb") as file:
        return _read(file.fileno())
    return None


def start(spec: ServerSpec) -> "subprocess.Popen[bytes] | None":
    """Start a server unless a matching one runs, and return its keeper; does not wait.

    A server that does not match is ended if it is idle. Otherwise it stays, and none is started.
    """
    from batch_pipeline.spark import driver  # late, because `status` only searches for a server

    home, keeper = spec.home, _keepers.get(spec)
    if keeper is not None and _is_running(keeper):
        return keeper
    server = find(home)
    if server is None:
        is_startable = not _is_locked(_lock_file(home))  # otherwise one is starting or ending
    else:
        is_startable = server.fingerprint != _fingerprint(spec) and _end_if_idle(home)
    if not is_startable:
        return None
    with driver.rotate_log(home, "spark-warm.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    # Not on the command line, which all users can read.
    given = {**asdict(spec), "home": str(home.absolute()), "fingerprint": _fingerprint(spec)}
    if keeper.stdin is not None:
        with suppress(BrokenPipeError), keeper.stdin as stdin:
            stdin.write(json.dumps(given, default=str).encode())
    _keepers[spec] = keeper
    return keeper


def use(spec: ServerSpec) -> ServerUse | None:
    """Return the use of a matching server; start one if there is none and wait until it is up.

    None if it does not start, or if another process uses a server that does not match.
    """
    deadline, keeper = time.monotonic() + START_TIMEOUT_SECONDS, None
    while time.monotonic() < deadline:
        has_ended = keeper is not None and keeper.poll() is not None
        used = _try_to_use(spec.home)
        if used is not None and used.server.fingerprint == _fingerprint(spec):
            return used
        if used is not None:
            used.close()
        if has_ended:
            break
        keeper = keeper or start(spec)
        if keeper is None and used is not None:
            break
        time.sleep(_WAIT_SECONDS)
    return None


@cache
def _fingerprint(spec: ServerSpec) -> str:
    """Return a digest of a server's settings, code and environment.

    Tasks run in processes with the environment and the code that the server was started with. The
    digest is computed once per process, because Spark and Dagster change the environment.
    """
    from batch_pipeline.spark import driver

    ignored = _TERMINAL_VARIABLES.union(driver.OTHER_SESSION_VARIABLES)
    jars, package = spark_home() / "jars", Path(batch_pipeline.__file__).parent
    facts = [
        *(asdict(spec), sys.version, sys.executable, str(Path.cwd())),
        *(str(jars), jars.stat().st_mtime_ns, driver.spark_defaults(os.environ)),
        *(str(package), max(path.stat().st_mtime_ns for path in package.rglob("*.py"))),
        {name: value for name, value in os.environ.items() if name not in ignored},
    ]
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def stop(home: Path) -> WarmServer | None:
    """End the warm server of a home, wait until it has ended, and return its description.

    Raises:
        RetryableError: a process uses it, or it does not end in time.
    """
    server = find(home)
    if server is None:
        return None
    if not _end_if_idle(home):
        raise RetryableError(
            f"The warm Spark server of {home} (process {server.pid}) is in use. Nothing was "
            f"changed. Wait for the command that uses it to end."
        )
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    while _is_locked(_lock_file(home)):
        if time.monotonic() > deadline:
            raise RetryableError(
                f"The warm Spark server of {home} (process {server.pid}) has not ended within "
                f"{STOP_TIMEOUT_SECONDS} seconds. Try again, or end that process."
            )
        time.sleep(_WAIT_SECONDS)
    return server


def _file(home: Path) -> Path:
    return home.absolute() / "spark" / "warm-server.json"


def _lock_file(home: Path) -> Path:
    return home.absolute() / "spark" / "warm-server.lock"


def _read(descriptor: int) -> WarmServer | None:
    """Return the server of a file; None if its keeper is gone, or others can read or write it."""
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        return None
    with suppress(ValueError, TypeError, psutil.NoSuchProcess):
        server = WarmServer(**json.loads(os.pread(descriptor, status.st_size, 0)))
        keeper = psutil.Process(server.pid)
        # The system derives the creation time from its clock, which may have been corrected since.
        is_keeper = abs(keeper.create_time() - server.created_at) < _CLOCK_CORRECTION_SECONDS
        return server if is_keeper and keeper.status() != psutil.STATUS_ZOMBIE else None
    return None


def _is_running(keeper: "subprocess.Popen[bytes]") -> bool:
    """Return whether a keeper runs. A killed one is a zombie until its last thread has ended."""
    return keeper.poll() is None and psutil.Process(keeper.pid).status() != psutil.STATUS_ZOMBIE


def _is_locked(path: Path) -> bool:
    """Return whether a process holds the exclusive lock on a file."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _try_to_use(home: Path) -> ServerUse | None:
    """Return the use of the running server; None if there is none, or it is ending."""
    path = _file(home)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        server = _read(descriptor)
        if server is not None and _is_file(path, descriptor):
            return ServerUse(server, descriptor)
    except OSError:  # the keeper is checking whether it is in use, or is ending
        pass
    os.close(descriptor)
    return None


def _end_if_idle(home: Path) -> bool:
    """Make the keeper of a server end it, unless it is in use; return whether it will end."""
    with suppress(FileNotFoundError), _file(home).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        _file(home).unlink()
    return True


def _keep(spec: ServerSpec, fingerprint: str) -> None:
    """Start a server, let other processes use it, and end it when it has been idle long enough."""
    from batch_pipeline.spark.class_data_archive import build_later
    from batch_pipeline.spark.spark_connect import SparkConnectServer

    if not _lock_as_keeper(spec.home):
        return
    with ExitStack() as stack:
        conf = {"spark.master": spec.master, **dict(spec.conf)}
        log = "spark-warm-server.log"
        server = SparkConnectServer(spec.home, conf=conf, packed=spec.packed, log_name=log)
        stack.enter_context(server)
        facts = WarmServer(
            remote=server.remote,
            pid=os.getpid(),
            created_at=psutil.Process().create_time(),
            keep_seconds=spec.keep_seconds,
            fingerprint=fingerprint,
        )
        path = write_file(_file(spec.home), json.dumps(asdict(facts)), 0o600)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        build_later(spec.home)
        _wait_until_idle(path, descriptor, server.failure, spec.keep_seconds)


def _wait_until_idle(
    path: Path, descriptor: int, failure: Callable[[], str | None], keep_seconds: float
) -> None:
    """Wait until the server has been idle for that long, its file is gone, or it has ended."""
    used_at = time.time()
    while failure() is None and _is_file(path, descriptor):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            used_at = time.time()
        else:
            used_at = max(used_at, os.fstat(descriptor).st_mtime)
            if time.time() - used_at >= keep_seconds:
                break
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(_POLL_SECONDS)
    if _is_file(path, descriptor):
        path.unlink(missing_ok=True)


def _is_file(path: Path, descriptor: int) -> bool:
    with suppress(OSError):
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    return False


def _lock_as_keeper(home: Path) -> bool:
    """Lock a home until this process ends; return False if another keeper does not end in time."""
    path = _lock_file(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    while find(home) is None and time.monotonic() < deadline:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_WAIT_SECONDS)
    return False


def main() -> None:
    """Keep the server that standard input describes."""
    given = json.load(sys.stdin)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    fingerprint, packed = given.pop("fingerprint"), given.pop("packed")
    given["home"] = Path(given["home"])
    given["conf"] = tuple(map(tuple, given["conf"]))
    spec = ServerSpec(**given, packed=None if packed is None else Path(packed))
    _keep(spec, fingerprint)


if __name__ == "__main__":
    main()
