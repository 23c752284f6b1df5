"""State of the Spark engine behind a session, and the errors that pyspark raises when it fails.

A session is either classic (its driver JVM belongs to this process) or a Spark Connect client's.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def engine_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that pyspark raises when its engine fails or is gone."""
    from pyspark.errors import PySparkException

    gateway_error: type[Exception] = import_module("py4j.protocol").Py4JError
    # AttributeError: pyspark sets the attributes of a stopped session to None and then uses them.
    return PySparkException, gateway_error, OSError, AttributeError


def is_engine_gone(error: Exception) -> bool:
    """Return whether an error means that the engine is gone, not that it rejected a plan."""
    from pyspark.errors import PySparkException
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    py4j = import_module("py4j.protocol")
    if isinstance(error, py4j.Py4JError):
        # With a Java exception or a trace the JVM answered, so it is there.
        has_answer = isinstance(error, py4j.Py4JJavaError) or ". Trace:\n" in str(error)
        return not has_answer
    if isinstance(error, PySparkException):
        # Their subclasses stand for answers of the server; these classes themselves for none.
        return type(error) in {SparkConnectGrpcException, *SparkConnectGrpcException.__bases__}
    return isinstance(error, (OSError, AttributeError))


def failure_reason(error: Exception) -> str:
    """Return the line of an engine's report that names the cause; reports have stack traces."""
    text = str(error).strip()
    causes = re.findall(r"^[: ]*((?:\w+\.)*\w*(?:Error|Exception): .+?)\.?$", text, re.MULTILINE)
    return causes[-1] if causes else text.partition("\n")[0] or type(error).__name__


def is_connect(session: "SparkSession") -> bool:
    """Return whether a session is a Spark Connect client's, which has no Spark context."""
    return ".connect." in type(session).__module__


def is_stopped(session: "SparkSession") -> bool:
    """Return whether the context of a classic session has ended, by this process or in the JVM.

    The JVM goes on without a context when the cluster's master removed the application.
    """
    context = getattr(session.sparkContext, "_jsc", None)
    try:
        return context is None or bool(context.sc().isStopped())
    except engine_errors():
        return True


def has_executors(session: "SparkSession") -> bool:
    """Return whether a classic session on a cluster has an executor or can request one.

    A standalone master that was restarted without recovery no longer knows the application. It
    neither reports that nor starts executors, and the context would wait for them forever.
    """
    try:
        if session.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
            return True
        return _count_executors(session) > 0
    except engine_errors():
        return False


def stop_context(session: "SparkSession") -> None:
    """Stop the context of a classic session, and with it all of its jobs."""
    with suppress(*engine_errors()):
        session.sparkContext._jsc.sc().stop()  # noqa: SLF001 - the session itself stays open


EXECUTOR_LOSS_SECONDS = 60.0
_POLL_SECONDS = 5.0


class ExecutorWatch:
    """A watch on the executors of a classic session while a job runs there.

    Without it a job would wait forever for executors that a restarted master does not replace.
    """

    def __init__(self, session: "SparkSession", now: Callable[[], float] = time.monotonic) -> None:
        self._session = None if is_connect(session) else session
        self._now = now
        self._seen_at: float | None = None
        self._polled_at = now()

    def is_lost(self) -> bool:
        """Return whether there were executors and none has existed for a minute.

        Queries Spark every five seconds at most. False before the first executor has started, and
        for a session whose driver runs the tasks.
        """
        now = self._now()
        if self._session is None or now - self._polled_at < _POLL_SECONDS:
            return False
        self._polled_at = now
        try:
            has_any = _count_executors(self._session) > 0
        except engine_errors():
            return False  # the same error ends the job
        if has_any:
            self._seen_at = now
        return self._seen_at is not None and now - self._seen_at > EXECUTOR_LOSS_SECONDS


def _count_executors(session: "SparkSession") -> int:
    context = session.sparkContext._jsc.sc()  # noqa: SLF001 - there is no public way
    return int(context.getExecutorMemoryStatus().size()) - 1  # the driver is in it, too
