"""The library when a connection is lost: at every statement of every call, and while idle."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from batch_pipeline import Batch, client
from batch_pipeline.client.session import SESSIONS
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import RetryableError
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline_tests.client.client_tables import (
    CREATE_META_TABLE,
    acquire_or_none,
    acquired,
    delivered_ids,
    fill_evenly,
)
from batch_pipeline_tests.inventory.connection_cuts import ConnectionCutter, cutting_connections
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute, meta_engine
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import statuses

IDS = 150
pytestmark = pytest.mark.guarantee("G10")


@pytest.fixture(params=["one database", "two databases"])
def cutter(
    request: pytest.FixtureRequest,
    database: Database,
    database_url: str,
    empty_database_url: str,
    tmp_path: Path,
) -> Iterator[ConnectionCutter]:
    """A library whose meta table lives with the inventory, or in a database of its own."""
    meta_url = database_url if request.param == "one database" else empty_database_url
    with meta_engine(meta_url) as engine:
        execute(engine, CREATE_META_TABLE)
        fill_evenly(engine, IDS)
    client.configure(
        settings={"inventory_conn": database_url, "meta_conn": meta_url, "home": tmp_path}
    )
    with cutting_connections(database) as cutter:
        yield cutter
    client.close()


def _read_and_release(batch: Batch) -> None:
    assert len(batch.items) == batch.count
    batch.succeeded()


def _drain() -> None:
    while (batch := acquire_or_none(batch_count=10)) is not None:
        _read_and_release(batch)


def _with_a_cut(cutter: ConnectionCutter, point: int, call: Callable[[], None]) -> bool:
    """Call once with a cut, and again if that was too much; tell whether there was one."""
    cutter.arm(point)
    try:
        call()
    except RetryableError:
        assert cutter.disarm()
        call()
        return True
    return cutter.disarm()


def test_acquiring_survives_a_cut_at_every_statement(
    cutter: ConnectionCutter, database: Database, figures: Figures
) -> None:
    """Expect a retryable error or none, the next call to work, and every id exactly once."""
    held: list[Batch] = []

    def acquire() -> None:
        held.append(acquired(batch_count=1))

    acquire()
    for point in count(1):
        if not _with_a_cut(cutter, point, acquire):
            break
        assert cutter.points >= point
    assert cutter.points > 2
    for batch in held:
        _read_and_release(batch)
    _drain()
    assert delivered_ids(database) == list(range(1, IDS + 1))
    figures(operations=1, connections_lost=point - 1, states_between=0)


def test_acquiring_first_survives_cuts_while_it_opens(
    cutter: ConnectionCutter, database: Database, database_url: str
) -> None:
    """Expect the same of a new configuration: checks, reflection, the choice of the ceiling."""
    settings = SESSIONS.current().settings
    for point in count(1, step=9):
        SESSIONS.replace(settings)

        def acquire() -> None:
            with acquired(batch_count=1) as batch:
                _read_and_release(batch)

        if not _with_a_cut(cutter, point, acquire):
            break
    assert cutter.points > 20
    _drain()
    assert delivered_ids(database) == list(range(1, IDS + 1))


def test_reading_items_survives_a_cut_at_every_statement(
    cutter: ConnectionCutter, database: Database, figures: Figures
) -> None:
    """Expect the items at the second call at the latest, of the same batch."""
    for point in count(1):
        batch = acquired(batch_count=2)

        def read(batch: Batch = batch) -> None:
            assert len(batch.items) == 2

        has_cut = _with_a_cut(cutter, point, read)
        batch.succeeded()
        if not has_cut:
            break
    assert point > 2
    _drain()
    assert delivered_ids(database) == list(range(1, IDS + 1))
    figures(operations=1, connections_lost=point - 1, states_between=0)


def test_succeeding_survives_a_cut_at_every_statement(
    cutter: ConnectionCutter, database: Database, figures: Figures
) -> None:
    """Expect the release to count once, whether its first commit was lost or not."""
    for point in count(1):
        batch = acquired(batch_count=2)
        assert len(batch.items) == 2
        has_cut = _with_a_cut(cutter, point, batch.succeeded)
        assert batch.success
        if not has_cut:
            break
    assert point > 2
    _drain()
    assert delivered_ids(database) == list(range(1, IDS + 1))
    figures(operations=1, connections_lost=point - 1, states_between=0)


def test_failing_survives_a_cut_at_every_statement(
    cutter: ConnectionCutter, database: Database, figures: Figures
) -> None:
    """Expect the batch to have failed once, and to be delivered by a later attempt."""
    for point in count(1):
        batch = acquired(batch_count=2)
        has_cut = _with_a_cut(cutter, point, batch.failed)
        assert batch.success is False
        if not has_cut:
            break
    assert point > 2
    _drain()
    assert delivered_ids(database) == list(range(1, IDS + 1))
    figures(operations=1, connections_lost=point - 1, states_between=0)


def test_sessions_that_are_ended_while_idle_are_replaced(
    cutter: ConnectionCutter, database: Database
) -> None:
    """Expect calls after the server ended all sessions to work at once, without an error."""
    for _ in range(3):
        batch = acquired(batch_count=5)
        cutter.end_all()
        assert len(batch.items) == 5
        cutter.end_all()
        batch.succeeded()
        cutter.end_all()
    _drain()
    assert delivered_ids(database) == list(range(1, IDS + 1))


@pytest.mark.guarantee("G11")
def test_acquisition_whose_reply_is_lost_is_handed_out_again(
    cutter: ConnectionCutter, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect an attempt that was written but never heard of to be free at once."""
    for _ in range(2):
        acquired(batch_count=1).succeeded()
    inventory = SESSIONS.current()._pipeline.database.engine

    def lose(*said: Any) -> None:
        if said[2].startswith("SELECT") and "pg_temp.batch_pipeline_acquire" in said[2]:
            raise psycopg.OperationalError("the reply was lost")

    sa.event.listen(inventory, "after_cursor_execute", lose)
    monkeypatch.setenv(VARIABLE, "acquire.after_commit=raise")
    with pytest.raises((RetryableError, RuntimeError)):
        acquired(batch_count=1)
    sa.event.remove(inventory, "after_cursor_execute", lose)
    monkeypatch.delenv(VARIABLE)
    assert statuses(database) == ["succeeded", "succeeded", "running"]
    rest = [(one.id_range.first_id, one.attempt) for one in (acquired(), acquired())]
    assert sorted(rest) == [(3, 2), (4, 1)]
