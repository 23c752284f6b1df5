"""What the asset of a meta table tells of its stream, from the sensor and from its own runs."""

from typing import Any

import dagster as dg

from batch_pipeline.defs.metadata import batch_metadata
from batch_pipeline.defs.names import files_key
from batch_pipeline_tests.defs.checks_fixture import publish, publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsScene
from batch_pipeline_tests.factories import manifest, part_file, record_schema
from batch_pipeline_tests.seeds import register


def observed(scene: DefsScene) -> list[dict[str, Any]]:
    """Let the sensor tick, hand its observations to Dagster, and give their metadata."""
    events = scene.tick("orders_new_files").asset_events
    found = [event for event in events if isinstance(event, dg.AssetObservation)]
    for event in found:
        scene.instance.report_runless_asset_event(event)
    return [values(event) for event in found]


def values(event: dg.AssetObservation) -> dict[str, Any]:
    """Give the metadata of an event without what it is wrapped in."""
    assert event.asset_key == files_key_of_orders()
    return {name: value.value for name, value in event.metadata.items()}


def files_key_of_orders() -> dg.AssetKey:
    """Key of the asset that is observed."""
    return dg.AssetKey(["orders", "files"])


def test_sensor_observes_where_the_stream_stands(scene: DefsScene) -> None:
    """Expect numbers of items, bytes and batches, and the age of the oldest."""
    register(scene.database, 1, first=13)
    publish(scene, scene.database.batches.batch("orders", "00000001-00000003"))
    [told] = observed(scene)
    assert (told["items"], told["weight_bytes"]) == (13, 130)
    assert (told["items_waiting"], told["bytes_waiting"]) == (0, 0)
    assert (told["items_unpublished"], told["bytes_unpublished"]) == (10, 100)
    assert (told["batches_published"], told["batches_planned"]) == (1, 4)
    assert (told["bookmark"], told["ceiling"]) == (13, 13)
    assert told["oldest_unpublished_seconds"] > 0
    assert told["pace"].startswith("last batches: 1,")


def test_sensor_says_nothing_twice(scene: DefsScene) -> None:
    """Expect an observation only when batches have moved to other states."""
    assert len(observed(scene)) == 1
    assert observed(scene) == []
    publish_all(scene)
    [told] = observed(scene)
    assert (told["items_unpublished"], told["oldest_unpublished_seconds"]) == (0, 0.0)
    assert observed(scene) == []


def test_observation_that_was_lost_is_made_again(scene: DefsScene) -> None:
    """Expect the sensor to go by what Dagster has, not by what it said."""
    scene.tick("orders_new_files")
    assert len(observed(scene)) == 1


def test_run_observes_after_it_has_materialized(scene: DefsScene) -> None:
    """Expect the observation to be the later event, for Dagster shows it beside the other then."""
    job = scene.definitions.resolve_job_def("orders_register")
    result = job.execute_in_process(instance=scene.instance)
    kinds = [event.event_type_value for event in result.all_events]
    assert kinds.index("ASSET_MATERIALIZATION") < kinds.index("ASSET_OBSERVATION")
    [record] = scene.instance.fetch_observations(files_key(scene.stream), limit=5).records
    assert record.asset_observation is not None
    assert values(record.asset_observation)["items"] == 12


def test_batch_shows_its_columns_rows_and_part_files_as_tables() -> None:
    """Expect what Dagster's pages know how to show."""
    parts = tuple(part_file(f"orders-{number}.jsonl.gz") for number in range(201))
    one = manifest(part_files=parts, schema=record_schema("order_id", "city"))
    told = batch_metadata(one, "file:///batches/manifests/one.json", 2.0)
    assert told["dagster/partition_row_count"] == 1_005
    schema = told["dagster/column_schema"]
    assert [(column.name, column.type) for column in schema.columns] == [
        ("order_id", "integer"),
        ("city", "integer"),
    ]
    files = told["part_files"]
    assert len(files.records) == 100
    assert files.records[0].data == {
        "part_file": "orders-0.jsonl.gz",
        "records": 5,
        "bytes": 100,
        "sha256": "ab" * 32,
    }


def test_batch_in_s3_shows_uris() -> None:
    """Expect no path of a manifest file where there is none, and part files by their URIs."""
    uri = "s3://bucket/batches/orders-0.jsonl.gz"
    told = batch_metadata(
        manifest(part_files=(part_file(uri=uri),)), "s3://bucket/batches/manifests/one.json", 2.0
    )
    assert told["dagster/uri"] == "s3://bucket/batches/manifests/one.json"
    assert told["part_files"].records[0].data["part_file"] == uri


def test_partition_lists_its_source_files_also_when_it_is_reported_later(
    scene: DefsScene,
) -> None:
    publish(scene, scene.database.batches.batch("orders", "00000001-00000003"))
    events = scene.tick("orders_new_files").asset_events
    [event] = [one for one in events if isinstance(one, dg.AssetMaterialization)]
    found = event.metadata["source_files"]
    assert isinstance(found, dg.TableMetadataValue)
    rows = [record.data for record in found.records]
    items = scene.database.meta_table("orders").items(
        scene.database.batches.batch("orders", "00000001-00000003")
    )
    assert rows == [
        {
            "item": one.id,
            "source_file": one.file.location,
            "bytes": one.file.size_bytes,
            "records_read": 5,
            "records_quarantined": 0,
        }
        for one in items
    ]
