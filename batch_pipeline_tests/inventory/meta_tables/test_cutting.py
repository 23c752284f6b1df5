"""Cutting batches: the reference plan, wherever the pass runs, at the cost of a batch's rows."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable, all_cuts
from batch_pipeline.model.errors import (
    BadWeightError,
    InvalidValueError,
    MetaTableChangedError,
    MetaTableError,
)
from batch_pipeline.model.filter import Filter, parse_filter
from batch_pipeline.model.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.model.planning import Cut, Limits, cut
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    MARIADB,
    delete,
    drained,
    execute,
    insert,
    recorded,
    rows_touched,
)
from batch_pipeline_tests.proofs import Figures

TABLES = ["files", "sqlite_files", *(["mariadb_files"] if MARIADB else [])]
UNLIMITED = Limits(max_weight=MAX_ID, max_count=2**70)
HUGE = 2**61


@pytest.fixture(params=TABLES)
def either(request: pytest.FixtureRequest) -> ReflectedMetaTable:
    """An empty meta table, once in every database that there is."""
    table: ReflectedMetaTable = request.getfixturevalue(request.param)
    return table


def gap_weight_kind(largest: int) -> st.SearchStrategy[list[tuple[int, int, str]]]:
    """Rows as the distance from the row before, the weight, and what the filter looks at."""
    weights = st.integers(0, 12) | st.sampled_from([largest, largest - 1])
    return st.lists(st.tuples(st.integers(1, 4), weights, st.sampled_from("ab")), max_size=60)


def fill(table: ReflectedMetaTable, rows: list[dict[str, Any]]) -> None:
    """Make these the only rows."""
    delete(table)
    if rows:
        with table.engine.begin() as connection:
            connection.execute(sa.insert(table.table), rows)


def runs_in_server(table: ReflectedMetaTable, ceiling: int = MAX_ID) -> bool:
    """Tell whether the cuts of a table were made by a function of the server."""
    with recorded(table.engine) as statements:
        list(all_cuts(table, 0, ceiling, limits()))
    streamed = any("array_agg" not in text and "ORDER BY" in text for text, _ in statements)
    return not streamed


def filled(postgres: sa.Engine, rows: int) -> None:
    """Fill `ops.files` with rows of 0 to 999 bytes."""
    insertion = (
        "INSERT INTO ops.files (file_location, size_in_bytes) "
        "SELECT 'file-' || n, n % 1000 FROM generate_series(1, :rows) n"
    )
    execute(postgres, insertion, rows=rows)
    execute(postgres, "ANALYZE ops.files")


@pytest.mark.guarantee("G6", "G7")
@pytest.mark.parametrize("filtered", [False, True])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    gaps=gap_weight_kind(HUGE),
    max_weight=st.integers(1, 40) | st.sampled_from([HUGE - 1, HUGE, 3 * HUGE, MAX_ID]),
    max_count=st.integers(1, 30),
    start=st.integers(-20, 5),
    ceiling=st.integers(-10, 150),
    after=st.none() | st.integers(-30, 30),
    page_rows=st.integers(1, 70),
)
def test_all_cuts_are_the_reference_plan(
    either: ReflectedMetaTable,
    *,
    filtered: bool,
    gaps: list[tuple[int, int, str]],
    max_weight: int,
    max_count: int,
    start: int,
    ceiling: int,
    after: int | None,
    page_rows: int,
) -> None:
    """Expect the batches that the planner of the domain makes, whatever a page holds."""
    rows: list[dict[str, Any]] = []
    uid = start
    for gap, weight, kind in gaps:
        uid += gap
        rows.append({"id": uid, "file_location": kind, "size_in_bytes": weight})
    fill(either, rows)
    table = either
    if filtered:
        where = parse_filter([{"column": "file_location", "operator": "=", "value": "a"}])
        table = ReflectedMetaTable.open(either.engine, either.canonical_name, FILES, where)
    base = after if after is not None else rows[0]["id"] - 1 if rows else 0
    kept = [
        (row["id"], row["size_in_bytes"])
        for row in rows
        if base < row["id"] <= ceiling and (row["file_location"] == "a" or not filtered)
    ]
    bounds = Limits(max_weight=max_weight, max_count=max_count)
    expected = list(cut(kept, after_id=base, high_watermark=ceiling, limits=bounds))
    assert list(all_cuts(table, after, ceiling, bounds, page_rows=page_rows)) == expected
    assert drained(table, ceiling, bounds, after_id=after) == expected
    assert list(table.weights(base, ceiling)) == kept


def test_all_cuts_of_many_pages_are_those_of_next_cut(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    """Expect batches that lie across pages, and pages that lie within a batch."""
    filled(postgres, 5_000)
    for one in (limits(max_weight=20_000, max_count=100), limits(max_weight=10**6, max_count=2000)):
        expected = drained(files, 6_000, one)
        assert list(all_cuts(files, None, 6_000, one, page_rows=64)) == expected


def test_all_cuts_of_nothing_are_none(either: ReflectedMetaTable) -> None:
    """Expect no batch in an empty table, above the ceiling, or above the last row."""
    assert list(all_cuts(either, None, 10, limits())) == []
    insert(either, {5: 1})
    assert list(all_cuts(either, None, 4, limits())) == []
    assert list(all_cuts(either, 5, 9, limits())) == []
    assert list(all_cuts(either, 9, 9, limits())) == []


@pytest.mark.parametrize("page_rows", [1, 2, 100])
def test_all_cuts_at_the_ends_of_64_bits(either: ReflectedMetaTable, page_rows: int) -> None:
    """Expect the smallest and the largest id, and weights whose sums are no bigint."""
    insert(either, {MIN_ID: MAX_ID, -1: MAX_ID, 0: 0, MAX_ID - 1: 2**62, MAX_ID: MAX_ID})
    cuts = list(all_cuts(either, None, MAX_ID, UNLIMITED, page_rows=page_rows))
    assert [str(one.id_range) for one in cuts] == [
        f"{MIN_ID}..-2",
        f"-1..{MAX_ID - 2}",
        f"{MAX_ID - 1}..{MAX_ID - 1}",
        f"{MAX_ID}..{MAX_ID}",
    ]
    assert [one.weight for one in cuts] == [MAX_ID, MAX_ID, 2**62, MAX_ID]


def test_weight_limit_beyond_64_bits_is_refused(either: ReflectedMetaTable) -> None:
    """Expect no batch whose weight could not be stored."""
    bounds = limits(max_weight=2**63)
    with pytest.raises(InvalidValueError, match="max_weight"):
        list(all_cuts(either, None, 10, bounds))
    with pytest.raises(InvalidValueError, match="max_weight"):
        either.next_cut(None, 10, bounds)


def test_table_without_weights_is_cut_by_count(either: ReflectedMetaTable) -> None:
    """Expect every item to weigh nothing."""
    insert(either, dict.fromkeys(range(1, 26), 500))
    columns = MetaColumns(uid="id", item="file_location", weight=None)
    table = ReflectedMetaTable.open(either.engine, either.canonical_name, columns)
    cuts = list(all_cuts(table, 0, 25, limits()))
    assert [(one.count, one.weight) for one in cuts] == [(10, 0), (10, 0), (5, 0)]
    assert drained(table, 25, limits(), after_id=0) == cuts
    assert table.facts(IdRange(first_id=1, last_id=25)).weight == 0


# Rows that cannot be planned


@pytest.mark.parametrize("bad", [None, -1])
@pytest.mark.parametrize(("bad_id", "planned"), [(1, 0), (12, 1), (20, 1), (21, 1), (25, 2)])
def test_refused_weight_stops_after_the_batches_before_it(
    either: ReflectedMetaTable, bad: int | None, bad_id: int, planned: int
) -> None:
    """Expect the row to be named as the stream of weights names it, wherever in a batch it is."""
    insert(either, dict.fromkeys(range(1, 26), 1) | {bad_id: bad})
    cuts: list[Cut] = []
    with pytest.raises(BadWeightError) as raised:
        cuts.extend(all_cuts(either, 0, 25, limits()))
    assert [str(one.id_range) for one in cuts] == ["1..10", "11..20"][:planned]
    with pytest.raises(BadWeightError) as streamed:
        list(either.weights(0, 25))
    assert (raised.value.item_id, raised.value.weight) == (bad_id, bad)
    assert str(raised.value) == str(streamed.value)


@pytest.mark.parametrize("max_count", [1, 2, 10])
def test_view_that_gives_an_id_twice_is_reported(
    either: ReflectedMetaTable, max_count: int
) -> None:
    """Expect a doubled id to stop planning, within a batch as well as between two."""
    schema = either.table.schema
    files = f"{schema}.files"
    both = f"SELECT * FROM {files} UNION ALL SELECT * FROM {files} WHERE id = 3"  # noqa: S608 - names of ours
    execute(either.engine, f"CREATE VIEW {schema}.twice AS {both}")
    insert(either, {1: 5, 2: 5, 3: 5, 4: 5})
    view = ReflectedMetaTable.open(either.engine, f"{schema}.twice", FILES)
    with pytest.raises(MetaTableError, match="id 3 is a duplicate"):
        list(all_cuts(view, None, 4, limits(max_count=max_count)))
    with pytest.raises(MetaTableError, match="id 3 is a duplicate"):
        drained(view, 4, limits(max_count=max_count))


def test_table_dropped_after_opening_is_reported(either: ReflectedMetaTable) -> None:
    """Expect a domain error, and none of the driver's."""
    execute(either.engine, f"DROP TABLE {either.table.schema}.files")
    with pytest.raises(MetaTableChangedError):
        list(all_cuts(either, 0, 10, limits()))
    with pytest.raises(MetaTableChangedError):
        either.next_cut(0, 10, limits())


# Where the pass runs


@pytest.mark.parametrize(
    ("driver", "read_only"), [("psycopg", "off"), ("psycopg2", "off"), ("psycopg", "on")]
)
def test_pass_runs_in_the_server_with_every_driver_unless_the_session_is_read_only(
    files: ReflectedMetaTable, postgres: sa.Engine, driver: str, read_only: str
) -> None:
    insert(files, dict.fromkeys(range(1, 26), 1))
    url, options = (
        {"drivername": f"postgresql+{driver}"},
        f"-c default_transaction_read_only={read_only}",
    )
    with engine_like(postgres, url, options=options) as engine:
        table = ReflectedMetaTable.open(engine, "ops.files", FILES)
        assert counts(table) == [10, 10, 5]
        assert runs_in_server(table) == (read_only == "off")


@pytest.mark.parametrize(
    ("definition", "uid", "weight"),
    [
        ("uid smallint PRIMARY KEY, item text, weight integer", "uid", "weight"),
        ("weight bigint PRIMARY KEY, item text, uid bigint", "weight", "uid"),
    ],
)
def test_columns_of_any_width_and_name_are_cut_in_the_server(
    postgres: sa.Engine, definition: str, uid: str, weight: str
) -> None:
    execute(postgres, f"CREATE TABLE ops.odd ({definition})")
    columns = MetaColumns(uid=uid, item="item", weight=weight)
    table = ReflectedMetaTable.open(postgres, "ops.odd", columns)
    insert(table, {1: 60, 2: 60})
    assert counts(table) == [1, 1]
    assert runs_in_server(table)


@pytest.mark.guarantee("L1")
def test_passes_of_a_connection_leave_one_function_and_no_more_memory(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    """Expect what the server keeps for a connection not to grow with what is planned on it."""
    insert(files, dict.fromkeys(range(1, 26), 1))
    with engine_like(postgres, {}) as engine:
        table = ReflectedMetaTable.open(engine, "ops.files", FILES)
        counts(table)
        counts(table)
        before = _server_memory(engine)
        for _ in range(30):
            assert counts(table) == [10, 10, 5]
        assert _server_memory(engine) - before < 2**20  # thirty functions are six times that
        left = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'batch_pipeline%'"
        with engine.connect() as connection:
            assert connection.execute(sa.text(left)).scalar_one() == 1


def _server_memory(engine: sa.Engine) -> int:
    """Bytes that the server holds for the one connection of an engine."""
    with engine.connect() as connection:
        query = "SELECT sum(total_bytes) FROM pg_backend_memory_contexts"
        return int(connection.execute(sa.text(query)).scalar_one())


def test_pass_left_early_gives_its_connection_back(files: ReflectedMetaTable) -> None:
    """Expect no transaction to stay open, and the next pass to be whole."""
    insert(files, dict.fromkeys(range(1, 26), 1))
    with closing(all_cuts(files, 0, 25, limits())) as cuts:  # type: ignore[type-var] # a generator
        assert len(list(islice(cuts, 1))) == 1
    assert files.engine.pool.checkedout() == 0  # type: ignore[attr-defined] # of a QueuePool
    assert counts(files) == [10, 10, 5]


def test_role_without_temp_has_its_rows_streamed(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    """Expect the same cuts when the role may do nothing but read the table."""
    insert(files, dict.fromkeys(range(1, 26), 1))
    with reader_without_temp(postgres) as engine:
        table = ReflectedMetaTable.open(engine, "ops.files", FILES)
        assert counts(table) == [10, 10, 5]
        assert not runs_in_server(table)
    assert runs_in_server(files)


def test_plain_view_has_its_rows_streamed(files: ReflectedMetaTable, postgres: sa.Engine) -> None:
    """Expect no view to be computed once per page."""
    execute(postgres, "CREATE VIEW ops.light AS SELECT * FROM ops.files WHERE size_in_bytes < 5")
    insert(files, {1: 1, 2: 9, 3: 1})
    view = ReflectedMetaTable.open(postgres, "ops.light", FILES)
    assert counts(view) == [2]
    assert not runs_in_server(view)


@pytest.mark.guarantee("G14")
def test_pass_touches_each_row_once(
    files: ReflectedMetaTable, postgres: sa.Engine, figures: Figures, *, long_form: bool
) -> None:
    """Expect one reading of the rows by their index, whatever the number of pages."""
    rows = 1_000_000 if long_form else 20_000
    filled(postgres, rows)
    before = read_so_far(postgres)
    cuts = list(all_cuts(files, 0, rows, limits(max_count=1_000), page_rows=rows // 20))
    after = read_so_far(postgres)
    assert sum(one.count for one in cuts) == rows
    assert after["seq_tup_read"] == before["seq_tup_read"]
    read = after["idx_tup_fetch"] - before["idx_tup_fetch"]
    figures(rows_planned=rows, rows_read_to_plan_them=read)
    # The planner looks up the first and the last row of the index, page by page.
    assert 0 <= read - rows <= 3 * 21


def counts(table: ReflectedMetaTable) -> list[int]:
    """Cut a small table up to the largest id and give the items of each batch."""
    cuts: list[Cut] = list(all_cuts(table, 0, MAX_ID, limits()))
    return [one.count for one in cuts]


def read_so_far(engine: sa.Engine) -> Mapping[str, int]:
    """Give the rows that were read of `ops.files` by the one connection of the engine's pool."""
    query = "SELECT * FROM pg_stat_user_tables WHERE schemaname = 'ops' AND relname = 'files'"
    execute(engine, "SELECT pg_stat_force_next_flush()")
    with engine.connect() as connection:
        return dict(connection.execute(sa.text(query)).mappings().one())


@contextmanager
def engine_like(engine: sa.Engine, url: Mapping[str, Any], **arguments: str) -> Iterator[sa.Engine]:
    """Connect to the same database with another driver, role or option."""
    other = sa.create_engine(engine.url.set(**url), connect_args=arguments)
    yield other
    other.dispose()


@contextmanager
def reader_without_temp(postgres: sa.Engine) -> Iterator[sa.Engine]:
    """Connect as a role that may read `ops.files` and has no right to temporary objects."""
    role, name = "reader_without_temp", postgres.url.database
    execute(
        postgres,
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA ops TO {role}",
        f"GRANT SELECT ON ops.files TO {role}",
        f'REVOKE TEMP ON DATABASE "{name}" FROM PUBLIC',
    )
    try:
        with engine_like(postgres, {"username": role}) as engine:
            yield engine
    finally:
        execute(
            postgres,
            f'GRANT TEMP ON DATABASE "{name}" TO PUBLIC',
            f"DROP OWNED BY {role}",
            f"DROP ROLE {role}",
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
def large(postgres: sa.Engine) -> sa.Engine:
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
    large: sa.Engine, columns: MetaColumns, *, filtered: bool, after_id: int
) -> None:
    """Expect the cost of a batch to be that of its rows, at the start and near the end.

    Where the filter leaves gaps, a second statement reads the batch again for its ids.
    """
    table = ReflectedMetaTable.open(large, "ops.files", columns, LATE if filtered else None)
    with recorded(large) as statements:
        found = table.next_cut(after_id, ROWS, BOUNDS)
    assert found is not None
    assert (found.count, found.closed) == (60, True)
    assert len(statements) == (2 if filtered else 1)
    assert rows_touched(large, statements) == (121 if filtered else 61)


@pytest.mark.parametrize(
    ("where", "after_id", "bounds", "expected", "touched"),
    [
        # The row that no longer fits is read, and none after it.
        (None, 0, limits(max_weight=5_050, max_count=1_000), (1, 100, 5_050, 100), [101]),
        # The lowest id is read by the same statement; a filter leaves gaps, so ids are read again.
        (LATE, None, BOUNDS, (1, 6_099, 27_000, 60), [62, 60]),
        # No row stops the batch, so the rest is read once.
        (None, ROWS - 40, BOUNDS, (ROWS - 39, ROWS, 38_220, 40), [40]),
    ],
)
def test_next_cut_at_an_edge_touches_no_row_more(
    large: sa.Engine,
    where: Filter | None,
    after_id: int | None,
    bounds: Limits,
    expected: tuple[int, int, int, int],
    touched: list[int],
) -> None:
    table = ReflectedMetaTable.open(large, "ops.files", FILES, where)
    with recorded(large) as statements:
        found = table.next_cut(after_id, ROWS, bounds)
    assert found is not None
    ids = found.id_range
    assert (ids.first_id, ids.last_id, found.weight, found.count) == expected
    assert found.closed == (ids.last_id < ROWS)
    assert [rows_touched(large, [one]) for one in statements] == touched


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("filtered", [False, True])
def test_items_touch_their_batch_only_in_one_statement(large: sa.Engine, *, filtered: bool) -> None:
    """Expect no row outside of the range, and none that the filter drops, to be read."""
    table = ReflectedMetaTable.open(large, "ops.files", FILES, LATE if filtered else None)
    with recorded(large) as statements:
        items = table.items(IdRange(first_id=90_001, last_id=92_000))
    assert len(items) == (20 if filtered else 2_000)
    assert len(statements) == 1
    assert rows_touched(large, statements) == len(items)


def test_next_cut_keeps_to_a_partial_index_however_often_it_is_called(
    large: sa.Engine, single: sa.Engine
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

    def test_next_cut_and_items_are_one_round_trip_each(large: sa.Engine, tmp_path: Path) -> None:
        """Expect the server to be ready for the next query once a call, with no BEGIN or COMMIT."""
        table = ReflectedMetaTable.open(large, "ops.files", FILES)
        with large.connect() as connection:
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
