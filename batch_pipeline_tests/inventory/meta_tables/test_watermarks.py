"""High watermarks on Postgres and SQLite: the choice of a strategy, and what each waits for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.watermarks import HighWatermark, SettleBy
from batch_pipeline.model.errors import InvalidValueError, MetaTableError
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    choose_watermark,
    delete,
    execute,
    insert,
    new_role,
)

INSERT = "INSERT INTO ops.files (file_location, size_in_bytes) VALUES ('f', 1)"
BY_IMPORT = SettleBy("imported", timedelta(minutes=15))


@contextmanager
def open_transaction(engine: sa.Engine, statement: str) -> Iterator[sa.Transaction]:
    """Run a statement and keep its transaction open; roll back at the end if still open."""
    with engine.connect() as connection:
        transaction = connection.begin()
        connection.execute(sa.text(statement))
        yield transaction
        if transaction.is_active:
            transaction.rollback()


@pytest.fixture
def locks_watermark(files: ReflectedMetaTable) -> HighWatermark:
    """The exact high watermark of `ops.files`."""
    choice = choose_watermark(files)
    assert choice.strategy is Strategy.LOCKS
    return choice.watermark


# Locks


@pytest.mark.parametrize(
    "restart", [("TRUNCATE ops.files RESTART IDENTITY",), ("DROP TABLE ops.files", CREATE_FILES)]
)
def test_locks_discard_old_watermark_when_table_restarts(
    locks_watermark: HighWatermark, files: ReflectedMetaTable, restart: Sequence[str]
) -> None:
    """Even if it was emptied and refilled between two reads."""
    assert locks_watermark.read().value is None
    execute(files.engine, *[INSERT] * 9)
    assert locks_watermark.read().value == 9
    execute(files.engine, *restart)
    with open_transaction(files.engine, INSERT) as late:
        execute(files.engine, *[INSERT] * 12)
        assert locks_watermark.read().value is None
        late.commit()
    assert locks_watermark.read().value == 13


def test_locks_wait_for_open_insert_and_name_holder(
    locks_watermark: HighWatermark, files: ReflectedMetaTable
) -> None:
    with open_transaction(files.engine, "SET LOCAL application_name = 'uploader'") as late:
        assert late.connection is not None
        late.connection.execute(sa.text(INSERT))
        pid = late.connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        execute(files.engine, INSERT)
        assert files.highest_id() == 2
        reading = locks_watermark.read()
        assert reading.value is None
        (holder,) = reading.held_by
        assert (holder.pid, holder.application) == (pid, "uploader")
        assert holder.age_seconds is not None
        assert holder.age_seconds >= 0
        late.commit()
    assert locks_watermark.read().value == 2
    assert locks_watermark.read().held_by == ()


def test_locks_wait_for_insert_into_partition(postgres: sa.Engine) -> None:
    """It locks neither the partitioned table nor the other partitions."""
    execute(
        postgres,
        "CREATE SEQUENCE ops.ids",
        "CREATE TABLE ops.odd (uid bigint DEFAULT nextval('ops.ids'), item text, weight bigint, "
        "day int, PRIMARY KEY (uid, day)) PARTITION BY LIST (day)",
        "CREATE TABLE ops.day_1 PARTITION OF ops.odd FOR VALUES IN (1)",
        "CREATE TABLE ops.day_2 PARTITION OF ops.odd FOR VALUES IN (2)",
    )
    choice = choose_watermark(ReflectedMetaTable.open(postgres, "ops.odd"))
    with open_transaction(postgres, "INSERT INTO ops.day_2 (day) VALUES (2)"):
        execute(postgres, "INSERT INTO ops.odd (day) VALUES (1)")
        assert (choice.strategy, choice.watermark.read().value) == (Strategy.LOCKS, None)
    assert choice.watermark.read().value == 2


def test_locks_do_not_wait_for_transactions_that_cannot_insert(
    locks_watermark: HighWatermark, files: ReflectedMetaTable
) -> None:
    execute(files.engine, "CREATE TABLE ops.other (n int)", INSERT)
    for statement in (
        "SELECT * FROM ops.files FOR KEY SHARE",
        "INSERT INTO ops.other VALUES (1)",
        "LOCK TABLE ops.files IN SHARE MODE",
    ):
        with open_transaction(files.engine, statement):
            assert locks_watermark.read().value == 1


def test_locks_do_not_block_writers(
    locks_watermark: HighWatermark, files: ReflectedMetaTable
) -> None:
    """Even if a lock conflicts with the read, writers do not wait."""
    execute(files.engine, INSERT)
    with open_transaction(files.engine, "UPDATE ops.files SET size_in_bytes = 2"):
        assert locks_watermark.read().value is None
        execute(files.engine, "SET lock_timeout = '1ms'", INSERT)
    assert locks_watermark.read().value == 2


def test_locks_need_only_select_privilege(files: ReflectedMetaTable) -> None:
    """The holder's session is named too, without its age."""
    engine = files.engine
    grant = "GRANT SELECT ON ops.files TO watermark_reader"
    with new_role(engine, "watermark_reader", grant) as reader:
        watermark = choose_watermark(ReflectedMetaTable.open(reader, "ops.files", FILES)).watermark
        with open_transaction(engine, INSERT):
            execute(engine, INSERT)
            reading = watermark.read()
            assert reading.value is None
            assert [holder.age_seconds for holder in reading.held_by] == [None]
        assert watermark.read().value == 2


# Choosing a strategy


def test_table_with_plain_sequence_uses_locks(postgres: sa.Engine) -> None:
    execute(postgres, "CREATE SEQUENCE ops.shared")
    for uid in (
        "bigserial PRIMARY KEY",
        "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "bigint DEFAULT nextval('ops.shared') PRIMARY KEY",
    ):
        choice = choose_watermark(odd_table(postgres, uid))
        assert (choice.strategy, choice.warnings) == (Strategy.LOCKS, ())
        assert choice.watermark.read().strategy is Strategy.LOCKS


def odd_table(postgres: sa.Engine, uid: str) -> ReflectedMetaTable:
    """Create the table `ops.odd` again, with another definition of its ids."""
    columns = f"uid {uid}, item text, weight bigint, imported timestamptz"
    execute(postgres, "DROP TABLE IF EXISTS ops.odd", f"CREATE TABLE ops.odd ({columns})")
    return ReflectedMetaTable.open(postgres, "ops.odd")


def test_table_with_other_ids_uses_settle_and_gives_reason(postgres: sa.Engine) -> None:
    execute(postgres, "CREATE SEQUENCE ops.cached CACHE 5")
    identity = "bigint GENERATED ALWAYS AS IDENTITY ({}) PRIMARY KEY"
    for uid, reason in (
        ("bigint DEFAULT nextval('ops.cached') PRIMARY KEY", "5 ids at once"),
        ("bigint PRIMARY KEY", "do not come from a sequence"),
        (identity.format("INCREMENT -1"), "descending or cycles"),
        (identity.format("CYCLE"), "descending or cycles"),
    ):
        table = odd_table(postgres, uid)
        choice = choose_watermark(table, settle_by=BY_IMPORT)
        assert choice.strategy is Strategy.SETTLE
        assert reason in choice.reason
        assert choice.warnings
        for requested in (None, Strategy.LOCKS):
            with pytest.raises(MetaTableError, match=reason):
                choose_watermark(table, requested)


def test_cached_sequence_always_warns(postgres: sa.Engine) -> None:
    """The ids that a session has cached are unknown; only the audit finds such rows."""
    table = odd_table(postgres, "bigint GENERATED ALWAYS AS IDENTITY (CACHE 20) PRIMARY KEY")
    settled = choose_watermark(table, settle_by=BY_IMPORT)
    registrar = choose_watermark(table, Strategy.REGISTRAR)
    for choice in (settled, registrar):
        assert "hands out 20 ids at once (CACHE): rows with such ids" in choice.warnings[-1]
    execute(postgres, "ALTER TABLE ops.odd ALTER uid SET CACHE 1")
    assert choose_watermark(table, Strategy.REGISTRAR).warnings == ()


def test_view_uses_settle(files: ReflectedMetaTable) -> None:
    execute(files.engine, "CREATE VIEW ops.all_files AS SELECT * FROM ops.files")
    view = ReflectedMetaTable.open(files.engine, "ops.all_files", FILES)
    choice = choose_watermark(view, settle_by=BY_IMPORT)
    assert (choice.strategy, choice.reason) == (Strategy.SETTLE, "ops.all_files is a view")


def test_table_with_subscription_uses_settle(files: ReflectedMetaTable) -> None:
    execute(
        files.engine,
        """INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate)
           VALUES (77, 'ops.files'::regclass, 'r')""",
    )
    choice = choose_watermark(files, settle_by=BY_IMPORT)
    execute(files.engine, "DELETE FROM pg_subscription_rel WHERE srsubid = 77")
    assert "logical replication" in choice.reason


def test_registrar_ignores_open_transactions(files: ReflectedMetaTable) -> None:
    choice = choose_watermark(files, Strategy.REGISTRAR)
    execute(files.engine, INSERT, INSERT)
    with open_transaction(files.engine, INSERT):
        assert choice.watermark.read().value == 2


def test_sqlite_uses_highest_id(sqlite_files: ReflectedMetaTable) -> None:
    choice = choose_watermark(sqlite_files)
    assert (choice.strategy, choice.warnings) == (Strategy.SQLITE, ())
    assert choice.watermark.read().value is None
    insert(sqlite_files, {3: 1})
    assert choice.watermark.read().value == 3


def test_sqlite_without_autoincrement_warns(sqlite: sa.Engine) -> None:
    """SQLite may then reuse the ids of deleted rows."""
    execute(sqlite, "CREATE TABLE plain (uid INTEGER PRIMARY KEY, item TEXT, weight INTEGER)")
    choice = choose_watermark(ReflectedMetaTable.open(sqlite, "plain"))
    assert "AUTOINCREMENT" in choice.warnings[0]


# Settle


def insert_aged(table: ReflectedMetaTable, uid: int, minutes: int | None) -> None:
    """Insert a row of an age in minutes, or without a time."""
    age = {
        "sqlite": f"datetime('now', '-{minutes} minutes')",
        "postgresql": f"clock_timestamp() - interval '{minutes} minutes'",
        "mysql": f"now(6) - interval {minutes} minute",
    }[table.engine.dialect.name]
    time = "NULL" if minutes is None else age
    name = f"{table.table.schema}.files"
    execute(
        table.engine,
        f"INSERT INTO {name} (id, size_in_bytes, imported) VALUES ({uid}, 1, {time})",  # noqa: S608 - constant names
    )


def test_settle_stops_below_first_young_row(any_table: ReflectedMetaTable) -> None:
    """It returns the last old id, because rows may still appear in the gap above it."""
    cases: list[tuple[dict[int, int | None], int | None]] = [
        ({}, None),
        ({1: 60, 4: 60, 9: 1, 10: 60}, 4),
        ({1: 60, 4: None, 9: 60}, 1),
        ({1: 1, 2: 60}, None),
        ({-5: 60, 0: 60, 1: 14}, 0),
        ({1: 16, 2: 14}, 1),
        ({1: 60, 2: 60}, 2),
    ]
    for ages, watermark in cases:
        delete(any_table)
        for uid, minutes in ages.items():
            insert_aged(any_table, uid, minutes)
        choice = choose_watermark(any_table, Strategy.SETTLE, settle_by=BY_IMPORT)
        reading = choice.watermark.read()
        assert (reading.value, reading.strategy) == (watermark, Strategy.SETTLE), ages


def test_settle_keeps_its_watermark(any_table: ReflectedMetaTable) -> None:
    """The watermark falls only if the ids do."""
    watermark = choose_watermark(any_table, Strategy.SETTLE, settle_by=BY_IMPORT).watermark
    insert_aged(any_table, 5, 60)
    assert watermark.read().value == 5
    insert_aged(any_table, 6, 1)
    assert watermark.read().value == 5
    insert_aged(any_table, 3, 1)
    assert watermark.read().value == 5
    delete(any_table, any_table.uid > 3)
    assert watermark.read().value is None


def test_settle_reads_column_without_zone_in_session_time_zone(
    postgres: sa.Engine,
) -> None:
    columns = "uid bigint PRIMARY KEY, item text, weight bigint, imported timestamp DEFAULT now()"
    execute(postgres, f"CREATE TABLE ops.odd ({columns})")
    options = {"options": "-c timezone=Asia/Tokyo"}
    engine = sa.create_engine(postgres.url, connect_args=options)
    execute(engine, "INSERT INTO ops.odd VALUES (1, 'f', 1, now() - interval '1 hour')")
    execute(engine, "INSERT INTO ops.odd VALUES (2, 'f', 1)")
    table = ReflectedMetaTable.open(engine, "ops.odd")
    assert choose_watermark(table, settle_by=BY_IMPORT).watermark.read().value == 1
    engine.dispose()


def test_settle_compares_any_text_of_times_in_sqlite(sqlite_files: ReflectedMetaTable) -> None:
    """A text that is no time is named: otherwise its row and those after it are never planned."""

    def read(time: str) -> int | None:
        delete(sqlite_files)
        execute(sqlite_files.engine, f"INSERT INTO files VALUES (1, 'f', 1, {time})")  # noqa: S608 - constant
        choice = choose_watermark(sqlite_files, Strategy.SETTLE, settle_by=BY_IMPORT)
        return choice.watermark.read().value

    for time, watermark in (
        ("strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '-14 minutes')", None),
        ("strftime('%Y-%m-%d %H:%M:%f-05:00', 'now', '-5 hours')", None),
        ("strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '-16 minutes')", 1),
        ("strftime('%Y-%m-%d %H:%M:%f-05:00', 'now', '-6 hours')", 1),
    ):
        assert read(time) == watermark, time
    for time in ("yesterday", "1700000000"):
        with pytest.raises(MetaTableError, match=f"row 1 has '{time}'"):
            read(f"'{time}'")


def test_settle_by_unsuitable_column_is_rejected(files: ReflectedMetaTable) -> None:
    for column in ("imprted", "size_in_bytes"):
        with pytest.raises(MetaTableError, match="insert time"):
            choose_watermark(files, Strategy.SETTLE, settle_by=SettleBy(column))
    for delay in (timedelta(0), timedelta.max):
        with pytest.raises(InvalidValueError, match="settle delay"):
            SettleBy("imported", delay)
    with pytest.raises(MetaTableError, match="Name one"):
        choose_watermark(files, Strategy.SETTLE)


def test_watermark_ignores_filter(files: ReflectedMetaTable) -> None:
    execute(files.engine, INSERT, INSERT)
    where = parse_filter([{"column": "id", "operator": "=", "value": 1}])
    assert choose_watermark(replace(files, where=where)).watermark.read().value == 2


def test_columns_in_other_case_are_found(files: ReflectedMetaTable) -> None:
    columns = MetaColumns(uid="ID", item="File_Location", weight="SIZE_IN_BYTES")
    table = ReflectedMetaTable.open(files.engine, "OPS.Files", columns)
    execute(files.engine, INSERT)
    assert choose_watermark(table).watermark.read().value == 1
