"""Manually materialized partitions: split batches, unknown keys, keys of another asset."""

from typing import Any

import dagster as dg
import pytest

from batch_pipeline.defs.names import LAUNCH_TAG, RESUME_TAG
from batch_pipeline.defs.partitions import PartitionedAsset
from batch_pipeline.model.errors import BatchSupersededError, UnknownBatchError
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.defs.downstream_fixture import execute, tags_of
from batch_pipeline_tests.seeds import publish, statuses

PARENT = "00000001-00000003"
FIRST, SECOND = "00000001-00000002", "00000003-00000003"


@pytest.fixture
def harness(harness: DefsHarness) -> DefsHarness:
    """The stream `orders` and a backfill of it, both in batches of three."""
    harness.plan()
    harness.tick("orders_new_files")
    harness.tick("orders_backfill")
    return harness


def _split(harness: DefsHarness, job: str, key: str) -> None:
    table = harness.database.meta_table("orders").reflected()
    harness.database.jobs.split(job, key, table)


def _materialize(
    harness: DefsHarness, asset: PartitionedAsset, key: str, **tags: str
) -> dg.ExecuteInProcessResult:
    job = harness.definitions.resolve_job_def(asset.job)
    return job.execute_in_process(instance=harness.instance, partition_key=key, tags=tags)


def test_split_batch_fails_with_the_partitions_of_its_parts(harness: DefsHarness) -> None:
    _split(harness, "orders", PARENT)
    with pytest.raises(dg.Failure) as caught:
        _materialize(harness, harness.batches, PARENT)
    message = str(caught.value.description)
    assert f"batch {PARENT} was split" in message
    assert f"materialize the partitions {FIRST}, {SECOND}." in message
    assert statuses(harness.database) == []


def test_unreachable_inventory_is_retried(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins in an outage is no worse off than one that meets it later."""
    opened: list[Any] = []
    monkeypatch.setattr("batch_pipeline.defs.resources.open_engine", opened.append)
    monkeypatch.setattr("batch_pipeline.defs.partition_events._PAUSE_SECONDS", 0)
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", "postgresql://127.0.0.1:9/inventory")
    job = harness.definitions.resolve_job_def(harness.batches.job)
    result = job.execute_in_process(
        instance=harness.instance, partition_key=PARENT, raise_on_error=False
    )
    assert [event.event_type_value for event in result.all_events].count("STEP_RESTARTED") == 3
    assert "cannot be reached" in harness.tick_run_ends()
    assert opened == []  # retries open Spark once the inventory is reachable


def test_split_backfill_batch_lists_its_live_parts(harness: DefsHarness) -> None:
    """Parts that were split again are replaced by their parts."""
    _split(harness, "orders.2023", PARENT)
    _split(harness, "orders.2023", FIRST)
    with pytest.raises(BatchSupersededError) as caught:
        harness.backfills.find(harness.database, f"2023:{PARENT}")
    assert caught.value.parts == (
        "2023:00000001-00000001",
        "2023:00000002-00000002",
        f"2023:{SECOND}",
    )
    with pytest.raises(BatchSupersededError) as caught:
        harness.database.batches.batch("orders", f"2023:{FIRST}")
    assert len(caught.value.parts) == 2
    assert harness.database.batches.batch("orders", f"2023:{SECOND}").count == 1


def test_run_launched_before_the_split_succeeds_without_an_attempt(harness: DefsHarness) -> None:
    """The parts are launched instead."""
    _split(harness, "orders.2023", PARENT)
    key = f"2023:{PARENT}"
    assert _materialize(harness, harness.backfills, key, **{LAUNCH_TAG: "new"}).success
    assert statuses(harness.database) == []
    result = harness.tick("orders_backfill")
    assert harness.instance.get_dynamic_partitions("orders.backfill")[-2:] == [
        f"2023:{FIRST}",
        f"2023:{SECOND}",
    ]
    assert result.run_requests


@pytest.mark.parametrize("is_published", [True, False])
def test_re_executed_run_of_a_sensor_encodes_a_published_or_cancelled_batch(
    harness: DefsHarness, is_published: bool
) -> None:
    """The run itself does not, nor does a re-execution of failed steps of what is published."""
    job = harness.definitions.resolve_job_def(harness.batches.job)
    batch = harness.batches.find(harness.database, PARENT)
    if is_published:
        publish(harness.database, batch)
    else:
        harness.database.run_ends.close_cancelled("cancelled-run", [batch.id])
    (harness.folder / "batches").mkdir()
    (harness.folder / "batches/quarantine").write_text("not a folder, so that encoding fails")
    tags = {LAUNCH_TAG: "new", **tags_of([PARENT])}
    run = execute(job, harness.instance, tags)
    resumed = execute(job, harness.instance, {RESUME_TAG: "true", **tags}, retry_of=run)
    repeated = execute(job, harness.instance, tags, retry_of=run)
    again = execute(job, harness.instance, {RESUME_TAG: "true", **tags}, retry_of=repeated)
    encoded = [not each.is_success for each in (run, resumed, repeated, again)]
    assert encoded == [False, not is_published, True, True]


def test_unknown_key_fails_without_an_attempt(harness: DefsHarness) -> None:
    """A key of one asset is unknown to the other."""
    for key in (PARENT, f"2024:{PARENT}", "2023:00000001-00000004", "2023:1-3", "2023"):
        harness.instance.add_dynamic_partitions("orders.backfill", [key])
        with pytest.raises(dg.Failure) as caught:
            _materialize(harness, harness.backfills, key)
        assert f"{key!r} is not a planned batch" in str(caught.value.description)
        assert "batch-pipeline jobs list orders" in str(caught.value.description)
        assert "A wide partition of an earlier release" in str(caught.value.description)
    assert statuses(harness.database) == []
    with pytest.raises(UnknownBatchError):
        harness.batches.find(harness.database, f"2023:{PARENT}")
