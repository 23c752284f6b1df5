"""Large files that become several items: all of their rows at once, and found by the file."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from batch_pipeline.encode.readers.decoded_file import ItemCutter
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.tables import FILE_OF_RANGE, IS_RANGE, item
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.id_range import MAX_ID, IdRange
from batch_pipeline.model.item import Item, LandedFile, Registered, modified_at
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Source, SourceFormat
from batch_pipeline_tests.concurrency import run_python, together
from batch_pipeline_tests.factories import batch, found_file, limits, stream
from batch_pipeline_tests.seeds import plan, query, register

EVERYTHING: Batch = batch(id_range=IdRange(first_id=0, last_id=MAX_ID))
STREAM = stream(source=Source(uri="file:///landing", format=SourceFormat.JSONL))
TEN = b'{"id":1}\n' * 10  # 90 bytes

REGISTER = """
import sys
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.inventory.meta_tables.test_registered_ranges import cutter, facts_of
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


def _register(
    database: Database, *files: LandedFile, most: int | None = 40, accept: bool = False
) -> Registered:
    table = database.meta_table("orders")
    chosen = None if most is None else cutter(most)
    return table.register(files, accept_changed=accept, cutter=chosen)


def _items(database: Database) -> list[Item]:
    return list(database.meta_table("orders").items(EVERYTHING))


def _ranges(database: Database) -> list[str]:
    return [item.file.location.partition("#")[2] for item in _items(database)]


def test_large_file_becomes_items_in_the_order_of_the_files(database: Database, big: Path) -> None:
    """Expect three ranges between two whole files; each has its own weight and the file's facts."""
    file = facts_of(big)
    registered = _register(database, found_file(1), file, found_file(2))
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
    _register(database, facts_of(big))
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
    _register(database, facts_of(big))
    assert _register(database, facts_of(big), most=most) == Registered(found=1, new_items=0)


def test_file_known_as_a_whole_stays_one_item(database: Database, big: Path) -> None:
    """Expect a size that is set later to concern new files only."""
    _register(database, facts_of(big), most=None)
    assert _register(database, facts_of(big)) == Registered(found=1, new_items=0)
    assert _ranges(database) == [""]


def test_registration_killed_within_a_file_leaves_nothing_of_it(
    database: Database, database_url: str, big: Path
) -> None:
    """Expect all ranges or none, and ids from 1 for the next one."""
    killed = run_python(REGISTER, database_url, str(big), failpoints="register.before_commit=kill")
    assert killed == -9
    assert _items(database) == []
    _register(database, facts_of(big))
    assert [item.id for item in _items(database)] == [1, 2, 3]


def test_rivals_with_other_sizes_register_a_file_once(
    database: Database, rival: Database, big: Path
) -> None:
    """Expect the ranges of the one or of the other, never of both."""
    file = facts_of(big)
    together(partial(_register, database, file), partial(_register, rival, file, most=20))
    assert sum(item.weight for item in _items(database)) == 90
    assert [item.id for item in _items(database)] in ([1, 2, 3], [1, 2, 3, 4, 5])


def test_file_that_changes_while_it_is_cut_is_left_for_the_next_look(
    database: Database, big: Path
) -> None:
    """Expect no item of what a listing saw before."""
    before = facts_of(big)
    big.write_bytes(TEN + TEN)
    assert _register(database, before) == Registered(found=1, new_items=0)
    assert _register(database, facts_of(big)) == Registered(found=1, new_items=5)


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
    _register(database, facts_of(big))
    before = _items(database)
    big.write_bytes(content)
    registered = _register(database, facts_of(big), most=most, accept=accept)
    assert registered == Registered(found=1, new_items=0, changed=(to_uri(big),))
    assert _items(database) == before


def test_file_that_was_only_touched_can_be_accepted(database: Database, big: Path) -> None:
    """Expect all of its rows to take the new time, since it is cut where it was."""
    _register(database, facts_of(big))
    os.utime(big, (1_750_000_000, 1_750_000_000))
    registered = _register(database, facts_of(big), accept=True)
    assert registered == Registered(found=1, new_items=0, accepted=1)
    assert {item.file.modified_at for item in _items(database)} == {facts_of(big).modified_at}
    assert _register(database, facts_of(big)) == Registered(found=1, new_items=0)


def test_file_that_is_cut_is_found_with_all_of_its_items(database: Database, big: Path) -> None:
    """Expect its URI and its name to find all ranges, a whole location or an id one."""
    register(database, 1)
    _register(database, facts_of(big))
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
