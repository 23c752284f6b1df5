"""The Dagster job `plan_backfill`: what it shows, what it plans, and what it refuses."""

from typing import Any

import dagster as dg
import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.defs.defs_fixture import DefsScene
from batch_pipeline_tests.seeds import publish, query

ASSET = dg.AssetKey(["orders", "backfill"])


def planned(scene: DefsScene, **config: Any) -> dg.ExecuteInProcessResult:
    """Run the job with a config."""
    job = scene.definitions.resolve_job_def("batch_pipeline_plan_backfill")
    words: dict[str, Any] = {"stream": "orders", "name": "2023", **config}
    return job.execute_in_process(
        instance=scene.instance,
        run_config={"ops": {"plan_or_estimate": {"config": words}}},
    )


def facts(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Give the metadata of the run."""
    [event] = [one for one in result.all_events if one.is_successful_output]
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


def jobs(database: Database) -> list[str]:
    """The names of all jobs."""
    return [name for (name,) in query(database, "SELECT name FROM batch_pipeline.job ORDER BY id")]


def test_dry_run_is_the_default_and_stores_nothing(scene: DefsScene) -> None:
    """Expect batches, items and bytes on the run and on the asset, and no job or partition."""
    told = facts(planned(scene, first_id=2, last_id=11, max_count=4))
    expected = {"backfill": "2023", "batches": 3, "items": 10, "weight_bytes": 100}
    assert told.items() >= expected.items()
    assert "batches_planned" not in told
    [record] = scene.instance.fetch_observations(ASSET, limit=5).records
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["batches"].value == 3
    assert jobs(scene.database) == ["orders"]
    assert scene.instance.get_dynamic_partitions("orders.backfill") == []


def test_estimate_tells_seconds_by_what_was_published(scene: DefsScene) -> None:
    """Expect no figure where nothing has succeeded, then seconds and whose they are."""
    assert "estimated_seconds" not in facts(planned(scene))
    publish(scene.database, scene.database.batches.statuses("orders")[0].batch)
    told = facts(planned(scene))
    assert told["estimated_seconds"] >= 0
    assert told["estimated_by"] == "attempts of orders: 1"


def test_plan_adds_partitions_that_the_sensor_launches(scene: DefsScene) -> None:
    """Expect the batches of the dry run, their partitions, and runs at the next tick."""
    config = {"items": [2, 3, 11], "max_weight": "20B"}
    assert facts(planned(scene, **config))["batches"] == 2
    told = facts(planned(scene, dry_run=False, **config))
    assert (told["batches"], told["batches_planned"], told["partitions_added"]) == (2, 2, 2)
    assert jobs(scene.database) == ["orders", "orders.2023"]
    assert scene.instance.get_dynamic_partitions("orders.backfill") == [
        "2023:00000002-00000003",
        "2023:00000011-00000011",
    ]
    assert len(scene.tick("orders_backfill").run_requests or []) == 1


def test_plan_of_the_same_name_again_adds_nothing(scene: DefsScene) -> None:
    """Expect the same request twice to be planned once."""
    planned(scene, dry_run=False)
    told = facts(planned(scene, dry_run=False))
    assert (told["batches"], told["batches_planned"], told["partitions_added"]) == (0, 0, 0)
    assert scene.states() == ["planned"] * 4


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"stream": "order"}, ["'order'", "orders"]),
        ({"first_id": 1, "since": "2026-03-01"}, ["ids and times", "one of them"]),
        ({"last_id": 9, "items": [1]}, ["ids and items", "one of them"]),
        ({"max_weight": "much"}, ["max_weight", "much"]),
        ({"max_count": 0}, ["max_count", "at least 1"]),
        ({"first_id": 0}, ["first_id", "at least 1"]),
        ({"first_id": 9, "last_id": 2}, ["last_id", "at least first_id 9"]),
        ({"since": "yesterday"}, ["since", "yesterday", "2026-03-01"]),
        ({"since": "2026-03-02", "until": "2026-03-01"}, ["until", "after"]),
        ({"items": [99]}, ["99"]),
        ({"name": "a b"}, ["'a b'", "letters"]),
        ({"name": "a...b"}, ["'a...b'"]),
        ({"name": "late"}, ["late arrivals"]),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_bad_config_fails_with_what_to_write_instead(
    scene: DefsScene, config: dict[str, Any], words: list[str], dry_run: bool
) -> None:
    """Expect a failure that says what is wrong and what fits, and nothing stored."""
    with pytest.raises(dg.Failure) as caught:
        planned(scene, dry_run=dry_run, **config)
    message = str(caught.value.description)
    for word in words:
        assert word in message
    assert jobs(scene.database) == ["orders"]


def test_name_that_stands_for_other_items_is_refused(scene: DefsScene) -> None:
    """Expect the failure to say that the backfill takes other items, and nothing to be added."""
    planned(scene, dry_run=False, last_id=6)
    with pytest.raises(dg.Failure, match="its selection differs"):
        planned(scene, dry_run=False)
    assert scene.states() == ["planned"] * 2


@pytest.mark.parametrize("config", [{"limit": 3}, {"max_count": "three"}, {"items": "1"}])
def test_config_of_another_shape_is_refused_by_dagster(
    scene: DefsScene, config: dict[str, Any]
) -> None:
    """Expect unknown fields and wrong types to be told before anything runs."""
    with pytest.raises(dg.DagsterInvalidConfigError):
        planned(scene, **config)
