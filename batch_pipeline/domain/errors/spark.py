"""What Spark needs to run tasks at all: Java, a session, executors that are fit.

What a task finds in its files is in `encode`.
"""

from dataclasses import dataclass

from batch_pipeline.domain.errors.base import ConfigurationError, ConflictError, RetryableError


@dataclass(eq=False)
class JavaMissingError(ConfigurationError):
    """No Java runtime of version 17 or later can be used."""

    tried: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"No Java 17 or later found (tried {', '.join(self.tried)}). No batch was started. "
            f"Reinstall the package so that its bundled runtime is complete, or set JAVA_HOME."
        )


@dataclass(eq=False)
class SparkUnavailableError(RetryableError):
    """No Spark session could be had."""

    target: str
    reason: str

    def sentence(self) -> str:
        return (
            f"Spark at {self.target} cannot be used ({self.reason}). No file was written. Check "
            f"BATCH_PIPELINE_SPARK_REMOTE or BATCH_PIPELINE_SPARK_MASTER and the server's log, "
            f"then run again."
        )


@dataclass(eq=False)
class SparkSessionOpenError(ConflictError):
    """A process that has a Spark session was asked for a different one."""

    open_target: str
    asked_target: str

    def sentence(self) -> str:
        return (
            f"A Spark session with other settings is open in this process ({self.open_target}), so "
            f"none was opened on {self.asked_target}. The open one was left alone. Close it first "
            f"(`close_session()`), or use a process of its own."
        )


@dataclass(eq=False)
class TasksLostError(SparkUnavailableError):
    """Processes that ran tasks ended under them, maybe of what they read."""

    def sentence(self) -> str:
        return (
            f"Processes that ran tasks at {self.target} ended under them ({self.reason}). Nothing "
            f"was published. It is tried again until the batch has had all its attempts. If they "
            f"ended for want of memory, give them more (`spark.executor.memory`, "
            f"`spark.executor.memoryOverhead`) or let them have less to read (`batch.max_weight`)."
        )


@dataclass(eq=False)
class ExecutorUnfitError(ConfigurationError):
    """An executor of the cluster cannot run tasks; `step` is what mends it.

    `executor` is Spark's id of it, where that is known.
    """

    target: str
    executor: str | None
    host: str
    problem: str
    step: str

    def sentence(self) -> str:
        executor = "An executor" if self.executor is None else f"Executor {self.executor}"
        return (
            f"{executor} on {self.host}, of Spark at {self.target}, cannot run tasks: "
            f"{self.problem}. Nothing was published. {self.step}, then run again."
        )


@dataclass(eq=False)
class PackedUnusableError(ConfigurationError):
    """An archive of what executors need cannot be made or used."""

    archive: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The packed archive {self.archive} cannot be made or used: {self.reason}. Nothing was "
            f"started. Run `batch-pipeline pack {self.archive}` with the Python that runs "
            f"batch-pipeline, and name the file by BATCH_PIPELINE_SPARK_PACKED."
        )
