"""State of a Spark engine, and why it or its executors cannot run tasks.

An engine is a Spark context, whose driver JVM belongs to this process, a session on such a context,
or the session of a Spark Connect client. When a context is opened on a cluster, a small job probes
its executors; later failures are diagnosed from Spark's report, and by another probe if it names a
missing module. Errors name the executor's host, the cause and the next step.
"""

import importlib
import importlib.util
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
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
from batch_pipeline.spark.driver import runs_in_driver
from batch_pipeline.spark.executor_archive import (
    ARCHIVE_FOLDER,
    TASK_DISTRIBUTIONS,
    package_digest,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkEngine = SparkContext | SparkSession

EXECUTOR_TIMEOUT_SECONDS = 600
EXECUTOR_LOSS_SECONDS = 60.0
_POLL_SECONDS = 5.0
_TASK_MODULE = "batch_pipeline.spark.transform_tasks"
_CONNECT_PROBE_TASKS = 16
_CONNECT_TARGET = "the Connect server"

_LOST_TASK = re.compile(
    r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor (?!driver\))\S+?\)"
)
_MISSING_MODULE = re.compile(
    r"(?:ModuleNotFoundError:|\bError while finding module[^\n]*?) No module named '?([\w.]+)"
)
# Spark's messages about processes that exited because of their tasks; those about processes that
# the cluster took away differ.
_EXITED_IN_TASK = re.compile(
    r"ExecutorLostFailure \(executor \S+ exited caused by one of the running tasks\)"
    r"|Python worker exited unexpectedly"
)
_TAKEN_AWAY = re.compile(
    r"ExecutorLostFailure \(executor |SparkContext was shut down|stopped SparkContext"
    r"|Master removed our application|All masters are unresponsive"
    r"|MetadataFetchFailedException|FetchFailedException"
    r"|INVALID_HANDLE\."  # a Connect server was restarted
)
_MISSING_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON = re.compile(r"different version: (\S+) than that in driver:? (\d+\.\d+)")
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_PYTHON_STEP = f"Set PYSPARK_PYTHON to a Python {_PYTHON} that is installed there"


def engine_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that pyspark raises when its engine fails or is gone."""
    from pyspark.errors import PySparkException

    gateway_error: type[Exception] = importlib.import_module("py4j.protocol").Py4JError
    # pyspark uses attributes of a stopped session that it has set to None, and closes a socket that
    # it could not open.
    return PySparkException, gateway_error, OSError, AttributeError, UnboundLocalError


def is_engine_gone(error: Exception) -> bool:
    """Return whether an error means that the engine is gone, not that it rejected a plan."""
    from pyspark.errors import PySparkException
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    py4j = importlib.import_module("py4j.protocol")
    if isinstance(error, py4j.Py4JError):
        # A Java exception or a trace means that the JVM answered, so it is running.
        has_answer = isinstance(error, py4j.Py4JJavaError) or ". Trace:\n" in str(error)
        return not has_answer
    if isinstance(error, PySparkException):
        # Their subclasses represent responses of the server; these classes themselves do not.
        return type(error) in {SparkConnectGrpcException, *SparkConnectGrpcException.__bases__}
    return isinstance(error, (OSError, AttributeError, UnboundLocalError))


def failure_reason(error: Exception) -> str:
    """Return the line of an engine's report that names the cause; reports have stack traces."""
    text = _text_of(error).strip()
    causes = re.findall(r"^[: ]*((?:\w+\.)*\w*(?:Error|Exception): .+?)\.?$", text, re.MULTILINE)
    return causes[-1] if causes else text.partition("\n")[0] or type(error).__name__


def _text_of(error: Exception) -> str:
    """Return the text of an error, or less of it if the JVM that has the rest is gone."""
    try:
        return str(error)
    except engine_errors():
        return str(getattr(error, "errmsg", type(error).__name__))


def context_of(engine: "SparkEngine") -> "SparkContext | None":
    """Return the context of an engine; None for a Connect client's session, which has none."""
    from pyspark import SparkContext

    if isinstance(engine, SparkContext):
        return engine
    return None if ".connect." in type(engine).__module__ else engine.sparkContext


def is_stopped(context: "SparkContext") -> bool:
    """Return whether a context has ended, by this process or in the JVM.

    The JVM keeps running without a context when the cluster's master removed the application.
    """
    java_context = getattr(context, "_jsc", None)
    try:
        return java_context is None or bool(java_context.sc().isStopped())
    except engine_errors():
        return True


def has_executors(context: "SparkContext") -> bool:
    """Return whether a context on a cluster has an executor or can request one.

    A standalone master that was restarted without recovery no longer knows the application. It
    neither reports that nor starts executors, and the context would wait for them forever.
    """
    try:
        if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
            return True
        return _count_executors(context) > 0
    except engine_errors():
        return False


def stop_context(context: "SparkContext") -> None:
    """Stop a context in the JVM, and with it all of its jobs."""
    with suppress(*engine_errors()):
        context._jsc.sc().stop()  # noqa: SLF001 - Python's object itself stays open


class ExecutorWatch:
    """A watch on the executors of a context while a job runs there.

    Without it a job would wait forever for executors that a restarted master does not replace.
    Has no effect for the session of a Connect client.
    """

    def __init__(self, engine: "SparkEngine") -> None:
        self._context = context_of(engine)
        self._seen_at: float | None = None
        self._polled_at = time.monotonic()

    def check(self) -> None:
        """Stop the context and raise an error if its executors have been gone for a minute.

        Queries Spark at most every five seconds. Does nothing before the first executor has
        started, and for a context whose driver runs the tasks.

        Raises:
            SparkUnavailableError: there were executors, and none has existed for a minute.
        """
        now = time.monotonic()
        if self._context is None or now - self._polled_at < _POLL_SECONDS:
            return
        self._polled_at = now
        try:
            has_any = _count_executors(self._context) > 0
        except engine_errors():
            return  # the same error ends the job
        if has_any:
            self._seen_at = now
        elif self._seen_at is not None and now - self._seen_at > EXECUTOR_LOSS_SECONDS:
            stop_context(self._context)  # nothing else ends a job that waits for executors
            reason = "its executors have ended, and the cluster started no others"
            raise SparkUnavailableError(target_of(self._context), reason)


def _count_executors(context: "SparkContext") -> int:
    java_context = context._jsc.sc()  # noqa: SLF001 - there is no public API
    return int(java_context.getExecutorMemoryStatus().size()) - 1  # the driver is included


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorReport:
    """The facts that a probe collected on its executor.

    `import_error` is why installed modules cannot be imported. `package_digest` is None when the
    package was not imported.
    """

    host: str
    python: str
    missing_modules: tuple[str, ...]
    import_error: str | None
    package_digest: str | None


def check_executors(context: "SparkContext") -> None:
    """Check the executors of a context, until no more of them register.

    Waits up to ten minutes for the first executor.

    Raises:
        ConfigurationError: an executor cannot run tasks; the error names the first.
        SparkUnavailableError: there is no executor, or the engine is gone.
    """
    probed_cores = 0
    # One task per core reaches each executor; executors that register later need another round.
    while probed_cores < context.defaultParallelism:
        probed_cores = context.defaultParallelism
        try:
            error = _probe_executors(context)
        except engine_errors() as engine_error:
            raise diagnose_engine_error(context, engine_error) from engine_error
        if error is not None:
            raise error


def diagnose_engine_error(engine: "SparkEngine", error: Exception) -> PipelineError:
    """Return the error that explains an engine's failure.

    It never contains the address of a Connect server, which includes a token.
    """
    report = _text_of(error)
    known = _diagnose_report(engine, report)
    return known or process_loss_error(target_of(engine), report, failure_reason(error))


def diagnose_job_error(engine: "SparkEngine", error: Exception) -> PipelineError | None:
    """Return the error that explains a failed job; None if the code or data that it ran failed."""
    report = _text_of(error)
    context = context_of(engine)
    is_gone = is_engine_gone(error) or (context is not None and is_stopped(context))
    if is_gone or is_process_loss(report):
        return diagnose_engine_error(engine, error)
    return _diagnose_report(engine, report)


def is_process_loss(report: str) -> bool:
    """Return whether Spark reports a lost executor, worker or context, not a failed task."""
    return bool(_EXITED_IN_TASK.search(report) or _TAKEN_AWAY.search(report))


def process_loss_error(target: str, report: str, reason: str) -> SparkUnavailableError:
    """Build the error of lost processes: `TasksLostError` if the tasks may have ended them."""
    kind = TasksLostError if _EXITED_IN_TASK.search(report) else SparkUnavailableError
    return kind(target, reason)


def _diagnose_report(engine: "SparkEngine", report: str) -> ConfigurationError | None:
    """Return what an executor lacks, according to Spark's report; None for other failures.

    Reports of DataFrame jobs do not name the executor, so the executors are probed in that case.
    """
    target = target_of(engine)
    if error := diagnose_executor(target, report):
        return error
    modules = missing_modules(report)
    if modules and not runs_in_driver(target):
        with suppress(*engine_errors(), SparkUnavailableError):  # they cannot be probed now
            return _probe_executors(engine, modules)
    return None


def diagnose_executor(target: str, report: str) -> ConfigurationError | None:
    """Return what the executor that a report names lacks; None for other failures."""
    lost_task = _LOST_TASK.search(report)
    if lost_task is None:
        return None
    if missing := missing_modules(report):
        problem, next_step = f"its Python lacks modules: {missing[0]}", _pack_step(missing[:1])
    elif program := _MISSING_PROGRAM.search(report):
        problem, next_step = f"it has no {program.group(1)}", _PYTHON_STEP
    elif other := _OTHER_PYTHON.search(report):
        problem = f"it has Python {other.group(1)}, and the driver has Python {other.group(2)}"
        next_step = _PYTHON_STEP
    else:
        return None
    return _executor_error(target, lost_task.group(1), problem, next_step)


def missing_modules(report: str) -> list[str]:
    """Return the modules that a report names as missing and this process has.

    A module that the driver lacks, too, is a mistake in the code: packing cannot provide it.
    """
    return [name for name in dict.fromkeys(_MISSING_MODULE.findall(report)) if _is_importable(name)]


def find_problem(report: ExecutorReport, digest: str) -> tuple[str, str] | None:
    """Return what is wrong with an executor and the next step; None if it can run tasks.

    `digest` is that of the driver's package.
    """
    python = f"its Python {report.python}"
    if report.missing_modules:
        modules = ", ".join(report.missing_modules)
        return f"{python} lacks modules: {modules}", _pack_step(report.missing_modules)
    if report.import_error is not None:
        problem = f"{python} cannot import what tasks need ({report.import_error})"
        return problem, f"{_pack_step()} (an archive works only on the platform that built it)"
    if report.package_digest != digest:
        return "it has another release of batch-pipeline than the driver", _pack_step()
    return None


def target_of(engine: "SparkEngine") -> str:
    """Return the master of an engine, or a name for a Connect server, without its address."""
    context = context_of(engine)
    return _CONNECT_TARGET if context is None else str(context.master)


def _pack_step(missing: Iterable[str] = ()) -> str:
    """Return how to provide executors with modules, which may be a user's."""
    packages = dict.fromkeys(name.partition(".")[0] for name in missing)
    of_user = [name for name in packages if name not in _required_modules()]
    options = "".join(f" --with {name}" for name in of_user)
    installed = ", ".join(of_user) or "this release"
    return (
        f"Run `batch-pipeline pack packed.tar.gz{options}` and set "
        f"BATCH_PIPELINE_SPARK_PACKED=packed.tar.gz, or install {installed} for the Python of the "
        f"executors"
    )


def _probe_executors(
    engine: "SparkEngine", modules: Sequence[str] = ()
) -> ConfigurationError | None:
    """Return the first problem on the executors of an engine.

    Raises:
        SparkUnavailableError: no executor registered within ten minutes.
    """
    probe = make_probe(modules)
    context = context_of(engine)
    texts = _run_probes_on_server(engine, probe) if context is None else _run_probes(context, probe)
    digest = package_digest()
    for text in texts:
        report = msgspec.json.decode(text, type=ExecutorReport)
        if problem := find_problem(report, digest):
            return _executor_error(target_of(engine), report.host, *problem)
    return None


def _run_probes_on_server(session: Any, probe: Callable[[int], str]) -> list[str]:
    from pyspark.sql.functions import udf

    count = _CONNECT_PROBE_TASKS  # a client does not know how many cores there are
    function = udf(probe, "string", useArrow=False)
    rows = session.range(0, count, 1, count).select(function("id")).collect()
    return [text for (text,) in rows]


def _run_probes(context: "SparkContext", probe: Callable[[int], str]) -> list[str]:
    """Run a probe for each core, in a thread, so that waiting for executors can time out."""
    running: Future[list[str]] = Future()

    def run_job() -> None:
        try:
            tasks = context.defaultParallelism
            running.set_result(context.parallelize(range(tasks), tasks).map(probe).collect())
        except Exception as error:  # noqa: BLE001 - raised below
            running.set_exception(error)

    threading.Thread(target=run_job, daemon=True).start()
    try:
        return running.result(timeout=EXECUTOR_TIMEOUT_SECONDS)
    except FutureTimeoutError as error:
        stop_context(context)  # otherwise the job would keep waiting
        reason = f"no executor registered within {EXECUTOR_TIMEOUT_SECONDS} s"
        raise SparkUnavailableError(target_of(context), reason) from error


def _executor_error(target: str, host: str, problem: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(
        f"The executor on {host}, of Spark at {target}, cannot run tasks: {problem}. "
        f"Nothing was published. {next_step}, then run again."
    )


def _required_modules() -> list[str]:
    """Return the modules that tasks import and the driver has."""
    return ["batch_pipeline", *filter(_is_importable, TASK_DISTRIBUTIONS.values())]


def _is_importable(module: str) -> bool:
    """Return whether this process can import a module."""
    if module in sys.modules:
        return True
    with suppress(ImportError, ValueError):  # its parent is missing, or is not a package
        return importlib.util.find_spec(module) is not None
    return False


def make_probe(extra_modules: Sequence[str] = ()) -> Callable[[int], str]:
    """Return the function that returns the JSON of an `ExecutorReport` on an executor.

    It runs on executors that lack this package, so it must not refer to the package: it is a nested
    function with its own imports, which cloudpickle sends by value.
    """
    modules = list(dict.fromkeys([*_required_modules(), *extra_modules]))
    task_module, archive_folder = _TASK_MODULE, ARCHIVE_FOLDER

    def probe(_number: int) -> str:
        import importlib.util
        import json
        import platform
        import socket
        import sys
        from pathlib import Path

        from pyspark import SparkFiles

        def is_missing(name: str) -> bool:
            try:
                return importlib.util.find_spec(name) is None
            except (ImportError, ValueError):
                return True

        archive = Path(SparkFiles.getRootDirectory(), archive_folder)
        if archive.is_dir() and str(archive) not in sys.path:
            sys.path.insert(1, str(archive))
        import_error = digest = None
        missing = [name for name in modules if is_missing(name)]
        if not missing:
            try:
                importlib.import_module(task_module)
                packed_archive = importlib.import_module("batch_pipeline.spark.executor_archive")
                digest = packed_archive.package_digest()
            except ImportError as error:
                import_error = str(error)
        return json.dumps(
            {
                "host": socket.gethostname(),
                "python": platform.python_version(),
                "missing_modules": missing,
                "import_error": import_error,
                "package_digest": digest,
            }
        )

    return probe
