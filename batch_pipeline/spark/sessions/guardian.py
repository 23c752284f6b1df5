"""Runs one command for as long as its parent lives; started as a script by the warm server.

Standard library only and no import of this package, so that it starts in a few milliseconds. The
parent holds the other end of standard input: when that closes, even by SIGKILL, the command ends.
"""

import os
import subprocess
import sys
import threading

GRACE_SECONDS = 10


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input does, and give its exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def end_with_parent() -> None:
        while os.read(0, 1024):  # not sys.stdin: its lock would abort the interpreter's end
            pass
        child.terminate()
        try:
            child.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=end_with_parent, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
