"""What pyspark raises when its engine fails, and the one line of it that says what happened."""

import re
from importlib import import_module


def engine_errors() -> tuple[type[Exception], ...]:
    """Give what pyspark raises when its engine fails or is gone."""
    from pyspark.errors import PySparkException

    gateway_error: type[Exception] = import_module("py4j.protocol").Py4JError
    return PySparkException, gateway_error, OSError, AttributeError  # the last: it was stopped


def is_engine_gone(error: Exception) -> bool:
    """Tell an engine that is gone from a plan that it cannot run."""
    from pyspark.errors import PySparkException
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    gone = {SparkConnectGrpcException, *SparkConnectGrpcException.__bases__}
    py4j = import_module("py4j.protocol")
    if isinstance(error, py4j.Py4JError):
        is_answered = isinstance(error, py4j.Py4JJavaError) or ". Trace:\n" in str(error)
        return not is_answered
    if isinstance(error, PySparkException):
        return type(error) in gone
    return isinstance(error, (OSError, AttributeError))


def reason_of(error: Exception) -> str:
    """Find the one line of an engine's report, stack traces included, that says what happened."""
    text = str(error).strip()
    raised = re.findall(r"^[: ]*((?:\w+\.)*\w*(?:Error|Exception): .+?)\.?$", text, re.MULTILINE)
    return raised[-1] if raised else text.partition("\n")[0] or type(error).__name__
