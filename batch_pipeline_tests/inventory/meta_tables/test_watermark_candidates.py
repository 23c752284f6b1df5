"""Candidates of high watermarks: how they advance, and how they are stored."""

import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

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
    advance,
    describe_reading,
    load_candidates,
)
from batch_pipeline.model.batch import MAX_ID, MIN_ID
from batch_pipeline.model.stream import Strategy
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
