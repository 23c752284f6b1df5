"""Streams with a schedule: the schedule registers new files, the sensor launches batches."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.names import PRIORITY_TAG
from batch_pipeline.defs.runs import priority
from batch_pipeline.model.batch import AttemptStatus, BatchState
from batch_pipeline.model.location import to_path
from batch_pipeline.model.stream import Automation, DagsterRules, Source
from batch_pipeline_tests.defs.defs_fixture import KEYS, DefsHarness, empty_instance, ranges
from batch_pipeline_tests.factories import stream
from batch_pipeline_tests.seeds import fail, query

SIX = datetime(2026, 3, 2, 6, tzinfo=UTC)


@pytest.fixture
def harness(harness: DefsHarness) -> DefsHarness:
    """The stream `orders` with four planned batches, scheduled at six o'clock in Berlin.

    A last batch of less than 100 bytes is only planned after an hour.
    """
    rules = replace(harness.stream.dagster, schedule="0 6 * * mon-fri", timezone="Europe/Berlin")
    limits = replace(harness.stream.limits, min_weight=100)
    stream = replace(harness.stream, dagster=rules, limits=limits)
    definitions = build_definitions([stream], automation=Automation.RUNNING)
    return replace(harness, stream=stream, definitions=definitions)


def test_sensor_launches_due_batches_and_registers_no_files(harness: DefsHarness) -> None:
    """Planned and interrupted batches are due, failed ones are not."""
    land(harness, "orders-1.csv")
    first, second, third, _ = harness.database.batches.statuses("orders")
    for status, outcome in (
        (first, AttemptStatus.ABANDONED),
        (second, AttemptStatus.FAILED),
        (third, AttemptStatus.ABANDONED),
    ):
        fail(harness.database, status.batch, status=outcome)
    requests = harness.tick("orders_planned").run_requests
    assert [last for _, last in ranges(requests)] == [KEYS[0], KEYS[3]]
    assert len(items(harness)) == 12


def test_schedule_plans_a_last_batch_below_min_weight(harness: DefsHarness) -> None:
    land(harness, "orders-1.csv")
    sensors = harness.definitions.get_repository_def().sensor_defs
    assert "orders_new_files" not in {sensor.name for sensor in sensors}
    schedule = harness.definitions.resolve_schedule_def("orders_new_files_at")
    assert schedule.cron_schedule == "0 6 * * mon-fri"
    assert schedule.execution_timezone == "Europe/Berlin"
    with dg.build_schedule_context(harness.instance, SIX) as context:
        [request] = schedule.evaluate_tick(context).run_requests or []
    job = harness.definitions.resolve_job_def(schedule.job_name)
    result = job.execute_in_process(instance=harness.instance, tags=request.tags)
    assert result.success
    assert len(items(harness)) == 13
    last = harness.database.batches.statuses("orders")[-1]
    assert (last.batch.key, last.state) == ("00000013-00000013", BatchState.PLANNED)
    assert ranges(harness.tick("orders_planned").run_requests)[-1][1] == "00000013-00000013"


def land(harness: DefsHarness, name: str) -> None:
    """Write a small file into the landing."""
    assert isinstance(harness.stream.source, Source)
    path = Path(to_path(harness.stream.source.uri)) / name
    path.write_text("order_id\n1\n")


def items(harness: DefsHarness) -> list[int]:
    """Return the ids of all items."""
    return [number for (number,) in query(harness.database, "SELECT id FROM batch_pipeline.item")]


def test_waiting_run_is_overtaken_for_half_a_minute_only() -> None:
    second = priority(1_000, ahead=1)
    assert priority(1_029) > second > priority(1_031)
    assert priority(1_031) > 0 > priority(1_000, is_backfill=True)


def test_scheduled_run_has_the_priority_of_its_time() -> None:
    """Otherwise, scheduled runs would wait as long as new files arrive."""
    hourly = DagsterRules(schedule="0 * * * *")
    definitions = build_definitions([stream(name="a", dagster=hourly)])
    schedules = definitions.get_repository_def().schedule_defs
    priorities = {schedule.name: _priority(schedule) for schedule in schedules}
    before, after = (SIX + timedelta(seconds=seconds) for seconds in (-1, 1))
    maintenance = ("reconcile_hourly", "collect_garbage_daily", "check_streams_hourly")
    names = {"a_new_files_at", *(f"batch_pipeline_{name}" for name in maintenance)}
    assert names < priorities.keys()
    earlier, later = priority(before.timestamp()), priority(after.timestamp())
    assert [name for name, value in priorities.items() if not earlier > value > later] == []


def _priority(schedule: dg.ScheduleDefinition) -> int:
    context = dg.build_schedule_context(empty_instance(), scheduled_execution_time=SIX)
    [request] = schedule.evaluate_tick(context).run_requests or []
    return int(request.tags.get(PRIORITY_TAG, 0))
