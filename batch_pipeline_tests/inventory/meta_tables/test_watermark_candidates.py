"""Candidates of high watermarks: how they advance, and their memory in the inventory."""

import json
from collections.abc import Iterator
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
    InMemoryCandidates,
    LockHolder,
    StoredCandidates,
    WatermarkReading,
    _from_json,
    _to_json,
    advance,
    choose_watermark,
    describe_reading,
    load_candidates,
)
from batch_pipeline.model.errors import DatabaseUnreachableError
from batch_pipeline.model.id_range import MAX_ID, MIN_ID
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.concurrency import python, said
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute
from batch_pipeline_tests.seeds import execute as execute_in
from batch_pipeline_tests.seeds import query

NOTHING = Candidates(strategy=Strategy.LOCKS, epoch="1")


def look(state: Candidates, highest: int | None, *holders: str) -> Candidates:
    """One look that found these."""
    return advance(state, highest, frozenset(holders))


def test_idle_table_is_settled_at_once() -> None:
    """Expect the highest id where nobody holds a lock."""
    assert look(NOTHING, 7).released == 7


def test_empty_table_has_no_ceiling() -> None:
    """Expect nothing to be known, whoever writes."""
    assert look(NOTHING, None, "3/1") == NOTHING


def test_holder_of_then_keeps_the_ceiling_down_until_it_is_gone() -> None:
    """Expect those who held the lock at the look to count, and later ones not."""
    state = look(NOTHING, 7, "3/1")
    assert state.released is None
    state = look(state, 9, "3/1", "4/1")
    assert state.released is None
    assert look(state, 9, "4/1").released == 7
    assert look(state, 9, "5/1").released == 9


def test_ever_new_writers_do_not_keep_the_ceiling_down() -> None:
    """Expect the ceiling to follow one look behind a table that is never idle."""
    state = NOTHING
    for number in range(1, 50):
        state = look(state, number, f"3/{number}")
        assert state.released == (number - 1 or None)


def test_recovered_prepared_transaction_holds_everything() -> None:
    """Expect a holder whose old identity a crash has erased to be one of every candidate's."""
    state = look(NOTHING, 7, "3/1")
    state = look(state, 8, "-1/977")
    assert state.released is None
    assert look(state, 8).released == 8


def test_ids_that_fall_take_the_ceiling_with_them() -> None:
    """Expect a table that was emptied, or whose ids start again, to have no old ceiling."""
    state = look(look(NOTHING, 100), 120, "3/1")
    assert look(state, 5, "3/2") == Candidates(
        strategy=Strategy.LOCKS, epoch="1", waiting=(Candidate(5, frozenset({"3/2"})),)
    )
    assert look(state, None).released is None


def test_candidates_stay_few_behind_a_long_transaction() -> None:
    """Expect candidates that wait for the same ones to become one, the highest."""
    state = NOTHING
    for number in range(1, 1_000):
        state = look(state, number, "3/1", "4/1")
    assert [one.id for one in state.waiting] == [999]


def test_candidates_stay_few_behind_ever_more_transactions() -> None:
    """Expect a bound on what is remembered, and the highest candidate never to be dropped."""
    state, holders = NOTHING, []
    for number in range(1, 1_000):
        holders.append(f"{number}/1")
        state = look(state, number, *holders)
        assert len(state.waiting) <= MAX_CANDIDATES
        assert state.waiting[-1].id == number
    assert look(state, 999).released == 999


def test_state_of_another_epoch_or_strategy_counts_as_none() -> None:
    """Expect nothing to be believed of another server, table or way to look."""
    store = InMemoryCandidates()
    store.save("ops.files", look(NOTHING, 7))
    assert load_candidates(store, "ops.files", Strategy.LOCKS, "1").released == 7
    assert load_candidates(store, "ops.files", Strategy.LOCKS, "2").released is None
    assert load_candidates(store, "ops.files", Strategy.SETTLE, "1").released is None
    assert load_candidates(store, "ops.other", Strategy.LOCKS, "1").released is None


class World:
    """Transactions that lock, take ids and end, as Postgres would run them."""

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
        """Take one more id in a transaction."""
        if self.running:
            list(self.running.values())[choice % len(self.running)].append(self.next_id)
            self.next_id += 1

    def end(self, choice: int, *, commit: bool) -> None:
        """Make a transaction's ids visible, or waste them."""
        if self.running:
            ids = self.running.pop(list(self.running)[choice % len(self.running)])
            self.visible |= set(ids) if commit else set()


moves = st.tuples(
    st.sampled_from(["begin", "insert", "commit", "rollback", "look", "look"]), st.integers(0, 50)
)


@given(st.lists(moves, max_size=60))
def test_no_id_below_a_released_ceiling_is_still_to_come(schedule: list[tuple[str, int]]) -> None:
    """Expect, whatever the order of events, that nobody holds an id below the ceiling."""
    world, state, highest, looking = World(), NOTHING, None, False
    for move, choice in schedule:
        if move == "begin":
            world.begin()
        elif move == "insert":
            world.insert(choice)
        elif move in {"commit", "rollback"}:
            world.end(choice, commit=move == "commit")
        elif not looking:
            highest, looking = max(world.visible, default=None), True  # the first half of a look
        else:
            before, looking = state.released or 0, False
            state = look(state, highest, *world.running)  # and the second, some moves later
            assert (state.released or 0) >= before
        held = [uid for ids in world.running.values() for uid in ids]
        assert all(uid > (state.released or 0) for uid in held)


@given(st.lists(moves, max_size=60))
def test_ceiling_reaches_the_highest_id_when_all_have_ended(
    schedule: list[tuple[str, int]],
) -> None:
    """Expect one look at an idle table to release everything."""
    world, state = World(), NOTHING
    for move, choice in schedule:
        if move == "look":
            state = look(state, max(world.visible, default=None), *world.running)
        elif move == "begin":
            world.begin()
        else:
            world.end(choice, commit=move != "rollback")
    while world.running:
        world.end(0, commit=True)
    highest = max(world.visible, default=None)
    assert look(state, highest).released == highest


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

READ_CEILING = """
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
    """The memory of a database `meta`."""
    return StoredCandidates(database.engine, "meta")


def put(database: Database, state: str) -> None:
    """Write a state of `ops.files` as somebody else would."""
    insert = (
        "INSERT INTO batch_pipeline.ceiling_candidate (scope, meta_table, state) "
        "VALUES ('meta', 'ops.files', CAST(:state AS jsonb))"
    )
    execute_in(database, insert, state=state)


@pytest.mark.parametrize("state", [STATE, NEVER_SAVED])
def test_saved_state_comes_back_as_it_was(store: StoredCandidates, state: Candidates) -> None:
    """Expect the ends of the 64-bit integers, holders, and None to survive."""
    store.save("ops.files", state)
    assert store.load("ops.files") == state


def test_table_without_a_state_has_none(store: StoredCandidates, database: Database) -> None:
    """Expect nothing of another table, nor of a table of that name in another database."""
    store.save("ops.files", STATE)
    assert store.load("ops.other") is None
    assert StoredCandidates(database.engine, "archive").load("ops.files") is None


def test_last_save_wins(store: StoredCandidates, rival: Database) -> None:
    """Expect two planners to overwrite each other's state, in one row."""
    theirs = StoredCandidates(rival.engine, "meta")
    store.save("ops.files", STATE)
    theirs.save("ops.files", NEVER_SAVED)
    assert store.load("ops.files") == NEVER_SAVED
    store.save("ops.files", STATE)
    assert theirs.load("ops.files") == STATE
    assert query(rival, "SELECT count(*) FROM batch_pipeline.ceiling_candidate") == [(1,)]


def test_load_and_save_are_one_round_trip_each(store: StoredCandidates) -> None:
    """Expect one statement a call, with no BEGIN and COMMIT around it."""
    autocommit: list[bool] = []

    def note(*event: Any) -> None:
        autocommit.append(event[1].connection.autocommit)

    sa.event.listen(store.engine, "before_cursor_execute", note)
    store.save("ops.files", STATE)
    store.load("ops.files")
    store.save("ops.files", NEVER_SAVED)
    sa.event.remove(store.engine, "before_cursor_execute", note)
    assert autocommit == [True, True, True]


def test_save_of_the_same_state_writes_nothing(store: StoredCandidates, database: Database) -> None:
    """Expect a planner that polls an idle table not to fill the inventory's log."""
    row = "SELECT xmin::text, xmax::text, ctid::text FROM batch_pipeline.ceiling_candidate"
    store.save("ops.files", STATE)
    before = query(database, row)
    store.save("ops.files", STATE)
    assert query(database, row) == before
    store.save("ops.files", NEVER_SAVED)
    assert query(database, row) != before


def test_saved_state_holds_no_transaction_open(store: StoredCandidates, rival: Database) -> None:
    """Expect others to see a state at once, and its row not to be locked."""
    store.save("ops.files", STATE)
    lock = "SELECT state->>'epoch' FROM batch_pipeline.ceiling_candidate FOR UPDATE NOWAIT"
    assert query(rival, lock) == [(STATE.epoch,)]


GOOD: dict[str, Any] = {"strategy": "locks", "epoch": "1", "released": 5, "waiting": [[7, ["3/1"]]]}


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        "text",
        {},
        {name: value for name, value in GOOD.items() if name != "released"},
        GOOD | {"added_by_another_release": 1},
        GOOD | {"strategy": "guessing"},
        GOOD | {"epoch": None},
        GOOD | {"released": "5"},
        GOOD | {"released": True},
        GOOD | {"released": 5.5},
        GOOD | {"released": 2**63},
        GOOD | {"released": 8},
        GOOD | {"waiting": None},
        GOOD | {"waiting": [7]},
        GOOD | {"waiting": [[7, "3/1"]]},
        GOOD | {"waiting": [[7, [3]]]},
        GOOD | {"waiting": [[7, [["3/1"]]]]},
        GOOD | {"waiting": [[-(2**63) - 1, []]], "released": None},
        GOOD | {"waiting": [[9, []], [7, []]]},
    ],
)
def test_state_that_cannot_be_understood_counts_as_none(
    store: StoredCandidates, database: Database, broken: object
) -> None:
    """Expect an older, newer or damaged state to cost time, never an error or a wrong ceiling."""
    put(database, json.dumps(broken))
    assert store.load("ops.files") is None
    store.save("ops.files", STATE)
    assert store.load("ops.files") == STATE


def test_state_that_another_program_wrote_in_this_form_is_understood(
    store: StoredCandidates, database: Database
) -> None:
    """Expect the written form to stay what it is, so that releases understand each other."""
    put(database, json.dumps(GOOD))
    assert store.load("ops.files") == Candidates(
        strategy=Strategy.LOCKS,
        epoch="1",
        released=5,
        waiting=(Candidate(7, frozenset({"3/1"})),),
    )


ids = st.integers(MIN_ID, MAX_ID)
holders = st.frozensets(st.from_regex(r"-?\d{1,3}/\d{1,6}", fullmatch=True), max_size=3)


@given(st.lists(st.tuples(ids, holders), max_size=MAX_CANDIDATES, unique_by=lambda one: one[0]))
def test_any_state_survives_its_written_form(waiting: list[tuple[int, frozenset[str]]]) -> None:
    """Expect whatever a ceiling may save to be understood again."""
    rising = sorted(waiting)
    first = rising.pop(0)[0] if len(rising) % 2 else None
    state = Candidates(
        strategy=Strategy.LOCKS,
        epoch="1",
        released=first,
        waiting=tuple(Candidate(uid, names) for uid, names in rising),
    )
    assert _from_json(json.loads(json.dumps(_to_json(state)))) == state


def test_unreachable_inventory_is_named(empty_database_url: str, store: StoredCandidates) -> None:
    """Expect the domain's error, which planners know how to wait for."""
    gone = open_engine(empty_database_url)
    gone.dispose()
    url = gone.url.set(query={"host": "/nowhere"})
    away = StoredCandidates(sa.create_engine(url), "meta")
    with pytest.raises(DatabaseUnreachableError):
        away.load("ops.files")
    with pytest.raises(DatabaseUnreachableError):
        away.save("ops.files", STATE)


@pytest.fixture
def late_writer(files: ReflectedMetaTable) -> Iterator[sa.Connection]:
    """Somebody who has inserted row 1 of `ops.files` and not committed yet."""
    with files.engine.connect() as connection:
        connection.execute(sa.text(INSERT))
        yield connection


def test_two_processes_wait_for_a_writer_only_once(
    store: StoredCandidates,
    database_url: str,
    server_url: str,
    files: ReflectedMetaTable,
    late_writer: sa.Connection,
) -> None:
    """Expect one process to release what another one found waiting, though a new writer came."""
    execute(files.engine, INSERT)
    with python(READ_CEILING, server_url, database_url) as other:
        assert said(other) == "None"
    with files.engine.connect() as newcomer:
        newcomer.execute(sa.text(INSERT))
        late_writer.commit()
        # Without a stored state, one has to look twice.
        assert choose_watermark(files).watermark.read().value is None
        assert choose_watermark(files, store=store).watermark.read().value == 2
        with python(READ_CEILING, server_url, database_url) as other:
            assert said(other) == "2"


def locks(value: int | None, *held_by: LockHolder) -> WatermarkReading:
    return WatermarkReading(value=value, strategy=Strategy.LOCKS, held_by=held_by)


def holder(
    application: str = "psql", pid: int | None = 4711, age_seconds: float | None = 73.4
) -> LockHolder:
    return LockHolder(pid=pid, application=application, age_seconds=age_seconds)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (
            locks(1200, holder()),
            "high watermark 1200 (locks); held back by pid 4711 (psql) for 73 s",
        ),
        (
            locks(1200, holder(), holder("job"), holder("job")),
            "high watermark 1200 (locks); held back by pid 4711 (psql) for 73 s, and 2 more",
        ),
        (
            WatermarkReading(value=1200, strategy=Strategy.LOCKS),
            "high watermark 1200 (locks); nothing holds it back",
        ),
        (
            WatermarkReading(value=1200, strategy=Strategy.SQLITE),
            "high watermark 1200 (sqlite); nothing holds it back",
        ),
        (
            WatermarkReading(value=1200, strategy=Strategy.REGISTRAR),
            "high watermark 1200 (registrar); nothing holds it back",
        ),
        (
            locks(None, holder()),
            "no high watermark yet (locks); held back by pid 4711 (psql) for 73 s",
        ),
        (
            WatermarkReading(value=7, strategy=Strategy.LOCKING_READ),
            "high watermark 7 (locking_read); the database does not name who may hold it back",
        ),
        (
            WatermarkReading(value=7, strategy=Strategy.SETTLE),
            "high watermark 7 (settle); rows younger than its delay are left alone",
        ),
        (
            locks(9, holder("prepared transaction late", pid=None, age_seconds=5.0)),
            "high watermark 9 (locks); held back by prepared transaction late for 5 s",
        ),
        (locks(9, holder("", age_seconds=None)), "high watermark 9 (locks); held back by pid 4711"),
        (
            locks(9, holder("x" * 81)),
            f"high watermark 9 (locks); held back by pid 4711 ({'x' * 80}…) for 73 s",
        ),
    ],
)
def test_reading_is_described_in_one_line(reading: WatermarkReading, expected: str) -> None:
    assert describe_reading(reading) == expected


@pytest.mark.parametrize(
    "hostile",
    ["ps\x1b]0;owned\x07ql", "ps\nql", "ps\r\tql", "ps\u202eql", "ps\u2028ql", "ps\x9bql", "\x00"],
)
def test_application_name_cannot_steer_a_terminal_or_break_the_line(hostile: str) -> None:
    """Expect whatever cannot be printed to be left out of a name."""
    described = describe_reading(locks(9, holder(hostile)))
    assert described.isprintable()
    assert described.startswith("high watermark 9 (locks); held back by pid 4711")
