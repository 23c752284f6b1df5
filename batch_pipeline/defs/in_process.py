"""Dagster runs in this process, for commands: quiet, and with our errors instead of Dagster's."""

import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.instance.home import open_instance
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.spark.sessions.session import close_session

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def run_in_process(
    job: dg.JobDefinition, instance: dg.DagsterInstance, *, tags: dict[str, str]
) -> dg.ExecuteInProcessResult | None:
    """Run a job; batches that failed are in the inventory, anything else is raised.

    Raises:
        KeyboardInterrupt: the operator interrupted the run.
    """
    try:
        return job.execute_in_process(instance=instance, tags=tags, run_config=_QUIET)
    except dg.Failure as failure:
        if isinstance(failure.__cause__, PipelineError):
            raise failure.__cause__ from None
        return None
    except dg.DagsterExecutionInterruptedError:
        raise KeyboardInterrupt from None


@contextmanager
def quiet_dagster() -> Iterator[None]:
    """Keep Dagster's notes on beta parameters away from people who run a command."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        yield


@contextmanager
def beside_others(pipeline: Pipeline) -> Iterator[dg.DagsterInstance]:
    """Open the home's Dagster to look at it, whoever works on the home."""
    pipeline.database  # noqa: B018 - opened before Dagster makes its own tables beside it
    with open_instance(pipeline.home) as instance:
        yield instance


@contextmanager
def alone(pipeline: Pipeline, command: str) -> Iterator[dg.DagsterInstance]:
    """Hold the home's lock, and give its Dagster; a Spark session ends with the block.

    Raises:
        RetryableError: another command works on the home.
    """
    with pipeline.home.lock(command), beside_others(pipeline) as instance:
        _keep_interrupts_from_log_processes(instance)
        try:
            yield instance
        finally:
            close_session()


def _keep_interrupts_from_log_processes(instance: dg.DagsterInstance) -> None:
    """Let Ctrl-C interrupt this process, but not those that copy the output of its steps.

    Dagster starts them in the terminal's process group and ends them with the step. Interrupted
    before, they print tracebacks of their own.
    """
    manager = instance.compute_log_manager
    manager.capture_logs = partial(_captured, manager.capture_logs)  # type: ignore[method-assign]


@contextmanager
def _captured(
    capture: Callable[[Sequence[str]], AbstractContextManager[Any]], log_key: Sequence[str]
) -> Iterator[Any]:
    with ExitStack() as stack:
        with _interrupts_held_back():
            context = stack.enter_context(capture(log_key))
        yield context


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold interrupts back until the block ends; processes started in it never get any."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
