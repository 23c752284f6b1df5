"""Rows appear below the bookmark repeatedly, and each time an audit finds them (G8)."""

import random
from collections import Counter

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline_tests.inventory.audit_fixture import Feed, late_item_ids
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute
from batch_pipeline_tests.proofs import Figures

INSERT = sa.text(
    "INSERT INTO ops.files (id, file_location, size_in_bytes) "
    "SELECT id, 'f', 1 FROM unnest(CAST(:ids AS bigint[])) id"
)
STEP = 40  # ids per period
LOWEST_ID = -500


def insert(feed: Feed, ids: list[int]) -> None:
    with feed.table.engine.begin() as connection:
        connection.execute(INSERT, {"ids": ids})


@pytest.mark.guarantee("G8")
def test_late_rows_are_found_by_next_audit_and_processed_once(
    database: Database, files: ReflectedMetaTable, figures: Figures, *, long_form: bool
) -> None:
    """Rows appear above and below the bookmark: in gaps, before the first row, in open batches."""
    rng = random.Random(8)  # noqa: S311 - the same rows each time
    feed = Feed(database, files)
    existing: set[int] = set()
    late = 0
    periods = 200 if long_form else 8
    for period in range(1, periods + 1):
        top = period * STEP
        new = [uid for uid in range(top - STEP + 1, top + 1) if rng.random() < 0.6]
        insert(feed, [*new, *([] if top in new else [top])])
        existing |= {*new, top}
        open_attempt = feed.acquire()
        if period % 3:
            feed.drain()
        free = [uid for uid in range(LOWEST_ID, top) if uid not in existing]
        late_ids = set(rng.sample(free, rng.randint(1, 12)))
        insert(feed, sorted(late_ids))
        existing |= late_ids
        if open_attempt is not None:
            feed.succeed(open_attempt)
        feed.drain()
        missing = sorted(existing - set(feed.taken))
        audit = feed.audit()
        assert audit.late.count == len(missing)
        feed.drain()
        assert Counter(feed.taken) == Counter(existing)
        assert feed.audit().late.count == 0
        late += len(missing)
    check_invariants(database)
    planned_late = [uid for ids in late_item_ids(database) for uid in ids]
    assert len(planned_late) == len(set(planned_late)) == late > periods
    figures(
        audits=2 * periods,
        late_rows=late,
        found_by_the_next_audit=len(planned_late),
        lost=len(existing - set(feed.taken)),
        twice=len(feed.taken) - len(set(feed.taken)),
    )


@pytest.mark.guarantee("G8")
def test_rows_of_slow_transaction_below_estimated_watermark_need_audit(
    database: Database, files: ReflectedMetaTable, figures: Figures
) -> None:
    """A long transaction is skipped, and the audit finds its rows."""
    feed = Feed(database, files)  # assumes that ids appear in order
    with files.engine.connect() as slow, slow.begin():
        slow.execute(INSERT, {"ids": [1, 2, 3]})
        execute(files.engine, str(INSERT).replace(":ids", "'{4,5}'"))
        assert feed.drain() == [[4, 5]]
    assert feed.drain() == []
    assert feed.audit().late.first == (1, 2, 3)
    assert feed.drain() == [[1, 2, 3]]
    figures(late_rows=3, found_by_the_next_audit=3)
