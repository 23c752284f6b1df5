"""Finds executors that cannot run tasks, and says where they are and what they lack.

A small job looks at the executors of a cluster when a session is opened; later ones are known by
what Spark reports of a task that failed there. Nothing of this package is needed on an executor for
that.
"""

import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from batch_pipeline.domain.errors import (
    ExecutorUnfitError,
    PipelineError,
    SparkUnavailableError,
    TasksLostError,
)
from batch_pipeline.spark.clusters.archive_note import ArchiveNote
from batch_pipeline.spark.clusters.engine_state import is_connect, is_stopped
from batch_pipeline.spark.clusters.master import Place, place_of
from batch_pipeline.spark.clusters.probe import Seen, is_here, probe, required
from batch_pipeline.spark.engine_errors import engine_errors, is_engine_gone, reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTOR_TIMEOUT_SECONDS = 600
_GROUP = "batch-pipeline executors"
_LISTENERS_MILLISECONDS = 10_000
_DRIVER = "driver"
_SERVER_TASKS = 16

_PLACE = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor (\S+?)\)")
_NO_MODULE = re.compile(
    r"(?:ModuleNotFoundError:|\bError while finding module[^\n]*?) No module named '?([\w.]+)"
)
# What Spark says of processes that ended by what ran in them, not of those that were taken away.
_DIED = re.compile(
    r"ExecutorLostFailure \(executor \S+ exited caused by one of the running tasks\)"
    r"|Python worker exited unexpectedly"
)
_TAKEN_AWAY = re.compile(
    r"ExecutorLostFailure \(executor |SparkContext was shut down|stopped SparkContext"
    r"|Master removed our application|All masters are unresponsive"
    r"|MetadataFetchFailedException|FetchFailedException"
)
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON = re.compile(r"different version: (\S+) than that in driver:? (\d+\.\d+)")

_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
_PACK = (
    "Run `batch-pipeline pack packed.tar.gz` and set BATCH_PIPELINE_SPARK_PACKED=packed.tar.gz, or "
    "install this release for the Python of the executors"
)
_CHOOSE = f"Set PYSPARK_PYTHON to a Python {_HERE} that is there"


def check_executors(session: "SparkSession", target: str) -> None:
    """Look at the executors that have come to a classic session, until no more of them come.

    Waits up to ten minutes for the first one.

    Raises:
        ExecutorUnfitError: one cannot run tasks; names the first.
        SparkUnavailableError: there is none, or the engine is gone.
    """
    context = session.sparkContext
    asked = 0
    while asked < context.defaultParallelism:  # the cores that are there
        asked = context.defaultParallelism
        try:
            unfit = _unfit_by_look(session, target, asked)
        except engine_errors() as error:
            raise trouble(session, error) from error
        if unfit is not None:
            raise unfit


def trouble(session: "SparkSession", error: Exception) -> PipelineError:
    """Give what to tell of an engine's failure, without the address of a server: it has a token."""
    report = str(error)
    return unfit(session, report) or lost(_target(session), report, reason_of(error))


def fault(session: "SparkSession", error: Exception) -> PipelineError | None:
    """Give what to tell of a job that failed by its engine; None where it did by what it ran."""
    report = str(error)
    is_gone = is_engine_gone(error) or (not is_connect(session) and is_stopped(session))
    if is_gone or is_lost(report):
        return trouble(session, error)
    return unfit(session, report)


def gone(session: "SparkSession") -> SparkUnavailableError:
    """Give what to tell of a job whose executors ended and were not replaced."""
    reason = "its executors have ended, and the cluster gives no others"
    return SparkUnavailableError(_target(session), reason)


def is_lost(report: str) -> bool:
    """Tell by Spark's report of a failure whether it lost executors, workers or the context."""
    return bool(_DIED.search(report) or _TAKEN_AWAY.search(report))


def lost(target: str, report: str, reason: str) -> SparkUnavailableError:
    """Tell by Spark's report whether tasks ended their processes, or these were taken away."""
    kind = TasksLostError if _DIED.search(report) else SparkUnavailableError
    return kind(target, reason)


def unfit(session: "SparkSession", report: str) -> ExecutorUnfitError | None:
    """Tell of an executor that is unfit by Spark's report of a failure; None for other failures.

    Reports of frames leave out where it was. Then the executors are looked at.
    """
    target = _target(session)
    if found := unfit_executor(target, report):
        return found
    modules = lacked(report)
    if not modules:
        return None
    with suppress(*engine_errors(), SparkUnavailableError):  # that they cannot be looked at now
        if is_connect(session):
            return _unfit_of_server(session, modules)
        if place_of(target) is not Place.DRIVER:
            cores = session.sparkContext.defaultParallelism
            return _unfit_by_look(session, target, cores, modules)
    return None


def unfit_executor(target: str, report: str) -> ExecutorUnfitError | None:
    """Tell of an executor by a report that says where it is; None for other failures."""
    place = _PLACE.search(report)
    if place is None or place.group(2) == _DRIVER:
        return None
    host, executor = place.group(1), place.group(2)
    if missing := lacked(report):
        wrong = f"its Python lacks modules: {missing[0]}", _packing(missing[:1])
    elif program := _NO_PROGRAM.search(report):
        wrong = f"it has no {program.group(1)}", _CHOOSE
    elif other := _OTHER_PYTHON.search(report):
        wrong = f"it has Python {other.group(1)}, and this is Python {other.group(2)}", _CHOOSE
    else:
        return None
    return ExecutorUnfitError(target, executor, host, *wrong)


def lacked(report: str) -> list[str]:
    """Name the modules that were not found there and are here; others are nobody's to bring."""
    return [name for name in dict.fromkeys(_NO_MODULE.findall(report)) if is_here(name)]


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
        lack = f"its Python {seen.python} lacks modules: {modules}"
        return lack, _packing(seen.missing)
    if seen.broken is not None:
        return f"its Python {seen.python} cannot import what tasks need ({seen.broken})", _PACK
    if seen.package != here.package:
        return "it has another release of batch-pipeline than the driver", _PACK
    return None


def _target(session: "SparkSession") -> str:
    return "the Connect server" if is_connect(session) else str(session.sparkContext.master)


def _packing(missing: Sequence[str]) -> str:
    """Say how executors get modules, which may be a user's."""
    tops = dict.fromkeys(name.partition(".")[0] for name in missing)
    added = [name for name in tops if name not in required()]
    if not added:
        return _PACK
    options = "".join(f" --with {name}" for name in added)
    return (
        f"Run `batch-pipeline pack packed.tar.gz{options}` and set "
        f"BATCH_PIPELINE_SPARK_PACKED=packed.tar.gz, or install {', '.join(added)} for the Python "
        f"of the executors"
    )


def _unfit_of_server(session: "SparkSession", modules: Sequence[str]) -> ExecutorUnfitError | None:
    """Look at the executors of a Connect server: they have a host, but no id for its clients."""
    from pyspark.sql.functions import udf

    look = udf(probe(modules), "string", useArrow=False)
    rows = session.range(0, _SERVER_TASKS, 1, _SERVER_TASKS).select(look("id")).collect()
    here = ArchiveNote.of_here({})
    for (text,) in rows:
        seen = msgspec.json.decode(text, type=Seen)
        if wrong := problem_of(seen, here):
            return ExecutorUnfitError("the Connect server", None, seen.host, *wrong)
    return None


def _unfit_by_look(
    session: "SparkSession", target: str, tasks: int, modules: Sequence[str] = ()
) -> ExecutorUnfitError | None:
    """Look at the executors of a classic session with some tasks, and give the first unfit one."""
    group = f"{_GROUP} {session.sparkContext.applicationId}"
    here = ArchiveNote.of_here({})
    for text in _told(session, target, group, tasks, modules):
        seen = msgspec.json.decode(text, type=Seen)
        if wrong := problem_of(seen, here):
            host, executor = _place(session, group, seen)
            return ExecutorUnfitError(target, executor, host, *wrong)
    return None


def _told(
    session: "SparkSession", target: str, group: str, tasks: int, modules: Sequence[str]
) -> list[str]:
    """Run a probing job on a thread of its own, so that one can give up waiting for it."""
    context = session.sparkContext

    def job() -> list[str]:
        context.setJobGroup(group, "batch-pipeline looks at the executors")
        rows = context.parallelize(range(tasks), tasks)
        found: list[str] = rows.map(probe(modules)).collect()
        return found

    with ThreadPoolExecutor(max_workers=1) as threads:
        running = threads.submit(job)
        try:
            return running.result(timeout=EXECUTOR_TIMEOUT_SECONDS)
        except FutureTimeoutError as error:
            reason = f"no executor came within {EXECUTOR_TIMEOUT_SECONDS} s"
            raise SparkUnavailableError(target, reason) from error
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
