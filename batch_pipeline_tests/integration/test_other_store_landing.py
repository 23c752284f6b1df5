"""A landing in a store that Arrow reaches, registered: each object once, with its changes."""

from pathlib import Path

import pytest

from batch_pipeline.domain.stream import Source
from batch_pipeline.files.object_landing import ObjectLanding
from batch_pipeline.files.watched_objects import WatchedObjects
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.factories import stream
from batch_pipeline_tests.integration.bucket_landing import looked
from batch_pipeline_tests.other_store import OtherStore


def test_objects_are_registered_once_and_changes_are_told(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect ids by key, nothing twice, and another size to be told and left alone."""
    store = OtherStore(tmp_path / "store", monkeypatch)
    for name in ("b.csv", "a.csv"):
        store.put(name)
    landing = ObjectLanding(stream=stream(source=Source(uri=store.uri)))
    watched = WatchedObjects(landing, most_keys=None)
    first = looked(watched, database)
    assert (first.found, first.new_items, first.changed) == (2, 2, ())
    again = looked(watched, database)
    assert (again.found, again.new_items, again.changed) == (2, 0, ())
    forgetful = looked(WatchedObjects(landing, most_keys=None), database)
    assert (forgetful.found, forgetful.new_items, forgetful.changed) == (2, 0, ())
    store.put("b.csv", b"id\n10\n")
    store.put("c.csv")
    last = looked(watched, database)
    assert (last.found, last.new_items, last.changed) == (3, 1, ("gs://landed/in/b.csv",))
    rows = database.meta_table("orders").find("a.csv")
    assert [(row.id, row.file.location) for row in rows] == [(1, "gs://landed/in/a.csv")]
