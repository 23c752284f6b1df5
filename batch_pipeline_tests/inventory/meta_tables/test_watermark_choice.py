"""The memory of ceilings in the inventory: shared by processes, true or nothing."""

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
    StoredCandidates,
    _from_json,
    _to_json,
    choose_watermark,
)
from batch_pipeline.model.errors import DatabaseUnreachableError
from batch_pipeline.model.id_range import MAX_ID, MIN_ID
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.concurrency import python, said
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute
from batch_pipeline_tests.seeds import execute as execute_in
from batch_pipeline_tests.seeds import query

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
