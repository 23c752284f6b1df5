"""Observations of the files asset and metadata of materializations."""

from typing import Any

import dagster as dg

from batch_pipeline.defs.metadata import batch_metadata
from batch_pipeline.defs.names import files_key
from batch_pipeline_tests.defs.checks_fixture import publish, publish_all
from batch_pipeline_tests.defs.defs_fixture import KEYS, DefsHarness
from batch_pipeline_tests.factories import manifest, part_file, record_schema
from batch_pipeline_tests.seeds import register


def observe(harness: DefsHarness) -> list[dict[str, Any]]:
    """Evaluate the sensor, store its observations, and return their metadata."""
    events = harness.tick("orders_new_files").asset_events
    observations = [event for event in events if isinstance(event, dg.AssetObservation)]
    for observation in observations:
        harness.instance.report_runless_asset_event(observation)
    return [values(observation) for observation in observations]


def values(event: dg.AssetObservation) -> dict[str, Any]:
    """Return the plain metadata values of an observation."""
    assert event.asset_key == dg.AssetKey(["orders", "files"])
    return {name: value.value for name, value in event.metadata.items()}


def test_sensor_observes_the_status_of_the_stream(harness: DefsHarness) -> None:
    register(harness.database, 1, first=13)
    publish(harness, harness.database.batches.batch("orders", KEYS[0]))
    [metadata] = observe(harness)
    assert (metadata["items"], metadata["weight_bytes"]) == (13, 130)
    assert (metadata["items_waiting"], metadata["bytes_waiting"]) == (0, 0)
    assert (metadata["items_unpublished"], metadata["bytes_unpublished"]) == (10, 100)
    assert (metadata["batches_published"], metadata["batches_planned"]) == (1, 4)
    assert (metadata["bookmark"], metadata["ceiling"]) == (13, 13)
    assert "batches_failed" not in metadata
    assert metadata["oldest_unpublished_seconds"] > 0
    assert metadata["pace"].startswith("last batches: 1,")


def test_sensor_only_observes_changes(harness: DefsHarness) -> None:
    """It compares with what Dagster has stored, not with what it returned before."""
    harness.tick("orders_new_files")  # its observation is lost
    assert len(observe(harness)) == 1
    assert observe(harness) == []
    publish_all(harness)
    [metadata] = observe(harness)
    assert (metadata["items_unpublished"], metadata["oldest_unpublished_seconds"]) == (0, 0.0)
    assert observe(harness) == []


def test_registration_says_what_it_did_and_evaluates_the_backlog(harness: DefsHarness) -> None:
    """Only the observation has the status of the stream, which counts all planned batches.

    Dagster shows an observation beside a materialization only if it is the later event.
    """
    job = harness.definitions.resolve_job_def("orders_register")
    result = job.execute_in_process(instance=harness.instance)  # finds nothing new
    kinds = [event.event_type_value for event in result.all_events]
    assert kinds.index("ASSET_MATERIALIZATION") < kinds.index("ASSET_OBSERVATION")
    [record] = harness.instance.fetch_observations(files_key(harness.stream), limit=5).records
    assert record.asset_observation is not None
    assert values(record.asset_observation)["items"] == 12
    [event] = result.get_asset_materialization_events()
    metadata = {name: value.value for name, value in event.materialization.metadata.items()}
    assert (metadata["items_registered"], metadata["batches_planned"]) == (0, 0)
    assert "items_unpublished" not in metadata
    [evaluation] = result.get_asset_check_evaluations()
    assert evaluation.check_name == "backlog"


def test_batch_metadata_has_row_count_columns_and_part_files() -> None:
    parts = tuple(part_file(f"orders-{number}.jsonl.gz") for number in range(201))
    published = manifest(part_files=parts, schema=record_schema("order_id", "city"))
    metadata = batch_metadata(published, "file:///batches/manifests/orders.json", 2.0)
    assert metadata["dagster/uri"] == "file:///batches/manifests/orders.json"
    assert metadata["dagster/partition_row_count"] == 1_005
    columns = metadata["dagster/column_schema"].columns
    assert [(column.name, column.type) for column in columns] == [
        ("order_id", "integer"),
        ("city", "integer"),
    ]
    row = {"part_file": "orders-0.jsonl.gz", "records": 5, "bytes": 100, "sha256": "ab" * 32}
    assert len(metadata["part_files"].records) == 100
    assert metadata["part_files"].records[0].data == row
    uri = "s3://bucket/batches/orders-0.jsonl.gz"
    metadata = batch_metadata(manifest(part_files=(part_file(uri=uri),)), uri, 2.0)
    assert metadata["part_files"].records[0].data == row | {"part_file": uri}


def test_materialization_by_the_sensor_lists_the_source_files(harness: DefsHarness) -> None:
    batch = harness.database.batches.batch("orders", KEYS[0])
    publish(harness, batch)
    events = harness.tick("orders_new_files").asset_events
    [materialization] = [event for event in events if isinstance(event, dg.AssetMaterialization)]
    source_files = materialization.metadata["source_files"]
    assert isinstance(source_files, dg.TableMetadataValue)
    assert [record.data for record in source_files.records] == [
        {
            "item": number,
            "source_file": f"file:///landing/orders-{number:04}.csv",
            "bytes": 10,
            "records_read": 5,
            "records_quarantined": 0,
        }
        for number in (1, 2, 3)
    ]
