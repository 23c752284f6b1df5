"""Runs a command and writes its costs: `… watched_command [--beside PID] REPORT COMMAND…`.

Standard input and output pass through, and the exit code is that of the command. Time is that of
the command; memory includes all processes that it started, even orphans, and the server `--beside`.
Shared pages count once.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil

from batch_pipeline_tests.benchmarks.measures import PeakMemory, tree

_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run the command of the arguments and write its costs as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=int)
    parser.add_argument("report", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process
    beside = [] if args.beside is None else [psutil.Process(args.beside)]
    memory = PeakMemory(
        lambda: [
            *psutil.Process().children(recursive=True),
            *(process for server in beside for process in tree(server)),
        ]
    )
    started = time.perf_counter()
    code = subprocess.run(args.command, check=False).returncode
    cost = {"seconds": time.perf_counter() - started, "peak_bytes": memory.stop()}
    args.report.write_text(json.dumps(cost))
    return code


if __name__ == "__main__":
    sys.exit(main())
