"""Streams that say when their new files are looked for: the schedule looks, the sensor launches."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
import yaml

from batch_pipeline.config.stream_file import load_valid_streams
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.names import PRIORITY_TAG
from batch_pipeline.defs.runs import priority
from batch_pipeline.model.batch import AttemptStatus, BatchState
from batch_pipeline.model.errors import StreamFileError
from batch_pipeline.model.location import to_path
from batch_pipeline.model.stream import Automation, DagsterRules, Source
from batch_pipeline_tests.defs.defs_fixture import DefsScene, ranges, write_stream
from batch_pipeline_tests.factories import stream
from batch_pipeline_tests.seeds import claimed

SIX = datetime(2026, 3, 2, 6, tzinfo=UTC)


@pytest.fixture
def scene(scene: DefsScene) -> DefsScene:
    """The stream `orders` with four planned batches of three, looked for at six in Berlin.

    A last batch of less than 100 bytes waits for an hour.
    """
    rules = replace(scene.stream.dagster, schedule="0 6 * * mon-fri", timezone="Europe/Berlin")
    limits = replace(scene.stream.limits, min_weight=100)
    one = replace(scene.stream, dagster=rules, limits=limits)
    definitions = build_definitions([one], automation=Automation.RUNNING)
    return replace(scene, stream=one, definitions=definitions)


def test_stream_with_a_schedule_has_a_sensor_that_only_launches(scene: DefsScene) -> None:
    """Expect a running schedule of its own, and `planned` in the place of `new_files`."""
    repository = scene.definitions.get_repository_def()
    schedule = repository.get_schedule_def("orders_new_files_at")
    assert (schedule.cron_schedule, schedule.execution_timezone) == (
        "0 6 * * mon-fri",
        "Europe/Berlin",
    )
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    sensors = {one.name: one.default_status for one in repository.sensor_defs}
    assert sensors["orders_planned"] is dg.DefaultSensorStatus.RUNNING
    assert "orders_new_files" not in sensors


def test_sensor_launches_what_is_due_and_looks_for_no_new_file(scene: DefsScene) -> None:
    """Expect planned and interrupted batches to be launched, failed ones to wait for a person."""
    land(scene, "orders-1.csv")
    first, second, third, _ = scene.database.batches.statuses("orders")
    for one, status in (
        (first, AttemptStatus.ABANDONED),
        (second, AttemptStatus.FAILED),
        (third, AttemptStatus.ABANDONED),
    ):
        with claimed(scene.database, one.batch) as attempt:
            scene.database.attempts.fail(attempt, "no", status)
    requests = scene.tick("orders_planned").run_requests
    assert [last for _, last in ranges(requests)] == [
        "00000001-00000003",
        "00000010-00000012",
    ]
    assert len(items(scene)) == 12


def test_schedule_registers_and_plans_the_last_small_batch_too(scene: DefsScene) -> None:
    """Expect the run to find the file, and the sensor to launch its batch although it is light."""
    land(scene, "orders-1.csv")
    schedule = scene.definitions.resolve_schedule_def("orders_new_files_at")
    context = dg.build_schedule_context(instance=scene.instance, scheduled_execution_time=SIX)
    with context:
        [request] = schedule.evaluate_tick(context).run_requests or []
    job = scene.definitions.resolve_job_def(schedule.job_name)
    result = job.execute_in_process(instance=scene.instance, tags=request.tags)
    assert result.success
    assert len(items(scene)) == 13
    found = scene.database.batches.statuses("orders")
    assert [one.batch.key for one in found if one.state is BatchState.PLANNED][-1] == (
        "00000013-00000013"
    )
    assert ranges(scene.tick("orders_planned").run_requests)[-1][1] == "00000013-00000013"


def test_paused_stream_launches_nothing(scene: DefsScene) -> None:
    """Expect the reason in place of runs."""
    scene.database.jobs.pause("orders", "schema change")
    sensor = scene.definitions.resolve_sensor_def("orders_planned")
    from batch_pipeline.defs.resources import PipelineResource

    with dg.build_sensor_context(
        instance=scene.instance, resources={"batch_pipeline": PipelineResource()}
    ) as context:
        told = sensor(context)
    assert isinstance(told, dg.SkipReason)
    assert "schema change" in str(told.skip_message)


def test_cron_line_that_is_none_is_told_with_its_file_while_others_load(tmp_path: Path) -> None:
    """Expect file, line and field, and the definitions of the other streams."""
    for name in ("orders", "clicks"):
        write_stream(tmp_path, name)
    path = tmp_path / "streams/orders/defs.yaml"
    document = yaml.safe_load(path.read_text())
    document["attributes"]["dagster"]["schedule"] = "0 25 * * *"
    path.write_text(yaml.safe_dump(document))
    streams, problems = load_valid_streams(tmp_path / "streams")
    [problem] = problems
    assert isinstance(problem, StreamFileError)
    assert str(path) in str(problem)
    assert "`dagster.schedule` is '0 25 * * *'" in str(problem)
    assert "hour, '25', is within 0 to 23" in str(problem)
    names = {one.name for one in build_definitions(streams.values()).resolve_all_job_defs()}
    assert "clicks_encode" in names


def test_streams_without_a_schedule_keep_looking(tmp_path: Path) -> None:
    """Expect no schedule of its own and the sensor of new files."""
    repository = build_definitions([stream()]).get_repository_def()
    assert not [one for one in repository.schedule_defs if one.name.startswith("orders")]
    assert "orders_new_files" in {one.name for one in repository.sensor_defs}


def land(scene: DefsScene, name: str) -> None:
    """Let a small file land."""
    assert isinstance(scene.stream.source, Source)
    path = Path(to_path(scene.stream.source.uri)) / name
    path.write_text("order_id\n1\n")


def items(scene: DefsScene) -> list[int]:
    """The ids of all items."""
    from batch_pipeline_tests.seeds import query

    return [number for (number,) in query(scene.database, "SELECT id FROM batch_pipeline.item")]


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
    before, after = (SIX + timedelta(seconds=seconds) for seconds in (-1, 1))
    maintenance = ("reconcile_hourly", "collect_garbage_daily", "check_streams_hourly")
    assert {"a_new_files_at", *(f"batch_pipeline_{name}" for name in maintenance)} < asked.keys()
    behind, ahead = priority(before.timestamp()), priority(after.timestamp())
    assert [name for name, one in asked.items() if not behind > one > ahead] == []


def _priority(schedule: dg.ScheduleDefinition) -> int:
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_schedule_context(instance, scheduled_execution_time=SIX)
        [request] = schedule.evaluate_tick(context).run_requests or []
    return int(request.tags.get(PRIORITY_TAG, 0))
