"""Which partitions are made once more: those of the past, of some keys, or published early."""

from typing import Any

import pytest

from batch_pipeline.defs.in_process_runs import select_batches
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline_tests.defs.defs_fixture import DefsScene
from batch_pipeline_tests.seeds import everything, publish

KEYS = [f"{first:08}-{first + 2:08}" for first in (1, 4, 7, 10)]


@pytest.fixture
def scene(scene: DefsScene) -> DefsScene:
    """Four batches, of which the first three are published."""
    for status in scene.database.batches.statuses("orders")[:3]:
        publish(scene.database, status.batch)
    return scene


def _chosen(scene: DefsScene, **words: Any) -> dict[str, str]:
    """Return the partitions that are chosen, each with the key of its published batch."""
    before = everything(scene.database)
    found = select_batches(scene.pipeline, scene.stream, scene.instance, **words).partitions
    assert everything(scene.database) == before
    return {key: one.batch.key for key, one in found.items()}


def test_all_that_is_published_is_chosen(scene: DefsScene) -> None:
    """Expect no batch that waits, and partitions that Dagster does not know yet."""
    assert _chosen(scene) == {key: key for key in KEYS[:3]}


def test_keys_choose_their_partitions_in_order(scene: DefsScene) -> None:
    """Expect the order of ids, whatever that of the words."""
    assert _chosen(scene, keys=[KEYS[2], KEYS[0]]) == {KEYS[0]: KEYS[0], KEYS[2]: KEYS[2]}


@pytest.mark.parametrize("key", [KEYS[3], "00000099-00000099", "orders"])
def test_key_without_published_batches_is_refused(scene: DefsScene, key: str) -> None:
    """Expect a batch that waits, one that is not there and nonsense to be quoted."""
    with pytest.raises(InvalidValueError, match=key):
        select_batches(scene.pipeline, scene.stream, scene.instance, keys=[KEYS[0], key])


def test_batches_of_before_a_moment_are_chosen(scene: DefsScene) -> None:
    """Expect the one that was published first, by the moment of the second."""
    second = scene.database.batches.statuses("orders")[1]
    assert _chosen(scene, until=second.finished_at) == {KEYS[0]: KEYS[0]}


def test_batches_published_in_a_time_are_chosen_with_its_start_and_without_its_end(
    scene: DefsScene,
) -> None:
    second, third = scene.database.batches.statuses("orders")[1:3]
    since, until = second.finished_at, third.finished_at
    assert _chosen(scene, since=since) == {key: key for key in KEYS[1:3]}
    assert _chosen(scene, since=since, until=until) == {KEYS[1]: KEYS[1]}
    assert _chosen(scene, since=since, until=until, keys=[KEYS[0]]) == {}


def test_time_that_ends_before_it_begins_is_refused(scene: DefsScene) -> None:
    first, second = scene.database.batches.statuses("orders")[:2]
    with pytest.raises(InvalidValueError, match="a time after `since`"):
        select_batches(
            scene.pipeline,
            scene.stream,
            scene.instance,
            since=second.finished_at,
            until=first.finished_at,
        )
