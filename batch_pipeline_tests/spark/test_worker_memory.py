"""Memory settings of worker processes."""

import subprocess
import sys

PROGRAM = """
import resource
from batch_pipeline.spark.worker_daemon import keep_freed_memory

if {kept}:
    keep_freed_memory()
b"x" * 8_000_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    b"x" * 8_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*, kept: bool) -> int:
    """Return the page faults of a process that repeatedly allocates and frees a block."""
    command = [sys.executable, "-c", PROGRAM.format(kept=kept)]
    environment = {"MALLOC_TRIM_THRESHOLD_": "1000000", "MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    return int(done.stdout)


def test_freed_memory_is_reused_without_page_faults() -> None:
    assert page_faults(kept=True) < page_faults(kept=False) / 5
