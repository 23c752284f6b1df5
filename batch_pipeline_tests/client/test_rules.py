"""Content of batches: windows, weights, ids, table names, order and retries."""

from typing import Any

import pytest

from batch_pipeline import acquire_batch, acquire_batches
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import MAX_ID, MIN_ID
from batch_pipeline.model.errors import BadWeightError, InvalidValueError
from batch_pipeline_tests.client.client_tables import (
    COLUMNS,
    acquire_or_none,
    acquired,
    drained,
    files,
    fill,
    fill_evenly,
)
from batch_pipeline_tests.seeds import execute, query

CONFIG = "SELECT config FROM batch_pipeline.batch ORDER BY id"
STATES = "SELECT state, attempts FROM batch_pipeline.batch_state ORDER BY batch_id"


def test_window_ends_at_its_last_id_despite_new_rows(meta_table: Database) -> None:
    fill_evenly(meta_table.engine, 100)
    options: dict[str, Any] = {"batch_id_min": 20, "batch_id_max": 80, "batch_weight": 250}
    assert list(drained(**options)) == [(20, 44), (45, 69), (70, 80)]
    fill_evenly(meta_table.engine, 110, first_id=101)
    assert acquire_or_none(**options) is None
    assert acquired("other", batch_id_min=110).items == ["file-110"]


def test_ids_and_weights_up_to_64_bits_do_not_overflow(meta_table: Database) -> None:
    fill(meta_table.engine, {MIN_ID: MAX_ID, -7: MAX_ID, 0: 0, 1: 2, MAX_ID: 4})
    items = []
    for batch in acquire_batches("job", "meta_table", COLUMNS):
        items.append(batch.items)
        batch.succeeded()
    assert items == [[f"file-{MIN_ID}"], ["file--7", "file-0"], ["file-1", f"file-{MAX_ID}"]]
    reported = query(meta_table, "SELECT batch_weight FROM batch_pipeline.inventory ORDER BY id")
    assert reported == [(MAX_ID,), (MAX_ID,), (6,)]


def test_bad_weight_is_refused_until_corrected(meta_table: Database) -> None:
    """The batch before the row is delivered, and no id is lost."""
    fill(meta_table.engine, {1: 5, 2: 5, 3: None, 4: 5})
    first = acquired(batch_count=2)  # a batch without a reference is handed out again
    assert first.items == files(1, 2)
    for _ in range(2):
        with pytest.raises(BadWeightError) as caught:
            acquire_or_none(batch_weight=10)
        assert (caught.value.item_id, caught.value.weight) == (3, None)
    execute(meta_table, "UPDATE meta_table SET size_in_mib = 5 WHERE id = 3")
    assert acquired(batch_weight=10).items == files(3, 4)


def test_on_bad_weight_replaces_bad_weights(meta_table: Database) -> None:
    fill(meta_table.engine, {1: None, 2: -50, 3: 5, 4: 5})
    batches = []
    for batch in acquire_batches("job", "meta_table", COLUMNS, batch_weight=10, on_bad_weight=5):
        batches.append((batch.items, batch.weight))
        batch.succeeded()
    assert batches == [(files(1, 2), 10), (files(3, 4), 10)]


def test_oversized_item_is_a_flagged_batch_of_its_own(meta_table: Database) -> None:
    fill(meta_table.engine, {1: 1, 2: 1000, 3: 1, 4: 1})
    batches = []
    for batch in acquire_batches("job", "meta_table", COLUMNS, batch_weight=3):
        batches.append((batch.items, batch.oversized))
        batch.succeeded()
    assert batches == [(files(1, 1), False), (files(2, 2), True), (files(3, 4), False)]


def test_config_stores_the_options(meta_table: Database) -> None:
    fill_evenly(meta_table.engine, 9)
    where: list[object] = [{"column": "size_in_mib", "operator": ">", "value": 0}]
    acquired("job", job_identifier="run-1", batch_id_min=2, batch_id_max=8, where=where)
    ((config,),) = query(meta_table, CONFIG)
    assert config == {
        "meta_table": {"name": "public.meta_table", "cols": COLUMNS},
        "job": "job",
        "job_identifier": "run-1",
        "batch_id_min": 2,
        "batch_id_max": 8,
        "batch_weight": None,
        "batch_count": None,
        "where": {"all": where},
        "on_bad_weight": None,
        "ceiling": "locks",
    }


def test_deleted_rows_are_omitted_and_do_not_block(meta_table: Database) -> None:
    fill_evenly(meta_table.engine, 10)
    batch = acquired(batch_count=5)
    execute(meta_table, "DELETE FROM meta_table WHERE id IN (2, 4)")
    assert batch.items == ["file-1", "file-3", "file-5"]
    assert [(row.id, row.weight) for row in batch.rows] == [(1, 10), (3, 10), (5, 10)]
    batch.succeeded()
    execute(meta_table, "DELETE FROM meta_table WHERE id > 5")
    assert acquire_or_none() is None
    fill_evenly(meta_table.engine, 12, first_id=11)
    assert acquired().items == files(11, 12)


def test_table_without_weights_is_batched_by_count(meta_table: Database) -> None:
    fill(meta_table.engine, {1: None, 2: None, 3: None})
    columns = {"uid": "id", "item": "file", "weight": None}
    batch = acquire_batch("job", "meta_table", columns, batch_count=2)
    assert batch is not None
    assert (batch.items, batch.weight) == (files(1, 2), 0)
    with pytest.raises(InvalidValueError, match="batch_weight"):
        acquire_batch("job", "meta_table", columns, batch_weight=2)


def test_iterations_limit_the_batches_acquired(meta_table: Database) -> None:
    fill_evenly(meta_table.engine, 3)
    acquired_before = 0
    for iterations, count in ((0, 0), (2, 2), (5, 1), (5, 0)):
        batches = acquire_batches(
            "job", "meta_table", COLUMNS, batch_count=1, iterations=iterations
        )
        for number, batch in enumerate(batches, start=1):
            assert len(query(meta_table, STATES)) == acquired_before + number
            batch.succeeded()
        acquired_before += count
        assert len(query(meta_table, STATES)) == acquired_before
