"""Looking for late arrivals without planning: what an audit would find, and nothing written."""

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.audit import CountedNames
from batch_pipeline.model.errors import UnknownJobError
from batch_pipeline_tests.inventory.audit_fixture import Feed, row_counts, taken_even_ids
from batch_pipeline_tests.inventory.meta_tables.user_tables import delete, insert


@pytest.fixture
def feed(database: Database, files: ReflectedMetaTable) -> Feed:
    """A job that has taken the even ids from 2 to 18 of a Postgres table, three a batch."""
    return taken_even_ids(Feed(database, files))


def test_look_finds_what_an_audit_would_plan_and_writes_nothing(feed: Feed) -> None:
    """Expect late and missing items, the same rows as before, and the audit to find them still."""
    insert(feed.table, {3: 10, 11: 10})
    delete(feed.table, feed.table.uid == 18)
    before = row_counts(feed.database)
    seen = feed.database.late_arrivals.preview("job", feed.table)
    assert (seen.late, seen.late_batches, seen.known) == (
        CountedNames(count=2, first=(3, 11)),
        0,
        0,
    )
    assert seen.missing == CountedNames(count=1, first=(18,))
    assert row_counts(feed.database) == before
    assert feed.audit().late == seen.late


def test_items_that_an_audit_has_planned_are_known_to_a_look(feed: Feed) -> None:
    """Expect them not to count as late any more."""
    insert(feed.table, {3: 10})
    feed.audit()
    seen = feed.database.late_arrivals.preview("job", feed.table)
    assert (seen.late.count, seen.known) == (0, 1)


def test_look_at_an_unknown_job_is_refused(feed: Feed) -> None:
    """Expect the error of an audit."""
    with pytest.raises(UnknownJobError):
        feed.database.late_arrivals.preview("jobs", feed.table)
