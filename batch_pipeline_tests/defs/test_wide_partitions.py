"""Wide partitions that the removed command `roll-up` created from several partitions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.names import LAUNCH_TAG, RANGE_END_TAG, RANGE_START_TAG, loaded_key
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.defs.defs_fixture import KEYS, DefsHarness
from batch_pipeline_tests.load.target_scripts import GOOD, settings_of
from batch_pipeline_tests.seeds import everything, publish

SET = "orders.batches"
SENSOR = "orders_new_files"
WIDE = "00000001-00000006"
NOT_PLANNED = f"'{WIDE}' is not a planned batch. Nothing was claimed."
HINT = "A wide partition of an earlier release stands for several: pick those."


@pytest.fixture
def targets(tmp_path: Path) -> dict[str, Any]:
    """A working target."""
    return {"good": settings_of(tmp_path / "good", GOOD)}


@pytest.fixture
def harness(harness: DefsHarness) -> DefsHarness:
    """Four batches, three of them published; the first two share a wide partition in Dagster."""
    harness.tick(SENSOR)
    for status in harness.database.batches.statuses("orders")[:3]:
        publish(harness.database, status.batch)
    for event in harness.tick(SENSOR).asset_events:
        harness.instance.report_runless_asset_event(event)
    asset_key = harness.batches.asset_key
    wide = dg.AssetMaterialization(asset_key=asset_key, partition=WIDE, metadata={"batches": 2})
    harness.instance.report_runless_asset_event(wide)
    harness.instance.add_dynamic_partitions(SET, [WIDE])
    for key in KEYS[:2]:
        harness.instance.delete_dynamic_partition(SET, key)
    return harness


def test_sensor_adds_the_partitions_of_a_wide_partition(
    database: Database, harness: DefsHarness
) -> None:
    # A new process compares all partitions.
    fresh = replace(harness, definitions=build_definitions([harness.stream]))
    result = fresh.tick(SENSOR)
    assert [*harness.instance.get_dynamic_partitions(SET)] == [*KEYS[2:], WIDE, *KEYS[:2]]
    assert result.asset_events == []
    launched = {key for request in result.run_requests or () for key in request.tags.values()}
    assert WIDE not in launched
    publish(database, database.batches.statuses("orders")[0].batch)
    assert [event.partition for event in fresh.tick(SENSOR).asset_events] == [KEYS[0]]


def test_materializing_or_loading_a_wide_partition_fails(harness: DefsHarness) -> None:
    before = everything(harness.database)
    harness.instance.delete_dynamic_partition(SET, KEYS[3])
    tags = {RANGE_START_TAG: KEYS[2], RANGE_END_TAG: WIDE, LAUNCH_TAG: "new"}
    job = harness.definitions.resolve_job_def(harness.batches.job)
    with pytest.raises(dg.Failure) as caught:
        job.execute_in_process(instance=harness.instance, tags=tags)
    description = str(caught.value.description)
    assert description.startswith("Batches failed: 1 of 2, others are published: ")
    assert f"{NOT_PLANNED} " in description
    assert HINT in description
    key = loaded_key(harness.stream)
    with pytest.raises(dg.Failure, match=NOT_PLANNED):
        dg.materialize(
            [harness.definitions.resolve_assets_def(key)],
            instance=harness.instance,
            partition_key=WIDE,
        )
    assert everything(harness.database) == before
