"""Registering on Postgres: who gets which id, and what a rival or a crash can do to that."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

import sqlalchemy as sa

from batch_pipeline.inventory.connection import LockClass, lock_in_transaction
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.id_range import MAX_ID, IdRange
from batch_pipeline.model.item import Item, Registered
from batch_pipeline_tests.concurrency import eventually, run_python, together
from batch_pipeline_tests.factories import NOON, batch, found_file
from batch_pipeline_tests.seeds import query, register, somebody_waits

EVERYTHING: Batch = batch(id_range=IdRange(first_id=0, last_id=MAX_ID))

REGISTER_THREE = """
import sys
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.factories import found_file
database = open_database(sys.argv[1], migrated=None)
files = [found_file(number) for number in (1, 2, 3)]
database.meta_table("orders").register(files, accept_changed=False)
"""


def _items(database: Database, stream: str = "orders") -> list[Item]:
    return list(database.meta_table(stream).items(EVERYTHING))


def test_register_new_files_counts_from_one_in_the_given_order(database: Database) -> None:
    """Expect ids 1, 2, 3 in the order of the listing and all facts kept."""
    files = [found_file(2), found_file(1, etag="v1"), found_file(3)]
    registered = database.meta_table("orders").register(files, accept_changed=False)
    assert registered == Registered(found=3, new_items=3)
    assert _items(database) == [
        Item(id=1, file=files[0]),
        Item(id=2, file=files[1]),
        Item(id=3, file=files[2]),
    ]


def test_register_again_adds_only_what_is_new(database: Database) -> None:
    """Expect known files to keep their ids and the new one to get the next."""
    register(database, 2)
    files = [found_file(3), found_file(1), found_file(2)]
    registered = database.meta_table("orders").register(files, accept_changed=False)
    assert registered == Registered(found=3, new_items=1)
    assert [(item.id, item.file) for item in _items(database)] == [
        (1, found_file(1)),
        (2, found_file(2)),
        (3, found_file(3)),
    ]


def test_register_location_listed_twice_gives_one_item(database: Database) -> None:
    """Expect a listing that repeats a location to make one item of it."""
    files = [found_file(1), found_file(2), found_file(1)]
    registered = database.meta_table("orders").register(files, accept_changed=False)
    assert registered == Registered(found=3, new_items=2)
    assert [item.id for item in _items(database)] == [1, 2]


def test_register_two_streams_counts_each_from_one(database: Database) -> None:
    """Expect streams to share nothing, even for the same location."""
    register(database, 2, name="orders")
    register(database, 1, name="clicks")
    assert [item.id for item in _items(database, "orders")] == [1, 2]
    assert [item.id for item in _items(database, "clicks")] == [1]


def test_register_more_than_a_chunk_stays_dense(database: Database) -> None:
    """Expect 5,001 files, which take two transactions, to get 1..5001."""
    register(database, 5_001)
    found = query(database, "SELECT min(id), max(id), count(*) FROM batch_pipeline.item")
    assert found == [(1, 5_001, 5_001)]


def test_register_two_at_once_gives_each_location_one_id(
    database: Database, rival: Database
) -> None:
    """Expect dense ids and one id a location when two listings overlap."""
    ours = [found_file(number) for number in range(1, 41)]
    theirs = [found_file(number) for number in range(60, 20, -1)]
    results = together(
        partial(database.meta_table("orders").register, ours, accept_changed=False),
        partial(rival.meta_table("orders").register, theirs, accept_changed=False),
    )
    assert sum(one.new_items for one in results if isinstance(one, Registered)) == 60
    items = _items(database)
    assert [item.id for item in items] == list(range(1, 61))
    assert len({item.file.location for item in items}) == 60


def test_register_behind_an_open_registration_waits_for_its_commit(
    database: Database, rival: Database
) -> None:
    """Expect id 2 to be given only after the transaction that gives id 1 has ended."""

    def first() -> None:
        with rival.engine.begin() as connection:
            lock_in_transaction(connection, LockClass.REGISTER, "orders")
            insert = (
                "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
                "VALUES ('orders', 1, 'file:///landing/slow.csv', 10, now())"
            )
            connection.execute(sa.text(insert))
            locked.append(True)
            eventually(lambda: somebody_waits(database))
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


def test_register_killed_before_commit_leaves_nothing(
    database: Database, database_url: str
) -> None:
    """Expect no item after a kill, and ids from 1 for the next registration."""
    killed = run_python(REGISTER_THREE, database_url, failpoints="register.before_commit=kill")
    assert killed == -9
    assert _items(database) == []
    register(database, 2)
    assert [item.id for item in _items(database)] == [1, 2]


def test_register_killed_after_commit_is_completed_by_repeating(
    database: Database, database_url: str
) -> None:
    """Expect the committed items to stay, and nothing to be new the second time."""
    killed = run_python(REGISTER_THREE, database_url, failpoints="register.after_commit=kill")
    assert killed == -9
    files = [found_file(number) for number in (1, 2, 3)]
    registered = database.meta_table("orders").register(files, accept_changed=False)
    assert registered == Registered(found=3, new_items=0)


def test_register_changed_file_is_reported_and_left_alone(database: Database) -> None:
    """Expect size, time and etag changes to be named and the rows to keep what was registered; a
    file with the same ETag has the same bytes, whenever they were written.
    """
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


def test_register_all_or_none_with_a_changed_file_adds_none(database: Database) -> None:
    """Expect new files beside a changed one to stay without ids, and to get them without it."""
    register(database, 1)
    table = database.meta_table("orders")
    files = [found_file(2), replace(found_file(1), size_bytes=11), found_file(3)]
    registered = table.register(files, accept_changed=False, all_or_none=True)
    assert registered == Registered(found=3, new_items=0, changed=(files[1].location,))
    assert len(_items(database)) == 1
    again = [files[0], found_file(1), files[2]]
    assert table.register(again, accept_changed=False, all_or_none=True).new_items == 2


def test_register_changed_file_accepted_updates_its_row(database: Database) -> None:
    """Expect the row to take the present facts under the old id."""
    register(database, 2)
    grown = found_file(2, size_bytes=2**40, etag="v2")
    registered = database.meta_table("orders").register([grown], accept_changed=True)
    assert registered == Registered(found=1, new_items=0, accepted=1)
    assert _items(database)[1] == Item(id=2, file=grown)
    again = database.meta_table("orders").register([grown], accept_changed=True)
    assert again == Registered(found=1, new_items=0)


def test_register_file_beyond_two_gib_keeps_its_weight(database: Database) -> None:
    """Expect sizes above 32 bits to survive."""
    database.meta_table("orders").register([found_file(size_bytes=2**62)], accept_changed=False)
    assert _items(database)[0].weight == 2**62


def test_items_of_a_batch_are_those_of_its_range_in_id_order(database: Database) -> None:
    """Expect both ends of the range to be in it and the neighbours not."""
    register(database, 5)
    found = database.meta_table("orders").items(batch(2, 4))
    assert [item.id for item in found] == [2, 3, 4]


def test_find_by_id_location_or_name_gives_the_item(database: Database) -> None:
    """Expect an id, a whole location and its last part to find item 2, and no pattern to match."""
    register(database, 3)
    table = database.meta_table("orders")
    for what in ("2", "file:///landing/orders-0002.csv", "orders-0002.csv"):
        assert [item.id for item in table.find(what)] == [2]
    for what in ("orders-000_.csv", "%", "4", "9" * 30, "²"):
        assert table.find(what) == []


def test_find_digits_also_looks_for_a_file_of_that_name(database: Database) -> None:
    """Expect a file called `1` to be found beside the item with id 1."""
    register(database, 1)
    digits = found_file(location="file:///landing/1")
    database.meta_table("orders").register([digits], accept_changed=False)
    assert [item.id for item in database.meta_table("orders").find("1")] == [1, 2]
