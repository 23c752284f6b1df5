"""Planning on Postgres."""

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.factories import found_file, limits


def test_plan_all_items_tiles_the_ids(database: Database) -> None:
    """Expect ranges that follow one another without a hole, up to the last item."""
    files = [found_file(number) for number in range(1, 26)]
    database.meta_table("orders").register(files, accept_changed=False)
    planned = database.batches.plan("orders", limits(max_weight=60), drain=True)
    assert [str(one.id_range) for one in planned] == ["1..6", "7..12", "13..18", "19..24", "25..25"]
