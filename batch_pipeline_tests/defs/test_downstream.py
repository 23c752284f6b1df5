"""Assets downstream of a stream's batches in the same run, and the run's materializations."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from logging import getLogger
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.test_utils import create_test_daemon_workspace_context, instance_for_test
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._daemon.backfill import execute_backfill_iteration

from batch_pipeline.defs.metadata import generation_of
from batch_pipeline.defs.names import DATA_VERSION_TAG, LAUNCH_TAG, RETRY_TAG, WILL_RETRY_TAG
from batch_pipeline_tests.defs.checks_fixture import check_results, path_of, publish, publish_all
from batch_pipeline_tests.defs.defs_fixture import KEYS, DefsHarness, start_run
from batch_pipeline_tests.defs.downstream_fixture import (
    BATCHES,
    BY_CITY,
    execute,
    job_of_both,
    tags_of,
)

SENSOR = "orders_new_files"
UNKNOWN = "00000013-00000015"
NEW = {LAUNCH_TAG: "new"}  # a published batch is reported without encoding it again
BACKFILL = {"dagster/backfill": "abcdefgh"}


@pytest.fixture
def harness(harness: DefsHarness) -> DefsHarness:
    """The stream `orders` with four batches whose partitions are added to Dagster."""
    harness.tick(SENSOR)
    return harness


def _run(
    harness: DefsHarness,
    keys: Sequence[str],
    tags: dict[str, str],
    *,
    retry_of: dg.DagsterRun | None = None,
) -> dg.DagsterRun:
    job = job_of_both(harness.definitions)
    return execute(job, harness.instance, tags_of(keys) | tags, retry_of=retry_of)


def _events(harness: DefsHarness, key: dg.AssetKey | None = None) -> list[dg.AssetMaterialization]:
    """Return all materializations of an asset, oldest first."""
    records = harness.instance.fetch_materializations(
        key or harness.batches.asset_key, limit=1_000, ascending=True
    ).records
    return [record.asset_materialization for record in records if record.asset_materialization]


def _partitions(harness: DefsHarness, key: dg.AssetKey | None = None) -> Counter[str | None]:
    return Counter(event.partition for event in _events(harness, key))


def _unreported(harness: DefsHarness) -> list[dg.AssetMaterialization]:
    """Return the sensor's materializations of the batches."""
    return [
        event
        for event in harness.tick(SENSOR).asset_events
        if isinstance(event, dg.AssetMaterialization)
        and event.asset_key == harness.batches.asset_key
    ]


def _report(harness: DefsHarness) -> list[str | None]:
    """Store the sensor's materializations of the batches and return their partitions."""
    events = _unreported(harness)
    for event in events:
        harness.instance.report_runless_asset_event(event)
    return [event.partition for event in events]


@pytest.mark.parametrize(("keys", "tags"), [(KEYS[:1], {}), (KEYS, BACKFILL)])
def test_downstream_asset_is_executed_in_the_run_of_published_batches(
    harness: DefsHarness, keys: list[str], tags: dict[str, str]
) -> None:
    """Each partition gets one event, with the metadata of its own batch; checks run once."""
    manifests = {manifest.batch.key: manifest for manifest in publish_all(harness)}
    run = _run(harness, keys, {**tags, **NEW})
    assert run.is_success
    assert _partitions(harness) == _partitions(harness, BY_CITY) == Counter(keys)
    for event in _events(harness):
        manifest = manifests[str(event.partition)]
        assert event.metadata["attempt"].value == str(manifest.attempt)
        assert event.metadata["dagster/partition_row_count"].value == manifest.records
        assert event.metadata["job"].value == "orders"
    assert not {*_report(harness)} & {*keys}
    event_type = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    evaluations = harness.instance.all_logs(run.run_id, of_type=event_type)
    assert len(evaluations) == len(check_results(harness, run.run_id)) == 3


def test_check_of_a_user_is_evaluated_in_the_run_of_published_batches(
    harness: DefsHarness,
) -> None:
    @dg.asset_check(asset=BATCHES)
    def has_files() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    publish_all(harness)
    selection = dg.AssetSelection.assets(BATCHES)
    job = dg.define_asset_job("checked", selection, executor_def=dg.in_process_executor)
    own = dg.Definitions(asset_checks=[has_files], jobs=[job])
    checked = dg.Definitions.merge(harness.definitions, own).resolve_job_def("checked")
    run = execute(checked, harness.instance, tags_of(KEYS[:1]) | NEW)
    assert run.is_success
    event_type = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    evaluations = harness.instance.all_logs(run.run_id, of_type=event_type)
    names = Counter(
        entry.dagster_event.asset_check_evaluation_data.check_name
        for entry in evaluations
        if entry.dagster_event is not None
    )
    assert names == Counter(["has_files", "part_files", "conservation", "quarantine"])
    assert _partitions(harness) == Counter(KEYS[:1])


def test_downstream_asset_is_skipped_if_a_batch_failed(harness: DefsHarness) -> None:
    """The run fails and has events for the published partitions only."""
    harness.instance.add_dynamic_partitions(harness.batches.set_name, [UNKNOWN])
    publish_all(harness)
    run = _run(harness, [*KEYS, UNKNOWN], BACKFILL | NEW)
    assert run.status is dg.DagsterRunStatus.FAILURE
    assert _partitions(harness) == Counter(KEYS)
    assert _partitions(harness, BY_CITY) == Counter()
    assert _report(harness) == []


def test_downstream_asset_is_skipped_if_a_batch_was_cancelled(harness: DefsHarness) -> None:
    """The run, launched before, succeeds and has events for the published partitions only."""
    [*published, cancelled] = harness.database.batches.statuses("orders")
    for status in published:
        publish(harness, status.batch)
    harness.database.jobs.cancel("orders", cancelled.batch.id)
    assert _run(harness, KEYS, NEW).is_success
    assert _partitions(harness) == Counter(KEYS[:-1])
    assert _partitions(harness, BY_CITY) == Counter()


def test_retry_of_a_killed_run_executes_the_downstream_asset(harness: DefsHarness) -> None:
    """Only the retry reports events; without a retry, the sensor would."""
    job = job_of_both(harness.definitions)
    killed = start_run(harness.instance, job, tags_of(KEYS) | BACKFILL)
    publish_all(harness, run_id=killed.run_id)
    assert _report(harness) == []
    harness.instance.report_run_failed(killed)
    assert [event.partition for event in _unreported(harness)] == KEYS
    harness.instance.add_run_tags(killed.run_id, {WILL_RETRY_TAG: "true"})
    assert _report(harness) == []
    assert _run(harness, KEYS, BACKFILL | {RETRY_TAG: "1"}, retry_of=killed).is_success
    assert _partitions(harness) == _partitions(harness, BY_CITY) == Counter(KEYS)
    assert {generation_of(event) for event in _events(harness)} == {1}
    assert _report(harness) == []


def test_sensor_leaves_events_to_started_runs_of_a_users_job(harness: DefsHarness) -> None:
    """Their tags name a range of partitions, or one partition."""
    job = job_of_both(harness.definitions)
    runs = [start_run(harness.instance, job, tags_of(keys)) for keys in (KEYS[:3], KEYS[3:])]
    assert runs[0].asset_selection is None
    publish_all(harness)
    for run, keys in zip(runs, (KEYS[:3], KEYS[3:]), strict=True):
        assert _report(harness) == []
        harness.instance.report_run_failed(run)
        assert _report(harness) == keys


def test_cancelled_run_of_a_users_job_cancels_its_batches(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events are not read: there may be thousands of runs that have nothing to do with us."""
    monkeypatch.setattr(harness.instance, "all_logs", None)
    job = job_of_both(harness.definitions)
    harness.cancel_run(start_run(harness.instance, job, tags_of(KEYS[:2])))
    assert "Batches cancelled: 2" in harness.tick_run_ends()
    assert harness.states("orders") == ["cancelled", "cancelled", "planned", "planned"]


def test_batch_reported_by_the_sensor_is_not_reported_by_a_run(harness: DefsHarness) -> None:
    publish_all(harness)
    assert _report(harness) == KEYS
    job = harness.definitions.resolve_job_def(harness.batches.job)
    assert job.execute_in_process(instance=harness.instance, tags=tags_of(KEYS) | NEW).success
    assert _partitions(harness) == Counter(KEYS)


def test_events_of_a_run_have_the_generations_of_their_batches(harness: DefsHarness) -> None:
    """The data version changes with any of these generations."""
    publish_all(harness)
    publish(harness, harness.batches.find(harness.database, KEYS[1]))
    assert _run(harness, KEYS, NEW).is_success
    first = _events(harness)
    assert _generations(first) == [1, 2, 1, 1]
    assert _report(harness) == []
    publish(harness, harness.batches.find(harness.database, KEYS[0]))
    assert _run(harness, KEYS, NEW).is_success
    later = _events(harness)[4:]
    assert _generations(later) == [2, 2, 1, 1]
    versions = {(event.tags or {})[DATA_VERSION_TAG] for event in (*first, *later)}
    assert len(versions) == 2


def _generations(events: Sequence[dg.AssetMaterialization]) -> list[int]:
    generations = {event.partition: generation_of(event) for event in events}
    return [generations[key] for key in KEYS]


def test_failed_blocking_check_skips_the_downstream_asset(harness: DefsHarness) -> None:
    path = path_of(publish_all(harness)[3])
    path.unlink()
    run = _run(harness, KEYS, NEW)
    assert run.status is dg.DagsterRunStatus.FAILURE
    assert _partitions(harness) == Counter(KEYS)
    assert _partitions(harness, BY_CITY) == Counter()
    [failure] = harness.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert "Assets downstream of orders/batches were not materialized" in str(failure)
    assert f"{path} is missing" in str(failure)


_PROJECT = """
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.app import Pipeline
from batch_pipeline_tests.defs.downstream_fixture import with_downstream

defs = with_downstream(build_definitions([Pipeline.from_environment().stream("orders")]))
"""
_SYNCHRONOUS_RUNS = {
    "run_launcher": {
        "module": "dagster._core.launcher.sync_in_memory_run_launcher",
        "class": "SyncInMemoryRunLauncher",
    },
    "run_coordinator": {
        "module": "dagster._core.run_coordinator",
        "class": "DefaultRunCoordinator",
    },
}


@pytest.mark.long
# Dagster calls a deprecated function, and does not await a coroutine of a stopped server.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_dagster_backfill_executes_both_assets(harness: DefsHarness, tmp_path: Path) -> None:
    """Two runs materialize two partitions each."""
    publish_all(harness)
    project = tmp_path / "project.py"
    project.write_text(_PROJECT)
    target = PythonFileTarget(str(project), None, str(tmp_path), "orders")
    with (
        instance_for_test(overrides=_SYNCHRONOUS_RUNS) as instance,
        create_test_daemon_workspace_context(target, instance) as workspace,
    ):
        local_harness = replace(harness, instance=instance)
        instance.add_dynamic_partitions(harness.batches.set_name, KEYS)
        graph = workspace.create_request_context().asset_graph
        backfill = PartitionBackfill.from_asset_partitions(
            backfill_id="abcdefgh",
            asset_graph=graph,
            partition_names=KEYS,
            asset_selection=[harness.batches.asset_key, BY_CITY],
            backfill_timestamp=1_700_000_000.0,
            tags=NEW,
            dynamic_partitions_store=instance,
            all_partitions=False,
            title=None,
            description=None,
            run_config=None,
        )
        instance.add_backfill(backfill)
        for _ in range(4):
            errors = list(execute_backfill_iteration(workspace, getLogger("backfill")))
            assert not any(errors)
        ended = instance.get_backfill("abcdefgh")
        assert ended is not None
        assert ended.status is BulkActionStatus.COMPLETED_SUCCESS
        assert len(instance.get_runs()) == 2
        assert _partitions(local_harness) == _partitions(local_harness, BY_CITY) == Counter(KEYS)
