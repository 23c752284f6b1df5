"""Runs a command and writes what it took: `… watched_command REPORT COMMAND…`.

Standard input and output pass through, and the exit code is that of the command. This process is
small, since the peak of memory that the system counts for a child includes that of its parent at
the start.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    """Run the command of the arguments and write its seconds and its peak as JSON."""
    report, *command = sys.argv[1:]
    started = time.perf_counter()
    code = subprocess.run(command, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = {
        "seconds": time.perf_counter() - started,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * 1024,
    }
    Path(report).write_text(json.dumps(spent))
    return code


if __name__ == "__main__":
    sys.exit(main())
