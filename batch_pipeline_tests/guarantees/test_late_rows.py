"""Rows that turn up below the bookmark, again and again, and an audit after each lot (G8)."""

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
STEP = 40  # ids that each period moves on by
FROM_BELOW = -500


def insert(feed: Feed, ids: list[int]) -> None:
    """Insert rows in one transaction."""
    with feed.table.engine.begin() as connection:
        connection.execute(INSERT, {"ids": ids})


@pytest.mark.guarantee("G8")
def test_rows_that_come_late_are_found_by_the_next_audit_and_taken_once(
    database: Database, files: ReflectedMetaTable, figures: Figures, *, long_form: bool
) -> None:
    """Rows appear above and below the bookmark: in gaps, before the first row, in open batches."""
    chance = random.Random(8)  # noqa: S311 - the same rows each time
    feed = Feed(database, files)
    there: set[int] = set()
    late = 0
    periods = 200 if long_form else 15
    for period in range(1, periods + 1):
        top = period * STEP
        new = [uid for uid in range(top - STEP + 1, top + 1) if chance.random() < 0.6]
        insert(feed, [*new, *([] if top in new else [top])])
        there |= {*new, top}
        open_attempt = feed.acquire()
        if period % 3:
            feed.drain()
        free = [uid for uid in range(FROM_BELOW, top) if uid not in there]
        some = set(chance.sample(free, chance.randint(1, 12)))
        insert(feed, sorted(some))
        there |= some
        if open_attempt is not None:
            feed.succeed(open_attempt)
        feed.drain()
        missing = sorted(there - set(feed.taken))
        audit = feed.audit()
        assert audit.late.count == len(missing)
        feed.drain()
        assert Counter(feed.taken) == Counter(there)
        assert feed.audit().late.count == 0
        late += len(missing)
    check_invariants(database)
    planned_late = [uid for ids in late_item_ids(database) for uid in ids]
    assert len(planned_late) == len(set(planned_late)) == late > periods
    figures(
        audits=2 * periods,
        late_rows=late,
        found_by_the_next_audit=len(planned_late),
        lost=len(there - set(feed.taken)),
        twice=len(feed.taken) - len(set(feed.taken)),
    )


@pytest.mark.guarantee("G8")
def test_rows_that_come_late_where_the_ceiling_is_a_guess_are_lost_without_an_audit(
    database: Database, files: ReflectedMetaTable, figures: Figures
) -> None:
    """A transaction that is open for long is skipped; the audit finds its rows."""
    feed = Feed(database, files)  # believes that ids appear in order
    with files.engine.connect() as slow, slow.begin():
        slow.execute(INSERT, {"ids": [1, 2, 3]})
        execute(files.engine, str(INSERT).replace(":ids", "'{4,5}'"))
        assert feed.drain() == [[4, 5]]
    assert feed.drain() == []
    assert feed.audit().late.first == (1, 2, 3)
    assert feed.drain() == [[1, 2, 3]]
    figures(late_rows=3, found_by_the_next_audit=3)
