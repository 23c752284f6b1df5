"""Asks the JVM of a session whether its context can still run tasks. Nothing is changed there."""

from typing import TYPE_CHECKING

from batch_pipeline.spark.engine_errors import engine_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        context = session.sparkContext._jsc.sc()  # noqa: SLF001 - there is no public way
        return int(context.getExecutorMemoryStatus().size()) > 1  # one is the driver
    except engine_errors():
        return False
