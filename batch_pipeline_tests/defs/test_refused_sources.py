"""Batches whose files a store refuses: neighbours go on, and nobody has to launch them again."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.defs.assets.batches import encode_partitions
from batch_pipeline.defs.assets.late import encode_late
from batch_pipeline.defs.assets.partition_events import Materializations
from batch_pipeline.defs.names import RANGE_END_TAG, RANGE_START_TAG
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import PipelineError, SourceRefusedError, SourceUnavailableError
from batch_pipeline.model.location import to_path
from batch_pipeline.pipeline.attempt import EncodeContext
from batch_pipeline_tests.defs.defs_fixture import DefsScene, open_defs_scene
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.pipeline.attempt_fixture import Step, TinyEncoder
from batch_pipeline_tests.seeds import execute

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]

KEYS = [
    "000000000001-000000000003",
    "000000000004-000000000006",
    "000000000007-000000000009",
    "000000000010-000000000012",
]
REFUSED = SourceRefusedError("s3://in/a", "the store refuses s3:GetObject (AccessDenied)")
AWAY = SourceUnavailableError("s3://in/a", "it does not answer")


@pytest.fixture
def scene(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsScene]:
    """The stream `orders` with four batches that Dagster knows."""
    monkeypatch.setattr("batch_pipeline.defs.assets.partition_events._MOST_REPEATS", 0)
    with open_defs_scene(database, database_url, tmp_path, monkeypatch) as opened:
        opened.tick("orders_new_files")
        yield opened


def _workshop(scene: DefsScene, *script: Step) -> EncodeContext:
    encoder = TinyEncoder(Path(to_path(scene.stream.storage.root)), [*script])

    def no_session() -> Any:
        raise AssertionError

    return replace(scene.pipeline.encode_context(scene.stream, no_session), encoder=encoder)


def _encoded(scene: DefsScene, *script: Step) -> Mapping[str, PipelineError]:
    """Run all four partitions with an encoder that follows a script; give what failed."""
    found: dict[str, PipelineError] = {}
    workshop, asset = _workshop(scene, *script), scene.batches

    @dg.asset(partitions_def=asset.partitions, backfill_policy=dg.BackfillPolicy.single_run())
    def encoded(context: dg.AssetExecutionContext) -> None:
        published = Materializations(context)
        found.update(encode_partitions(published, workshop, scene.database, asset))

    tags = {RANGE_START_TAG: KEYS[0], RANGE_END_TAG: KEYS[-1]}
    dg.materialize([encoded], instance=scene.instance, tags=tags, raise_on_error=False)
    return found


def test_refused_object_does_not_stop_the_neighbours_of_its_batch(scene: DefsScene) -> None:
    """Expect the other batches to be published, and this one to be launched again by itself."""
    failures = _encoded(scene, {}, REFUSED)
    assert {key: type(error) for key, error in failures.items()} == {KEYS[1]: SourceRefusedError}
    assert scene.states("orders") == ["published", "interrupted", "published", "published"]
    check_invariants(scene.database)


def test_store_that_is_away_stops_the_run(scene: DefsScene) -> None:
    """Expect no attempt on batches that would fail as well."""
    assert _encoded(scene, {}, AWAY) == {}
    assert scene.states("orders") == ["published", "interrupted", "planned", "planned"]


def _late(scene: DefsScene, *item_ids: int) -> None:
    """Let audits have found published items, each on its own."""
    execute(
        scene.database,
        "INSERT INTO batch_pipeline.job (name, meta_table, kind, stream, parent_id) "
        "SELECT 'orders.late', meta_table, 'late', stream, id FROM batch_pipeline.job "
        "WHERE name = 'orders'",
    )
    for item_id in item_ids:
        execute(scene.database, _LATE, ids=[item_id], id=item_id)


_LATE = """
WITH added AS (
    INSERT INTO batch_pipeline.batch
        (job_id, first_id, last_id, weight, item_count, config, item_ids)
    SELECT id, :id, :id, 10, 1, '{}', CAST(:ids AS bigint[]) FROM batch_pipeline.job
     WHERE name = 'orders.late'
    RETURNING id, job_id
)
INSERT INTO batch_pipeline.batch_state (batch_id, job_id, state)
SELECT id, job_id, 'planned' FROM added
"""


def _late_encoded(scene: DefsScene, *script: Step) -> None:
    workshop = _workshop(scene, *script)

    @dg.asset
    def late(context: dg.AssetExecutionContext) -> None:
        encode_late(Materializations(context), workshop, scene.database)

    dg.materialize([late], instance=scene.instance, raise_on_error=False)


def test_late_batch_that_is_refused_stops_no_other(scene: DefsScene) -> None:
    """Expect what came late with it to be published in the same run."""
    _late(scene, 1, 2)
    _late_encoded(scene, REFUSED)
    assert scene.states("orders.late") == ["interrupted", "published"]


def test_late_batch_that_an_outage_meets_again_and_again_comes_last(scene: DefsScene) -> None:
    """Expect the one behind it to be published all the same, and it to be launched for ever."""
    _late(scene, 1, 2)
    _late_encoded(scene, AWAY)
    _late_encoded(scene, {}, AWAY)
    assert scene.states("orders.late") == ["interrupted", "published"]
    for _ in range(3):
        _late_encoded(scene, AWAY)
    assert scene.tick("orders_late").run_requests
    check_invariants(scene.database)


def test_asset_downstream_of_late_is_executed_once_for_all_late_batches(scene: DefsScene) -> None:
    """Expect an event for each late batch; none and no execution, when nothing waits."""
    _late(scene, 1, 2)
    workshop, key = _workshop(scene), dg.AssetKey("late")

    @dg.asset(key=key, output_required=False)
    def late(context: dg.AssetExecutionContext) -> Iterator[dg.Output[None]]:
        published = Materializations(context)
        encode_late(published, workshop, scene.database)
        output = published.output()
        if output is not None:
            yield output

    @dg.asset(deps=[key])
    def by_city() -> None:
        """Stand for what a user makes of late batches."""

    def materialized() -> tuple[int, int]:
        done = dg.materialize([late, by_city], instance=scene.instance)
        events = done.get_asset_materialization_events()
        mine = [event for event in events if event.asset_key == by_city.key]
        return len(events) - len(mine), len(mine)

    assert materialized() == (2, 1)
    assert materialized() == (0, 0)
