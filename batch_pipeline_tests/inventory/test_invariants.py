"""The invariant checker detects damage that only a bug could cause."""

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.inventory.invariants import check_invariants, violations
from batch_pipeline_tests.seeds import fail, planned, publish

DAMAGE = [  # statements, and the violation that they cause
    ("UPDATE batch_state SET state = 'failed' WHERE batch_id = 1", "by its attempts"),
    ("UPDATE batch_state SET attempts = 7 WHERE batch_id = 2", "its state says 7"),
    ("UPDATE batch_state SET forgiven = -1 WHERE batch_id = 2", "forgiven"),
    ("UPDATE batch_state SET generation = 2 WHERE batch_id = 1", "at generation 1"),
    ("DELETE FROM batch_state WHERE batch_id = 3", "without a state"),
    ("UPDATE attempt SET number = 2 WHERE batch_id = 1", "are numbered"),
    ("UPDATE attempt SET generation = 2 WHERE batch_id = 1", "generations of batch 1"),
    ("UPDATE job SET publish_count = 2", "counts 2 publishes"),
    ("UPDATE bookmark SET last_id = 8", "covered by no bookmark"),
    ("INSERT INTO bookmark SELECT id, 10, 12 FROM job", "are one run"),
    ("UPDATE batch SET last_id = 5 WHERE id = 2", "not tiled"),
    ("UPDATE batch SET superseded_at = now() WHERE id = 3", "children: 0"),
    ("UPDATE batch SET item_ids = '{1}' WHERE id = 3", "lists 1 outside"),
    ("UPDATE batch SET parent_id = 2 WHERE id = 3", "is not tiled by its children"),
    (
        "INSERT INTO attempt_item SELECT id, 4, 0, 0, 0, 0 FROM attempt WHERE batch_id = 2",
        "are not published",
    ),
]


def test_violations_of_damaged_inventory_are_named(database: Database) -> None:
    """An undamaged inventory passes."""
    published, failed, _ = planned(database, 3)
    publish(database, published)
    fail(database, failed)
    check_invariants(database)
    for damage, message in DAMAGE:
        with database.engine.connect() as connection:  # which is rolled back
            connection.exec_driver_sql(f"SET LOCAL search_path = batch_pipeline; {damage}")
            assert any(message in problem for problem in violations(connection)), damage
