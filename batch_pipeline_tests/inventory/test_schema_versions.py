"""Schema versions on Postgres: one sequence of widening schemas for each job."""

from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.schema import Column, ColumnType, Misfit, RecordSchema
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.seeds import plan, query, register

ID = Column(name="id", type=ColumnType.INTEGER)
PRICE = Column(name="price", type=ColumnType.INTEGER)
WIDE_PRICE = Column(name="price", type=ColumnType.NUMBER)


@pytest.fixture(autouse=True)
def _job(database: Database) -> None:
    """A planned job, because versions belong to a job."""
    for name in ("orders", "clicks"):
        register(database, 1, name=name)
        plan(database, limits(), name=name)


def test_latest_without_versions_is_empty(database: Database) -> None:
    assert database.schemas.latest("orders") == (0, RecordSchema())
    assert database.schemas.latest("nobody") == (0, RecordSchema())


def test_widen_adds_version_and_keeps_old_ones(database: Database) -> None:
    """A call without a change returns the current version."""
    first, second = RecordSchema((ID, PRICE)), RecordSchema((ID, WIDE_PRICE))
    assert database.schemas.widen("orders", [ID, PRICE], text_source=True) == (1, first)
    assert database.schemas.widen("orders", [WIDE_PRICE], text_source=True) == (2, second)
    for seen in ([PRICE], [ID], []):
        assert database.schemas.widen("orders", seen, text_source=True) == (2, second)
    assert database.schemas.latest("orders") == (2, second)
    stored = query(database, "SELECT version, columns FROM batch_pipeline.schema_version")
    assert stored == [
        (1, [["id", "integer"], ["price", "integer"]]),
        (2, [["id", "integer"], ["price", "number"]]),
    ]
    for _ in range(2):  # versions are separate for each job, and the first may have no columns
        assert database.schemas.widen("clicks", [], text_source=True) == (1, RecordSchema())


def test_mixed_types_widen_to_string_or_any(database: Database) -> None:
    """Text sources widen to strings, typed sources to any."""
    text = Column(name="id", type=ColumnType.STRING)
    for name, text_source, expected in (
        ("orders", True, ColumnType.STRING),
        ("clicks", False, ColumnType.ANY),
    ):
        database.schemas.widen(name, [ID], text_source=text_source)
        _, schema = database.schemas.widen(name, [text], text_source=text_source)
        assert schema.columns == (Column(name="id", type=expected),)


def test_concurrent_widens_form_one_sequence(database: Database, rival: Database) -> None:
    def widen(inventory: Database, name: str) -> None:
        for number in range(10):
            column = Column(name=f"{name}{number}", type=ColumnType.INTEGER)
            inventory.schemas.widen("orders", [column], text_source=True)

    assert together(partial(widen, database, "a"), partial(widen, rival, "b")) == [None, None]
    version, schema = database.schemas.latest("orders")
    assert (version, len(schema.columns)) == (20, 20)


def test_widen_stores_changes_and_their_origin(database: Database) -> None:
    discount = Column(name="discount", type=ColumnType.NUMBER)
    origin: dict[str, Any] = {"item_id": 7, "location": "file:///landing/b.csv", "line": 3}
    misfits = [
        Misfit(column=WIDE_PRICE, **origin),
        Misfit(column=discount, item_id=8, location="file:///landing/c.csv", line=None),
    ]
    database.schemas.widen("orders", [ID, PRICE], text_source=True)

    seen = [misfit.column for misfit in misfits]
    database.schemas.widen("orders", seen, text_source=True, because=misfits)

    stored = "SELECT item_id, location, line, changes, declared FROM batch_pipeline.schema_version"
    first, second = query(database, f"{stored} ORDER BY version")
    assert first[:3] == (None, None, None)
    assert [change["column"] for change in first[3]] == ["id", "price"]
    assert second[:3] == (7, "file:///landing/b.csv", 3)
    assert second[3] == [
        {"column": "price", "before": "integer", "after": "number", **origin},
        {
            "column": "discount",
            "before": None,
            "after": "number",
            "item_id": 8,
            "location": "file:///landing/c.csv",
            "line": None,
        },
    ]
    assert second[4] is None


def test_declare_creates_version_once(database: Database) -> None:
    declared = RecordSchema((ID, PRICE))
    for _ in range(2):
        assert database.schemas.declare("orders", declared) == (1, declared)
    assert database.schemas.declare("clicks", RecordSchema()) == (1, RecordSchema())
    stored = query(database, "SELECT declared, location FROM batch_pipeline.schema_version")
    assert stored == [([["id", "integer"], ["price", "integer"]], None), ([], None)]


def test_wider_declaration_creates_version(database: Database) -> None:
    """Columns that records added are kept, and one narrower than records changes nothing."""
    database.schemas.declare("orders", RecordSchema((PRICE,)))
    database.schemas.widen("orders", [ID], text_source=False)
    expected = (3, RecordSchema((WIDE_PRICE, ID)))
    assert database.schemas.declare("orders", RecordSchema((WIDE_PRICE,))) == expected
    database.schemas.declare("clicks", RecordSchema((PRICE,)))
    wider = database.schemas.widen("clicks", [WIDE_PRICE], text_source=False)
    assert database.schemas.declare("clicks", RecordSchema((PRICE,))) == wider


def test_narrowed_declaration_is_rejected(database: Database) -> None:
    declared = RecordSchema((WIDE_PRICE,))
    database.schemas.declare("orders", declared)
    with pytest.raises(ConfigurationError, match="column price is declared integer"):
        database.schemas.declare("orders", RecordSchema((PRICE,)))
    assert database.schemas.latest("orders") == (1, declared)


def test_declaration_is_compared_with_one_stored_meanwhile(
    database: Database, rival: Database
) -> None:
    database.schemas.declare("orders", RecordSchema((ID,)))

    def declare_wider(_connection: object, _cursor: object, sql: str, *_rest: object) -> None:
        if "FOR NO KEY UPDATE" in sql:
            rival.schemas.declare("orders", RecordSchema((ID, WIDE_PRICE)))

    sa.event.listen(database.engine, "before_cursor_execute", declare_wider)
    with pytest.raises(ConfigurationError, match="column price is declared integer"):
        database.schemas.declare("orders", RecordSchema((ID, PRICE)))
