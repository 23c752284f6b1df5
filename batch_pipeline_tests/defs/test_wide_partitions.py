"""Wide partitions that the removed command `roll-up` created from several partitions."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from batch_pipeline.cli import cli
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.names import LAUNCH_TAG, RANGE_END_TAG, RANGE_START_TAG, loaded_key
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.defs.defs_fixture import KEYS, DefsHarness, open_defs_harness
from batch_pipeline_tests.load.target_scripts import GOOD, settings_of
from batch_pipeline_tests.seeds import everything, publish

SET = "orders.batches"
SENSOR = "orders_new_files"
WIDE = "00000001-00000006"
NOT_PLANNED = f"'{WIDE}' is not a planned batch. Nothing was claimed."
HINT = "A wide partition of an earlier release stands for several: pick those."


@pytest.fixture
def harness(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsHarness]:
    """Four batches, three of them published; the first two share a wide partition in Dagster."""
    targets = {"good": settings_of(tmp_path / "good", GOOD)}
    with open_defs_harness(
        database, database_url, tmp_path, monkeypatch, targets=targets
    ) as opened:
        opened.tick(SENSOR)
        for status in database.batches.statuses("orders")[:3]:
            publish(database, status.batch)
        for event in opened.tick(SENSOR).asset_events:
            opened.instance.report_runless_asset_event(event)
        asset_key = opened.batches.asset_key
        wide = dg.AssetMaterialization(asset_key=asset_key, partition=WIDE, metadata={"batches": 2})
        opened.instance.report_runless_asset_event(wide)
        opened.instance.add_dynamic_partitions(SET, [WIDE])
        for key in KEYS[:2]:
            opened.instance.delete_dynamic_partition(SET, key)
        yield opened


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


def test_materializing_a_wide_partition_fails(harness: DefsHarness) -> None:
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
    assert everything(harness.database) == before


def test_loading_a_wide_partition_fails_and_loads_nothing(harness: DefsHarness) -> None:
    before = everything(harness.database)
    key = loaded_key(harness.stream)
    with pytest.raises(dg.Failure, match=NOT_PLANNED):
        dg.materialize(
            [harness.definitions.resolve_assets_def(key)],
            instance=harness.instance,
            partition_key=WIDE,
        )
    assert everything(harness.database) == before


def test_removed_command_is_rejected_with_a_replacement() -> None:
    result = CliRunner().invoke(cli, ["roll-up", "orders", "--keep", "0"])
    assert result.exit_code == 2
    assert "The command 'roll-up' was removed. Choose larger `batch.max_weight`" in result.stderr
