"""The invariant checker detects damage that only a bug could cause."""

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.seeds import claimed, execute, planned, publish

DAMAGE = {
    "state": ("UPDATE batch_state SET state = 'failed' WHERE batch_id = 1", "by its attempts"),
    "attempts": ("UPDATE batch_state SET attempts = 7 WHERE batch_id = 2", "its state says 7"),
    "forgiven": ("UPDATE batch_state SET forgiven = -1 WHERE batch_id = 2", "forgiven"),
    "generation": ("UPDATE batch_state SET generation = 2 WHERE batch_id = 1", "at generation 1"),
    "no state": ("DELETE FROM batch_state WHERE batch_id = 3", "without a state"),
    "number": ("UPDATE attempt SET number = 2 WHERE batch_id = 1", "are numbered"),
    "hole": ("UPDATE attempt SET generation = 2 WHERE batch_id = 1", "generations of batch 1"),
    "publish": ("UPDATE job SET publish_count = 2", "counts 2 publishes"),
    "outside": ("UPDATE bookmark SET last_id = 8", "covered by no bookmark"),
    "bookmark": (
        "INSERT INTO bookmark SELECT id, 10, 12 FROM job",
        "are one run",
    ),
    "gap": ("UPDATE batch SET last_id = 5 WHERE id = 2", "not tiled"),
    "orphan": ("UPDATE batch SET superseded_at = now() WHERE id = 3", "children: 0"),
    "list": (
        "UPDATE batch SET item_ids = '{1}' WHERE id = 3",
        "lists 1 outside",
    ),
    "family": ("UPDATE batch SET parent_id = 2 WHERE id = 3", "is not tiled by its children"),
    "files": (
        "INSERT INTO attempt_item SELECT id, 4, 0, 0, 0, 0 FROM attempt WHERE batch_id = 2",
        "are not published",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_check_invariants_detects_damage(database: Database, name: str) -> None:
    """An undamaged inventory passes."""
    published, failed, _ = planned(database, 3)
    publish(database, published)
    with claimed(database, failed) as attempt:
        database.attempts.fail(attempt, "bad data", AttemptStatus.FAILED)
    check_invariants(database)
    damage, message = DAMAGE[name]
    execute(database, f"SET search_path = batch_pipeline; {damage}")
    with pytest.raises(AssertionError, match=message):
        check_invariants(database)
