"""The jobs `reconcile` and `collect_garbage` and their schedules: one run takes all streams."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.stream import Automation, Storage, Stream
from batch_pipeline_tests.defs.defs_fixture import DefsScene
from batch_pipeline_tests.factories import encoded, item_report, stream
from batch_pipeline_tests.pipeline.garbage_fixture import GarbageScene
from batch_pipeline_tests.seeds import claimed, execute, expire, planned, query, statuses

NIGHT = datetime(2026, 3, 1, 3, 23, tzinfo=UTC)
LATE = (
    "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
    "VALUES ('orders', 2, 'file:///landing/late.csv', 10, now())"
)


def garbage(scene: DefsScene, tmp_path: Path) -> GarbageScene:
    """The storage of the stream, with two attempts of long ago that left four files each."""
    batches = [one.batch for one in scene.database.batches.statuses("orders")]
    left = GarbageScene(
        database=scene.database,
        root=Path(to_path(scene.stream.storage.root)),
        batches=batches,
        stream=scene.stream,
    )
    left.storage.prepare()
    for one in batches[:2]:
        left.failed(one)
    left.age()
    return left


def broken(tmp_path: Path, name: str = "broken") -> Stream:
    """A stream whose storage root is a file."""
    (tmp_path / "file").write_text("")
    return stream(name=name, storage=Storage(root=to_uri(tmp_path / "file")))


def ran(
    scene: DefsScene, name: str, op: str, *streams: Stream, **config: Any
) -> dg.ExecuteInProcessResult:
    """Run a job of the definitions of streams with a config."""
    definitions = build_definitions([*streams, scene.stream])
    job = definitions.resolve_job_def(name)
    return job.execute_in_process(
        instance=scene.instance,
        run_config={"ops": {op: {"config": config}}},
        raise_on_error=False,
    )


def collected(scene: DefsScene, *streams: Stream, **config: Any) -> dg.ExecuteInProcessResult:
    """Run `collect_garbage`."""
    return ran(scene, "batch_pipeline_collect_garbage", "collect_of_streams", *streams, **config)


def reconciled(scene: DefsScene, *streams: Stream, **config: Any) -> dg.ExecuteInProcessResult:
    """Run `reconcile`."""
    return ran(scene, "batch_pipeline_reconcile", "reconcile_streams", *streams, **config)


def facts(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Give the metadata of a run, whether or not it failed."""
    for event in result.all_events:
        if event.is_successful_output:
            metadata = event.step_output_data.metadata
            return {name: value.value for name, value in metadata.items()}
        if event.is_step_failure:
            found = event.step_failure_data.user_failure_data
            assert found is not None, event.step_failure_data.error
            return {name: value.value for name, value in found.metadata.items()}
    raise AssertionError("the run ended without output or failure")


def test_dry_run_of_collect_garbage_tells_and_deletes_nothing(
    scene: DefsScene, tmp_path: Path
) -> None:
    """Expect the numbers that the run without it shows then, and the files gone only then."""
    left = garbage(scene, tmp_path)
    told = facts(collected(scene, dry_run=True))
    assert told["garbage_files"] == told["garbage_unpublished"] == 8
    assert (told["garbage_bytes"], told["removed_files"], len(left.there())) == (80, 0, 8)
    done = facts(collected(scene))
    assert done == told | {"removed_files": 8, "removed_bytes": 80}
    assert left.there() == []


def test_stream_that_fails_does_not_keep_the_others_from_being_collected(
    scene: DefsScene, tmp_path: Path
) -> None:
    """Expect the run to fail with the reason, after the other streams are done."""
    left = garbage(scene, tmp_path)
    result = collected(scene, broken(tmp_path))
    told = facts(result)
    assert not result.success
    assert (told["streams"], told["removed_files"], left.there()) == (1, 8, [])
    assert "not a directory" in told["failed: broken"]
    assert "cannot be collected" in told["failed: broken"]


def test_maintenance_takes_the_streams_that_are_named(scene: DefsScene, tmp_path: Path) -> None:
    """Expect no other one to be touched, and an unknown name to be refused with the known ones."""
    left = garbage(scene, tmp_path)
    idle = stream(name="idle", storage=Storage(root=to_uri(tmp_path / "idle")))
    assert facts(collected(scene, idle, streams=["idle"]))["garbage_files"] == 0
    assert facts(reconciled(scene, broken(tmp_path), streams=["orders"]))["streams"] == 1
    assert len(left.there()) == 8
    with pytest.raises(dg.Failure, match=r"'order'.*idle, orders"):
        build_definitions([idle, scene.stream]).resolve_job_def(
            "batch_pipeline_collect_garbage"
        ).execute_in_process(
            instance=scene.instance,
            run_config={"ops": {"collect_of_streams": {"config": {"streams": ["order"]}}}},
        )


@pytest.mark.guarantee("G8")
def test_reconcile_closes_writes_and_plans_what_is_late(scene: DefsScene) -> None:
    """Expect an attempt without process closed, a pointer written and a late item planned."""
    execute(scene.database, "DELETE FROM batch_pipeline.item WHERE id = 2")
    first, second, *_ = scene.database.batches.statuses("orders")
    with claimed(scene.database, first.batch) as attempt:
        reports = (item_report(1), item_report(3))
        scene.database.attempts.publish(attempt, encoded(items=reports), stream())
    execute(
        scene.database,
        """UPDATE batch_pipeline.attempt SET seen = seen || '{"weight": 20}'""",
    )
    with claimed(scene.database, second.batch) as attempt:
        expire(scene.database, attempt)
        execute(scene.database, LATE)
        told = facts(reconciled(scene))
    assert (told["attempts_closed"], told["pointers_written"]) == (1, 1)
    assert (told["batches_audited"], told["late"], told["refused"]) == (1, 1, 0)
    assert statuses(scene.database) == ["succeeded", "abandoned"]
    assert scene.states("orders.late") == ["planned"]
    again = facts(reconciled(scene, days=0))
    assert again == {"streams": 1, "attempts_closed": 0, "pointers_written": 0}


def test_reconcile_of_a_stream_of_which_nothing_was_planned_finds_nothing(
    scene: DefsScene, tmp_path: Path
) -> None:
    """Expect zeros for it, and the sums of all streams."""
    idle = stream(name="idle", storage=Storage(root=to_uri(tmp_path / "idle")))
    told = facts(reconciled(scene, idle))
    assert set(told.values()) == {0, 2}
    assert told["streams"] == 2


def test_maintenance_schedules_run_by_default_and_ask_for_one_run(scene: DefsScene) -> None:
    """Expect one run for all streams, at different minutes, deleting for good."""
    other = stream(name="clicks")
    repository = build_definitions(
        [scene.stream, other], automation=Automation.RUNNING
    ).get_repository_def()
    mine = {"batch_pipeline_reconcile_hourly", "batch_pipeline_collect_garbage_daily"}
    schedules = {one.name: one for one in repository.schedule_defs if one.name in mine}
    assert schedules.keys() == mine
    for schedule in schedules.values():
        assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
        with dg.build_schedule_context(scene.instance, NIGHT) as context:
            [request] = schedule.evaluate_tick(context).run_requests or []
        job = repository.get_job(schedule.job_name)
        result = job.execute_in_process(instance=scene.instance, run_config=request.run_config)
        assert facts(result)["streams"] == 2
    minutes = {str(one.cron_schedule).split()[0] for one in schedules.values()}
    assert len(minutes) == 2


def test_collecting_streams_of_one_root_counts_each_file_once(
    scene: DefsScene, tmp_path: Path
) -> None:
    """Expect the sums of a dry run to be those of the run, also for probes, which are nobody's."""
    left = garbage(scene, tmp_path)
    left.put(f".probe-{'0' * 32}", b"")
    left.age()
    clicks = stream(name="clicks", storage=scene.stream.storage)
    planned(scene.database, name="clicks")
    told = facts(collected(scene, clicks, dry_run=True))
    assert (told["garbage_files"], told["garbage_temporary"]) == (9, 1)
    assert facts(collected(scene, clicks))["removed_files"] == 9
    assert query(scene.database, "SELECT count(*) FROM batch_pipeline.attempt") == [(2,)]
