"""In which order runs wait for their turn: by the time when they came, whoever asked for them."""

from datetime import UTC, datetime, timedelta

import dagster as dg

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.names import PRIORITY_TAG
from batch_pipeline.defs.runs import priority
from batch_pipeline.model.stream import DagsterRules
from batch_pipeline_tests.factories import stream

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_run_that_waits_is_not_passed_by_others_for_ever() -> None:
    """Expect the second run of a stream behind those of others, until half a minute later."""
    second = priority(1_000, ahead=1)
    assert priority(1_029) > second > priority(1_031)
    assert priority(1_031) > 0 > priority(1_000, is_backfill=True)


def test_run_of_a_schedule_waits_behind_what_came_before_and_before_what_comes_after() -> None:
    """Expect no schedule whose runs are behind all new files for as long as these come."""
    hourly = DagsterRules(schedule="0 * * * *")
    definitions = build_definitions([stream(name="a", dagster=hourly)])
    schedules = definitions.get_repository_def().schedule_defs
    asked = {one.name: _priority(one) for one in schedules}
    before, after = (NOW + timedelta(seconds=seconds) for seconds in (-1, 1))
    maintenance = ("reconcile_hourly", "collect_garbage_daily", "check_streams_hourly")
    assert {"a_new_files_at", *(f"batch_pipeline_{name}" for name in maintenance)} < asked.keys()
    behind, ahead = priority(before.timestamp()), priority(after.timestamp())
    assert [name for name, one in asked.items() if not behind > one > ahead] == []


def _priority(schedule: dg.ScheduleDefinition) -> int:
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_schedule_context(instance, scheduled_execution_time=NOW)
        [request] = schedule.evaluate_tick(context).run_requests or []
    return int(request.tags.get(PRIORITY_TAG, 0))
