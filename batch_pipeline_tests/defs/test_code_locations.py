"""A stream that is defined in two code locations of a Dagster instance."""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
)

from batch_pipeline.defs.names import register_job
from batch_pipeline.defs.sensors import LaunchCursor
from batch_pipeline.pipeline.attempt import LEASE
from batch_pipeline_tests.defs.defs_fixture import DefsHarness, empty_instance

SENSOR = "orders_new_files"
ORDERS = LaunchCursor(stream="orders").cursor()


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """An instance that stores the states of sensors."""
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as opened:
        yield opened


@pytest.fixture
def harness(harness: DefsHarness, instance: dg.DagsterInstance) -> DefsHarness:
    """The stream `orders` in that instance, which is empty."""
    instance.wipe()
    _forget_sensors(instance)
    return replace(harness, instance=instance)


def _forget_sensors(instance: dg.DagsterInstance) -> None:
    assert instance.schedule_storage
    instance.schedule_storage.wipe()


def _repository(location: str) -> RemoteRepositoryOrigin:
    server = GrpcServerCodeLocationOrigin(
        host="localhost", socket="code.sock", location_name=location
    )
    return RemoteRepositoryOrigin(server, "__repository__")


def _tick_elsewhere(
    harness: DefsHarness,
    location: str = "etl",
    *,
    sensor: str = SENSOR,
    cursor: str | None = ORDERS,
    seconds_ago: float = 5,
    status: InstigatorStatus = InstigatorStatus.DECLARED_IN_CODE,
) -> None:
    """Store the state that the daemon stores for a tick of another code location."""
    harness.instance.add_instigator_state(
        InstigatorState(
            RemoteInstigatorOrigin(_repository(location), sensor),
            InstigatorType.SENSOR,
            status,
            SensorInstigatorData(
                cursor=cursor, last_tick_start_timestamp=time.time() - seconds_ago
            ),
        )
    )


def _tick(
    harness: DefsHarness,
    *,
    cursor: str | None = None,
    sensor: str = SENSOR,
    location: str = "copy",
    handler: logging.Handler | None = None,
) -> dg.SensorResult | str:
    """Evaluate a sensor of a code location; return its result or its skip message."""

    def prepare(context: dg.SensorEvaluationContext) -> None:
        context._code_location_origin = _repository(location).code_location_origin
        if handler is not None:
            context.log.addHandler(handler)

    result = harness.evaluate(sensor, cursor, prepare)
    return result if isinstance(result, dg.SensorResult) else str(result.skip_message)


def test_second_location_rejects_a_stream_of_the_first(harness: DefsHarness) -> None:
    _tick_elsewhere(harness)
    for sensor in (SENSOR, "orders_backfill"):
        reason = _tick(harness, sensor=sensor)
        assert isinstance(reason, str)
        for part in ("'orders'", "'etl'", "'copy'", "Remove the stream from one of the two"):
            assert part in reason
    assert harness.instance.get_dynamic_partitions("orders.batches") == []


def test_location_continues_if_no_other_launches_the_stream(harness: DefsHarness) -> None:
    states: list[dict[str, Any]] = [
        {"location": "copy"},  # the location itself, before a restart
        {"seconds_ago": 150},  # the location was renamed or removed
        {"status": InstigatorStatus.STOPPED},
        {"cursor": LaunchCursor(stream="clicks").cursor()},
        {"cursor": "not our JSON"},
        {"cursor": None},  # it was rejected
        {"sensor": "other_sensor"},
        {"sensor": "orders_to_crm"},  # a user's sensor with a cursor like ours
    ]
    for state in states:
        _tick_elsewhere(harness, **state)
        result = _tick(harness)
        assert isinstance(result, dg.SensorResult), state
        assert LaunchCursor.of_cursor(result.cursor).stream == "orders"
        _forget_sensors(harness.instance)


def test_locations_started_together_are_ordered_by_name(harness: DefsHarness) -> None:
    for location in ("copy", "etl"):
        _tick_elsewhere(harness, location)
    assert isinstance(_tick(harness, location="copy"), dg.SensorResult)
    assert "'copy' and 'etl'" in str(_tick(harness, location="etl"))


def test_new_second_location_is_detected_within_a_minute(harness: DefsHarness) -> None:
    first = _tick(harness)
    assert isinstance(first, dg.SensorResult)
    _tick_elsewhere(harness)
    late = LaunchCursor(stream="orders", looked_at=time.time() - 61)
    assert "'etl'" in str(_tick(harness, cursor=late.cursor()))


def test_run_in_the_second_location_fails_without_registering(harness: DefsHarness) -> None:
    _tick_elsewhere(harness)
    name = register_job(harness.stream)
    job = harness.definitions.resolve_job_def(name)
    for location, is_rejected in (("copy", True), ("etl", False)):
        run = harness.instance.create_run_for_job(
            job_def=job, remote_job_origin=RemoteJobOrigin(_repository(location), name)
        )
        execute_run(InMemoryJob(job), run, harness.instance)
        assert harness.reload_run(run).is_success is not is_rejected
        failures = harness.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        messages = ["'etl' and 'copy'" in str(failure.dagster_event) for failure in failures]
        assert messages == [True] * is_rejected
        assert bool(harness.instance.get_dynamic_partitions("orders.batches")) is not is_rejected


def test_runs_of_another_dagster_instance_are_warned_of(
    harness: DefsHarness, caplog: pytest.LogCaptureFixture
) -> None:
    job = harness.definitions.resolve_job_def("orders_encode")
    first, second, *_ = harness.database.batches.statuses("orders")
    known = harness.instance.create_run_for_job(job_def=job).run_id
    foreign = empty_instance().create_run_for_job(job_def=job).run_id
    for status, run_id in ((first, known), (second, foreign)):
        assert caplog.messages == []
        with harness.database.attempts.claim(status.batch, run_id=run_id, lease=LEASE):
            assert isinstance(_tick(harness, handler=caplog.handler), dg.SensorResult)
    [message] = caplog.messages
    assert message.startswith(
        f"Another Dagster instance encodes the stream 'orders' in the same inventory: its run "
        f"{foreign} is not in this one."
    )
