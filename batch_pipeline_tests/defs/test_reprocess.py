"""Selecting published batches for reprocessing, by key and by time."""

from typing import Any

import pytest

from batch_pipeline.defs.in_process_runs import select_batches
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline_tests.defs.defs_fixture import KEYS, DefsHarness
from batch_pipeline_tests.seeds import everything, publish


@pytest.fixture
def harness(harness: DefsHarness) -> DefsHarness:
    """Four batches; the first three are published."""
    for status in harness.database.batches.statuses("orders")[:3]:
        publish(harness.database, status.batch)
    return harness


def _selected(harness: DefsHarness, **options: Any) -> dict[str, str]:
    """Return the selected partitions with the keys of their published batches."""
    before = everything(harness.database)
    selected = select_batches(
        harness.pipeline, harness.stream, harness.instance, **options
    ).partitions
    assert everything(harness.database) == before
    return {key: status.batch.key for key, status in selected.items()}


def test_default_selection_is_all_published_batches(harness: DefsHarness) -> None:
    """Batches whose partitions are not added to Dagster yet are included. Keys limit it."""
    assert _selected(harness) == {key: key for key in KEYS[:3]}
    assert _selected(harness, keys=[KEYS[2], KEYS[0]]) == {KEYS[0]: KEYS[0], KEYS[2]: KEYS[2]}


def test_published_late_batches_are_selected(harness: DefsHarness) -> None:
    first, second = harness.plan_late(2, 3)
    publish(harness.database, harness.database.batches.batch("orders", second))
    late = {second: "00000003-00000003"}
    assert _selected(harness, keys=[second]) == late
    assert _selected(harness) == {key: key for key in KEYS[:3]} | late
    with pytest.raises(InvalidValueError, match=first):
        _selected(harness, keys=[first])


def test_key_of_unpublished_or_unknown_batch_is_rejected(harness: DefsHarness) -> None:
    for key in (KEYS[3], "00000099-00000099", "orders"):
        with pytest.raises(InvalidValueError, match=key):
            _selected(harness, keys=[KEYS[0], key])


def test_time_range_includes_its_start_and_excludes_its_end(harness: DefsHarness) -> None:
    first, second, third, _ = harness.database.batches.statuses("orders")
    since, until = second.finished_at, third.finished_at
    assert _selected(harness, until=since) == {KEYS[0]: KEYS[0]}
    assert _selected(harness, since=since) == {key: key for key in KEYS[1:3]}
    assert _selected(harness, since=since, until=until) == {KEYS[1]: KEYS[1]}
    assert _selected(harness, since=since, until=until, keys=[KEYS[0]]) == {}
    with pytest.raises(InvalidValueError, match="a time after `since`"):
        _selected(harness, since=since, until=first.finished_at)
