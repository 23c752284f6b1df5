"""Candidates of high watermarks: how they advance, and how they are stored."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.inventory.connection import open_engine
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.watermarks import (
    MAX_CANDIDATES,
    Candidate,
    Candidates,
    LockHolder,
    SettleBy,
    StoredCandidates,
    WatermarkReading,
    _from_json,
    _to_json,
    advance,
    describe_reading,
    load_candidates,
)
from batch_pipeline.model.batch import MAX_ID, MIN_ID
from batch_pipeline.model.errors import DatabaseUnreachableError
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.concurrency import next_line, python
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    InMemoryCandidates,
    choose_watermark,
    execute,
)
from batch_pipeline_tests.seeds import execute as execute_in
from batch_pipeline_tests.seeds import query

NOTHING = Candidates(strategy=Strategy.LOCKS, epoch="1")


def read_once(state: Candidates, highest: int | None, *holders: str) -> Candidates:
    """Advance a state by one read."""
    return advance(state, highest, frozenset(holders))


def test_lock_holder_at_read_delays_release() -> None:
    """Holders that start after the read do not count."""
    state = read_once(NOTHING, 7, "3/1")
    assert state.released is None
    state = read_once(state, 9, "3/1", "4/1")
    assert state.released is None
    assert read_once(state, 9, "4/1").released == 7
    assert read_once(state, 9, "5/1").released == 9


def test_overlapping_writers_do_not_stall_watermark() -> None:
    """The watermark lags one read behind a table that is never idle."""
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


def test_candidates_with_same_holders_are_merged() -> None:
    state = NOTHING
    for number in range(1, 1_000):
        state = read_once(state, number, "3/1", "4/1")
    assert [candidate.id for candidate in state.waiting] == [999]


def test_candidates_are_bounded() -> None:
    """The highest candidate is never dropped."""
    state, holders = NOTHING, []
    for number in range(1, 1_000):
        holders.append(f"{number}/1")
        state = read_once(state, number, *holders)
        assert len(state.waiting) <= MAX_CANDIDATES
        assert state.waiting[-1].id == number
    assert read_once(state, 999).released == 999


def test_state_of_other_epoch_or_strategy_is_ignored() -> None:
    store = InMemoryCandidates(sa.create_engine("sqlite://"), "memory")
    store.save("ops.files", read_once(NOTHING, 7))
    assert load_candidates(store, "ops.files", Strategy.LOCKS, "1").released == 7
    assert load_candidates(store, "ops.files", Strategy.LOCKS, "2").released is None
    assert load_candidates(store, "ops.files", Strategy.SETTLE, "1").released is None
    assert load_candidates(store, "ops.other", Strategy.LOCKS, "1").released is None


class TransactionSimulation:
    """Transactions that lock, take ids and end, as in Postgres."""

    def __init__(self) -> None:
        self.next_id = 1
        self.started = 0
        self.running: dict[str, list[int]] = {}
        self.visible: set[int] = set()

    def begin(self) -> None:
        """Lock the table and take an id."""
        self.started += 1
        self.running[f"1/{self.started}"] = []
        self.insert(self.started)

    def insert(self, choice: int) -> None:
        """Take another id in a transaction."""
        if self.running:
            list(self.running.values())[choice % len(self.running)].append(self.next_id)
            self.next_id += 1

    def end(self, choice: int, *, commit: bool) -> None:
        """Commit or roll back a transaction."""
        if self.running:
            ids = self.running.pop(list(self.running)[choice % len(self.running)])
            self.visible |= set(ids) if commit else set()


events = st.tuples(
    st.sampled_from(["begin", "insert", "commit", "rollback", "read", "read"]), st.integers(0, 50)
)


@given(st.lists(events, max_size=60))
def test_no_open_transaction_holds_id_below_watermark(schedule: list[tuple[str, int]]) -> None:
    simulation, state, highest, is_reading = TransactionSimulation(), NOTHING, None, False
    for event, choice in schedule:
        if event == "begin":
            simulation.begin()
        elif event == "insert":
            simulation.insert(choice)
        elif event in {"commit", "rollback"}:
            simulation.end(choice, commit=event == "commit")
        elif not is_reading:  # the first half of a read
            highest, is_reading = max(simulation.visible, default=None), True
        else:  # the second half, some events later
            before, is_reading = state.released or 0, False
            state = read_once(state, highest, *simulation.running)
            assert (state.released or 0) >= before
        held = [uid for ids in simulation.running.values() for uid in ids]
        assert all(uid > (state.released or 0) for uid in held)


@given(st.lists(events, max_size=60))
def test_watermark_reaches_highest_id_when_idle(schedule: list[tuple[str, int]]) -> None:
    simulation, state = TransactionSimulation(), NOTHING
    for event, choice in schedule:
        if event == "read":
            state = read_once(state, max(simulation.visible, default=None), *simulation.running)
        elif event == "begin":
            simulation.begin()
        else:
            simulation.end(choice, commit=event != "rollback")
    while simulation.running:
        simulation.end(0, commit=True)
    highest = max(simulation.visible, default=None)
    assert read_once(state, highest).released == highest


INSERT = "INSERT INTO ops.files (file_location, size_in_bytes) VALUES ('f', 1)"
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

READ_WATERMARK = """
import sys
import sqlalchemy as sa
from batch_pipeline.inventory.meta_tables.watermarks import StoredCandidates
from batch_pipeline.inventory.meta_tables.watermarks import choose_watermark
from batch_pipeline.inventory.connection import open_engine
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline_tests.inventory.meta_tables.user_tables import FILES, meta_engine
with meta_engine(sys.argv[1]) as engine:
    table = ReflectedMetaTable.open(engine, "ops.files", FILES)
    store = StoredCandidates(open_engine(sys.argv[2]), "meta")
    print(choose_watermark(table, store=store).watermark.read().value)
"""


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


def test_state_is_separate_per_table_and_scope(store: StoredCandidates, database: Database) -> None:
    store.save("ops.files", STATE)
    assert store.load("ops.other") is None
    assert StoredCandidates(database.engine, "archive").load("ops.files") is None


def test_last_save_wins(store: StoredCandidates, rival: Database) -> None:
    other = StoredCandidates(rival.engine, "meta")
    store.save("ops.files", STATE)
    other.save("ops.files", NEVER_SAVED)
    assert store.load("ops.files") == NEVER_SAVED
    store.save("ops.files", STATE)
    assert other.load("ops.files") == STATE
    assert query(rival, "SELECT count(*) FROM batch_pipeline.ceiling_candidate") == [(1,)]


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


ids = st.integers(MIN_ID, MAX_ID)
holders = st.frozensets(st.from_regex(r"-?\d{1,3}/\d{1,6}", fullmatch=True), max_size=3)


@given(
    st.lists(
        st.tuples(ids, holders), max_size=MAX_CANDIDATES, unique_by=lambda candidate: candidate[0]
    )
)
def test_any_state_round_trips_through_json(waiting: list[tuple[int, frozenset[str]]]) -> None:
    candidates = sorted(waiting)
    released = candidates.pop(0)[0] if len(candidates) % 2 else None
    waiting_candidates = tuple(Candidate(uid, names) for uid, names in candidates)
    state = replace(NOTHING, released=released, waiting=waiting_candidates)
    assert _from_json(json.loads(json.dumps(_to_json(state)))) == state


def test_unreachable_inventory_raises_database_unreachable(
    empty_database_url: str, store: StoredCandidates
) -> None:
    engine = open_engine(empty_database_url)
    engine.dispose()
    url = engine.url.set(query={"host": "/nowhere"})
    unreachable = StoredCandidates(sa.create_engine(url), "meta")
    with pytest.raises(DatabaseUnreachableError):
        unreachable.load("ops.files")
    with pytest.raises(DatabaseUnreachableError):
        unreachable.save("ops.files", STATE)


@pytest.fixture
def late_writer(files: ReflectedMetaTable) -> Iterator[sa.Connection]:
    """A transaction that has inserted row 1 of `ops.files` and is still open."""
    with files.engine.connect() as connection:
        connection.execute(sa.text(INSERT))
        yield connection


def test_processes_share_stored_candidates(
    store: StoredCandidates,
    database_url: str,
    server_url: str,
    files: ReflectedMetaTable,
    late_writer: sa.Connection,
) -> None:
    """The next reader does not wait for the writer that started in between.

    Readers with another strategy or another time zone do not discard its state.
    """
    execute(files.engine, INSERT)
    with python(READ_WATERMARK, server_url, database_url) as other:
        assert next_line(other) == "None"
    with files.engine.connect() as later_writer:
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
        abroad = replace(files, engine=tokyo)
        assert choose_watermark(abroad, store=store).watermark.read().value == 2
        tokyo.dispose()
        with python(READ_WATERMARK, server_url, database_url) as other:
            assert next_line(other) == "2"


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


def reading(
    value: int | None, strategy: Strategy = Strategy.LOCKS, *held_by: LockHolder
) -> WatermarkReading:
    return WatermarkReading(value=value, strategy=strategy, held_by=held_by)


def holder(
    application: str = "psql", pid: int | None = 4711, age_seconds: float | None = 73.4
) -> LockHolder:
    return LockHolder(pid=pid, application=application, age_seconds=age_seconds)


HELD = "held back by pid 4711 (psql) for 73 s"
LOCKS = Strategy.LOCKS


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (reading(12, LOCKS, holder()), f"high watermark 12 (locks); {HELD}"),
        (
            reading(12, LOCKS, holder(), holder("job"), holder("job")),
            f"high watermark 12 (locks); {HELD}, and 2 more",
        ),
        (reading(12), "high watermark 12 (locks); nothing holds it back"),
        (reading(12, Strategy.SQLITE), "high watermark 12 (sqlite); nothing holds it back"),
        (reading(None, LOCKS, holder()), f"no high watermark yet (locks); {HELD}"),
        (
            reading(7, Strategy.LOCKING_READ),
            "high watermark 7 (locking_read); the database does not report what may hold it back",
        ),
        (
            reading(7, Strategy.SETTLE),
            "high watermark 7 (settle); rows younger than its delay are ignored",
        ),
        (
            reading(9, LOCKS, holder("prepared transaction late", pid=None, age_seconds=5.0)),
            "high watermark 9 (locks); held back by prepared transaction late for 5 s",
        ),
        (
            reading(9, LOCKS, holder("", age_seconds=None)),
            "high watermark 9 (locks); held back by pid 4711",
        ),
        (
            reading(9, LOCKS, holder("x" * 81)),
            f"high watermark 9 (locks); held back by pid 4711 ({'x' * 80}…) for 73 s",
        ),
    ],
)
def test_describe_reading(described: WatermarkReading, expected: str) -> None:
    assert describe_reading(described) == expected


@pytest.mark.parametrize(
    "name",
    ["ps\x1b]0;owned\x07ql", "ps\nql", "ps\r\tql", "ps\u202eql", "ps\u2028ql", "ps\x9bql", "\x00"],
)
def test_control_characters_in_application_name_are_removed(name: str) -> None:
    described = describe_reading(reading(9, LOCKS, holder(name)))
    assert described.isprintable()
    assert described.startswith("high watermark 9 (locks); held back by pid 4711")
