"""Dagster runs in this process, for commands: quiet, and with our errors instead of Dagster's."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from batch_pipeline.defs.instance.home import open_instance
from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.settings.pipeline import Pipeline
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
def alone(pipeline: Pipeline, command: str) -> Iterator[dg.DagsterInstance]:
    """Hold the home's lock, and give its Dagster; a Spark session ends with the block.

    Raises:
        HomeInUseError: another command works on the home.
    """
    with pipeline.home.lock(command):
        pipeline.database  # noqa: B018 - opened before Dagster makes its own tables beside it
        with open_instance(pipeline.home) as instance:
            try:
                yield instance
            finally:
                close_session()
