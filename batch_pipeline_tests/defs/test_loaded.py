"""Loads in Dagster: what is published is loaded by a job, and shows as green partitions."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from batch_pipeline.defs.loads import LoadCursor
from batch_pipeline.defs.names import (
    RANGE_END_TAG,
    RANGE_START_TAG,
    RETRY_TAG,
    load_job,
    loaded_key,
)
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.defs.defs_fixture import DefsScene, open_defs_scene
from batch_pipeline_tests.defs.downstream_fixture import execute as execute_run_of
from batch_pipeline_tests.defs.downstream_fixture import tags_of
from batch_pipeline_tests.load.target_scripts import EAGER, SILENT, read, script
from batch_pipeline_tests.pipeline.load_fixture import FIRST, SECOND, THIRD, publish_file
from batch_pipeline_tests.seeds import execute, query

FOURTH = "00000010-00000012"
VOIDS = "CREATE SEQUENCE batch_pipeline.voids"
CUT = """
CREATE FUNCTION batch_pipeline.cut() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('batch_pipeline.voids') = 1 THEN
        PERFORM pg_terminate_backend(pg_backend_pid());
    END IF;
    RETURN NEW;
END $$
"""
AT_THE_FIRST = """
CREATE TRIGGER cut BEFORE UPDATE OF voided_at ON batch_pipeline.load
FOR EACH ROW EXECUTE FUNCTION batch_pipeline.cut()
"""


@pytest.fixture
def scene(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsScene]:
    """The stream `orders` with four batches, of which two are published, and one good target."""
    targets = {"good": target(tmp_path / "good", EAGER)}
    with open_defs_scene(database, database_url, tmp_path, monkeypatch, targets=targets) as opened:
        for number in (0, 1):
            publish_next(opened, tmp_path, number)
        opened.instance.add_dynamic_partitions(
            opened.batches.set_name, [FIRST, SECOND, THIRD, FOURTH]
        )
        yield opened


def target(folder: Path, body: str) -> dict[str, Any]:
    """Describe a target that is a program."""
    folder.mkdir(exist_ok=True)
    return {"command": list(script(folder, body)), "config": {"out": str(folder / "read")}}


def publish_next(scene: DefsScene, folder: Path, number: int, *, generation: int = 1) -> None:
    """Publish the next generation of a batch, counted from 0."""
    one = scene.database.batches.statuses("orders")[number].batch
    publish_file(scene.database, one, folder, generation=generation)


def run_job(scene: DefsScene, **tags: str) -> dg.ExecuteInProcessResult:
    """Run the job that loads what is due."""
    job = scene.definitions.resolve_job_def(load_job(scene.stream))
    return job.execute_in_process(instance=scene.instance, tags=tags, raise_on_error=False)


def run_asset(scene: DefsScene, first: str, last: str) -> dg.ExecuteInProcessResult:
    """Materialize partitions of the asset as a person does."""
    [asset] = [
        one
        for one in scene.definitions.assets or ()
        if isinstance(one, dg.AssetsDefinition) and loaded_key(scene.stream) in one.keys
    ]
    return dg.materialize(
        [asset],
        instance=scene.instance,
        selection=[loaded_key(scene.stream)],
        tags={RANGE_START_TAG: first, RANGE_END_TAG: last},
        resources={"batch_pipeline": PipelineResource()},
        raise_on_error=False,
    )


def repeat_asset(scene: DefsScene, died: str, first: str, last: str) -> dg.DagsterRun:
    """Materialize partitions as Dagster does in the place of a run whose process died."""
    whole = scene.definitions.resolve_implicit_global_asset_job_def()
    job = whole.get_subset(asset_selection={loaded_key(scene.stream)})
    run = scene.instance.create_run_for_job(
        job_def=job,
        parent_run_id=died,
        root_run_id=died,
        tags={RETRY_TAG: "1", RANGE_START_TAG: first, RANGE_END_TAG: last},
    )
    execute_run(InMemoryJob(job), run, scene.instance)
    return scene.run(run)


def green(scene: DefsScene) -> list[str]:
    """Give the partitions of the asset that were materialized."""
    return sorted(scene.instance.get_materialized_partitions(loaded_key(scene.stream)))


def sent(folder: Path) -> list[str]:
    """Give the batches whose STATE the target was sent, in order."""
    states = [one["value"] for one in read(folder) if one["type"] == "STATE"]
    return [one["bookmarks"]["orders"]["batch_id"] for one in states]


def test_load_sensor_launches_one_run_for_all_that_is_due_and_then_rests(
    scene: DefsScene, tmp_path: Path
) -> None:
    """Expect the partitions of both published batches green, and nothing to do afterwards."""
    [request] = scene.tick("orders_load").run_requests or ()
    assert request.tags["batch_pipeline/stream"] == "orders"
    assert int(request.tags["dagster/priority"]) > 0  # else new files would always go first

    assert run_job(scene).success
    assert green(scene) == [FIRST, SECOND]
    assert sent(tmp_path / "good") == [FIRST, SECOND]

    after = scene.tick("orders_load")
    assert not after.run_requests
    assert not after.asset_events  # the run has told of them itself
    quiet = scene.tick("orders_load", after.cursor)
    assert quiet.cursor == after.cursor
    assert quiet.skip_reason == dg.SkipReason("everything that is published is loaded.")


def test_load_sensor_sees_a_new_generation(scene: DefsScene, tmp_path: Path) -> None:
    """A batch that is published anew is loaded anew."""
    assert run_job(scene).success
    cursor = scene.tick("orders_load").cursor
    publish_next(scene, tmp_path, 0, generation=2)

    assert scene.tick("orders_load", cursor).run_requests
    assert run_job(scene).success
    assert sent(tmp_path / "good") == [FIRST, SECOND, FIRST]


def test_load_sensor_tells_dagster_of_loads_that_a_command_has_made(scene: DefsScene) -> None:
    """What `batch-pipeline load` has loaded turns green once, and later looks are silent."""
    pipeline, stream = scene.pipeline, scene.stream
    assert len(list(pipeline.load_pending(stream, stream.targets[0], run_id="load-1"))) == 2

    told = scene.tick("orders_load")
    assert [event.partition for event in told.asset_events] == [FIRST, SECOND]
    assert not told.run_requests
    assert not scene.tick("orders_load", told.cursor).asset_events


def test_load_that_is_in_vain_is_not_launched_again_at_once(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that never acknowledges fails the run; new batches are tried at once."""
    targets = {"silent": target(tmp_path / "silent", SILENT)}
    with open_defs_scene(database, database_url, tmp_path, monkeypatch, targets=targets) as scene:
        publish_next(scene, tmp_path, 0)
        first = scene.tick("orders_load")
        assert first.run_requests
        failed = run_job(scene)
        assert not failed.success
        assert green(scene) == []

        resting = scene.tick("orders_load", first.cursor)
        assert not resting.run_requests
        assert "did not print the STATE" in str(resting.skip_reason)
        publish_next(scene, tmp_path, 1)
        assert scene.tick("orders_load", resting.cursor).run_requests


def test_loaded_partition_that_a_person_materializes_is_loaded_again(
    scene: DefsScene, tmp_path: Path
) -> None:
    """Only the partitions of the run are sent, also those that the target has."""
    assert run_job(scene).success

    assert run_asset(scene, SECOND, SECOND).success
    assert sent(tmp_path / "good") == [FIRST, SECOND, SECOND]
    publish_next(scene, tmp_path, 2)
    assert run_asset(scene, SECOND, THIRD).success
    assert sent(tmp_path / "good") == [FIRST, SECOND, SECOND, SECOND, THIRD]
    assert green(scene) == [FIRST, SECOND, THIRD]


def test_loaded_partition_of_a_batch_that_is_not_published_stays_grey(scene: DefsScene) -> None:
    """There is nothing to send, and the run says so."""
    ended = run_asset(scene, FOURTH, FOURTH)

    assert not ended.success
    [failure] = [event for event in ended.all_events if event.event_type_value == "STEP_FAILURE"]
    message = f"Not published, so there is nothing to load: {FOURTH}."
    assert message in str(failure.step_failure_data.error_display_string)
    assert green(scene) == []


def test_loaded_partition_with_two_targets_is_green_when_both_have_it(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load into the good one is kept while the other one fails."""
    targets = {
        "good": target(tmp_path / "good", EAGER),
        "other": target(tmp_path / "other", SILENT),
    }
    with open_defs_scene(database, database_url, tmp_path, monkeypatch, targets=targets) as scene:
        publish_next(scene, tmp_path, 0)
        assert not run_job(scene).success
        assert green(scene) == []
        script(tmp_path / "other", EAGER)  # mended
        assert run_job(scene).success
        assert green(scene) == [FIRST]
        assert sent(tmp_path / "good") == [FIRST]
        rows = query(
            database,
            "SELECT target, status FROM batch_pipeline.load ORDER BY target, id",
        )
        assert rows == [("good", "succeeded"), *[("other", "failed")] * 3, ("other", "succeeded")]


def test_loaded_partition_whose_files_went_says_so_and_stays_loaded(scene: DefsScene) -> None:
    """Expect the day and what to do, the other partition to be due, and no load to be lost."""
    assert run_job(scene).success
    stored, loads = scene.pipeline.database.stored_attempts, scene.pipeline.database.loads
    assert stored.mark_loaded([1], ["good"]) == {1}
    result = run_asset(scene, FIRST, SECOND)
    [failure] = result.filter_events(lambda event: event.is_step_failure)
    said = str(failure.step_failure_data.error)
    assert f"the files of batch {FIRST}, generation 1, were deleted on 2" in said
    assert "Other batches, loaded by the next load: 1." in said
    [standing] = loads.target_statuses("orders", ["good"])
    assert (standing.loaded, standing.due) == (1, 1)


def test_load_sensor_finds_what_was_asked_for_again_by_a_run_that_died(scene: DefsScene) -> None:
    """Expect a look ten minutes after the last one, although nothing was published or loaded."""
    assert run_job(scene).success
    quiet = scene.tick("orders_load").cursor
    assert scene.database.loads.void("orders", "good", [FIRST])
    assert not scene.tick("orders_load", quiet).run_requests
    memory = LoadCursor.of_cursor(quiet)
    later = replace(memory, looked_at=memory.looked_at - 600)
    assert scene.tick("orders_load", later.cursor()).run_requests


def test_loaded_partition_of_a_repeated_run_is_sent_once(scene: DefsScene, tmp_path: Path) -> None:
    """Expect what a run has loaded before its process died to be left alone by its repetition."""
    assert run_job(scene).success
    died = run_asset(scene, FIRST, FIRST)
    assert repeat_asset(scene, died.run_id, FIRST, SECOND).is_success
    assert sent(tmp_path / "good") == [FIRST, SECOND, FIRST, SECOND]


def test_loaded_partition_is_sent_although_the_first_try_failed_before(
    scene: DefsScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the second try of the step to ask again for what the first one could not."""
    monkeypatch.setattr("batch_pipeline.defs.partition_events._PAUSE_SECONDS", 0)
    assert run_job(scene).success
    for statement in (VOIDS, CUT, AT_THE_FIRST):
        execute(scene.database, statement)

    assert run_asset(scene, FIRST, SECOND).success
    assert sent(tmp_path / "good") == [FIRST, SECOND, FIRST, SECOND]


def test_load_of_what_is_published_again_and_again_is_launched_at_once(
    scene: DefsScene, tmp_path: Path
) -> None:
    """Expect counts that are the same as before, after a success, not to be taken for a failure."""
    cursor = None
    for generation in (2, 3, 4):
        told = scene.tick("orders_load", cursor)
        assert told.run_requests
        assert run_job(scene).success
        cursor = scene.tick("orders_load", told.cursor).cursor
        publish_next(scene, tmp_path, 0, generation=generation)


DOWNSTREAM = dg.AssetKey("by_city")


def run_both(
    scene: DefsScene, tags: dict[str, str], *, after: dg.DagsterRun | None = None
) -> dg.DagsterRun:
    """Materialize partitions of the asset and of one downstream in one run."""

    @dg.asset(
        key=DOWNSTREAM,
        deps=[loaded_key(scene.stream)],
        partitions_def=scene.batches.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(2),
    )
    def by_city() -> None:
        """Stand for what a user makes of loaded batches."""

    both = dg.AssetSelection.assets(loaded_key(scene.stream), DOWNSTREAM)
    job = dg.define_asset_job("both", selection=both, executor_def=dg.in_process_executor)
    own = dg.Definitions(assets=[by_city], jobs=[job])
    merged = dg.Definitions.merge(scene.definitions, own)
    return execute_run_of(merged.resolve_job_def("both"), scene.instance, tags, after=after)


def test_asset_downstream_of_loaded_when_all_are_loaded_is_executed_in_the_same_run(
    scene: DefsScene,
) -> None:
    assert run_both(scene, tags_of([FIRST, SECOND])).is_success
    assert events_of(scene, loaded_key(scene.stream)) == [FIRST, SECOND]
    assert events_of(scene, DOWNSTREAM) == [FIRST, SECOND]
    assert not scene.tick("orders_load").asset_events


def test_asset_downstream_of_loaded_when_a_batch_is_not_published_is_skipped(
    scene: DefsScene,
) -> None:
    run = run_both(scene, tags_of([FIRST, SECOND, THIRD]))
    assert run.status is dg.DagsterRunStatus.FAILURE
    assert events_of(scene, loaded_key(scene.stream)) == []
    assert events_of(scene, DOWNSTREAM) == []


def test_asset_downstream_of_loaded_in_a_repeated_run_waits_for_the_loads_of_both(
    scene: DefsScene,
) -> None:
    """Expect one event for what the killed run had loaded, and no other one by the sensor."""
    died = run_both(scene, tags_of([FIRST, SECOND])).run_id
    scene.instance.wipe_assets([loaded_key(scene.stream), DOWNSTREAM])  # as if it had died before
    killed = scene.instance.get_run_by_id(died)
    loads = len(sent_runs(scene))
    assert run_both(scene, {**tags_of([FIRST, SECOND]), RETRY_TAG: "1"}, after=killed).is_success
    assert len(sent_runs(scene)) == loads
    assert events_of(scene, loaded_key(scene.stream)) == [FIRST, SECOND]
    assert events_of(scene, DOWNSTREAM) == [FIRST, SECOND]
    assert not scene.tick("orders_load").asset_events


def sent_runs(scene: DefsScene) -> list[tuple[Any, ...]]:
    """Read the runs of all loads."""
    return query(scene.database, "SELECT run_id FROM batch_pipeline.load ORDER BY id")


def events_of(scene: DefsScene, key: dg.AssetKey) -> list[str]:
    """Give the partition of each materialization of an asset."""
    found = scene.instance.fetch_materializations(key, limit=100).records
    return sorted(
        str(one.asset_materialization.partition) for one in found if one.asset_materialization
    )
