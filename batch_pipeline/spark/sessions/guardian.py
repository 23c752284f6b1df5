"""Runs one command for as long as its parent lives; started as a script by what needs servers.

Standard library only and no import of this package, so that it starts in a few milliseconds. The
parent holds the other end of standard input: when that closes, even by SIGKILL, the command ends,
with everything in its process group.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 10


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input does, and give its exit code as shells do."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    is_parent_gone = threading.Event()

    def end_with_parent() -> None:
        while os.read(0, 1024):  # not sys.stdin: its lock would abort the interpreter's end
            pass
        is_parent_gone.set()
        end_group(child)

    ending = threading.Thread(target=end_with_parent, daemon=True)
    ending.start()
    code = child.wait()
    if is_parent_gone.is_set():
        ending.join()
    return code if code >= 0 else 128 - code  # ended by a signal


def end_group(child: "subprocess.Popen[bytes]") -> None:
    """End a command and all of its group, which may have lost its parent: first politely."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            os.killpg(child.pid, number)
            while time.monotonic() < deadline:
                child.poll()
                os.killpg(child.pid, 0)
                time.sleep(0.02)
        except (ProcessLookupError, PermissionError):  # the latter: only zombies, on macOS
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
