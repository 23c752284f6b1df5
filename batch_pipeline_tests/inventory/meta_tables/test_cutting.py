"""Cutting batches: the reference plan, at bounded cost."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable, all_cuts
from batch_pipeline.model.batch import MAX_ID, MIN_ID, IdRange
from batch_pipeline.model.errors import (
    BadWeightError,
    InvalidValueError,
    MetaTableChangedError,
    MetaTableError,
)
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.planning import Cut, Limits, cut
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    choose_watermark,
    cut_all,
    delete,
    execute,
    insert,
    items_of,
    record_statements,
    rows_scanned,
)
from batch_pipeline_tests.proofs import Figures

KIND_IS_A = parse_filter([{"column": "file_location", "operator": "=", "value": "a"}])
UNLIMITED = Limits(max_weight=MAX_ID, max_count=2**70)
HUGE = 2**61


def rows_strategy(largest: int) -> st.SearchStrategy[list[tuple[int, int, str]]]:
    """Generate rows as (distance from the previous id, weight, value for the filter)."""
    weights = st.integers(0, 12) | st.sampled_from([largest, largest - 1])
    return st.lists(st.tuples(st.integers(1, 4), weights, st.sampled_from("ab")), max_size=60)


def fill(table: ReflectedMetaTable, rows: list[dict[str, Any]]) -> None:
    """Replace all rows."""
    delete(table)
    if rows:
        with table.engine.begin() as connection:
            connection.execute(sa.insert(table.table), rows)


def fill_ops_files(postgres: sa.Engine, rows: int) -> None:
    """Fill `ops.files` with rows of 0 to 999 bytes."""
    insertion = (
        "INSERT INTO ops.files (file_location, size_in_bytes) "
        "SELECT 'file-' || n, n % 1000 FROM generate_series(1, :rows) n"
    )
    execute(postgres, insertion, rows=rows)
    execute(postgres, "ANALYZE ops.files")


@pytest.mark.guarantee("G6", "G7")
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    filtered=st.booleans(),
    drawn_rows=rows_strategy(HUGE),
    max_weight=st.integers(1, 40) | st.sampled_from([HUGE - 1, HUGE, 3 * HUGE, MAX_ID]),
    max_count=st.integers(1, 30),
    start=st.integers(-20, 5),
    high_watermark=st.integers(-10, 150),
    after_id=st.none() | st.integers(-30, 30),
)
def test_all_cuts_match_reference_plan(
    any_table: ReflectedMetaTable,
    *,
    filtered: bool,
    drawn_rows: list[tuple[int, int, str]],
    max_weight: int,
    max_count: int,
    start: int,
    high_watermark: int,
    after_id: int | None,
) -> None:
    rows: list[dict[str, Any]] = []
    uid = start
    for gap, weight, kind in drawn_rows:
        uid += gap
        rows.append({"id": uid, "file_location": kind, "size_in_bytes": weight})
    fill(any_table, rows)
    table = replace(any_table, where=KIND_IS_A if filtered else None)
    start_after = after_id if after_id is not None else rows[0]["id"] - 1 if rows else 0
    matching_rows = [
        (row["id"], row["size_in_bytes"])
        for row in rows
        if start_after < row["id"] <= high_watermark
        and (row["file_location"] == "a" or not filtered)
    ]
    batch_limits = Limits(max_weight=max_weight, max_count=max_count)
    expected = list(
        cut(matching_rows, after_id=start_after, high_watermark=high_watermark, limits=batch_limits)
    )
    assert list(all_cuts(table, after_id, high_watermark, batch_limits)) == expected
    assert cut_all(table, high_watermark, batch_limits, after_id=after_id) == expected
    assert list(table.weights(start_after, high_watermark)) == matching_rows


def test_64_bit_ids_and_weights_are_cut_and_counted(any_table: ReflectedMetaTable) -> None:
    insert(any_table, {MIN_ID: MAX_ID, -1: MAX_ID, 0: 0, MAX_ID - 1: 2**62, MAX_ID: MAX_ID})
    cuts = cut_all(any_table, MAX_ID, UNLIMITED)
    assert [str(cut.id_range) for cut in cuts] == [
        f"{MIN_ID}..-2",
        f"-1..{MAX_ID - 2}",
        f"{MAX_ID - 1}..{MAX_ID - 1}",
        f"{MAX_ID}..{MAX_ID}",
    ]
    assert [cut.weight for cut in cuts] == [MAX_ID, MAX_ID, 2**62, MAX_ID]
    assert list(all_cuts(any_table, None, MAX_ID, UNLIMITED)) == cuts
    facts = any_table.facts(IdRange(first_id=MIN_ID, last_id=MAX_ID))
    assert facts.weight == 3 * MAX_ID + 2**62
    assert any_table.next_cut(MAX_ID, MAX_ID, UNLIMITED) is None
    too_heavy = limits(max_weight=2**63)
    with pytest.raises(InvalidValueError, match="max_weight"):
        next(all_cuts(any_table, None, 10, too_heavy))
    with pytest.raises(InvalidValueError, match="max_weight"):
        any_table.next_cut(None, 10, too_heavy)


# Rows that cannot be planned


def test_bad_weight_raises_after_preceding_batches(any_table: ReflectedMetaTable) -> None:
    """The error names the same row as the error of reading the weights."""
    for bad_id, planned in ((1, 0), (12, 1), (20, 1), (21, 1), (25, 2)):
        weights = {uid: None if uid == bad_id else 1 for uid in range(1, 26)}
        fill(any_table, [{"id": uid, "size_in_bytes": weights[uid]} for uid in weights])
        cuts: list[Cut] = []
        with pytest.raises(BadWeightError) as raised:
            cuts.extend(all_cuts(any_table, 0, 25, limits()))
        assert [str(cut.id_range) for cut in cuts] == ["1..10", "11..20"][:planned]
        with pytest.raises(BadWeightError) as streamed:
            list(any_table.weights(0, 25))
        assert (raised.value.item_id, raised.value.weight) == (bad_id, None)
        assert str(raised.value) == str(streamed.value)


def test_view_with_duplicate_id_is_rejected(any_table: ReflectedMetaTable) -> None:
    """Both within a batch and between two batches."""
    schema = any_table.table.schema
    files = f"{schema}.files"
    both = f"SELECT * FROM {files} UNION ALL SELECT * FROM {files} WHERE id = 3"  # noqa: S608 - constant names
    execute(any_table.engine, f"CREATE VIEW {schema}.twice AS {both}")
    insert(any_table, {1: 5, 2: 5, 3: 5, 4: 5})
    view = ReflectedMetaTable.open(any_table.engine, f"{schema}.twice", FILES)
    for max_count in (1, 2, 10):
        bounds = limits(max_count=max_count)
        with pytest.raises(MetaTableError, match="id 3 is a duplicate"):
            list(all_cuts(view, None, 4, bounds))
        with pytest.raises(MetaTableError, match="id 3 is a duplicate"):
            cut_all(view, 4, bounds)


def test_last_row_of_page_deleted_before_next_page_hides_no_other_row(
    any_table: ReflectedMetaTable,
) -> None:
    fill(any_table, [{"id": uid, "size_in_bytes": 1} for uid in range(1, 401)])
    deletion = f"DELETE FROM {any_table.canonical_name} WHERE id = 128"  # noqa: S608 - constant names
    sa.event.listen(
        any_table.engine, "commit", lambda _: execute(any_table.engine, deletion), once=True
    )
    planned = any_table.next_cut(0, 400, UNLIMITED)
    assert planned is not None
    assert (str(planned.id_range), planned.count) == ("1..400", 400)


def test_table_dropped_after_opening_raises_table_changed(any_table: ReflectedMetaTable) -> None:
    high_watermark = choose_watermark(any_table).watermark
    execute(any_table.engine, f"DROP TABLE {any_table.table.schema}.files")
    reads: list[Callable[[], object]] = [
        lambda: list(all_cuts(any_table, 0, 10, limits())),
        lambda: any_table.next_cut(0, 10, limits()),
        high_watermark.read,
    ]
    for read in reads:
        with pytest.raises(MetaTableChangedError):
            read()


# Drivers, sessions and columns


def test_all_cuts_with_other_driver_and_read_only_session(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    insert(files, dict.fromkeys(range(1, 26), 1))
    url = postgres.url.set(drivername="postgresql+psycopg2")
    options = {"options": "-c default_transaction_read_only=on"}
    engine = sa.create_engine(url, connect_args=options)
    table = ReflectedMetaTable.open(engine, "ops.files", FILES)
    assert item_counts(table) == [10, 10, 5]
    engine.dispose()


def test_columns_of_any_width_and_name_are_cut(postgres: sa.Engine) -> None:
    """The high watermark may exceed the type of a narrow column."""
    for definition, uid, weight in (
        ("uid smallint PRIMARY KEY, item text, weight integer", "uid", "weight"),
        ("uid bigint NOT NULL UNIQUE, item text, weight smallint", "uid", "weight"),
        ("uid serial PRIMARY KEY, item text, weight numeric(20, 0)", "uid", "weight"),
        ("weight bigint PRIMARY KEY, item text, uid bigint", "weight", "uid"),
    ):
        execute(postgres, "DROP TABLE IF EXISTS ops.odd", f"CREATE TABLE ops.odd ({definition})")
        columns = MetaColumns(uid=uid, item="item", weight=weight)
        table = ReflectedMetaTable.open(postgres, "ops.odd", columns)
        insert(table, {1: 60, 2: 60})
        assert item_counts(table) == [1, 1]
        assert [cut.count for cut in cut_all(table, MAX_ID, limits())] == [1, 1]
        assert list(table.weights(None, MAX_ID)) == [(1, 60), (2, 60)]


def test_closing_all_cuts_early_returns_connection(any_table: ReflectedMetaTable) -> None:
    insert(any_table, dict.fromkeys(range(1, 26), 1))
    with closing(all_cuts(any_table, 0, 25, limits())) as cuts:  # type: ignore[type-var] # a generator
        assert len(list(islice(cuts, 1))) == 1
    assert any_table.engine.pool.checkedout() == 0  # type: ignore[attr-defined] # of a QueuePool
    assert item_counts(any_table) == [10, 10, 5]


def test_view_is_cut_in_one_statement(files: ReflectedMetaTable, postgres: sa.Engine) -> None:
    """Otherwise the view would be computed once per page."""
    execute(postgres, "CREATE VIEW ops.light AS SELECT * FROM ops.files WHERE size_in_bytes < 5")
    insert(files, {1: 1, 2: 9, 3: 1})
    view = ReflectedMetaTable.open(postgres, "ops.light", FILES)
    assert "unique cannot be checked" in view.notes[0]
    assert [str(cut.id_range) for cut in cut_all(view, 3, limits())] == ["1..3"]
    with record_statements(postgres) as statements:
        assert item_counts(view) == [2]
    assert len(statements) == 1


@pytest.mark.guarantee("G14")
def test_all_cuts_read_each_row_once(
    files: ReflectedMetaTable, postgres: sa.Engine, figures: Figures, *, long_form: bool
) -> None:
    rows = 1_000_000 if long_form else 20_000
    fill_ops_files(postgres, rows)
    before = table_statistics(postgres)
    cuts = list(all_cuts(files, 0, rows, limits(max_count=1_000)))
    after = table_statistics(postgres)
    assert sum(cut.count for cut in cuts) == rows
    assert after["seq_tup_read"] == before["seq_tup_read"]
    read = after["idx_tup_fetch"] - before["idx_tup_fetch"]
    figures(rows_planned=rows, rows_read_to_plan_them=read)
    # The query planner looks up the first and the last row of the index.
    assert 0 <= read - rows <= 3


def item_counts(table: ReflectedMetaTable) -> list[int]:
    """Cut a small table up to the largest id and return the item count of each batch."""
    cuts: list[Cut] = list(all_cuts(table, 0, MAX_ID, limits()))
    return [cut.count for cut in cuts]


def table_statistics(engine: sa.Engine) -> Mapping[str, int]:
    """Return the statistics of `ops.files`, flushed on the pool's only connection."""
    query = "SELECT * FROM pg_stat_user_tables WHERE schemaname = 'ops' AND relname = 'files'"
    execute(engine, "SELECT pg_stat_force_next_flush()")
    with engine.connect() as connection:
        return dict(connection.execute(sa.text(query)).mappings().one())


ROWS = 20_000  # of FILL
BOUNDS = limits(max_weight=50_000, max_count=60)
BATCH_PLUS_ONE_ROW = range(61, 66)  # the query planner itself reads the ends of an index
KIND_LATE = parse_filter([{"column": "kind", "operator": "=", "value": "late"}])
WITHOUT_WEIGHT = MetaColumns(uid="id", item="file_location", weight=None)
FILL = (
    "INSERT INTO ops.files (file_location, size_in_bytes, kind) "
    "SELECT 'file-' || n, n % 1000, CASE n % 20 WHEN 0 THEN 'late' ELSE 'normal' END "
    "FROM generate_series(1, 20000) n"
)


@pytest.fixture
def large(postgres: sa.Engine) -> sa.Engine:
    """A database with 20,000 files, 5 % of kind `late`, and a partial index on those."""
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
def one_connection(postgres: sa.Engine) -> Iterator[sa.Engine]:
    """An engine with a single connection, so that calls share its cached plans."""
    engine = sa.create_engine(
        postgres.url,
        pool_size=1,
        max_overflow=0,
        isolation_level="AUTOCOMMIT",  # the driver drops its prepared statements on ROLLBACK
    )
    yield engine
    engine.dispose()


@pytest.mark.guarantee("G14")
def test_next_cut_reads_batch_and_one_more_row(large: sa.Engine) -> None:
    """Holds at the start of the table and near its end.

    Where the filter leaves gaps, a second statement reads the batch again for its ids.
    """
    filters_and_reads = ((None, [61]), (KIND_LATE, [61, 60]))
    for columns, (where, rows_read) in product((FILES, WITHOUT_WEIGHT), filters_and_reads):
        table = ReflectedMetaTable.open(large, "ops.files", columns, where)
        for after_id in (0, 9 * ROWS // 10):
            with record_statements(large) as statements:
                cut = table.next_cut(after_id, ROWS, BOUNDS)
            assert cut is not None
            assert (cut.count, cut.closed) == (60, True)
            assert [rows_scanned(large, [statement]) for statement in statements] == rows_read


def test_next_cut_at_edges_reads_no_extra_rows(large: sa.Engine) -> None:
    for where, after_id, bounds, expected, rows_read in (
        # The first row that does not fit is read, but no row after it.
        (None, 0, limits(max_weight=5_050, max_count=1_000), (1, 100, 5_050, 100), [101]),
        # The lowest id is read by the same statement; a filter leaves gaps, so ids are read again.
        (KIND_LATE, None, BOUNDS, (1, 1_219, 25_600, 60), [62, 60]),
        # No row stops the batch, so the rest is read once.
        (None, ROWS - 40, BOUNDS, (ROWS - 39, ROWS, 38_220, 40), [40]),
    ):
        table = ReflectedMetaTable.open(large, "ops.files", FILES, where)
        with record_statements(large) as statements:
            cut = table.next_cut(after_id, ROWS, bounds)
        assert cut is not None
        ids = cut.id_range
        assert (ids.first_id, ids.last_id, cut.weight, cut.count) == expected
        assert cut.closed == (ids.last_id < ROWS)
        assert [rows_scanned(large, [statement]) for statement in statements] == rows_read


@pytest.mark.guarantee("G14")
def test_items_reads_only_batch_rows_in_one_statement(large: sa.Engine) -> None:
    for where, count in ((None, 2_000), (KIND_LATE, 100)):
        table = ReflectedMetaTable.open(large, "ops.files", FILES, where)
        with record_statements(large) as statements:
            items = items_of(table, IdRange(first_id=18_001, last_id=20_000))
        assert len(items) == count
        assert len(statements) == 1
        assert rows_scanned(large, statements) == count


def test_repeated_next_cut_keeps_using_partial_index(
    large: sa.Engine, one_connection: sa.Engine
) -> None:
    """A generic plan, which cannot use a partial index, must not be cached."""
    table = ReflectedMetaTable.open(one_connection, "ops.files", FILES, KIND_LATE)
    for _ in range(12):
        table.next_cut(0, ROWS, BOUNDS)
    read = _rows_read_by_next_cut(one_connection, table)
    assert read - 60 in BATCH_PLUS_ONE_ROW  # the batch is read again for its ids


@pytest.mark.guarantee("G14")
def test_next_cut_stays_cheap_after_table_grows(
    postgres: sa.Engine, one_connection: sa.Engine
) -> None:
    """A plan that sorted the small table must not be cached."""
    execute(
        postgres,
        CREATE_FILES,
        "ALTER TABLE ops.files SET (autovacuum_enabled = off)",
        "ALTER TABLE ops.files ADD kind text",
    )
    table = ReflectedMetaTable.open(one_connection, "ops.files", FILES)
    insert(table, {1: 0})
    for _ in range(12):
        table.next_cut(0, ROWS, BOUNDS)
    execute(postgres, "TRUNCATE ops.files RESTART IDENTITY", FILL)
    assert _rows_read_by_next_cut(one_connection, table) in BATCH_PLUS_ONE_ROW


def _rows_read_by_next_cut(engine: sa.Engine, table: ReflectedMetaTable) -> int:
    """Cut a batch and return how many rows of the table the server read for it."""
    before = _rows_read(engine)
    assert table.next_cut(0, ROWS, BOUNDS) is not None
    return _rows_read(engine) - before


def _rows_read(engine: sa.Engine) -> int:
    # Only the backend that cut the batch can flush its counters, so the engine has one connection.
    statistics = (
        "SELECT seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes i "
        "WHERE i.relid = t.relid) FROM pg_stat_user_tables t WHERE relid = 'ops.files'::regclass"
    )
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
    with engine.connect() as connection:
        return int(connection.execute(sa.text(statistics)).scalar_one())


if sys.platform == "linux":  # libpq can trace only on Linux

    def test_next_cut_and_items_take_one_round_trip_each(large: sa.Engine, tmp_path: Path) -> None:
        """Neither BEGIN nor COMMIT is sent."""
        table = ReflectedMetaTable.open(large, "ops.files", FILES)
        with large.connect() as connection:
            driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        with (tmp_path / "trace").open("w+b") as trace:
            driver.pgconn.trace(trace.fileno())
            table.next_cut(0, ROWS, BOUNDS)
            table.next_cut(None, ROWS, BOUNDS)
            items_of(table, IdRange(first_id=1, last_id=5_000))
            driver.pgconn.untrace()
            assert trace.seek(0) == 0
            assert trace.read().count(b"ReadyForQuery") == 3
