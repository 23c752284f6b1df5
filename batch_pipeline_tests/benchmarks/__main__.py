"""Run all benchmarks, or the named ones, sequentially; options are passed to each.

`python -m batch_pipeline_tests.benchmarks [NAME …] [--…]` runs the modules `bench_NAME`.
"""

import os
import subprocess
import sys
from datetime import datetime
from itertools import takewhile
from pathlib import Path

_MODULES = Path(__file__).parent.glob("bench_*.py")
KNOWN = sorted(path.stem.removeprefix("bench_") for path in _MODULES)


def main() -> int:
    """Run each benchmark in a separate process; return 1 if one failed."""
    arguments = sys.argv[1:]
    names = list(takewhile(lambda word: not word.startswith("-"), arguments))
    selected, options = names or KNOWN, arguments[len(names) :]
    unknown = [name for name in selected if name not in KNOWN]
    if unknown:
        sys.stderr.write(f"no benchmark {unknown[0]!r}; there are {', '.join(KNOWN)}\n")
        return 2
    failed = False
    for name in selected:
        load = f"load {os.getloadavg()[0]:.1f} at the start"
        today = datetime.now().astimezone().date()
        sys.stdout.write(f"== {name} == {today}, {os.cpu_count()} cores, {load}\n")
        sys.stdout.flush()
        module = f"{__package__}.bench_{name}"
        command = [sys.executable, "-m", module, *options]
        failed |= subprocess.run(command, check=False).returncode != 0
        sys.stdout.write("\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
