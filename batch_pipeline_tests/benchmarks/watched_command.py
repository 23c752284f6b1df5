"""Runs a command and writes its costs: `… watched_command [--beside PID] REPORT COMMAND…`.

Standard input and output pass through, and the exit code is that of the command. Time is that of
the command; processor time and memory include all processes that it started, even orphans, and the
server `--beside`. Shared pages count once.
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from batch_pipeline_tests.benchmarks.measures import PeakMemory, tree

_SET_CHILD_SUBREAPER = 36
_SAMPLE_SECONDS = 0.05
_ORPHAN_TIMEOUT_SECONDS = 60  # to wait for processes that the command left


def main() -> int:
    """Run the command of the arguments and write its costs as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=int)
    parser.add_argument("report", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process
    roots = [psutil.Process(pid) for pid in (args.beside,) if pid is not None]
    memory = PeakMemory(lambda: [*psutil.Process().children(recursive=True), *_trees(roots)])
    before = _processor_seconds(roots)
    at_start = sum(sum(process.cpu_times()[:2]) for process in _trees(roots))
    started = time.perf_counter()
    code = subprocess.run(args.command, check=False).returncode
    seconds = time.perf_counter() - started
    _wait_for_orphans()
    peak_bytes = memory.stop()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds_of_roots = _processor_seconds(roots) - before
    processor_seconds = max(
        usage.ru_utime + usage.ru_stime + seconds_of_roots, memory.processor_seconds - at_start
    )
    cost = {"seconds": seconds, "processor_seconds": processor_seconds, "peak_bytes": peak_bytes}
    args.report.write_text(json.dumps(cost))
    return code


def _trees(roots: list[psutil.Process]) -> list[psutil.Process]:
    return [process for root in roots for process in tree(root)]


def _processor_seconds(roots: list[psutil.Process]) -> float:
    seconds = sum(sum(root.cpu_times()[2:4]) for root in roots)  # of children that ended
    for process in _trees(roots):
        with suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:2])
    return seconds


def _wait_for_orphans() -> None:
    deadline = time.monotonic() + _ORPHAN_TIMEOUT_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(_SAMPLE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
