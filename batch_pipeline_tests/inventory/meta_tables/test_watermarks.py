"""High watermarks on Postgres and SQLite: the choice of a strategy, and what each waits for."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.watermarks import (
    MAX_CANDIDATES,
    Candidate,
    Candidates,
    HighWatermark,
    LockHolder,
    SettleBy,
    StoredCandidates,
    WatermarkReading,
    advance,
    describe_reading,
    load_candidates,
)
from batch_pipeline.model.batch import MAX_ID, MIN_ID
from batch_pipeline.model.errors import InvalidValueError, MetaTableError
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    InMemoryCandidates,
    choose_watermark,
    delete,
    execute,
    insert,
    new_role,
)
from batch_pipeline_tests.seeds import execute as execute_in
from batch_pipeline_tests.seeds import query

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


NOTHING = Candidates(strategy=Strategy.LOCKS, epoch="1")


def read_once(state: Candidates, highest: int | None, *holders: str) -> Candidates:
    """Advance a state by one read."""
    return advance(state, highest, frozenset(holders))


def test_overlapping_writers_do_not_stall_watermark() -> None:
    """Holders that start after a read do not delay its id: the watermark lags one read behind."""
    state = NOTHING
    for number in range(1, 50):
        state = read_once(state, number, f"3/{number}")
        assert state.released == (number - 1 or None)


def test_recovered_prepared_transaction_holds_all_candidates() -> None:
    """A crash has erased its old identity."""
    state = read_once(NOTHING, 7, "3/1")
    state = read_once(state, 8, "-1/977")
    assert state.released is None
    assert read_once(state, 8).released == 8


def test_falling_ids_reset_watermark() -> None:
    """The table was emptied, or its ids start again."""
    state = read_once(read_once(NOTHING, 100), 120, "3/1")
    waiting = (Candidate(5, frozenset({"3/2"})),)
    assert read_once(state, 5, "3/2") == replace(NOTHING, waiting=waiting)
    assert read_once(state, None).released is None


def test_candidates_are_bounded() -> None:
    """The highest candidate is never dropped. Those with the same holders are merged."""
    state, holders = NOTHING, []
    for number in range(1, 200):
        holders.append(f"{number}/1")
        state = read_once(state, number, *holders)
        assert len(state.waiting) <= MAX_CANDIDATES
        assert state.waiting[-1].id == number
    assert read_once(state, 199).released == 199
    merged = read_once(read_once(NOTHING, 8, "3/1"), 9, "3/1")
    assert [candidate.id for candidate in merged.waiting] == [9]
    many = replace(NOTHING, waiting=tuple(map(Candidate, range(200))))
    assert len(many.thinned().waiting) <= MAX_CANDIDATES
    assert many.thinned().waiting[-1].id == 199


def test_state_of_other_epoch_or_strategy_is_ignored() -> None:
    store = InMemoryCandidates(sa.create_engine("sqlite://"), "memory")
    store.save("ops.files", read_once(NOTHING, 7))
    assert load_candidates(store, "ops.files", Strategy.LOCKS, "1").released == 7
    assert load_candidates(store, "ops.files", Strategy.LOCKS, "2").released is None
    assert load_candidates(store, "ops.files", Strategy.SETTLE, "1").released is None
    assert load_candidates(store, "ops.other", Strategy.LOCKS, "1").released is None


events = st.tuples(
    st.sampled_from(["begin", "insert", "commit", "rollback", "read", "read"]), st.integers(0, 50)
)


@given(st.lists(events, max_size=60))
def test_watermark_is_below_ids_of_open_transactions_and_reaches_highest_id_when_idle(
    schedule: list[tuple[str, int]],
) -> None:
    """As in Postgres, transactions lock the table, then take ids, and end."""
    next_id, running, visible = count(1), dict[str, list[int]](), set[int]()
    state, highest, is_reading = NOTHING, None, False
    for number, (event, choice) in enumerate(schedule):
        chosen = list(running)[choice % len(running)] if running else None
        if event == "begin":
            running[f"1/{number}"] = [next(next_id)]
        elif event == "read" and not is_reading:  # the first half of a read
            highest, is_reading = max(visible, default=None), True
        elif event == "read":  # the second half, some events later
            before, is_reading = state.released or 0, False
            state = read_once(state, highest, *running)
            assert (state.released or 0) >= before
        elif chosen and event == "insert":
            running[chosen].append(next(next_id))
        elif chosen:
            ids = running.pop(chosen)
            visible |= set(ids) if event == "commit" else set()
        assert all(uid > (state.released or 0) for held in running.values() for uid in held)
    visible |= {uid for held in running.values() for uid in held}
    highest = max(visible, default=None)
    assert read_once(state, highest).released == highest


STATE = Candidates(
    strategy=Strategy.LOCKS,
    epoch="2026-03-01 12:00:00+00 5 16384 16390",
    released=MIN_ID,
    waiting=(
        Candidate(7, frozenset({"4/85209", "-1/460696"})),
        Candidate(MAX_ID, frozenset({"3/1"})),
    ),
)
NEVER_SAVED = Candidates(strategy=Strategy.SETTLE, epoch="")


@pytest.fixture
def store(database: Database) -> StoredCandidates:
    """Stored candidates of a database `meta`."""
    return StoredCandidates(database.engine, "meta")


def insert_state(database: Database, state: str) -> None:
    """Insert a state of `ops.files` directly."""
    insert = (
        "INSERT INTO batch_pipeline.ceiling_candidate (scope, meta_table, state) "
        "VALUES ('meta', 'ops.files', CAST(:state AS jsonb)) "
        "ON CONFLICT (scope, meta_table) DO UPDATE SET state = excluded.state"
    )
    execute_in(database, insert, state=state)


def test_last_save_of_table_and_scope_wins(store: StoredCandidates, rival: Database) -> None:
    other = StoredCandidates(rival.engine, "meta")
    store.save("ops.files", STATE)
    other.save("ops.files", NEVER_SAVED)
    assert store.load("ops.files") == NEVER_SAVED
    store.save("ops.files", STATE)
    assert other.load("ops.files") == STATE
    assert query(rival, "SELECT count(*) FROM batch_pipeline.ceiling_candidate") == [(1,)]
    assert store.load("ops.other") is None
    assert StoredCandidates(rival.engine, "archive").load("ops.files") is None


def test_load_and_save_take_one_round_trip_each(store: StoredCandidates) -> None:
    """They run in autocommit mode, without BEGIN and COMMIT."""
    autocommit: list[bool] = []

    def record(*event: Any) -> None:
        autocommit.append(event[1].connection.autocommit)

    sa.event.listen(store.engine, "before_cursor_execute", record)
    store.save("ops.files", STATE)
    store.load("ops.files")
    store.save("ops.files", NEVER_SAVED)
    sa.event.remove(store.engine, "before_cursor_execute", record)
    assert autocommit == [True, True, True]


def test_saving_same_state_writes_nothing(store: StoredCandidates, database: Database) -> None:
    """Polling an idle table must not fill the WAL."""
    row = "SELECT xmin::text, xmax::text, ctid::text FROM batch_pipeline.ceiling_candidate"
    store.save("ops.files", STATE)
    before = query(database, row)
    store.save("ops.files", STATE)
    assert query(database, row) == before
    store.save("ops.files", NEVER_SAVED)
    assert query(database, row) != before


VALID: dict[str, Any] = {
    "strategy": "locks",
    "epoch": "1",
    "released": 5,
    "waiting": [[7, ["3/1"]]],
}


def test_invalid_state_is_ignored(store: StoredCandidates, database: Database) -> None:
    """An older, newer or damaged state never raises or yields a wrong watermark."""
    invalid: list[object] = [
        None,
        [],
        "text",
        {},
        {name: value for name, value in VALID.items() if name != "released"},
        VALID | {"added_by_another_release": 1},
        VALID | {"strategy": "guessing"},
        VALID | {"epoch": None},
        VALID | {"released": "5"},
        VALID | {"released": True},
        VALID | {"released": 5.5},
        VALID | {"released": 2**63},
        VALID | {"released": 8},
        VALID | {"waiting": None},
        VALID | {"waiting": [7]},
        VALID | {"waiting": [[7, "3/1"]]},
        VALID | {"waiting": [[7, [3]]]},
        VALID | {"waiting": [[7, [["3/1"]]]]},
        VALID | {"waiting": [[-(2**63) - 1, []]], "released": None},
        VALID | {"waiting": [[9, []], [7, []]]},
    ]
    for state in invalid:
        insert_state(database, json.dumps(state))
        assert store.load("ops.files") is None, state
        store.save("ops.files", STATE)
        assert store.load("ops.files") == STATE


def test_stored_format_is_stable(store: StoredCandidates, database: Database) -> None:
    """Releases must understand each other's states."""
    insert_state(database, json.dumps(VALID))
    waiting = (Candidate(7, frozenset({"3/1"})),)
    assert store.load("ops.files") == replace(NOTHING, released=5, waiting=waiting)


def test_planners_share_stored_candidates(
    store: StoredCandidates, rival: Database, files: ReflectedMetaTable
) -> None:
    """The next reader does not wait for the writer that started in between.

    Readers with another strategy or another time zone do not discard its state.
    """

    def read(table: ReflectedMetaTable) -> int | None:
        other_store = StoredCandidates(rival.engine, "meta")
        return choose_watermark(table, store=other_store).watermark.read().value

    with files.engine.connect() as late_writer, files.engine.connect() as later_writer:
        late_writer.execute(sa.text(INSERT))
        execute(files.engine, INSERT)
        assert choose_watermark(files, store=store).watermark.read().value is None
        later_writer.execute(sa.text(INSERT))
        late_writer.commit()
        # Without a stored state, two reads are needed.
        assert choose_watermark(files).watermark.read().value is None
        settled = choose_watermark(
            files, Strategy.SETTLE, settle_by=SettleBy("imported"), store=store
        )
        assert settled.watermark.read().value is None
        tokyo = sa.create_engine(
            files.engine.url, connect_args={"options": "-c timezone=Asia/Tokyo"}
        )
        assert read(replace(files, engine=tokyo)) == 2
        tokyo.dispose()
        assert read(files) == 2


def test_settle_keeps_the_watermark_of_an_earlier_release(
    store: StoredCandidates, files: ReflectedMetaTable
) -> None:
    """A row without a time must not lower it: nothing would be planned any more."""
    execute(files.engine, *[INSERT] * 3, "UPDATE ops.files SET imported = NULL WHERE id = 2")
    stored = Candidates(strategy=Strategy.SETTLE, epoch="imported 0:15:00", released=3)
    store.save(files.canonical_name, stored)
    settle_by = SettleBy("imported")
    choice = choose_watermark(files, Strategy.SETTLE, settle_by=settle_by, store=store)
    assert choice.watermark.read().value == 3


@pytest.mark.parametrize(
    ("holders", "cause"),
    [
        ([], "nothing holds it back"),
        ([("psql", 7, 73.4)], "held back by pid 7 (psql) for 73 s"),
        ([("a", 7, 1), ("b", 8, 1)], "held back by pid 7 (a) for 1 s, and 1 more"),
        ([("transaction late", None, 5)], "held back by transaction late for 5 s"),
        ([("", 7, None)], "held back by pid 7"),
        ([("x" * 81, 7, None)], f"held back by pid 7 ({'x' * 80}…)"),
        ([("p\x1b\n\u202e\u2028\x9b\0g", 7, None)], "held back by pid 7 (pg)"),
    ],
)
def test_describe_reading_names_the_oldest_holder(
    holders: list[tuple[str, int | None, float | None]], cause: str
) -> None:
    held_by = tuple(
        LockHolder(application=name, pid=pid, age_seconds=age) for name, pid, age in holders
    )
    reading = WatermarkReading(value=12, strategy=Strategy.LOCKS, held_by=held_by)
    assert describe_reading(reading) == f"high watermark 12 (locks); {cause}"


def test_describe_reading_of_other_strategies_names_their_limits() -> None:
    reading = WatermarkReading(value=None, strategy=Strategy.LOCKING_READ)
    cause = "the database does not report what may hold it back"
    assert describe_reading(reading) == f"no high watermark yet (locking_read); {cause}"
    reading = WatermarkReading(value=7, strategy=Strategy.SETTLE)
    cause = "rows younger than its delay are ignored"
    assert describe_reading(reading) == f"high watermark 7 (settle); {cause}"
