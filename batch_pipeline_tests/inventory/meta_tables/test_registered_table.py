"""The product's own meta table: who gets which id, files in ranges, and rivals."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
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
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.id_range import MAX_ID, IdRange
from batch_pipeline.model.item import Item, LandedFile, Registered, modified_at
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Source, SourceFormat
from batch_pipeline_tests.concurrency import eventually, python, run_python, said, together
from batch_pipeline_tests.factories import NOON, batch, found_file, limits, stream
from batch_pipeline_tests.seeds import plan, query, register, somebody_waits

EVERYTHING: Batch = batch(id_range=IdRange(first_id=0, last_id=MAX_ID))


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
    table.register([found_file(location="file:///landing/1")], accept_changed=False)
    assert [item.id for item in table.find("1")] == [1, 4]
    for what in ("2", "file:///landing/orders-0002.csv", "orders-0002.csv"):
        assert [item.id for item in table.find(what)] == [2]
    for what in ("orders-000_.csv", "%", "5", "9" * 30, "²"):
        assert table.find(what) == []


STREAM = stream(source=Source(uri="file:///landing", format=SourceFormat.JSONL))
TEN = b'{"id":1}\n' * 10  # 90 bytes

REGISTER = """
import sys
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.inventory.meta_tables.test_registered_table import cutter, facts_of
from pathlib import Path
database = open_database(sys.argv[1], migrated=None)
files = [facts_of(Path(sys.argv[2]))]
database.meta_table("orders").register(files, accept_changed=False, cutter=cutter(40))
"""


def cutter(most_bytes: int) -> ItemCutter:
    """What cuts files of JSON lines."""
    return ItemCutter(stream=STREAM, most_bytes=most_bytes)


def facts_of(path: Path) -> LandedFile:
    """Give what a listing says of a file."""
    stat = path.stat()
    return LandedFile(location=to_uri(path), size_bytes=stat.st_size, modified_at=modified_at(stat))


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A file of ten lines with nine bytes each."""
    path = tmp_path / "big.jsonl"
    path.write_bytes(TEN)
    return path


def _register_cut(
    database: Database, *files: LandedFile, most: int | None = 40, accept: bool = False
) -> Registered:
    table = database.meta_table("orders")
    chosen = None if most is None else cutter(most)
    return table.register(files, accept_changed=accept, cutter=chosen)


def _ranges(database: Database) -> list[str]:
    return [item.file.location.partition("#")[2] for item in _items(database)]


def test_large_file_becomes_items_in_the_order_of_the_files(database: Database, big: Path) -> None:
    """Expect three ranges between two whole files; each has its own weight and the file's facts."""
    file = facts_of(big)
    registered = _register_cut(database, found_file(1), file, found_file(2))
    assert registered == Registered(found=3, new_items=5)
    items = _items(database)
    assert [(item.id, item.weight) for item in items] == [
        (1, 10),
        (2, 36),
        (3, 36),
        (4, 18),
        (5, 10),
    ]
    assert _ranges(database) == [
        "",
        "bytes=0-35,size=90",
        "bytes=36-71,size=90",
        "bytes=72-89,size=90",
        "",
    ]
    assert {replace(item.file, location=item.file.uri) for item in items[1:4]} == {file}


def test_ranges_are_planned_like_other_items(database: Database, big: Path) -> None:
    """Expect batches within a file, bounded by the bytes of its ranges."""
    _register_cut(database, facts_of(big))
    batches = plan(database, limits(max_weight=60))
    assert [(one.key, one.weight) for one in batches] == [
        ("00000001-00000001", 36),
        ("00000002-00000003", 54),
    ]


@pytest.mark.parametrize("most", [40, 20, 1_000, None])
def test_file_known_as_ranges_is_not_registered_again(
    database: Database, big: Path, most: int | None
) -> None:
    """Expect nothing new, whatever size of items is wanted by now."""
    _register_cut(database, facts_of(big))
    assert _register_cut(database, facts_of(big), most=most) == Registered(found=1, new_items=0)


def test_file_known_as_a_whole_stays_one_item(database: Database, big: Path) -> None:
    """Expect a size that is set later to concern new files only."""
    _register_cut(database, facts_of(big), most=None)
    assert _register_cut(database, facts_of(big)) == Registered(found=1, new_items=0)
    assert _ranges(database) == [""]


def test_registration_killed_within_a_file_leaves_nothing_of_it(
    database: Database, database_url: str, big: Path
) -> None:
    """Expect all ranges or none, and ids from 1 for the next one."""
    killed = run_python(REGISTER, database_url, str(big), failpoints="register.before_commit=kill")
    assert killed == -9
    assert _items(database) == []
    _register_cut(database, facts_of(big))
    assert [item.id for item in _items(database)] == [1, 2, 3]


def test_rivals_with_other_sizes_register_a_file_once(
    database: Database, rival: Database, big: Path
) -> None:
    """Expect the ranges of the one or of the other, never of both."""
    file = facts_of(big)
    together(partial(_register_cut, database, file), partial(_register_cut, rival, file, most=20))
    assert sum(item.weight for item in _items(database)) == 90
    assert [item.id for item in _items(database)] in ([1, 2, 3], [1, 2, 3, 4, 5])


def test_file_that_changes_while_it_is_cut_is_left_for_the_next_look(
    database: Database, big: Path
) -> None:
    """Expect no item of what a listing saw before."""
    before = facts_of(big)
    big.write_bytes(TEN + TEN)
    assert _register_cut(database, before) == Registered(found=1, new_items=0)
    assert _register_cut(database, facts_of(big)) == Registered(found=1, new_items=5)


@pytest.mark.parametrize(
    ("content", "most", "accept"),
    [
        (TEN + b"{}\n", 40, False),
        # Its ids belong to bytes that hold other records now, so it cannot be accepted.
        (b'{"id":1000}\n' + TEN[9:], 40, True),
        (b'{"id":1000}\n' + TEN[9:], None, True),
    ],
)
def test_changed_file_is_reported_once_for_all_of_its_ranges(
    database: Database, big: Path, content: bytes, most: int | None, accept: bool
) -> None:
    _register_cut(database, facts_of(big))
    before = _items(database)
    big.write_bytes(content)
    registered = _register_cut(database, facts_of(big), most=most, accept=accept)
    assert registered == Registered(found=1, new_items=0, changed=(to_uri(big),))
    assert _items(database) == before


def test_file_that_was_only_touched_can_be_accepted(database: Database, big: Path) -> None:
    """Expect all of its rows to take the new time, since it is cut where it was."""
    _register_cut(database, facts_of(big))
    os.utime(big, (1_750_000_000, 1_750_000_000))
    registered = _register_cut(database, facts_of(big), accept=True)
    assert registered == Registered(found=1, new_items=0, accepted=1)
    assert {item.file.modified_at for item in _items(database)} == {facts_of(big).modified_at}
    assert _register_cut(database, facts_of(big)) == Registered(found=1, new_items=0)


def test_file_that_is_cut_is_found_with_all_of_its_items(database: Database, big: Path) -> None:
    """Expect its URI and its name to find all ranges, a whole location or an id one."""
    register(database, 1)
    _register_cut(database, facts_of(big))
    table = database.meta_table("orders")
    for what in (to_uri(big), "big.jsonl"):
        assert [item.id for item in table.find(what)] == [2, 3, 4]
    for what in ("3", _items(database)[2].file.location):
        assert [item.id for item in table.find(what)] == [3]


def test_ranges_of_a_file_are_looked_up_by_an_index(database: Database) -> None:
    """Expect a registration never to read all items of a stream for the few files it asks about."""
    fill = sa.text(
        "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
        "SELECT 'orders', n, 'file:///in/' || n || '.csv#bytes=0-9,size=10', 10, now() "
        "FROM generate_series(1, 5000) AS n"
    )
    with database.engine.begin() as connection:
        connection.execute(fill)
        connection.execute(sa.text("ANALYZE batch_pipeline.item"))
    files: sa.ColumnClause[list[str]] = sa.literal_column("ARRAY['file:///in/7.csv', 'x']")
    asked = sa.select(item).where(
        item.c.stream == "orders",
        sa.text(IS_RANGE),
        sa.literal_column(FILE_OF_RANGE) == sa.any_(files),
    )
    written = str(asked.compile(database.engine, compile_kwargs={"literal_binds": True}))
    rows = query(database, f"EXPLAIN {written}")
    assert any("item_file_idx" in row[0] for row in rows)


PROCESSES = 8
CALLS = 25
FILES_PER_CALL = 4
FILES = CALLS * FILES_PER_CALL

# Half of each call's files are the process's own, half are found by all processes.
REGISTER_OFTEN = f"""
import sys
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.factories import found_file
database = open_database(sys.argv[1], migrated=None)
table, process, new = database.meta_table("orders"), int(sys.argv[2]), 0
print("ready")
sys.stdin.readline()
for call in range({CALLS}):
    numbers = range({FILES_PER_CALL} * call, {FILES_PER_CALL} * (call + 1))
    files = [found_file(1_000 * (process + 1) + number) for number in numbers]
    files += [found_file(number) for number in numbers]
    new += table.register(files, accept_changed=False).new_items
print(new)
"""


@pytest.fixture
def processes(database_url: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ready to register and wait for the word."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(python(REGISTER_OFTEN, database_url, str(number)))
            for number in range(PROCESSES)
        ]
        assert [said(child) for child in children] == ["ready"] * PROCESSES
        yield children


def planned_ids(database: Database) -> list[int]:
    """Plan what can be planned now, and give the ids that lie in the new batches."""
    taken: list[int] = []
    small = limits(max_weight=10_000, max_count=7)
    for one in plan(database, small):
        found = [item.id for item in database.meta_table("orders").items(one)]
        assert len(found) == one.count
        taken += found
    return taken


def test_planner_loses_nothing_while_eight_processes_register(
    database: Database, processes: list[subprocess.Popen[str]]
) -> None:
    """Expect every file once, in dense ids, by plans made while registrations commit."""
    plans: list[list[int]] = []
    for child in processes:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    while any(child.poll() is None for child in processes):
        plans.append(planned_ids(database))
    plans.append(planned_ids(database))
    total = PROCESSES * FILES + FILES
    assert sum(int(said(child)) for child in processes) == total
    assert len([ids for ids in plans if ids]) > 3
    assert [uid for ids in plans for uid in ids] == list(range(1, total + 1))
    everything = batch(id_range=IdRange(first_id=1, last_id=total + 1))
    locations = {item.file.location for item in database.meta_table("orders").items(everything)}
    assert len(locations) == total
    counted = "SELECT count(*), max(id) FROM batch_pipeline.item"
    assert query(database, counted) == [(total, total)]
