"""One server as a child process: guarded, logged, and ended with all that it left behind.

Knows no Dagster; which servers there are, and in which order, is the business of `servers`.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

import psutil

from batch_pipeline.spark.sessions.connect_server import GUARDIAN

_STOP_SECONDS = 15
_MARK = "BATCH_PIPELINE_SERVER_MARK"


@dataclass(kw_only=True)
class GuardedServer:
    """A command that lives no longer than this process, however that ends.

    Its log is truncated at the start.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    log: Path
    mark: str = field(default_factory=lambda: token_hex(8))
    _guardian: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start it, once."""
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C in the terminal reaches this process only, which then
            # stops the parts in order.
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", str(GUARDIAN), *self.command],
                env={**self.environment, _MARK: self.mark},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """How it ended, None while it runs."""
        return None if self._guardian is None else self._guardian.poll()

    def failure(self) -> str | None:
        """Return how it ended, None while it runs."""
        code = self.exit_code
        return None if code is None else f"ended with exit code {code}"

    def last_line(self) -> str:
        """Return the last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"

    @property
    def session(self) -> int | None:
        """The session of the command and of all that it started."""
        return None if self._guardian is None else self._guardian.pid

    def family(self) -> list[psutil.Process]:
        """Give the command's process and all below it."""
        with suppress(psutil.NoSuchProcess):
            if self._guardian is not None:
                return psutil.Process(self._guardian.pid).children(recursive=True)
        return []

    def ask_to_end(self) -> None:
        """Let the guardian end it."""
        if self._guardian is not None and self._guardian.stdin is not None:
            self._guardian.stdin.close()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the guardian has ended, at most so long."""
        if self._guardian is not None:
            with suppress(subprocess.TimeoutExpired):
                self._guardian.wait(seconds)


def stop(servers: Sequence[GuardedServer]) -> None:
    """End servers together, and wait until nothing is left of them and what they started.

    Also finds what lost its parent, such as runs of a server that was killed.
    """
    for server in servers:
        server.ask_to_end()
    for server in servers:
        server.wait(_STOP_SECONDS)
    left = [process for server in servers for process in _left_by(server)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(left, timeout=_STOP_SECONDS)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for server in servers:
        server.wait()


def _left_by(server: GuardedServer) -> list[psutil.Process]:
    """Find what still runs in the session of a server.

    The number of a session that is empty may be another program's by now: the mark tells.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == server.session:
                is_marked = process.environ().get(_MARK) == server.mark
                if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found
