"""The product's own meta table: ids, ranges of files, and concurrent registrations."""

import os
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from batch_pipeline.encode.readers.decoded_file import ItemCutter
from batch_pipeline.inventory.connection import LockClass, lock_in_transaction
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.tables import FILE_OF_RANGE, IS_RANGE, item
from batch_pipeline.model.batch import MAX_ID, Batch, IdRange
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.item import Item, LandedFile, Registered
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Source, SourceFormat
from batch_pipeline_tests.concurrency import eventually, together
from batch_pipeline_tests.factories import NOON, batch, found_file, stream
from batch_pipeline_tests.seeds import has_lock_waiters, query, register
from batch_pipeline_tests.storage_roots import landed_file

ALL_ITEMS: Batch = batch(id_range=IdRange(first_id=0, last_id=MAX_ID))


def _items(database: Database, stream: str = "orders") -> list[Item]:
    return list(database.meta_table(stream).items(ALL_ITEMS))


def test_register_assigns_ids_in_listing_order_and_skips_known_files(database: Database) -> None:
    """A file that is listed twice is one item."""
    table = database.meta_table("orders")
    files = [found_file(2), found_file(1, etag="v1"), found_file(3)]
    registered = table.register([*files, files[0]], accept_changed=False)
    assert registered == Registered(found=4, new_items=3)
    registered = table.register([found_file(4), *files[1:]], accept_changed=False)
    assert registered == Registered(found=3, new_items=1)
    assert _items(database) == [
        Item(id=uid, file=file) for uid, file in enumerate([*files, found_file(4)], start=1)
    ]


def test_register_more_than_one_chunk_has_no_id_gaps(database: Database) -> None:
    register(database, 5_001)
    rows = query(database, "SELECT min(id), max(id), count(*) FROM batch_pipeline.item")
    assert rows == [(1, 5_001, 5_001)]


def test_register_waits_for_open_registration_to_commit(
    database: Database, rival: Database
) -> None:
    def first() -> None:
        with rival.engine.begin() as connection:
            lock_in_transaction(connection, LockClass.REGISTER, "orders")
            insert = (
                "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
                "VALUES ('orders', 1, 'file:///landing/slow.csv', 10, now())"
            )
            connection.execute(sa.text(insert))
            locked.append(True)
            eventually(lambda: has_lock_waiters(database))
            assert _items(database) == []

    def second() -> None:
        eventually(lambda: bool(locked))
        register(database, 1)

    locked: list[bool] = []
    assert together(first, second) == [None, None]
    assert [(item.id, item.file.location) for item in _items(database)] == [
        (1, "file:///landing/slow.csv"),
        (2, "file:///landing/orders-0001.csv"),
    ]


def test_register_reports_changed_file_and_keeps_its_row(database: Database) -> None:
    """A file with an equal ETag counts as unchanged, whatever its time."""
    files = [found_file(number, etag="v1") for number in (1, 2, 3, 4)]
    files[2] = found_file(3)
    database.meta_table("orders").register(files, accept_changed=False)
    changed = [
        replace(files[0], modified_at=NOON),
        replace(files[1], size_bytes=11),
        replace(files[2], modified_at=NOON + timedelta(seconds=3, microseconds=1)),
        replace(files[3], etag="v2"),
    ]
    registered = database.meta_table("orders").register(changed, accept_changed=False)
    assert registered.changed == tuple(file.location for file in files[1:])
    assert registered.accepted == 0
    assert [item.file for item in _items(database)] == files


def test_register_all_or_none_with_changed_file_adds_nothing(database: Database) -> None:
    """Without the changed file the new files are registered."""
    register(database, 1)
    table = database.meta_table("orders")
    files = [found_file(2), replace(found_file(1), size_bytes=11), found_file(3)]
    registered = table.register(files, accept_changed=False, all_or_none=True)
    assert registered == Registered(found=3, new_items=0, changed=(files[1].location,))
    assert len(_items(database)) == 1
    again = [files[0], found_file(1), files[2]]
    assert table.register(again, accept_changed=False, all_or_none=True).new_items == 2


def test_register_accepted_change_updates_row(database: Database) -> None:
    register(database, 2)
    grown = found_file(2, size_bytes=2**40, etag="v2")
    registered = database.meta_table("orders").register([grown], accept_changed=True)
    assert registered == Registered(found=1, new_items=0, accepted=1)
    assert _items(database)[1] == Item(id=2, file=grown)
    again = database.meta_table("orders").register([grown], accept_changed=True)
    assert again == Registered(found=1, new_items=0)


STREAM = stream(source=Source(uri="file:///landing", format=SourceFormat.JSONL))
TEN_LINES = b'{"id":1}\n' * 10  # 90 bytes


def cutter(max_bytes: int) -> ItemCutter:
    """Return a cutter of JSONL files into ranges of at most `max_bytes`."""
    return ItemCutter(stream=STREAM, most_bytes=max_bytes)


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    """A file of ten lines of nine bytes each."""
    path = tmp_path / "large_file.jsonl"
    path.write_bytes(TEN_LINES)
    return path


def _register_with_ranges(
    database: Database, *files: LandedFile, max_bytes: int | None = 40, accept: bool = False
) -> Registered:
    table = database.meta_table("orders")
    chosen = None if max_bytes is None else cutter(max_bytes)
    return table.register(files, accept_changed=accept, cutter=chosen)


def test_large_file_is_registered_as_ranges_in_listing_order(
    database: Database, large_file: Path
) -> None:
    file = landed_file(large_file)
    registered = _register_with_ranges(database, found_file(1), file, found_file(2))
    assert registered == Registered(found=3, new_items=5)
    items = _items(database)
    ranges = [item.file.location.partition("#")[2] for item in items]
    assert [(item.id, item.weight, ids) for item, ids in zip(items, ranges, strict=True)] == [
        (1, 10, ""),
        (2, 36, "bytes=0-35,size=90"),
        (3, 36, "bytes=36-71,size=90"),
        (4, 18, "bytes=72-89,size=90"),
        (5, 10, ""),
    ]
    assert {replace(item.file, location=item.file.uri) for item in items[1:4]} == {file}


def test_registered_file_is_not_registered_again_in_other_ranges(
    database: Database, large_file: Path
) -> None:
    """Even if the configured size has changed. A whole file stays one item."""
    _register_with_ranges(database, landed_file(large_file))
    for max_bytes in (40, 20, 1_000, None):
        again = _register_with_ranges(database, landed_file(large_file), max_bytes=max_bytes)
        assert again == Registered(found=1, new_items=0)
    whole = large_file.with_name("whole.jsonl")
    whole.write_bytes(TEN_LINES)
    _register_with_ranges(database, landed_file(whole), max_bytes=None)
    assert _register_with_ranges(database, landed_file(whole)) == Registered(found=1, new_items=0)


def test_interrupted_registration_of_ranges_leaves_no_items(
    database: Database, large_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "register.before_commit=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        _register_with_ranges(database, landed_file(large_file))
    assert _items(database) == []
    monkeypatch.delenv(VARIABLE)
    _register_with_ranges(database, landed_file(large_file))
    assert [item.id for item in _items(database)] == [1, 2, 3]


def test_concurrent_registrations_with_other_sizes_register_file_once(
    database: Database, rival: Database, large_file: Path
) -> None:
    file = landed_file(large_file)
    together(
        partial(_register_with_ranges, database, file),
        partial(_register_with_ranges, rival, file, max_bytes=20),
    )
    assert sum(item.weight for item in _items(database)) == 90
    assert [item.id for item in _items(database)] in ([1, 2, 3], [1, 2, 3, 4, 5])


def test_file_changed_since_listing_is_left_for_next_registration(
    database: Database, large_file: Path
) -> None:
    before = landed_file(large_file)
    large_file.write_bytes(TEN_LINES + TEN_LINES)
    assert _register_with_ranges(database, found_file(1), before) == Registered(
        found=2, new_items=1, postponed=(before.location,)
    )
    assert _register_with_ranges(database, landed_file(large_file)) == Registered(
        found=1, new_items=5
    )


@pytest.mark.parametrize(
    ("content", "max_bytes", "accept"),
    [
        (TEN_LINES + b"{}\n", 40, False),
        # Its ranges now hold other records, so the change cannot be accepted.
        (b'{"id":1000}\n' + TEN_LINES[9:], 40, True),
        (b'{"id":1000}\n' + TEN_LINES[9:], None, True),
    ],
)
def test_changed_file_is_reported_once_for_all_its_ranges(
    database: Database, large_file: Path, content: bytes, max_bytes: int | None, accept: bool
) -> None:
    _register_with_ranges(database, landed_file(large_file))
    before = _items(database)
    large_file.write_bytes(content)
    registered = _register_with_ranges(
        database, landed_file(large_file), max_bytes=max_bytes, accept=accept
    )
    assert registered == Registered(found=1, new_items=0, changed=(to_uri(large_file),))
    assert _items(database) == before


def test_touched_file_with_ranges_can_be_accepted(database: Database, large_file: Path) -> None:
    """Its ranges are unchanged, so all rows get the new time."""
    _register_with_ranges(database, landed_file(large_file))
    os.utime(large_file, (1_750_000_000, 1_750_000_000))
    registered = _register_with_ranges(database, landed_file(large_file), accept=True)
    assert registered == Registered(found=1, new_items=0, accepted=1)
    assert {item.file.modified_at for item in _items(database)} == {
        landed_file(large_file).modified_at
    }
    assert _register_with_ranges(database, landed_file(large_file)) == Registered(
        found=1, new_items=0
    )


def test_find_file_with_ranges(database: Database, large_file: Path) -> None:
    """The URI and the file name find all ranges; a full location or an id finds one."""
    register(database, 1)
    _register_with_ranges(database, landed_file(large_file))
    table = database.meta_table("orders")
    for text in (to_uri(large_file), "large_file.jsonl"):
        assert [item.id for item in table.find(text)] == [2, 3, 4]
    for text in ("3", _items(database)[2].file.location):
        assert [item.id for item in table.find(text)] == [3]


def test_ranges_of_file_are_looked_up_by_index(database: Database) -> None:
    """A registration must not read all items of a stream for a few files."""
    fill = sa.text(
        "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
        "SELECT 'orders', n, 'file:///in/' || n || '.csv#bytes=0-9,size=10', 10, now() "
        "FROM generate_series(1, 5000) AS n"
    )
    with database.engine.begin() as connection:
        connection.execute(fill)
        connection.execute(sa.text("ANALYZE batch_pipeline.item"))
    files: sa.ColumnClause[list[str]] = sa.literal_column("ARRAY['file:///in/7.csv', 'x']")
    select = sa.select(item).where(
        item.c.stream == "orders",
        sa.text(IS_RANGE),
        sa.literal_column(FILE_OF_RANGE) == sa.any_(files),
    )
    statement = str(select.compile(database.engine, compile_kwargs={"literal_binds": True}))
    rows = query(database, f"EXPLAIN {statement}")
    assert any("item_file_idx" in row[0] for row in rows)
