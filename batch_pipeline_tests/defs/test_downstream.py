"""Assets downstream of a stream's batches in the same run, and the events that the run reports."""

import subprocess
import sys
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
from batch_pipeline_tests.defs.checks_fixture import path_of, publish, publish_all, said_in
from batch_pipeline_tests.defs.defs_fixture import DefsScene
from batch_pipeline_tests.defs.downstream_fixture import (
    BY_CITY,
    KILLED,
    execute,
    job_of_both,
    tags_of,
)

SENSOR = "orders_new_files"
KEYS = [
    "00000001-00000003",
    "00000004-00000006",
    "00000007-00000009",
    "00000010-00000012",
]
UNKNOWN = "00000013-00000015"
NEW = {LAUNCH_TAG: "new"}  # a published batch is reported without encoding it again
ALONE, RANGE = [KEYS[0]], KEYS
BACKFILL = {"dagster/backfill": "abcdefgh"}


@pytest.fixture
def scene(scene: DefsScene) -> DefsScene:
    """The stream `orders` with four batches whose partitions Dagster has."""
    scene.tick(SENSOR)
    return scene


def _run(
    scene: DefsScene,
    keys: Sequence[str],
    tags: dict[str, str],
    *,
    after: dg.DagsterRun | None = None,
) -> dg.DagsterRun:
    job = job_of_both(scene.definitions)
    return execute(job, scene.instance, tags_of(keys) | tags, after=after)


def _events(scene: DefsScene, key: dg.AssetKey | None = None) -> list[dg.AssetMaterialization]:
    """Read all materializations of an asset, oldest first."""
    found = scene.instance.fetch_materializations(
        key or scene.batches.asset_key, limit=1_000, ascending=True
    )
    return [one.asset_materialization for one in found.records if one.asset_materialization]


def _partitions(scene: DefsScene, key: dg.AssetKey | None = None) -> Counter[str | None]:
    return Counter(event.partition for event in _events(scene, key))


def _report(scene: DefsScene) -> list[str | None]:
    """Let the sensor report what Dagster does not show."""
    events = [
        one for one in scene.tick(SENSOR).asset_events if isinstance(one, dg.AssetMaterialization)
    ]
    mine = [one for one in events if one.asset_key == scene.batches.asset_key]
    for event in mine:
        scene.instance.report_runless_asset_event(event)
    return [event.partition for event in mine]


@pytest.mark.parametrize("tags", [{}, BACKFILL], ids=["by hand", "backfill"])
@pytest.mark.parametrize("keys", [ALONE, RANGE], ids=["alone", "range"])
def test_downstream_asset_when_all_are_published_is_executed_in_the_same_run(
    scene: DefsScene, keys: list[str], tags: dict[str, str]
) -> None:
    """Expect one event for each partition, with the metadata of its own batch."""
    manifests = {one.batch.key: one for one in publish_all(scene)}
    run = _run(scene, keys, {**tags, **NEW})
    assert run.is_success
    assert _partitions(scene) == _partitions(scene, BY_CITY) == Counter(keys)
    for event in _events(scene):
        manifest = manifests[str(event.partition)]
        assert event.metadata["attempt"].value == str(manifest.attempt)
        assert event.metadata["dagster/partition_row_count"].value == manifest.records
        assert event.metadata["job"].value == "orders"
    assert not {*_report(scene)} & {*keys}


@pytest.mark.parametrize("tags", [{}, BACKFILL], ids=["by hand", "backfill"])
@pytest.mark.parametrize("keys", [[UNKNOWN], [*RANGE, UNKNOWN]], ids=["alone", "range"])
def test_downstream_asset_when_a_batch_failed_is_skipped_in_a_failed_run(
    scene: DefsScene, keys: list[str], tags: dict[str, str]
) -> None:
    """Expect an event for each published partition, and none for the failed one."""
    scene.instance.add_dynamic_partitions(scene.batches.set_name, [UNKNOWN])
    publish_all(scene)
    run = _run(scene, keys, {**tags, **NEW})
    assert run.status is dg.DagsterRunStatus.FAILURE
    assert _partitions(scene) == Counter(keys[:-1])
    assert _partitions(scene, BY_CITY) == Counter()
    assert not {*_report(scene)} & {*keys}


@pytest.mark.parametrize("tags", [{}, BACKFILL], ids=["by hand", "backfill"])
@pytest.mark.parametrize("keys", [ALONE, RANGE], ids=["alone", "range"])
def test_downstream_asset_after_a_kill_before_the_output_is_executed_by_the_repeated_run(
    scene: DefsScene, tmp_path: Path, keys: list[str], tags: dict[str, str]
) -> None:
    """Expect no event of the killed run, none of the sensor, and one for each of the repeated."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        here = replace(scene, instance=instance)
        here.tick(SENSOR)
        died = _killed(here, tmp_path, keys, tags)
        assert scene.states("orders") == ["published"] * len(keys) + ["planned"] * (4 - len(keys))
        assert _partitions(here) == Counter()
        assert not {*_report(here)} & {*keys}
        instance.report_run_failed(died)
        instance.add_run_tags(died.run_id, {WILL_RETRY_TAG: "true"})
        assert _report(here) == []
        again = _run(here, keys, {**tags, RETRY_TAG: "1"}, after=died)
        assert again.is_success
        assert _partitions(here) == _partitions(here, BY_CITY) == Counter(keys)
        assert {generation_of(event) for event in _events(here)} == {1}
        assert _report(here) == []


@pytest.mark.parametrize("keys", [ALONE, RANGE], ids=["alone", "range"])
def test_events_of_a_killed_run_that_nobody_repeats_are_reported_by_the_sensor_once(
    scene: DefsScene, tmp_path: Path, keys: list[str]
) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        here = replace(scene, instance=instance)
        here.tick(SENSOR)
        died = _killed(here, tmp_path, keys, {})
        instance.report_run_failed(died)
        assert _report(here) == keys
        assert _report(here) == []
        assert _partitions(here) == Counter(keys)


def _killed(
    scene: DefsScene, folder: Path, keys: Sequence[str], tags: dict[str, str]
) -> dg.DagsterRun:
    """Execute a run in a process that dies when the last of its batches is published."""
    module = "batch_pipeline_tests.defs.downstream_fixture"
    pairs = [f"{name}={value}" for name, value in (tags_of(keys) | tags).items()]
    command = [sys.executable, "-m", module, str(folder), *pairs]
    assert subprocess.run(command, check=False).returncode == KILLED
    [run] = scene.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    return run


def test_events_of_a_run_of_a_users_own_job_are_left_to_the_run(scene: DefsScene) -> None:
    """Expect the sensor to know which assets a run has whose job is not one of the stream's."""
    job = job_of_both(scene.definitions)
    run = scene.instance.create_run_for_job(
        job_def=job, tags=tags_of(RANGE), status=dg.DagsterRunStatus.STARTED
    )
    assert run.asset_selection is None
    publish_all(scene)
    assert _report(scene) == []
    scene.instance.report_run_failed(run)
    assert _report(scene) == KEYS


def test_batches_of_a_users_own_job_when_it_is_cancelled_are_cancelled(scene: DefsScene) -> None:
    run = scene.instance.create_run_for_job(
        job_def=job_of_both(scene.definitions),
        tags=tags_of(KEYS[:2]),
        status=dg.DagsterRunStatus.STARTED,
    )
    scene.cancelled(run)
    assert "Batches cancelled: 2" in scene.tick_run_ends()
    assert scene.states("orders") == ["cancelled", "cancelled", "planned", "planned"]


def test_batch_that_is_reported_already_is_not_reported_again(scene: DefsScene) -> None:
    """Expect one event when the sensor was first, and a run for new batches comes later."""
    publish_all(scene)
    assert _report(scene) == KEYS
    job = scene.definitions.resolve_job_def(scene.batches.job)
    done = job.execute_in_process(instance=scene.instance, tags=tags_of(RANGE) | NEW)
    assert done.success
    assert _partitions(scene) == Counter(KEYS)


def test_generations_that_differ_within_a_run_are_kept_by_the_events(scene: DefsScene) -> None:
    """Expect a data version that changes with any of them, and no second event by the sensor."""
    publish_all(scene)
    publish(scene, scene.batches.find(scene.database, KEYS[1]))
    assert _run(scene, RANGE, NEW).is_success
    first = _events(scene)
    assert _generations(first) == [1, 2, 1, 1]
    assert _report(scene) == []
    publish(scene, scene.batches.find(scene.database, KEYS[0]))
    assert _run(scene, RANGE, NEW).is_success
    later = _events(scene)[4:]
    assert _generations(later) == [2, 2, 1, 1]
    versions = {(event.tags or {})[DATA_VERSION_TAG] for event in (*first, *later)}
    assert len(versions) == 2


def _generations(events: Sequence[dg.AssetMaterialization]) -> list[int]:
    found = {event.partition: generation_of(event) for event in events}
    return [found[key] for key in KEYS]


def test_checks_of_a_run_with_an_asset_downstream_are_answered_once(scene: DefsScene) -> None:
    """Expect the step that encodes to answer them, and the step of the checks to leave them."""
    publish_all(scene)
    run = _run(scene, RANGE, NEW)
    of_checks = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    found = scene.instance.all_logs(run.run_id, of_type=of_checks)
    assert len(found) == len(said_in(scene, run.run_id)) == 3


def test_downstream_asset_when_a_blocking_check_fails_is_not_executed(scene: DefsScene) -> None:
    """Expect a failed run that names the file, and the events of what is published."""
    path = path_of(publish_all(scene)[3])
    path.unlink()
    run = _run(scene, RANGE, NEW)
    assert run.status is dg.DagsterRunStatus.FAILURE
    assert _partitions(scene) == Counter(KEYS)
    assert _partitions(scene, BY_CITY) == Counter()
    failures = scene.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    [said] = [
        str(one.dagster_event.step_failure_data.error) for one in failures if one.dagster_event
    ]
    assert "Assets downstream of orders/batches were not materialized" in said
    assert f"{path} is missing" in said


_PROJECT = """
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.app import Pipeline
from batch_pipeline_tests.defs.downstream_fixture import with_downstream

defs = with_downstream(build_definitions([Pipeline.from_environment().stream("orders")]))
"""
_AT_ONCE = {
    "run_launcher": {
        "module": "dagster._core.launcher.sync_in_memory_run_launcher",
        "class": "SyncInMemoryRunLauncher",
    },
    "run_coordinator": {
        "module": "dagster._core.run_coordinator",
        "class": "DefaultRunCoordinator",
    },
}


# Dagster's own: a deprecated function, and a coroutine of a server that is stopped.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_backfill_of_dagster_over_both_assets_executes_both(
    scene: DefsScene, tmp_path: Path
) -> None:
    """Expect two runs of two partitions each, and one event for each partition of both assets."""
    publish_all(scene)
    project = tmp_path / "project.py"
    project.write_text(_PROJECT)
    target = PythonFileTarget(str(project), None, str(tmp_path), "orders")
    with (
        instance_for_test(overrides=_AT_ONCE) as instance,
        create_test_daemon_workspace_context(target, instance) as workspace,
    ):
        here = replace(scene, instance=instance)
        instance.add_dynamic_partitions(scene.batches.set_name, KEYS)
        graph = workspace.create_request_context().asset_graph
        backfill = PartitionBackfill.from_asset_partitions(
            backfill_id="abcdefgh",
            asset_graph=graph,
            partition_names=KEYS,
            asset_selection=[scene.batches.asset_key, BY_CITY],
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
        assert _partitions(here) == _partitions(here, BY_CITY) == Counter(KEYS)
