"""Batches whose source files are unavailable, and batches of late arrivals."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.defs.assets import encode_partitions
from batch_pipeline.defs.names import RANGE_END_TAG, RANGE_START_TAG
from batch_pipeline.defs.partition_events import Materializations
from batch_pipeline.model.batch import late_key
from batch_pipeline.model.errors import (
    BatchSupersededError,
    PipelineError,
    SourceRefusedError,
    SourceUnavailableError,
    UnknownBatchError,
)
from batch_pipeline.model.location import to_path
from batch_pipeline_tests.defs.defs_fixture import KEYS, DefsHarness, ranges
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.pipeline.attempt_fixture import ScriptedEncoder, Step
from batch_pipeline_tests.seeds import query

REFUSED = SourceRefusedError("s3://in/a", "the store refuses s3:GetObject (AccessDenied)")
UNAVAILABLE = SourceUnavailableError("s3://in/a", "it does not answer")


@pytest.fixture
def harness(harness: DefsHarness, monkeypatch: pytest.MonkeyPatch) -> DefsHarness:
    """The stream `orders` with four batches whose partitions are added to Dagster."""
    monkeypatch.setattr("batch_pipeline.defs.partition_events._MAX_RETRIES", 0)
    harness.tick("orders_new_files")
    return harness


def _encode(
    harness: DefsHarness, *script: Step, keys: Sequence[str] = KEYS
) -> Mapping[str, PipelineError]:
    """Encode partitions with a scripted encoder and return the errors by key."""
    errors: dict[str, PipelineError] = {}
    encoder = ScriptedEncoder(Path(to_path(harness.stream.storage.root)), [*script])

    engine: Any = None  # the encoder needs none
    context_of_stream = harness.pipeline.encode_context(harness.stream, engine)
    encode_context, asset = replace(context_of_stream, encoder=encoder), harness.batches

    @dg.asset(partitions_def=asset.partitions, backfill_policy=dg.BackfillPolicy.single_run())
    def encoded(context: dg.AssetExecutionContext) -> None:
        published = Materializations(context)
        errors.update(encode_partitions(published, encode_context, harness.database, asset))

    tags = {RANGE_START_TAG: keys[0], RANGE_END_TAG: keys[-1]}
    dg.materialize([encoded], instance=harness.instance, tags=tags, raise_on_error=False)
    return errors


def test_refused_object_does_not_stop_other_batches(harness: DefsHarness) -> None:
    failures = _encode(harness, {}, REFUSED)
    assert {key: type(error) for key, error in failures.items()} == {KEYS[1]: SourceRefusedError}
    assert harness.states("orders") == ["published", "interrupted", "published", "published"]
    check_invariants(harness.database)


def test_unavailable_store_stops_the_run(harness: DefsHarness) -> None:
    """Other batches would fail as well."""
    assert _encode(harness, {}, UNAVAILABLE) == {}
    assert harness.states("orders") == ["published", "interrupted", "planned", "planned"]


_SPLIT = """
WITH split AS (
    UPDATE batch_pipeline.batch SET superseded_at = now() WHERE item_ids IS NOT NULL RETURNING *
)
INSERT INTO batch_pipeline.batch
    (job_id, first_id, last_id, weight, item_count, config, item_ids, parent_id)
SELECT job_id, first_id, last_id, weight, item_count, config, item_ids, id FROM split
RETURNING id
"""


def test_late_batches_get_their_own_run_and_fail_alone(harness: DefsHarness) -> None:
    keys = harness.plan_late(1, 2)
    requests = harness.tick("orders_new_files").run_requests
    assert ranges(requests)[-1] == (keys[0], keys[1])
    assert [*_encode(harness, REFUSED, keys=keys)] == keys[:1]
    assert harness.states("orders.late") == ["interrupted", "published"]
    [event] = harness.instance.fetch_materializations(harness.batches.asset_key, limit=9).records
    assert event.partition_key == keys[1]
    requests = harness.tick("orders_new_files").run_requests
    assert ranges(requests)[-1] == (keys[0], keys[0])
    check_invariants(harness.database)


def test_split_late_batch_lists_its_parts(harness: DefsHarness) -> None:
    [key] = harness.plan_late(1)
    [(part,)] = query(harness.database, _SPLIT)
    with pytest.raises(UnknownBatchError):
        harness.batches.find(harness.database, "late-99999999")
    with pytest.raises(BatchSupersededError, match=late_key(part)):
        harness.batches.find(harness.database, key)
