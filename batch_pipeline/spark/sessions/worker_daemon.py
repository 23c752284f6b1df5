"""The process that Spark forks Python workers from: imports once what every worker needs.

Run by Spark (`spark.python.daemon.module`), never imported. Nothing may be opened or started here:
workers are forks of this process.
"""

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
    "pyarrow.csv",
    "pyarrow.parquet",
    "pyspark.worker",
    "batch_pipeline.spark.frame_tasks",
    "batch_pipeline.spark.splitting",
    "batch_pipeline.spark.task",
)
LOOK_SECONDS = 60
IDLE_LOOKS = 2


def main() -> None:
    """Import what workers need, then serve Spark's requests for workers until it ends."""
    _prefer_installed_pyspark()
    for module in MODULES:
        # On a cluster something may be missing here. Workers start all the same, and the first one
        # that is asked can say what it is.
        with suppress(ImportError):
            importlib.import_module(module)
    importlib.import_module("batch_pipeline.spark.worker_memory").keep_freed_memory()
    # A worker collects garbage after each task. It need not look at the modules again and again:
    # that took 45 ms of each task.
    gc.collect()
    gc.freeze()
    _end_when_idle()
    importlib.import_module("pyspark.daemon").manager()


def _prefer_installed_pyspark() -> None:
    # Spark puts zipped copies of pyspark and py4j first, which are compiled anew at each start; the
    # package that this Spark is part of is the same code with byte-code beside it. On a cluster
    # another release, or none, may be installed.
    zipped = [one for one in sys.path if one.endswith(("pyspark.zip", "-src.zip"))]
    sys.path[:] = [one for one in sys.path if one not in zipped]
    spec = importlib.util.find_spec("pyspark")
    is_this_spark = False
    if spec is not None and spec.origin is not None and "SPARK_HOME" in os.environ:
        installed = Path(spec.origin).with_name("jars")
        with suppress(OSError):
            is_this_spark = installed.samefile(Path(os.environ["SPARK_HOME"], "jars"))
    if not is_this_spark:
        sys.path[1:1] = zipped


def _end_when_idle() -> None:
    # A Connect server starts one daemon per client session and never ends it; Spark itself starts
    # a new one when it finds the old one gone. A signal, not a thread: this process forks.
    looks = 0

    def look(_signal: int, _frame: FrameType | None) -> None:
        nonlocal looks
        import psutil

        looks = 0 if psutil.Process().children() else looks + 1
        if looks >= IDLE_LOOKS:
            os._exit(0)  # at once: a connection must not arrive at a process that is ending

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)


if __name__ == "__main__":
    main()
