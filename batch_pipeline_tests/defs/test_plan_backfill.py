"""The Dagster job `plan_backfill`."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.inventory import backfills
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.location import to_path
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.seeds import publish, query

ASSET = dg.AssetKey(["orders", "backfill"])


def run_plan_backfill(harness: DefsHarness, **config: Any) -> dg.ExecuteInProcessResult:
    """Run the job for the backfill `2023` of `orders`."""
    job = harness.definitions.resolve_job_def("batch_pipeline_plan_backfill")
    op_config: dict[str, Any] = {"stream": "orders", "name": "2023", **config}
    return job.execute_in_process(
        instance=harness.instance, run_config={"ops": {"plan_or_estimate": {"config": op_config}}}
    )


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Return the metadata of the run."""
    [event] = [event for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


def jobs(database: Database) -> list[str]:
    """Return the names of all jobs."""
    return [name for (name,) in query(database, "SELECT name FROM batch_pipeline.job ORDER BY id")]


def test_dry_run_is_the_default_and_stores_nothing(harness: DefsHarness) -> None:
    """The estimate is shown on the run and, as an observation, on the asset."""
    estimate = metadata(run_plan_backfill(harness, first_id=2, last_id=11, max_count=4))
    expected = {"backfill": "2023", "batches": 3, "items": 10, "weight_bytes": 100}
    assert estimate.items() >= expected.items()
    assert "batches_planned" not in estimate
    [record] = harness.instance.fetch_observations(ASSET, limit=5).records
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["batches"].value == 3
    assert jobs(harness.database) == ["orders"]
    assert harness.instance.get_dynamic_partitions("orders.backfill") == []


def test_duration_is_estimated_from_published_batches(harness: DefsHarness) -> None:
    assert "estimated_seconds" not in metadata(run_plan_backfill(harness))
    publish(harness.database, harness.database.batches.statuses("orders")[0].batch)
    estimate = metadata(run_plan_backfill(harness))
    assert estimate["estimated_seconds"] >= 0
    assert estimate["estimated_by"] == "attempts of orders: 1"


def test_planned_partitions_are_launched_by_the_sensor(harness: DefsHarness) -> None:
    config = {"items": [2, 3, 11], "max_weight": "20B"}
    assert metadata(run_plan_backfill(harness, **config))["batches"] == 2
    plan = metadata(run_plan_backfill(harness, dry_run=False, **config))
    assert (plan["batches"], plan["batches_planned"], plan["partitions_added"]) == (2, 2, 2)
    assert jobs(harness.database) == ["orders", "orders.2023"]
    assert harness.instance.get_dynamic_partitions("orders.backfill") == [
        "2023:00000002-00000003",
        "2023:00000011-00000011",
    ]
    assert len(harness.tick("orders_backfill").run_requests or []) == 1


def test_second_plan_adds_nothing_and_another_selection_is_rejected(harness: DefsHarness) -> None:
    run_plan_backfill(harness, dry_run=False, last_id=6)
    plan = metadata(run_plan_backfill(harness, dry_run=False, last_id=6))
    assert (plan["batches"], plan["batches_planned"], plan["partitions_added"]) == (0, 0, 0)
    with pytest.raises(dg.Failure, match="its selection differs"):
        run_plan_backfill(harness, dry_run=False)
    assert harness.states() == ["planned"] * 2


INVALID: list[tuple[dict[str, Any], list[str]]] = [
    ({"stream": "order"}, ["'order'", "orders"]),
    ({"first_id": 1, "since": "2026-03-01"}, ["ids and times", "one of them"]),
    ({"last_id": 9, "items": [1]}, ["ids and items", "one of them"]),
    ({"max_weight": "much"}, ["max_weight", "much"]),
    ({"max_count": 0}, ["max_count", "at least 1"]),
    ({"items": [99]}, ["99"]),
    ({"name": "a b"}, ["'a b'", "letters"]),
]


@pytest.mark.parametrize("dry_run", [True, False])
def test_invalid_config_fails_with_the_expected_values(harness: DefsHarness, dry_run: bool) -> None:
    for config, words in INVALID:
        with pytest.raises(dg.Failure) as caught:
            run_plan_backfill(harness, dry_run=dry_run, **config)
        assert [word for word in words if word not in str(caught.value.description)] == []
    assert jobs(harness.database) == ["orders"]


def test_failure_after_planning_says_that_batches_are_planned(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest that the inventory does not know appears after the batches were committed."""
    files = PartFileStorage(harness.stream.storage)
    files.prepare()
    unknown = Path(
        to_path(harness.stream.storage.root), "manifests/orders-00000001-00000002.g9.json"
    )

    def write_manifest(point: str) -> None:
        if point == "backfill.after_commit":
            unknown.write_text("{}")

    monkeypatch.setattr(backfills, "failpoint", write_manifest)
    with pytest.raises(dg.Failure) as caught:
        run_plan_backfill(harness, dry_run=False, max_count=4)
    text = str(caught.value.description)
    assert text.startswith("Batches planned: 3; the stream's sensor adds their partitions")
    assert "the inventory is older than the storage" in text
    assert jobs(harness.database) == ["orders", "orders.2023"]


def test_config_with_unknown_fields_or_wrong_types_is_rejected(harness: DefsHarness) -> None:
    for config in ({"limit": 3}, {"max_count": "three"}, {"items": "1"}):
        with pytest.raises(dg.DagsterInvalidConfigError):
            run_plan_backfill(harness, **config)
