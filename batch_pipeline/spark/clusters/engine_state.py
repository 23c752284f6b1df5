"""Asks the JVM of a session whether its context can still run tasks, and ends one that cannot."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from batch_pipeline.spark.engine_errors import engine_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GONE_SECONDS = 60.0
_LOOK_SECONDS = 5.0


def is_connect(session: "SparkSession") -> bool:
    """Tell a Connect client's session, which has no context of its own, from a classic one."""
    return ".connect." in type(session).__module__


def is_stopped(session: "SparkSession") -> bool:
    """Tell whether the context of a classic session has ended, here or by itself in the JVM.

    The JVM goes on without it where a cluster's master has removed the application.
    """
    context = getattr(session.sparkContext, "_jsc", None)
    try:
        return context is None or bool(context.sc().isStopped())
    except engine_errors():
        return True


def has_executors(session: "SparkSession") -> bool:
    """Tell whether a classic session on a cluster has an executor, or gets one as it needs it.

    A master that was started again without its memory does not know the application any more. It
    neither says so nor gives executors, and the context waits for them for ever.
    """
    try:
        if session.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
            return True
        return _executors(session) > 0
    except engine_errors():
        return False


def end_context(session: "SparkSession") -> None:
    """End the context of a classic session, and with it all its jobs, as its cluster may do."""
    with suppress(*engine_errors()):
        session.sparkContext._jsc.sc().stop()  # noqa: SLF001 - the session itself stays open


class Executors:
    """Those of a classic session while a job runs there.

    A job whose executors a new master has ended would wait for them for ever.
    """

    def __init__(self, session: "SparkSession", now: Callable[[], float] = time.monotonic) -> None:
        self._session = None if is_connect(session) else session
        self._now = now
        self._seen_at: float | None = None
        self._looked_at = now()

    def are_gone(self) -> bool:
        """Tell whether there were some, and for a minute have been none. Asks every five seconds.

        False for a session of the driver alone, and before the first one has come.
        """
        now = self._now()
        if self._session is None or now - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = now
        try:
            is_there = _executors(self._session) > 0
        except engine_errors():
            return False  # the job ends by it, too
        if is_there:
            self._seen_at = now
        return self._seen_at is not None and now - self._seen_at > GONE_SECONDS


def _executors(session: "SparkSession") -> int:
    context = session.sparkContext._jsc.sc()  # noqa: SLF001 - there is no public way
    return int(context.getExecutorMemoryStatus().size()) - 1  # one is the driver
