"""The load job, sensor and asset: published batches are loaded and materialized."""

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
from batch_pipeline_tests.defs.defs_fixture import DefsHarness, open_defs_harness
from batch_pipeline_tests.defs.downstream_fixture import execute as execute_run_of
from batch_pipeline_tests.defs.downstream_fixture import tags_of
from batch_pipeline_tests.load.target_scripts import EAGER, SILENT, read, script
from batch_pipeline_tests.pipeline.load_fixture import FIRST, SECOND, THIRD, publish_file
from batch_pipeline_tests.seeds import execute, query

FOURTH = "00000010-00000012"
VOIDS = "CREATE SEQUENCE batch_pipeline.voids"
CUT_FIRST_VOID = """
CREATE FUNCTION batch_pipeline.cut() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('batch_pipeline.voids') = 1 THEN
        PERFORM pg_terminate_backend(pg_backend_pid());
    END IF;
    RETURN NEW;
END $$
"""
CUT_TRIGGER = """
CREATE TRIGGER cut BEFORE UPDATE OF voided_at ON batch_pipeline.load
FOR EACH ROW EXECUTE FUNCTION batch_pipeline.cut()
"""


@pytest.fixture
def harness(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsHarness]:
    """The stream `orders` with four batches, two of them published, and one working target."""
    targets = {"good": target(tmp_path / "good", EAGER)}
    with open_defs_harness(
        database, database_url, tmp_path, monkeypatch, targets=targets
    ) as opened:
        for number in (0, 1):
            publish_next(opened, tmp_path, number)
        opened.instance.add_dynamic_partitions(
            opened.batches.set_name, [FIRST, SECOND, THIRD, FOURTH]
        )
        yield opened


def target(folder: Path, body: str) -> dict[str, Any]:
    """Return the settings of a target that is a program."""
    folder.mkdir(exist_ok=True)
    return {"command": list(script(folder, body)), "config": {"out": str(folder / "read")}}


def publish_next(harness: DefsHarness, folder: Path, number: int, *, generation: int = 1) -> None:
    """Publish the next generation of a batch, counted from 0."""
    batch = harness.database.batches.statuses("orders")[number].batch
    publish_file(harness.database, batch, folder, generation=generation)


def run_job(harness: DefsHarness, **tags: str) -> dg.ExecuteInProcessResult:
    """Run the load job."""
    job = harness.definitions.resolve_job_def(load_job(harness.stream))
    return job.execute_in_process(instance=harness.instance, tags=tags, raise_on_error=False)


def run_asset(harness: DefsHarness, first: str, last: str) -> dg.ExecuteInProcessResult:
    """Materialize partitions of the asset as a user does."""
    [asset] = [
        asset
        for asset in harness.definitions.assets or ()
        if isinstance(asset, dg.AssetsDefinition) and loaded_key(harness.stream) in asset.keys
    ]
    return dg.materialize(
        [asset],
        instance=harness.instance,
        selection=[loaded_key(harness.stream)],
        tags={RANGE_START_TAG: first, RANGE_END_TAG: last},
        resources={"batch_pipeline": PipelineResource()},
        raise_on_error=False,
    )


def retry_asset(harness: DefsHarness, failed_run: str, first: str, last: str) -> dg.DagsterRun:
    """Materialize partitions in a retry of a run whose process died."""
    global_job = harness.definitions.resolve_implicit_global_asset_job_def()
    job = global_job.get_subset(asset_selection={loaded_key(harness.stream)})
    run = harness.instance.create_run_for_job(
        job_def=job,
        parent_run_id=failed_run,
        root_run_id=failed_run,
        tags={RETRY_TAG: "1", RANGE_START_TAG: first, RANGE_END_TAG: last},
    )
    execute_run(InMemoryJob(job), run, harness.instance)
    return harness.reload_run(run)


def materialized(harness: DefsHarness) -> list[str]:
    """Return the materialized partitions of the asset."""
    return sorted(harness.instance.get_materialized_partitions(loaded_key(harness.stream)))


def sent(folder: Path) -> list[str]:
    """Return the batches whose STATE was sent to the target, in order."""
    states = [message["value"] for message in read(folder) if message["type"] == "STATE"]
    return [state["bookmarks"]["orders"]["batch_id"] for state in states]


def test_load_sensor_launches_one_run_for_all_pending_loads(
    harness: DefsHarness, tmp_path: Path
) -> None:
    [request] = harness.tick("orders_load").run_requests or ()
    assert request.tags["batch_pipeline/stream"] == "orders"
    assert int(request.tags["dagster/priority"]) > 0  # otherwise, new files would always come first

    assert run_job(harness).success
    assert materialized(harness) == [FIRST, SECOND]
    assert sent(tmp_path / "good") == [FIRST, SECOND]

    after = harness.tick("orders_load")
    assert not after.run_requests
    assert not after.asset_events  # the run has reported them
    idle = harness.tick("orders_load", after.cursor)
    assert idle.cursor == after.cursor
    assert idle.skip_reason == dg.SkipReason("everything that is published is loaded.")


def test_load_sensor_launches_a_run_for_a_new_generation(
    harness: DefsHarness, tmp_path: Path
) -> None:
    assert run_job(harness).success
    cursor = harness.tick("orders_load").cursor
    publish_next(harness, tmp_path, 0, generation=2)

    assert harness.tick("orders_load", cursor).run_requests
    assert run_job(harness).success
    assert sent(tmp_path / "good") == [FIRST, SECOND, FIRST]


def test_load_sensor_reports_loads_of_the_command_once(harness: DefsHarness) -> None:
    pipeline, stream = harness.pipeline, harness.stream
    assert len(list(pipeline.load_pending(stream, stream.targets[0], run_id="load-1"))) == 2

    result = harness.tick("orders_load")
    assert [event.partition for event in result.asset_events] == [FIRST, SECOND]
    assert not result.run_requests
    assert not harness.tick("orders_load", result.cursor).asset_events


def test_failed_load_is_not_launched_again_immediately(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newly published batch is launched immediately."""
    targets = {"silent": target(tmp_path / "silent", SILENT)}
    with open_defs_harness(
        database, database_url, tmp_path, monkeypatch, targets=targets
    ) as harness:
        publish_next(harness, tmp_path, 0)
        first = harness.tick("orders_load")
        assert first.run_requests
        assert not run_job(harness).success
        assert materialized(harness) == []

        waiting = harness.tick("orders_load", first.cursor)
        assert not waiting.run_requests
        assert "did not print the STATE" in str(waiting.skip_reason)
        publish_next(harness, tmp_path, 1)
        assert harness.tick("orders_load", waiting.cursor).run_requests


def test_manual_materialization_loads_its_partitions_again(
    harness: DefsHarness, tmp_path: Path
) -> None:
    assert run_job(harness).success

    assert run_asset(harness, SECOND, SECOND).success
    assert sent(tmp_path / "good") == [FIRST, SECOND, SECOND]
    publish_next(harness, tmp_path, 2)
    assert run_asset(harness, SECOND, THIRD).success
    assert sent(tmp_path / "good") == [FIRST, SECOND, SECOND, SECOND, THIRD]
    assert materialized(harness) == [FIRST, SECOND, THIRD]


def test_materialization_of_an_unpublished_batch_fails(harness: DefsHarness) -> None:
    result = run_asset(harness, FOURTH, FOURTH)

    assert not result.success
    [failure] = [event for event in result.all_events if event.event_type_value == "STEP_FAILURE"]
    message = f"Not published, so there is nothing to load: {FOURTH}."
    assert message in str(failure.step_failure_data.error_display_string)
    assert materialized(harness) == []


def test_partition_is_materialized_once_both_targets_have_it(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successful load is kept while the other target fails."""
    targets = {
        "good": target(tmp_path / "good", EAGER),
        "other": target(tmp_path / "other", SILENT),
    }
    with open_defs_harness(
        database, database_url, tmp_path, monkeypatch, targets=targets
    ) as harness:
        publish_next(harness, tmp_path, 0)
        assert not run_job(harness).success
        assert materialized(harness) == []
        script(tmp_path / "other", EAGER)  # the target works again
        assert run_job(harness).success
        assert materialized(harness) == [FIRST]
        assert sent(tmp_path / "good") == [FIRST]
        rows = query(
            database,
            "SELECT target, status FROM batch_pipeline.load ORDER BY target, id",
        )
        assert rows == [("good", "succeeded"), *[("other", "failed")] * 3, ("other", "succeeded")]


def test_partition_with_deleted_files_cannot_be_loaded_again(harness: DefsHarness) -> None:
    """It stays loaded, and the other partition of the run becomes due."""
    assert run_job(harness).success
    stored, loads = harness.pipeline.database.stored_attempts, harness.pipeline.database.loads
    assert stored.mark_loaded([1], ["good"]) == {1}
    result = run_asset(harness, FIRST, SECOND)
    [failure] = result.filter_events(lambda event: event.is_step_failure)
    error = str(failure.step_failure_data.error)
    assert f"the files of batch {FIRST}, generation 1, were deleted on 2" in error
    assert "Other batches, loaded by the next load: 1." in error
    [status] = loads.target_statuses("orders", ["good"])
    assert (status.loaded, status.due) == (1, 1)


def test_load_sensor_detects_a_reload_requested_by_a_dead_run(harness: DefsHarness) -> None:
    """It checks for pending loads every ten minutes, even if no counter has changed."""
    assert run_job(harness).success
    idle = harness.tick("orders_load").cursor
    assert harness.database.loads.void("orders", "good", [FIRST])
    assert not harness.tick("orders_load", idle).run_requests
    cursor = LoadCursor.of_cursor(idle)
    earlier = replace(cursor, looked_at=cursor.looked_at - 600)
    assert harness.tick("orders_load", earlier.cursor()).run_requests


def test_retry_does_not_repeat_the_loads_of_the_failed_run(
    harness: DefsHarness, tmp_path: Path
) -> None:
    assert run_job(harness).success
    failed_run = run_asset(harness, FIRST, FIRST)
    assert retry_asset(harness, failed_run.run_id, FIRST, SECOND).is_success
    assert sent(tmp_path / "good") == [FIRST, SECOND, FIRST, SECOND]


def test_step_retry_repeats_a_failed_reload_request(
    harness: DefsHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_pipeline.defs.partition_events._PAUSE_SECONDS", 0)
    assert run_job(harness).success
    for statement in (VOIDS, CUT_FIRST_VOID, CUT_TRIGGER):
        execute(harness.database, statement)

    assert run_asset(harness, FIRST, SECOND).success
    assert sent(tmp_path / "good") == [FIRST, SECOND, FIRST, SECOND]


def test_repeatedly_published_batch_is_loaded_immediately(
    harness: DefsHarness, tmp_path: Path
) -> None:
    """After a successful load, an unchanged count of pending loads does not mean a failure."""
    cursor = None
    for generation in (2, 3, 4):
        result = harness.tick("orders_load", cursor)
        assert result.run_requests
        assert run_job(harness).success
        cursor = harness.tick("orders_load", result.cursor).cursor
        publish_next(harness, tmp_path, 0, generation=generation)


DOWNSTREAM = dg.AssetKey("by_city")


def run_both(
    harness: DefsHarness, tags: dict[str, str], *, retry_of: dg.DagsterRun | None = None
) -> dg.DagsterRun:
    """Materialize partitions of the asset and of a downstream asset in one run."""

    @dg.asset(
        key=DOWNSTREAM,
        deps=[loaded_key(harness.stream)],
        partitions_def=harness.batches.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(2),
    )
    def by_city() -> None:
        """Do nothing, in place of a user's asset."""

    both = dg.AssetSelection.assets(loaded_key(harness.stream), DOWNSTREAM)
    job = dg.define_asset_job("both", selection=both, executor_def=dg.in_process_executor)
    own = dg.Definitions(assets=[by_city], jobs=[job])
    merged = dg.Definitions.merge(harness.definitions, own)
    return execute_run_of(merged.resolve_job_def("both"), harness.instance, tags, retry_of=retry_of)


def test_downstream_asset_is_executed_in_the_run_of_the_loads(harness: DefsHarness) -> None:
    assert run_both(harness, tags_of([FIRST, SECOND])).is_success
    assert events_of(harness, loaded_key(harness.stream)) == [FIRST, SECOND]
    assert events_of(harness, DOWNSTREAM) == [FIRST, SECOND]
    assert not harness.tick("orders_load").asset_events


def test_downstream_asset_is_skipped_if_a_batch_is_not_published(harness: DefsHarness) -> None:
    run = run_both(harness, tags_of([FIRST, SECOND, THIRD]))
    assert run.status is dg.DagsterRunStatus.FAILURE
    assert events_of(harness, loaded_key(harness.stream)) == []
    assert events_of(harness, DOWNSTREAM) == []


def test_retry_reports_loads_of_the_killed_run_once(harness: DefsHarness) -> None:
    killed = run_both(harness, tags_of([FIRST, SECOND]))
    # As if the process had died before it reported the materializations.
    harness.instance.wipe_assets([loaded_key(harness.stream), DOWNSTREAM])
    count = "SELECT count(*) FROM batch_pipeline.load"
    loads = query(harness.database, count)
    assert run_both(
        harness, {**tags_of([FIRST, SECOND]), RETRY_TAG: "1"}, retry_of=killed
    ).is_success
    assert query(harness.database, count) == loads
    assert events_of(harness, loaded_key(harness.stream)) == [FIRST, SECOND]
    assert events_of(harness, DOWNSTREAM) == [FIRST, SECOND]
    assert not harness.tick("orders_load").asset_events


def events_of(harness: DefsHarness, key: dg.AssetKey) -> list[str]:
    """Return the partition of each materialization of an asset."""
    records = harness.instance.fetch_materializations(key, limit=100).records
    return sorted(
        str(record.asset_materialization.partition)
        for record in records
        if record.asset_materialization
    )
