"""Run one command for as long as the parent process lives: `start` runs this module as a script.

A server that a killed process leaves behind would keep its port and its memory, and no handler runs
on SIGKILL. So the parent holds the other end of the guardian's standard input: when it closes,
however the parent ended, the guardian ends the command and its process group. So it does on
SIGTERM.

Uses the standard library only and does not import this package, to start in a few milliseconds.
"""

import os
import signal
import subprocess
import sys
import threading
import time

TYPE_CHECKING = False  # typing is not imported either
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

GRACE_SECONDS = 10


def start(
    command: "Sequence[str]", environment: "Mapping[str, str]", log: "Path"
) -> "subprocess.Popen[bytes]":
    """Start a command and its guardian, and return the guardian's process.

    Closing its standard input ends the command. The output of the command goes to the log, which is
    truncated first.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C in the terminal reaches the parent only, which decides
        )


def main(command: list[str]) -> int:
    """Run `command` until it or standard input ends, and return its exit code as shells do."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    is_parent_gone = threading.Event()

    def end_with_parent() -> None:
        while os.read(0, 1024):  # sys.stdin has a lock that would abort the interpreter at exit
            pass
        is_parent_gone.set()
        end_group(child)

    signal.signal(signal.SIGTERM, _exit)
    watcher = threading.Thread(target=end_with_parent, daemon=True)
    try:
        watcher.start()
        code = child.wait()
    except SystemExit:
        end_group(child)
        raise
    if is_parent_gone.is_set():
        watcher.join()
    return code if code >= 0 else 128 - code  # negative: ended by a signal


def _exit(number: int, _frame: object) -> None:
    """Leave `wait`, which has a lock that prevents `end_group` from waiting."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def end_group(child: "subprocess.Popen[bytes]") -> None:
    """End all processes of a command's group: by SIGTERM, and after ten seconds by SIGKILL.

    The group can still have members after the command itself has ended.
    """
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            os.killpg(child.pid, signal_number)
            while time.monotonic() < deadline:
                child.poll()
                os.killpg(child.pid, 0)
                time.sleep(0.02)
        # On macOS the second error, if only zombies are left.
        except (ProcessLookupError, PermissionError):
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
