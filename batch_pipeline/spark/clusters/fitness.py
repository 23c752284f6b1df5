"""Finds executors that cannot run tasks, and says where they are and what they lack.

A small job looks at the executors of a cluster when a session is opened; later ones are known by
what Spark reports of a task that failed there. Nothing of this package is needed on an executor for
that.
"""

import importlib.util
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from batch_pipeline.domain.errors import (
    ExecutorUnfitError,
    PipelineError,
    SparkUnavailableError,
)
from batch_pipeline.spark.clusters.archive_note import (
    NOTE,
    PACKED_FOLDER,
    REQUIRED,
    ArchiveNote,
)
from batch_pipeline.spark.engine_errors import engine_errors, reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTOR_TIMEOUT_SECONDS = 600
_GROUP = "batch-pipeline executors"
_LISTENERS_MILLISECONDS = 10_000
_DRIVER = "driver"
_SERVER_TASKS = 16
_PROBED = "batch_pipeline.spark.frame_tasks"

_PLACE = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor (\S+?)\)")
_NO_MODULE = re.compile(
    r"(?:ModuleNotFoundError:|\bError while finding module[^\n]*?) No module named '?([\w.]+)"
)
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON = re.compile(r"different version: (\S+) than that in driver:? (\d+\.\d+)")

_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
_PACK = (
    "Run `batch-pipeline pack packed.tar.gz` and set BATCH_PIPELINE_SPARK_PACKED=packed.tar.gz, or "
    "install this release for the Python of the executors"
)
_CHOOSE = f"Set PYSPARK_PYTHON to a Python {_HERE} that is there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a probing task found on its executor; `missing` are modules, `broken` why of others."""

    task: int
    host: str
    python: str
    platform: str
    missing: tuple[str, ...]
    broken: str | None
    package: str | None
    note: dict[str, Any] | None


def check_executors(session: "SparkSession", target: str) -> None:
    """Look at the executors that have come to a classic session, until no more of them come.

    Waits up to ten minutes for the first one.

    Raises:
        ExecutorUnfitError: one cannot run tasks; names the first.
        SparkUnavailableError: there is none, or the engine is gone.
    """
    context = session.sparkContext
    group = f"{_GROUP} {context.applicationId}"
    here = ArchiveNote.of_here({})
    asked = 0
    while asked < context.defaultParallelism:  # the cores that are there
        asked = context.defaultParallelism
        for text in _told(session, target, group, asked):
            seen = msgspec.json.decode(text, type=Seen)
            wrong = problem_of(seen, here)
            if wrong is not None:
                host, executor = _place(session, group, seen)
                raise ExecutorUnfitError(target, executor, host, *wrong)


def trouble(session: "SparkSession", error: Exception) -> PipelineError:
    """Give what to tell of an engine's failure, without the address of a server: it has a token."""
    target, report = "the Connect server", str(error)
    if ".connect." in type(session).__module__:
        with suppress(*engine_errors()):  # a server that is gone
            if unfit := unfit_executor_of_server(session, report):
                return unfit
    else:
        target = str(session.sparkContext.master)
        if unfit := unfit_executor(target, report):
            return unfit
    return SparkUnavailableError(target, reason_of(error))


def unfit_executor(target: str, report: str) -> ExecutorUnfitError | None:
    """Tell of an executor that is unfit by Spark's report of a failure; None for other failures."""
    place = _PLACE.search(report)
    if place is None or place.group(2) == _DRIVER:
        return None
    host, executor = place.group(1), place.group(2)
    if missing := _NO_MODULE.search(report):
        wrong = f"its Python lacks the module {missing.group(1)}", _PACK
    elif program := _NO_PROGRAM.search(report):
        wrong = f"it has no {program.group(1)}", _CHOOSE
    elif other := _OTHER_PYTHON.search(report):
        wrong = f"it has Python {other.group(1)}, and this is Python {other.group(2)}", _CHOOSE
    else:
        return None
    return ExecutorUnfitError(target, executor, host, *wrong)


def unfit_executor_of_server(session: "SparkSession", report: str) -> ExecutorUnfitError | None:
    """Do the same for a Connect server, whose reports leave out the place: it is looked for.

    Executors have a host there, but no id that a client could learn.
    """
    missing = _NO_MODULE.search(report)
    if missing is None or missing.group(1).partition(".")[0] not in _required():
        return None
    from pyspark.sql.functions import udf

    look = udf(probe(), "string", useArrow=False)
    rows = session.range(0, _SERVER_TASKS, 1, _SERVER_TASKS).select(look("id")).collect()
    here = ArchiveNote.of_here({})
    for (text,) in rows:
        seen = msgspec.json.decode(text, type=Seen)
        wrong = problem_of(seen, here)
        if wrong is not None:
            return ExecutorUnfitError("the Connect server", None, seen.host, *wrong)
    return None


def problem_of(seen: Seen, here: ArchiveNote) -> tuple[str, str] | None:
    """Give what is wrong with an executor, and what mends it; None when nothing is."""
    note = seen.note
    python = ".".join(seen.python.split(".")[:2])
    if note is not None and (note["python"], note["platform"]) != (python, seen.platform):
        packed = f"Python {note['python']} on {note['platform']}"
        problem = f"the packed archive is for {packed}, and it has Python {python} on"
        return f"{problem} {seen.platform}", "Run `batch-pipeline pack` on a machine like it"
    if seen.missing:
        modules = ", ".join(seen.missing)
        plural = "s" if len(seen.missing) > 1 else ""
        return f"its Python {seen.python} lacks the module{plural} {modules}", _PACK
    if seen.broken is not None:
        return f"its Python {seen.python} cannot import what tasks need ({seen.broken})", _PACK
    if seen.package != here.package:
        return "it has another release of batch-pipeline than the driver", _PACK
    return None


def probe() -> Callable[[int], str]:
    """Make the function that tells what an executor is like.

    It is a local one, so that it travels as code: nothing of it has to be there.
    """
    modules, probed, note_name, packed = _required(), _PROBED, NOTE, PACKED_FOLDER

    def look(_number: int) -> str:
        import importlib
        import importlib.util
        import json
        import platform
        import socket
        import sys
        from pathlib import Path

        from pyspark import SparkFiles, TaskContext

        brought = Path(SparkFiles.getRootDirectory(), packed)
        if brought.is_dir() and str(brought) not in sys.path:
            sys.path.insert(1, str(brought))
        broken = package = note = None
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if "batch_pipeline" not in missing:
            spec = importlib.util.find_spec("batch_pipeline")
            folder = Path(spec.origin or "").parents[1] if spec is not None else Path()
            told = folder / note_name
            note = json.loads(told.read_text()) if told.is_file() else None
        if not missing:
            try:
                importlib.import_module(probed)
                there = importlib.import_module("batch_pipeline.spark.clusters.archive_note")
                package = there.package_digest()
            except ImportError as error:
                broken = str(error)
        context = TaskContext.get()
        return json.dumps(
            {
                "task": -1 if context is None else context.taskAttemptId(),
                "host": socket.gethostname(),
                "python": platform.python_version(),
                "platform": f"{sys.platform}-{platform.machine()}",
                "missing": missing,
                "broken": broken,
                "package": package,
                "note": note,
            }
        )

    return look


def _required() -> list[str]:
    """Name the modules that tasks import, as far as the driver has them."""
    here = [name for name in REQUIRED.values() if importlib.util.find_spec(name) is not None]
    return ["batch_pipeline", *here]


def _told(session: "SparkSession", target: str, group: str, tasks: int) -> list[str]:
    """Run a probing job on a thread of its own, so that one can give up waiting for it."""
    context = session.sparkContext

    def job() -> list[str]:
        context.setJobGroup(group, "batch-pipeline looks at the executors")
        found: list[str] = context.parallelize(range(tasks), tasks).map(probe()).collect()
        return found

    with ThreadPoolExecutor(max_workers=1) as threads:
        running = threads.submit(job)
        try:
            return running.result(timeout=EXECUTOR_TIMEOUT_SECONDS)
        except FutureTimeoutError as error:
            reason = f"no executor came within {EXECUTOR_TIMEOUT_SECONDS} s"
            raise SparkUnavailableError(target, reason) from error
        except engine_errors() as error:
            raise trouble(session, error) from error
        finally:
            if not running.done():
                with suppress(*engine_errors()):
                    context.cancelJobGroup(group)


def _place(session: "SparkSession", group: str, seen: Seen) -> tuple[str, str | None]:
    """Give host and id of the executor that ran a task, as Spark's own pages name them."""
    context = session.sparkContext
    with suppress(Exception):  # the host that the task told is better than no message
        scala = context._jsc.sc()  # noqa: SLF001 - there is no public way
        scala.listenerBus().waitUntilEmpty(_LISTENERS_MILLISECONDS)
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        for stage in [stage for job in jobs if job is not None for stage in job.stageIds]:
            tasks = scala.statusStore().taskList(stage, 0, sys.maxsize >> 32)
            for number in range(tasks.size()):
                task = tasks.apply(number)
                if task.taskId() == seen.task:
                    return str(task.host()), str(task.executorId())
    return seen.host, None
