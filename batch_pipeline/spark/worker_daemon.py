"""The process from which Spark forks Python workers: it has imported what every worker needs.

Without it, each worker would import pyarrow and this package itself. Spark runs this module
(`spark.python.daemon.module`) instead of `pyspark.daemon`; no other module imports it. It must not
open files or start threads, since workers are forks of it.
"""

import ctypes
import gc
import importlib
import importlib.util
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

MODULES = (
    "pandas",  # pyarrow imports it for the first array that it makes, if it is installed
    "pyarrow.csv",
    "pyarrow.parquet",
    "pyspark.worker",
    "batch_pipeline.spark.transform_tasks",
    "batch_pipeline.spark.spark_job",
    "batch_pipeline.encode.task",
)
IDLE_CHECK_SECONDS = 60
IDLE_CHECKS = 2  # in a row, before the process ends
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST_BLOCK = 32 * 2**20


def main() -> None:
    """Import what workers need, then fork workers for Spark until it ends."""
    _prefer_installed_pyspark()
    for module in MODULES:
        # On a cluster a module may be missing. Workers must start all the same: the probe of
        # `diagnostics` then reports what is missing.
        with suppress(ImportError):
            importlib.import_module(module)
    keep_freed_memory()
    # A worker collects garbage after each task. Frozen, the imported modules are not scanned again:
    # scanning them took 45 ms of each task.
    gc.collect()
    gc.freeze()
    _exit_when_idle()
    importlib.import_module("pyspark.daemon").manager()


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of freed memory instead of returning it to the system.

    Blocks of some MiB are allocated and freed all the time, and the system clears each page that it
    hands out. Does nothing where the C library has no `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_BLOCK)


def _prefer_installed_pyspark() -> None:
    # Spark puts zipped copies of pyspark and py4j first on the path. They have no byte-code, so
    # each start compiles them again. The installed package is the same code with byte-code, if this
    # Spark is part of it. On a cluster another release, or none, may be installed.
    zipped = [entry for entry in sys.path if entry.endswith(("pyspark.zip", "-src.zip"))]
    sys.path[:] = [entry for entry in sys.path if entry not in zipped]
    spec = importlib.util.find_spec("pyspark")
    is_this_spark = False
    if spec is not None and spec.origin is not None and "SPARK_HOME" in os.environ:
        installed = Path(spec.origin).with_name("jars")
        with suppress(OSError):
            is_this_spark = installed.samefile(Path(os.environ["SPARK_HOME"], "jars"))
    if not is_this_spark:
        sys.path[1:1] = zipped


def _exit_when_idle() -> None:
    # A Connect server starts one daemon per client session and never ends it. Spark starts a new
    # one if it finds the old one gone. By a signal, not a thread: this process forks.
    idle_checks = 0

    def check(_signal: int, _frame: FrameType | None) -> None:
        nonlocal idle_checks
        import psutil

        idle_checks = 0 if psutil.Process().children() else idle_checks + 1
        if idle_checks >= IDLE_CHECKS:
            os._exit(0)  # at once, so that no request for a worker arrives while it ends

    signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, IDLE_CHECK_SECONDS, IDLE_CHECK_SECONDS)


if __name__ == "__main__":
    main()
