"""Runs a command and tells what it took, everything that it started included.

`python -m batch_pipeline_tests.benchmarks.watched_command REPORT MOST_BYTES COMMAND…` passes
standard input and output through, ends with the exit code of the command, and writes seconds,
processor seconds and the peak of memory as JSON. With MOST_BYTES other than 0 no process gets more
memory than that. For Linux: processes that lose their parent become those of this one, so that none
is missed.
"""

import ctypes
import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from batch_pipeline_tests.benchmarks.tree_memory import TreeMemory

_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER
_LONGEST_FAREWELL_SECONDS = 30


def main() -> int:
    """Run the command of the arguments."""
    report, most_bytes, *command = sys.argv[1:]
    if most_bytes != "0":
        resource.setrlimit(resource.RLIMIT_AS, (int(most_bytes), int(most_bytes)))
    ctypes.CDLL(None, use_errno=True).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: _end_all())
    started = time.perf_counter()
    process = subprocess.Popen(command)
    memory = TreeMemory(below_only=True)
    code = process.wait()
    seconds = time.perf_counter() - started
    _, left = psutil.wait_procs(
        psutil.Process().children(recursive=True), timeout=_LONGEST_FAREWELL_SECONDS
    )
    for one in left:
        one.kill()
    psutil.wait_procs(left)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = {
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": memory.peak_bytes(),
    }
    Path(report).write_text(json.dumps(spent))
    return code


def _end_all() -> None:
    for one in psutil.Process().children(recursive=True):
        one.kill()


if __name__ == "__main__":
    sys.exit(main())
