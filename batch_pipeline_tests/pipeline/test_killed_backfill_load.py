"""Loads of backfills into Postgres: refused, or killed between the commits."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.load.postgres import PostgresLoader
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.errors import FilesRemovedError
from batch_pipeline.model.load import PostgresTarget
from batch_pipeline.model.record_rules import LineageColumn
from batch_pipeline.model.schema import Column
from batch_pipeline.pipeline.load import Outcome, load
from batch_pipeline_tests.concurrency import run_python
from batch_pipeline_tests.factories import encoded, item_report, limits
from batch_pipeline_tests.load.target_scripts import lines_file
from batch_pipeline_tests.pipeline.load_fixture import (
    FIRST,
    SECOND,
    load_context,
    outcome_states,
    publish_file,
)
from batch_pipeline_tests.seeds import ORDER_ID, planned, publish, query

BACKFILL_LABEL = f"2023:{FIRST}"
LOAD_ALL = """
import sys
from pathlib import Path
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.pipeline.test_killed_backfill_load import load_all
load_all(open_database(sys.argv[1], migrated=None), sys.argv[1], Path(sys.argv[2]))
"""


def publish_item(database: Database, batch: Batch, folder: Path, generation: int = 1) -> None:
    """Publish a batch with one record of item 1, which has the column `_item_id`."""
    path = folder / f"{batch.job}-{generation}.jsonl.gz"
    part = lines_file(path, ['{"order_id":7,"_item_id":1}'])
    reports = (item_report(1, read=1, written=1),)
    result = encoded(str(path), part_files=(part,), items=reports)
    publish(database, batch, replace(result, schema_version=2))


def load_all(database: Database, url: str, folder: Path, *only: str) -> list[Outcome]:
    """Run all pending loads, or some, into the table `orders` of the same server."""
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE")
    with closing(PostgresLoader(target, url, lineage=[LineageColumn.ITEM_ID])) as loader:
        context = load_context(database, folder, "", loader=loader)
        return list(load(replace(context, only=only or None)))


def publish_around_backfill(database: Database, url: str, folder: Path) -> None:
    """Load a batch without item ids, then publish a backfill, and the batch again with item ids."""
    [first] = planned(database)
    publish_file(database, first, folder)
    load_all(database, url, folder)
    item_id = Column.from_text("_item_id", "integer")
    database.schemas.widen("orders", [ORDER_ID, item_id], text_source=True)
    request = Backfill.of_stream("orders", "2023", Selection(), limits(max_count=3))
    database.backfills.plan(request, database.meta_table("orders"))
    publish_item(database, database.batches.batch("orders", BACKFILL_LABEL), folder)
    publish_item(database, first, folder, generation=2)


def test_next_generation_after_a_killed_backfill_load_has_no_duplicates(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """The row has the label of the batch that was published last."""
    [first] = planned(database)
    item_id = Column.from_text("_item_id", "integer")
    database.schemas.widen("orders", [ORDER_ID, item_id], text_source=True)
    publish_item(database, first, tmp_path)
    load_all(database, database_url, tmp_path)
    request = Backfill.of_stream("orders", "2023", Selection(), limits(max_count=3))
    database.backfills.plan(request, database.meta_table("orders"))
    publish_item(database, database.batches.batch("orders", BACKFILL_LABEL), tmp_path)
    killed = run_python(LOAD_ALL, database_url, str(tmp_path), failpoints="load.acknowledged=kill")
    assert killed == -9
    publish_item(database, first, tmp_path, generation=2)

    outcomes = [
        (outcome.loading.label, outcome.loaded and outcome.loaded.already)
        for outcome in load_all(database, database_url, tmp_path)
    ]
    assert outcomes == [(BACKFILL_LABEL, True), (FIRST, False)]
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        rows = connection.execute("SELECT order_id, _batch_id FROM orders").fetchall()
    assert rows == [(7, FIRST)]


def test_backfill_without_item_ids_is_refused_and_later_batches_are_loaded(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Its rows could not be told from those that it replaces."""
    first, second = planned(database, 2)
    publish_file(database, first, tmp_path)
    request = Backfill.of_stream("orders", "2023", Selection(), limits(max_count=3))
    database.backfills.plan(request, database.meta_table("orders"))
    publish_file(database, database.batches.batch("orders", BACKFILL_LABEL), tmp_path)
    publish_file(database, second, tmp_path)
    outcomes = load_all(database, database_url, tmp_path)
    assert outcome_states(outcomes) == [
        (FIRST, "loaded"),
        (BACKFILL_LABEL, "failed"),
        (SECOND, "loaded"),
    ]


def test_backfill_that_was_refused_does_not_replace_later_records(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """A batch that is published again, as the refusal advises, is loaded before the backfill."""
    publish_around_backfill(database, database_url, tmp_path)
    outcomes = [outcome_states(load_all(database, database_url, tmp_path)) for _ in range(4)]
    assert outcomes == [
        [(BACKFILL_LABEL, "failed"), (FIRST, "loaded")],
        [(BACKFILL_LABEL, "loaded")],
        [(FIRST, "loaded")],
        [],
    ]
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        rows = connection.execute("SELECT order_id, _batch_id FROM orders").fetchall()
    assert rows == [(7, FIRST)]


@pytest.mark.parametrize("is_killed", [False, True])
def test_backfill_loaded_before_an_earlier_batch_is_loaded_again_after_it(
    database: Database, database_url: str, tmp_path: Path, is_killed: bool
) -> None:
    """Also if the process dies right after it has recorded the earlier batch."""
    [first] = planned(database)
    item_id = Column.from_text("_item_id", "integer")
    database.schemas.widen("orders", [ORDER_ID, item_id], text_source=True)
    publish_item(database, first, tmp_path)
    request = Backfill.of_stream("orders", "2023", Selection(), limits(max_count=3))
    database.backfills.plan(request, database.meta_table("orders"))
    publish_item(database, database.batches.batch("orders", BACKFILL_LABEL), tmp_path)
    [backfill] = load_all(database, database_url, tmp_path, BACKFILL_LABEL)
    assert backfill.loaded is not None
    if is_killed:
        failpoints = "load.after_commit=kill"
        assert run_python(LOAD_ALL, database_url, str(tmp_path), failpoints=failpoints) == -9
    else:
        load_all(database, database_url, tmp_path)
    load_all(database, database_url, tmp_path)
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        rows = connection.execute("SELECT order_id, _batch_id FROM orders").fetchall()
    assert rows == [(7, BACKFILL_LABEL)]
    assert load_all(database, database_url, tmp_path) == []


def test_backfill_that_was_refused_waits_for_later_records_whose_files_were_deleted(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """The later batch could not be loaded again after it."""
    publish_around_backfill(database, database_url, tmp_path)
    assert outcome_states(load_all(database, database_url, tmp_path)) == [
        (BACKFILL_LABEL, "failed"),
        (FIRST, "loaded"),
    ]
    [(newest,)] = query(database, "SELECT max(id) FROM batch_pipeline.attempt")
    assert database.stored_attempts.mark_loaded([newest], ["warehouse"])
    [refused] = load_all(database, database_url, tmp_path)
    assert refused.loading.label == BACKFILL_LABEL
    assert isinstance(refused.error, FilesRemovedError)
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        rows = connection.execute("SELECT order_id, _batch_id FROM orders").fetchall()
    assert rows == [(7, FIRST)]
