"""The load job, sensor and asset: published batches are loaded and materialized."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.loads import LoadCursor
from batch_pipeline.defs.metadata import generation_of
from batch_pipeline.defs.names import ASSET_RESUME_TAG, RETRY_TAG, load_job, loaded_key
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.manifest import PartFile
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.defs.downstream_fixture import BY_CITY, execute, job_of_both, tags_of
from batch_pipeline_tests.factories import encoded, item_report
from batch_pipeline_tests.load.target_scripts import (
    EAGER,
    SILENT,
    part_of,
    read,
    script,
    settings_of,
)
from batch_pipeline_tests.pipeline.load_fixture import FIRST, LEASE, SECOND, THIRD, publish_file
from batch_pipeline_tests.seeds import execute as execute_sql
from batch_pipeline_tests.seeds import publish, query

FOURTH = "00000010-00000012"
GONE = {"postgres": {"conn": "$WAREHOUSE"}}
CUT_FIRST_VOID = (
    "CREATE SEQUENCE batch_pipeline.voids",
    """
    CREATE FUNCTION batch_pipeline.cut() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('batch_pipeline.voids') = 1 THEN
            PERFORM pg_terminate_backend(pg_backend_pid());
        END IF;
        RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER cut BEFORE UPDATE OF voided_at ON batch_pipeline.load
    FOR EACH ROW EXECUTE FUNCTION batch_pipeline.cut()
    """,
)


def with_targets(**targets: str | dict[str, Any]) -> pytest.MarkDecorator:
    """Run a test with these targets: the settings or the program of each."""
    return pytest.mark.parametrize("targets", [targets], indirect=True, ids=["-".join(targets)])


@pytest.fixture
def targets(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """One working target, or those of `with_targets`."""
    monkeypatch.setenv("WAREHOUSE", "postgresql://user@127.0.0.1:1/warehouse")
    return {
        name: settings_of(tmp_path / name, body) if isinstance(body, str) else body
        for name, body in getattr(request, "param", {"good": EAGER}).items()
    }


@pytest.fixture
def harness(harness: DefsHarness) -> DefsHarness:
    """The stream `orders` with four batches, two of them published."""
    for number in (0, 1):
        publish_next(harness, number)
    keys = [FIRST, SECOND, THIRD, FOURTH]
    harness.instance.add_dynamic_partitions(harness.batches.set_name, keys)
    return harness


def publish_next(harness: DefsHarness, number: int, *, generation: int = 1) -> None:
    """Publish the next generation of a batch, counted from 0."""
    batch = harness.database.batches.statuses("orders")[number].batch
    publish_file(harness.database, batch, harness.folder, generation=generation)


def run_job(harness: DefsHarness) -> dg.ExecuteInProcessResult:
    """Run the load job."""
    job = harness.definitions.resolve_job_def(load_job(harness.stream))
    return job.execute_in_process(instance=harness.instance, raise_on_error=False)


def load_by_command(harness: DefsHarness, number: int = 0, run_id: str = "load-1") -> int:
    """Load the pending batches of a target, counted from 0, without Dagster; count them."""
    target = harness.stream.targets[number]
    return len([*harness.pipeline.load_pending(harness.stream, target, run_id=run_id)])


def run_asset(harness: DefsHarness, first: str, last: str) -> dg.ExecuteInProcessResult:
    """Materialize partitions of the asset as a user does."""
    key = loaded_key(harness.stream)
    return dg.materialize(
        [harness.definitions.resolve_assets_def(key)],
        instance=harness.instance,
        selection=[key],
        tags=tags_of([first, last]),
        raise_on_error=False,
    )


def step_error(result: dg.ExecuteInProcessResult) -> str:
    """Return the error of the only failed step."""
    [failure] = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.error)


def materialized(harness: DefsHarness, key: dg.AssetKey | None = None) -> list[str]:
    """Return the partition of each materialization of an asset, by default of the loads."""
    key = key or loaded_key(harness.stream)
    records = harness.instance.fetch_materializations(key, limit=100).records
    return sorted(str(record.partition_key) for record in records)


def sent(harness: DefsHarness) -> list[str]:
    """Return the batches whose STATE was sent to the target `good`, in order."""
    messages = read(harness.folder / "good")
    states = [message["value"] for message in messages if message["type"] == "STATE"]
    return [state["bookmarks"]["orders"]["batch_id"] for state in states]


def load_counts(database: Database) -> list[tuple[Any, ...]]:
    """Count the loads by target and status."""
    counts = "SELECT target, status, count(*) FROM batch_pipeline.load GROUP BY 1, 2 ORDER BY 1, 2"
    return query(database, counts)


def test_load_sensor_launches_one_run_for_all_pending_loads(harness: DefsHarness) -> None:
    [request] = harness.tick("orders_load").run_requests or ()
    assert request.tags["batch_pipeline/stream"] == "orders"
    assert int(request.tags["dagster/priority"]) > 0  # otherwise, new files would always come first

    assert run_job(harness).success
    assert materialized(harness) == [FIRST, SECOND]
    assert sent(harness) == [FIRST, SECOND]

    after = harness.tick("orders_load")
    assert not after.run_requests
    assert not after.asset_events  # the run has reported them
    idle = harness.tick("orders_load", after.cursor)
    assert idle.cursor == after.cursor
    assert idle.skip_reason == dg.SkipReason("everything that is published is loaded.")


@with_targets(silent=SILENT)
def test_failed_load_is_not_launched_again_immediately(harness: DefsHarness) -> None:
    """Another batch is, and another generation, which leaves the number of pending loads."""
    first = harness.tick("orders_load")
    assert first.run_requests
    assert not run_job(harness).success
    assert materialized(harness) == []

    waiting = harness.tick("orders_load", first.cursor)
    assert not waiting.run_requests
    assert "did not print the STATE" in str(waiting.skip_reason)
    publish_next(harness, 0, generation=2)
    launched = harness.tick("orders_load", waiting.cursor)
    assert launched.run_requests
    assert not run_job(harness).success
    publish_next(harness, 2)
    assert harness.tick("orders_load", launched.cursor).run_requests


def test_manual_materialization_loads_its_partitions_again(harness: DefsHarness) -> None:
    assert run_job(harness).success

    assert run_asset(harness, SECOND, SECOND).success
    assert sent(harness) == [FIRST, SECOND, SECOND]
    publish_next(harness, 2)
    assert run_asset(harness, SECOND, THIRD).success
    assert sent(harness) == [FIRST, SECOND, SECOND, SECOND, THIRD]
    assert {*materialized(harness)} == {FIRST, SECOND, THIRD}


def test_materialization_of_an_unpublished_batch_fails(harness: DefsHarness) -> None:
    """Batches of the same run that are published are not loaded either."""
    message = f"Not published, so there is nothing to load: {THIRD}, {FOURTH}."
    assert message in step_error(run_asset(harness, FIRST, FOURTH))
    wide = "00000001-00000006"
    harness.instance.add_dynamic_partitions(harness.batches.set_name, [wide])
    message = f"'{wide}' is not a planned batch. Nothing was claimed."
    assert message in step_error(run_asset(harness, wide, wide))
    assert load_counts(harness.database) == []
    assert materialized(harness) == []


@with_targets(good=EAGER, other=SILENT)
def test_partition_is_materialized_once_both_targets_have_it(harness: DefsHarness) -> None:
    """A successful load is kept while the other target fails."""
    assert not run_job(harness).success
    assert materialized(harness) == []
    script(harness.folder / "other", EAGER)  # the target works again
    assert run_job(harness).success
    assert materialized(harness) == [FIRST, SECOND]
    assert sent(harness) == [FIRST, SECOND]
    counts = load_counts(harness.database)
    assert {target for target, status, _ in counts if status == "failed"} == {"other"}
    assert {("good", "succeeded", 2), ("other", "succeeded", 2)} <= {*counts}


@with_targets(good=EAGER, other=SILENT)
def test_batches_are_reported_once_the_target_that_failed_is_removed(harness: DefsHarness) -> None:
    assert load_by_command(harness, 0) == load_by_command(harness, 1) == 2
    before = harness.tick("orders_load")
    assert not before.asset_events
    stream = replace(harness.stream, targets=harness.stream.targets[:1])
    harness = replace(harness, stream=stream, definitions=build_definitions([stream]))
    result = harness.tick("orders_load", before.cursor)
    assert [event.partition for event in result.asset_events] == [FIRST, SECOND]
    assert not harness.tick("orders_load", result.cursor).asset_events


def test_partition_with_deleted_files_cannot_be_loaded_again(harness: DefsHarness) -> None:
    """It stays loaded, and the other partition of the run becomes due."""
    assert run_job(harness).success
    stored, loads = harness.pipeline.database.stored_attempts, harness.pipeline.database.loads
    assert stored.mark_loaded([1], ["good"]) == {1}
    error = step_error(run_asset(harness, FIRST, SECOND))
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


def test_retry_does_not_repeat_the_loads_of_the_failed_runs(harness: DefsHarness) -> None:
    """It loads what a run loaded that a person has executed again."""
    assert run_job(harness).success
    first_run = run_asset(harness, FIRST, FIRST).dagster_run
    global_job = harness.definitions.resolve_implicit_global_asset_job_def()
    job = global_job.get_subset(asset_selection={loaded_key(harness.stream)})

    def repeat(run: dg.DagsterRun, *keys: str, number: str = "") -> dg.DagsterRun:
        tags = {RETRY_TAG: number} if number else {}
        return execute(job, harness.instance, tags | tags_of(keys), retry_of=run)

    failed_run = repeat(first_run, SECOND)
    repeat(repeat(failed_run, SECOND, number="2"), FIRST, SECOND, number="3")
    assert sent(harness) == [FIRST, SECOND, FIRST, SECOND, FIRST]


@with_targets(good=EAGER, other=SILENT)
def test_rerun_from_asset_failure_does_not_repeat_loads(harness: DefsHarness) -> None:
    """Dagster copies its tag to a re-execution of all steps of it, which repeats them."""
    key = loaded_key(harness.stream)
    global_job = harness.definitions.resolve_implicit_global_asset_job_def()
    job = global_job.get_subset(asset_selection={key})
    tags = tags_of([FIRST])
    failed_run = execute(job, harness.instance, tags)
    script(harness.folder / "other", EAGER)  # the target works again
    tags |= {ASSET_RESUME_TAG: "true"}
    resumed = execute(job, harness.instance, tags, retry_of=failed_run)
    assert (sent(harness), materialized(harness)) == ([FIRST], [FIRST])
    assert execute(job, harness.instance, tags, retry_of=resumed).is_success
    assert sent(harness) == [FIRST, FIRST]


def test_partition_that_another_run_loaded_meanwhile_is_materialized(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the Dagster backfill of the run would never end, or would fail as stalled."""
    checked: list[PartFile] = []

    def check(part: PartFile) -> None:
        checked.append(part)
        if len(checked) == 1:  # before this run claims the batch
            load_by_command(harness)

    monkeypatch.setattr("batch_pipeline.app._file_check", lambda _: check)
    assert run_asset(harness, FIRST, FIRST).success
    assert sent(harness) == [FIRST, SECOND]
    assert materialized(harness) == [FIRST]


def test_step_retry_repeats_a_failed_reload_request(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_pipeline.defs.partition_events._PAUSE_SECONDS", 0)
    assert run_job(harness).success
    for statement in CUT_FIRST_VOID:
        execute_sql(harness.database, statement)

    assert run_asset(harness, FIRST, SECOND).success
    assert sent(harness) == [FIRST, SECOND, FIRST, SECOND]


@with_targets(gone=GONE, good=EAGER)
def test_unreachable_server_does_not_block_other_targets(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is tried four times; the other target gets the batch once."""
    monkeypatch.setattr("batch_pipeline.defs.partition_events._PAUSE_SECONDS", 0)
    error = step_error(run_asset(harness, FIRST, FIRST))
    assert "127.0.0.1/warehouse cannot be reached" in error
    assert sent(harness) == [FIRST]
    assert load_counts(harness.database) == [("gone", "failed", 4), ("good", "succeeded", 1)]


@with_targets(busy=EAGER, good=EAGER)
def test_busy_target_does_not_block_other_targets(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step loads into the other target first, then waits for the busy one."""
    monkeypatch.setattr("batch_pipeline.defs.loads._PAUSE_SECONDS", 0)
    monkeypatch.setattr("batch_pipeline.defs.loads._MAX_WAITS", 1)
    loads = harness.database.loads
    due = list(loads.due(harness.stream, "busy"))
    with loads.claim("orders", "busy", due, run_id="load-1", lease=LEASE):
        result = run_job(harness)
        event_types = [event.event_type_value for event in result.all_events]
        assert event_types.count("STEP_UP_FOR_RETRY") == 1
        assert "run load-1 is loading" in step_error(result)
        assert load_counts(harness.database) == [("busy", "running", 1), ("good", "succeeded", 2)]


def test_unreported_load_of_a_later_generation_is_reported(harness: DefsHarness) -> None:
    """The same run loaded both generations and reported only the first."""
    run = run_job(harness)
    cursor = harness.tick("orders_load").cursor
    publish_next(harness, 0, generation=2)
    assert load_by_command(harness, run_id=run.run_id) == 1
    for last_cursor in (cursor, None):
        [event] = harness.tick("orders_load", last_cursor).asset_events
        assert isinstance(event, dg.AssetMaterialization)
        assert (event.partition, generation_of(event)) == (FIRST, 2)


@with_targets(a=EAGER, b=EAGER)
def test_unreported_reload_into_one_of_two_targets_is_reported(harness: DefsHarness) -> None:
    """An earlier run reported the first load into both targets."""
    assert run_job(harness).success
    cursor = harness.tick("orders_load").cursor
    harness.database.loads.void("orders", "b", [FIRST])
    assert load_by_command(harness, 1, "load-2") == 1
    events = harness.tick("orders_load", cursor).asset_events
    assert [event.partition for event in events] == [FIRST]


def test_batches_that_follow_a_selected_one_are_reported_beside_the_output(
    harness: DefsHarness,
) -> None:
    """A backfill of both batches makes the second batch follow the first."""
    harness.plan(ids=(1, 6), max_count=6)
    [backfill] = harness.database.backfills.of_all("orders")
    part = part_of(harness.folder / "backfill.jsonl.gz", (1, 4))
    items = tuple(item_report(number, read=1, written=1) for number in (1, 4))
    publish(harness.database, backfill.batch, encoded("b", part_files=(part,), items=items))
    publish_next(harness, 1, generation=2)
    job = job_of_both(harness.definitions, loaded_key(harness.stream))
    assert execute(job, harness.instance, tags_of([FIRST])).is_success
    assert materialized(harness) == [FIRST, SECOND]
    assert materialized(harness, BY_CITY) == [FIRST]


def test_retry_reports_loads_of_the_killed_run_once(harness: DefsHarness) -> None:
    """The downstream asset is executed in the run of the loads and in its retry."""
    job = job_of_both(harness.definitions, loaded_key(harness.stream))
    tags = tags_of([FIRST, SECOND])
    killed = execute(job, harness.instance, tags)
    assert killed.is_success
    assert materialized(harness) == materialized(harness, BY_CITY) == [FIRST, SECOND]
    # As if the process had died before it reported the materializations.
    harness.instance.wipe_assets([loaded_key(harness.stream), BY_CITY])
    loads = load_counts(harness.database)
    assert execute(job, harness.instance, tags | {RETRY_TAG: "1"}, retry_of=killed).is_success
    assert load_counts(harness.database) == loads
    assert materialized(harness) == materialized(harness, BY_CITY) == [FIRST, SECOND]
    assert not harness.tick("orders_load").asset_events
