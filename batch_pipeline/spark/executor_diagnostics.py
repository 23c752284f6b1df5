"""Find out why executors cannot run tasks, and name the executor, the cause and the next step.

When a session is opened on a cluster, a small job probes its executors. Executors that come later
are diagnosed from Spark's report of the task that failed there.
"""

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from batch_pipeline.model.errors import (
    ConfigurationError,
    PipelineError,
    SparkUnavailableError,
    TasksLostError,
)
from batch_pipeline.spark.cluster import runs_in_driver
from batch_pipeline.spark.engine import (
    engine_errors,
    failure_reason,
    is_connect,
    is_engine_gone,
    is_stopped,
)
from batch_pipeline.spark.packed_archive import (
    ARCHIVE_FOLDER,
    NOTE_NAME,
    TASK_DISTRIBUTIONS,
    ArchiveNote,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


EXECUTOR_TIMEOUT_SECONDS = 600
_TASK_MODULE = "batch_pipeline.spark.frames"
_PROBE_GROUP = "batch-pipeline executors"
_LISTENER_TIMEOUT_MILLISECONDS = 10_000
_DRIVER_ID = "driver"
_CONNECT_PROBE_TASKS = 16
_CONNECT_TARGET = "the Connect server"

_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor (\S+?)\)")
_MISSING_MODULE = re.compile(
    r"(?:ModuleNotFoundError:|\bError while finding module[^\n]*?) No module named '?([\w.]+)"
)
# Spark's words for processes that exited because of their tasks; it has others for processes that
# the cluster took away.
_EXITED_IN_TASK = re.compile(
    r"ExecutorLostFailure \(executor \S+ exited caused by one of the running tasks\)"
    r"|Python worker exited unexpectedly"
)
_TAKEN_AWAY = re.compile(
    r"ExecutorLostFailure \(executor |SparkContext was shut down|stopped SparkContext"
    r"|Master removed our application|All masters are unresponsive"
    r"|MetadataFetchFailedException|FetchFailedException"
)
_MISSING_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON = re.compile(r"different version: (\S+) than that in driver:? (\d+\.\d+)")

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_PACK_STEP = (
    "Run `batch-pipeline pack packed.tar.gz` and set BATCH_PIPELINE_SPARK_PACKED=packed.tar.gz, or "
    "install this release for the Python of the executors"
)
_PYTHON_STEP = f"Set PYSPARK_PYTHON to a Python {_PYTHON} that is installed there"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorReport:
    """The facts that a probe collected on its executor.

    `import_error` is why a module that is there cannot be imported. `package_digest` is None when
    the package was not imported, `archive_note` when the executor uses no packed archive.
    """

    task_id: int
    host: str
    python: str
    platform: str
    missing_modules: tuple[str, ...]
    import_error: str | None
    package_digest: str | None
    archive_note: dict[str, Any] | None


def check_executors(session: "SparkSession", target: str) -> None:
    """Inspect the executors of a classic session, until no more of them register.

    Waits up to ten minutes for the first one.

    Raises:
        ConfigurationError: an executor cannot run tasks; names the first.
        SparkUnavailableError: there is none, or the engine is gone.
    """
    context = session.sparkContext
    probed_cores = 0
    # One task a core reaches each executor; those that register meanwhile need another round.
    while probed_cores < context.defaultParallelism:
        probed_cores = context.defaultParallelism
        try:
            error = _probe_executors(session, target, probed_cores)
        except engine_errors() as engine_error:
            raise diagnose_engine_error(session, engine_error) from engine_error
        if error is not None:
            raise error


def diagnose_engine_error(session: "SparkSession", error: Exception) -> PipelineError:
    """Return the error that explains an engine's failure.

    It never holds the address of a Connect server, which has a token.
    """
    report = str(error)
    known = diagnose_report(session, report)
    return known or process_loss_error(_target(session), report, failure_reason(error))


def diagnose_job_error(session: "SparkSession", error: Exception) -> PipelineError | None:
    """Return the error that explains a failed job; None if the code or data that it ran failed."""
    report = str(error)
    is_gone = is_engine_gone(error) or (not is_connect(session) and is_stopped(session))
    if is_gone or is_process_loss(report):
        return diagnose_engine_error(session, error)
    return diagnose_report(session, report)


def executors_lost_error(session: "SparkSession") -> SparkUnavailableError:
    """Build the error of a job whose executors ended and were not replaced."""
    reason = "its executors have ended, and the cluster started no others"
    return SparkUnavailableError(_target(session), reason)


def is_process_loss(report: str) -> bool:
    """Return whether Spark reports a lost executor, worker or context, not a failed task."""
    return bool(_EXITED_IN_TASK.search(report) or _TAKEN_AWAY.search(report))


def process_loss_error(target: str, report: str, reason: str) -> SparkUnavailableError:
    """Build the error of lost processes: `TasksLostError` where the tasks may have ended them."""
    kind = TasksLostError if _EXITED_IN_TASK.search(report) else SparkUnavailableError
    return kind(target, reason)


def diagnose_report(session: "SparkSession", report: str) -> ConfigurationError | None:
    """Return what an executor lacks, by Spark's report of a failure; None for other failures.

    Reports of DataFrame jobs do not name the executor. Then the executors are probed for it.
    """
    target = _target(session)
    if error := diagnose_executor(target, report):
        return error
    modules = missing_modules(report)
    if not modules:
        return None
    with suppress(*engine_errors(), SparkUnavailableError):  # they cannot be probed now
        if is_connect(session):
            return _probe_connect_executors(session, modules)
        if not runs_in_driver(target):
            cores = session.sparkContext.defaultParallelism
            return _probe_executors(session, target, cores, modules)
    return None


def diagnose_executor(target: str, report: str) -> ConfigurationError | None:
    """Return what the executor that a report names lacks; None for other failures."""
    lost_task = _LOST_TASK.search(report)
    if lost_task is None or lost_task.group(2) == _DRIVER_ID:
        return None
    host, executor = lost_task.group(1), lost_task.group(2)
    if missing := missing_modules(report):
        problem, next_step = f"its Python lacks modules: {missing[0]}", _pack_step(missing[:1])
    elif program := _MISSING_PROGRAM.search(report):
        problem, next_step = f"it has no {program.group(1)}", _PYTHON_STEP
    elif other := _OTHER_PYTHON.search(report):
        problem = f"it has Python {other.group(1)}, and the driver has Python {other.group(2)}"
        next_step = _PYTHON_STEP
    else:
        return None
    return _executor_error(target, executor, host, problem, next_step)


def missing_modules(report: str) -> list[str]:
    """Return the modules that a report misses and this process has.

    A module that the driver lacks, too, is a mistake in the code: packing cannot bring it.
    """
    return [name for name in dict.fromkeys(_MISSING_MODULE.findall(report)) if _is_importable(name)]


def find_problem(report: ExecutorReport, driver: ArchiveNote) -> tuple[str, str] | None:
    """Return what is wrong with an executor and the next step; None if it can run tasks."""
    note = report.archive_note
    python = ".".join(report.python.split(".")[:2])
    # First: an archive for another Python or platform explains all modules that are missing.
    if note is not None and (note["python"], note["platform"]) != (python, report.platform):
        packed = f"Python {note['python']} on {note['platform']}"
        problem = f"the packed archive is for {packed}, and it has Python {python} on"
        return f"{problem} {report.platform}", "Run `batch-pipeline pack` on a machine like it"
    if report.missing_modules:
        modules = ", ".join(report.missing_modules)
        problem = f"its Python {report.python} lacks modules: {modules}"
        return problem, _pack_step(report.missing_modules)
    if report.import_error is not None:
        problem = f"cannot import what tasks need ({report.import_error})"
        return f"its Python {report.python} {problem}", _PACK_STEP
    if report.package_digest != driver.package:
        return "it has another release of batch-pipeline than the driver", _PACK_STEP
    return None


def _target(session: "SparkSession") -> str:
    return _CONNECT_TARGET if is_connect(session) else str(session.sparkContext.master)


def _pack_step(missing: Sequence[str]) -> str:
    """Return how to bring modules, which may be a user's, to the executors."""
    packages = dict.fromkeys(name.partition(".")[0] for name in missing)
    of_user = [name for name in packages if name not in _required_modules()]
    if not of_user:
        return _PACK_STEP
    options = "".join(f" --with {name}" for name in of_user)
    return (
        f"Run `batch-pipeline pack packed.tar.gz{options}` and set "
        f"BATCH_PIPELINE_SPARK_PACKED=packed.tar.gz, or install {', '.join(of_user)} for the "
        f"Python of the executors"
    )


def _probe_connect_executors(
    session: "SparkSession", modules: Sequence[str]
) -> ConfigurationError | None:
    """Return the first problem on a Connect server's executors; clients see no executor ids."""
    from pyspark.sql.functions import udf

    probe = udf(make_probe(modules), "string", useArrow=False)
    count = _CONNECT_PROBE_TASKS
    rows = session.range(0, count, 1, count).select(probe("id")).collect()
    for report, problem in _problems(text for (text,) in rows):
        return _executor_error(_CONNECT_TARGET, None, report.host, *problem)
    return None


def _probe_executors(
    session: "SparkSession", target: str, tasks: int, modules: Sequence[str] = ()
) -> ConfigurationError | None:
    """Return the first problem on the executors of a classic session."""
    group = f"{_PROBE_GROUP} {session.sparkContext.applicationId}"
    for report, problem in _problems(_run_probes(session, target, group, tasks, modules)):
        host, executor = _executor_of_task(session, group, report)
        return _executor_error(target, executor, host, *problem)
    return None


def _problems(reports: Iterable[str]) -> Iterator[tuple[ExecutorReport, tuple[str, str]]]:
    driver = ArchiveNote.of_this_process({})
    for text in reports:
        report = msgspec.json.decode(text, type=ExecutorReport)
        if problem := find_problem(report, driver):
            yield report, problem


def _run_probes(
    session: "SparkSession", target: str, group: str, tasks: int, modules: Sequence[str]
) -> list[str]:
    """Run the probe in a thread, so that waiting for executors can time out."""
    context = session.sparkContext

    def run_job() -> list[str]:
        context.setJobGroup(group, "batch-pipeline inspects the executors")
        rows = context.parallelize(range(tasks), tasks)
        reports: list[str] = rows.map(make_probe(modules)).collect()
        return reports

    with ThreadPoolExecutor(max_workers=1) as threads:
        running = threads.submit(run_job)
        try:
            return running.result(timeout=EXECUTOR_TIMEOUT_SECONDS)
        except FutureTimeoutError as error:
            reason = f"no executor came within {EXECUTOR_TIMEOUT_SECONDS} s"
            raise SparkUnavailableError(target, reason) from error
        finally:
            if not running.done():
                with suppress(*engine_errors()):
                    context.cancelJobGroup(group)


def _executor_of_task(
    session: "SparkSession", group: str, report: ExecutorReport
) -> tuple[str, str | None]:
    """Return host and id of the executor that ran a task, as Spark's own pages name them."""
    context = session.sparkContext
    with suppress(Exception):  # an error with the host that the task reported is enough
        scala_context = context._jsc.sc()  # noqa: SLF001 - there is no public way
        scala_context.listenerBus().waitUntilEmpty(_LISTENER_TIMEOUT_MILLISECONDS)
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        for stage in [stage for job in jobs if job is not None for stage in job.stageIds]:
            tasks = scala_context.statusStore().taskList(stage, 0, sys.maxsize >> 32)
            for number in range(tasks.size()):
                task = tasks.apply(number)
                if task.taskId() == report.task_id:
                    return str(task.host()), str(task.executorId())
    return report.host, None


def _executor_error(
    target: str, executor: str | None, host: str, problem: str, next_step: str
) -> ConfigurationError:
    name = "An executor" if executor is None else f"Executor {executor}"
    return ConfigurationError(
        f"{name} on {host}, of Spark at {target}, cannot run tasks: {problem}. "
        f"Nothing was published. {next_step}, then run again."
    )


def _required_modules() -> list[str]:
    """Return the modules that tasks import and the driver has."""
    return ["batch_pipeline", *filter(_is_importable, TASK_DISTRIBUTIONS.values())]


def _is_importable(module: str) -> bool:
    """Return whether this process can import a module."""
    if module in sys.modules:
        return True
    with suppress(ImportError, ValueError):  # its parent is missing, or is no package
        return importlib.util.find_spec(module) is not None
    return False


def make_probe(extra_modules: Sequence[str] = ()) -> Callable[[int], str]:
    """Return the function that returns the JSON of an `ExecutorReport` on an executor.

    It runs on executors that lack this package, so it must not refer to the package: it is a nested
    function with its own imports, which cloudpickle sends by value.
    """
    modules = list(dict.fromkeys([*_required_modules(), *extra_modules]))
    task_module, note_name, archive_folder = _TASK_MODULE, NOTE_NAME, ARCHIVE_FOLDER

    def probe(_number: int) -> str:
        import importlib
        import importlib.util
        import json
        import platform
        import socket
        import sys
        from pathlib import Path

        from pyspark import SparkFiles, TaskContext

        def is_missing(name: str) -> bool:
            try:
                return importlib.util.find_spec(name) is None
            except (ImportError, ValueError):
                return True

        archive = Path(SparkFiles.getRootDirectory(), archive_folder)
        if archive.is_dir() and str(archive) not in sys.path:
            sys.path.insert(1, str(archive))
        import_error = digest = note = None
        missing = [name for name in modules if is_missing(name)]
        if "batch_pipeline" not in missing:
            spec = importlib.util.find_spec("batch_pipeline")
            folder = Path(spec.origin or "").parents[1] if spec is not None else Path()
            note_file = folder / note_name
            note = json.loads(note_file.read_text()) if note_file.is_file() else None
        if not missing:
            try:
                importlib.import_module(task_module)
                packed_archive = importlib.import_module("batch_pipeline.spark.packed_archive")
                digest = packed_archive.package_digest()
            except ImportError as error:
                import_error = str(error)
        context = TaskContext.get()
        return json.dumps(
            {
                "task_id": -1 if context is None else context.taskAttemptId(),
                "host": socket.gethostname(),
                "python": platform.python_version(),
                "platform": f"{sys.platform}-{platform.machine()}",
                "missing_modules": missing,
                "import_error": import_error,
                "package_digest": digest,
                "archive_note": note,
            }
        )

    return probe
