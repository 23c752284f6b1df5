"""The library when connections are lost: at each statement of each call, and while idle."""

from collections.abc import Callable, Iterator
from functools import partial
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
    """A library whose meta table is in the database of the inventory, or in another one."""
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


def _acquire_and_release_all() -> None:
    while (batch := acquire_or_none(batch_count=10)) is not None:
        assert len(batch.items) == batch.count
        batch.succeeded()


def _acquire_rest_and_report(database: Database, figures: Figures, cuts: int) -> None:
    """Check that each id is delivered exactly once after some cuts, and report the figures."""
    _acquire_and_release_all()
    assert delivered_ids(database) == list(range(1, IDS + 1))
    figures(operations=1, connections_lost=cuts, states_between=0)


def _call_with_cut(cutter: ConnectionCutter, point: int, call: Callable[[], None]) -> bool:
    """Call with a cut at a point, and again after an error; return whether there was a cut."""
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
    """The error is retryable, the next call works, and every id is delivered exactly once."""
    held: list[Batch] = []

    def acquire() -> None:
        held.append(acquired(batch_count=1))

    acquire()
    for point in count(1):
        if not _call_with_cut(cutter, point, acquire):
            break
        assert cutter.points >= point
    assert cutter.points > 2
    for batch in held:
        assert len(batch.items) == batch.count
        batch.succeeded()
    _acquire_rest_and_report(database, figures, point - 1)


def test_first_acquire_survives_cuts_while_connecting(
    cutter: ConnectionCutter, database: Database, database_url: str
) -> None:
    """A new configuration checks, reflects and chooses a high watermark strategy first."""
    settings = SESSIONS.current().settings
    for point in count(1, step=13):
        SESSIONS.replace(settings)

        def acquire() -> None:
            with acquired(batch_count=1) as batch:
                assert len(batch.items) == 1

        if not _call_with_cut(cutter, point, acquire):
            break
    assert cutter.points > 20
    _acquire_and_release_all()
    assert delivered_ids(database) == list(range(1, IDS + 1))


def _read(batch: Batch) -> None:
    assert len(batch.items) == 2


def _succeed(batch: Batch) -> None:
    """The release counts once, whether its first commit was lost or not."""
    batch.succeeded()
    assert batch.success


def _fail(batch: Batch) -> None:
    """The batch fails once and is delivered by a later attempt."""
    batch.failed()
    assert batch.success is False


@pytest.mark.parametrize(
    ("cutter", "call"),
    [
        ("one database", _read),
        ("two databases", _read),
        ("one database", _succeed),  # releases do not use the meta table's database
        ("one database", _fail),
    ],
    indirect=["cutter"],
)
def test_use_of_batch_survives_a_cut_at_every_statement(
    cutter: ConnectionCutter, database: Database, figures: Figures, call: Callable[[Batch], None]
) -> None:
    """The second call has the same effect."""
    batches: list[Batch] = []
    for point in count(1):
        batches.append(acquired(batch_count=2))
        if call is _succeed:
            assert len(batches[-1].items) == 2  # releases with the ids that were read
        if not _call_with_cut(cutter, point, partial(call, batches[-1])):
            break
    assert point > 2
    for batch in batches:
        if batch.success is None:
            batch.succeeded()
    _acquire_rest_and_report(database, figures, point - 1)


def test_terminated_idle_sessions_are_replaced(
    cutter: ConnectionCutter, database: Database
) -> None:
    for _ in range(3):
        batch = acquired(batch_count=5)
        cutter.end_all()
        assert len(batch.items) == 5
        cutter.end_all()
        batch.succeeded()
        cutter.end_all()
    _acquire_and_release_all()
    assert delivered_ids(database) == list(range(1, IDS + 1))


@pytest.mark.guarantee("G11")
def test_batch_is_acquired_again_after_a_lost_reply(
    cutter: ConnectionCutter, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        acquired(batch_count=1).succeeded()
    inventory = SESSIONS.current()._pipeline.database.engine

    def lose(*event: Any) -> None:
        if event[2].startswith("SELECT") and "pg_temp.batch_pipeline_acquire" in event[2]:
            raise psycopg.OperationalError("the reply was lost")

    sa.event.listen(inventory, "after_cursor_execute", lose)
    monkeypatch.setenv(VARIABLE, "acquire.after_commit=raise")
    with pytest.raises((RetryableError, RuntimeError)):
        acquired(batch_count=1)
    sa.event.remove(inventory, "after_cursor_execute", lose)
    monkeypatch.delenv(VARIABLE)
    assert statuses(database) == ["succeeded", "succeeded", "running"]
    remaining = [(batch.id_range.first_id, batch.attempt) for batch in (acquired(), acquired())]
    assert sorted(remaining) == [(3, 2), (4, 1)]
