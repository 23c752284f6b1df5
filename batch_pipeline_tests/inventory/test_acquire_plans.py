"""What acquiring reads of the user's table: the rows of the batch and one more, however it grew."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.errors import MetaTableError
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.planning import Cut
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    execute,
    insert,
    recorded,
    rows_touched,
)

ROWS = 100_000  # of FILL
BOUNDS = limits(max_weight=50_000, max_count=60)
BATCH_AND_ONE_ROW = range(61, 66)  # the planner itself reads the ends of an index
LATE = parse_filter([{"column": "kind", "operator": "=", "value": "late"}])
UNWEIGHED = MetaColumns(uid="id", item="file_location", weight=None)
FILL = (
    "INSERT INTO ops.files (file_location, size_in_bytes, kind) "
    "SELECT 'file-' || n, n % 1000, CASE n % 100 WHEN 0 THEN 'late' ELSE 'normal' END "
    "FROM generate_series(1, 100000) n"
)


@pytest.fixture
def filled(postgres: sa.Engine) -> sa.Engine:
    """A database with 100,000 files, each hundredth of the kind `late`, and an index of those."""
    execute(
        postgres,
        CREATE_FILES,
        "ALTER TABLE ops.files ADD kind varchar(10)",
        FILL,
        "CREATE INDEX ON ops.files (id) INCLUDE (size_in_bytes) WHERE kind = 'late'",
        "ANALYZE ops.files",
    )
    return postgres


@pytest.fixture
def single(postgres: sa.Engine) -> Iterator[sa.Engine]:
    """The same database through one connection: every call meets what the calls before left."""
    engine = sa.create_engine(
        postgres.url,
        pool_size=1,
        max_overflow=0,
        isolation_level="AUTOCOMMIT",  # the driver forgets its prepared statements on ROLLBACK
    )
    yield engine
    engine.dispose()


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("columns", [FILES, UNWEIGHED])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("after_id", [0, 9 * ROWS // 10])
def test_next_cut_touches_the_batch_and_one_row_in_one_statement(
    filled: sa.Engine, columns: MetaColumns, *, filtered: bool, after_id: int
) -> None:
    """Expect the cost of a batch to be that of its rows, at the start and near the end.

    Where the filter leaves gaps, a second statement reads the batch again for its ids.
    """
    table = ReflectedMetaTable.open(filled, "ops.files", columns, LATE if filtered else None)
    with recorded(filled) as statements:
        found = table.next_cut(after_id, ROWS, BOUNDS)
    assert found is not None
    assert (found.count, found.closed) == (60, True)
    assert len(statements) == (2 if filtered else 1)
    assert rows_touched(filled, statements) == (121 if filtered else 61)


def test_next_cut_of_a_batch_full_by_weight_touches_one_row_more(filled: sa.Engine) -> None:
    """Expect the row that no longer fits, and none after it, to be read."""
    table = ReflectedMetaTable.open(filled, "ops.files", FILES)
    with recorded(filled) as statements:
        found = table.next_cut(0, ROWS, limits(max_weight=5_050, max_count=1_000))
    assert found == Cut(
        id_range=IdRange(first_id=1, last_id=100), weight=5_050, count=100, closed=True
    )
    assert rows_touched(filled, statements) == 101


def test_next_cut_from_no_bookmark_reads_the_lowest_id_in_the_same_statement(
    filled: sa.Engine,
) -> None:
    """Expect one row more than from a bookmark: the first of the table. Then its ids are read."""
    table = ReflectedMetaTable.open(filled, "ops.files", FILES, LATE)
    with recorded(filled) as statements:
        found = table.next_cut(None, ROWS, BOUNDS)
    assert found is not None
    assert found.id_range == IdRange(first_id=1, last_id=6_099)
    assert len(statements) == 2
    assert rows_touched(filled, statements[:1]) == 62
    assert rows_touched(filled, statements) == 122


def test_next_cut_that_takes_the_rest_reads_it_once(filled: sa.Engine) -> None:
    """Expect no second look for the totals when no row stops the batch."""
    table = ReflectedMetaTable.open(filled, "ops.files", FILES)
    with recorded(filled) as statements:
        found = table.next_cut(ROWS - 40, ROWS, BOUNDS)
    assert found is not None
    assert (found.count, found.closed) == (40, False)
    assert rows_touched(filled, statements) == 40


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("filtered", [False, True])
def test_items_touch_their_batch_only_in_one_statement(
    filled: sa.Engine, *, filtered: bool
) -> None:
    """Expect no row outside of the range, and none that the filter drops, to be read."""
    table = ReflectedMetaTable.open(filled, "ops.files", FILES, LATE if filtered else None)
    with recorded(filled) as statements:
        items = table.items(IdRange(first_id=90_001, last_id=92_000))
    assert len(items) == (20 if filtered else 2_000)
    assert len(statements) == 1
    assert rows_touched(filled, statements) == len(items)


def test_next_cut_keeps_to_a_partial_index_however_often_it_is_called(
    filled: sa.Engine, single: sa.Engine
) -> None:
    """Expect no plan for any value of the filter, which fits no partial index, to be kept."""
    table = ReflectedMetaTable.open(single, "ops.files", FILES, LATE)
    for _ in range(12):
        table.next_cut(0, ROWS, BOUNDS)
    assert _read_by(single, table) - 60 in BATCH_AND_ONE_ROW  # the batch is read again for its ids


@pytest.mark.guarantee("G14")
def test_next_cut_stays_cheap_when_the_table_grows(postgres: sa.Engine, single: sa.Engine) -> None:
    """Expect no plan from the days when sorting the whole table was cheapest to be kept."""
    execute(
        postgres,
        CREATE_FILES,
        "ALTER TABLE ops.files SET (autovacuum_enabled = off)",
        "ALTER TABLE ops.files ADD kind text",
    )
    table = ReflectedMetaTable.open(single, "ops.files", FILES)
    insert(table, {1: 0})
    for _ in range(12):
        table.next_cut(0, ROWS, BOUNDS)
    execute(postgres, "TRUNCATE ops.files RESTART IDENTITY", FILL)
    assert _read_by(single, table) in BATCH_AND_ONE_ROW


def _read_by(engine: sa.Engine, table: ReflectedMetaTable) -> int:
    """Cut a batch and let the server tell how many rows of the table were read for it."""
    # Only the backend that cut it can hand in its own counters, so the engine has one connection.
    flush = sa.text("SELECT pg_stat_force_next_flush()")
    read = sa.text(
        "SELECT seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes i "
        "WHERE i.relid = t.relid) FROM pg_stat_user_tables t WHERE relid = 'ops.files'::regclass"
    )
    counted = []
    for cutting in (False, True):
        if cutting:
            assert table.next_cut(0, ROWS, BOUNDS) is not None
        with engine.connect() as connection:
            connection.execute(flush)
        with engine.connect() as connection:
            counted.append(int(connection.execute(read).scalar_one()))
    return counted[1] - counted[0]


if sys.platform == "linux":  # libpq traces nowhere else

    def test_next_cut_and_items_are_one_round_trip_each(filled: sa.Engine, tmp_path: Path) -> None:
        """Expect the server to be ready for the next query once a call, with no BEGIN or COMMIT."""
        table = ReflectedMetaTable.open(filled, "ops.files", FILES)
        with filled.connect() as connection:
            driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        with (tmp_path / "trace").open("w+b") as trace:
            driver.pgconn.trace(trace.fileno())
            table.next_cut(0, ROWS, BOUNDS)
            table.next_cut(None, ROWS, BOUNDS)
            table.items(IdRange(first_id=1, last_id=5_000))
            driver.pgconn.untrace()
            assert trace.seek(0) == 0
            assert trace.read().count(b"ReadyForQuery") == 3


@pytest.mark.parametrize("max_count", [1, 3, 10])
def test_next_cut_of_a_view_that_doubles_an_id_within_the_batch_is_reported(
    files: ReflectedMetaTable, max_count: int
) -> None:
    """Expect a doubled id to be named wherever it is, and never to be counted twice."""
    insert(files, {1: 5, 2: 5, 3: 5, 4: 5})
    doubled = "SELECT * FROM ops.files UNION ALL SELECT * FROM ops.files WHERE id = 3"
    execute(files.engine, f"CREATE VIEW ops.twice AS {doubled}")
    view = ReflectedMetaTable.open(files.engine, "ops.twice", FILES)
    after_id = 2 if max_count == 1 else 0
    with pytest.raises(MetaTableError, match="id 3 is a duplicate"):
        view.next_cut(after_id, 4, limits(max_count=max_count))
