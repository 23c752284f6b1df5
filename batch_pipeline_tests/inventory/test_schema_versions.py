"""Schema versions on Postgres: one line of widening schemas a job."""

from functools import partial
from typing import Any

import pytest

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
    """A planned job, for versions belong to one."""
    for name in ("orders", "clicks"):
        register(database, 1, name=name)
        plan(database, limits(), name=name)


def test_latest_before_the_first_version_is_empty(database: Database) -> None:
    """Expect version 0 without columns, also for a job that nobody knows."""
    assert database.schemas.latest("orders") == (0, RecordSchema())
    assert database.schemas.latest("nobody") == (0, RecordSchema())


def test_widen_counts_versions_up_and_keeps_the_old_ones(database: Database) -> None:
    """Expect version 2 to hold what version 1 held, first columns first."""
    assert database.schemas.widen("orders", [ID, PRICE], text_source=True) == (
        1,
        RecordSchema((ID, PRICE)),
    )
    assert database.schemas.widen("orders", [WIDE_PRICE], text_source=True) == (
        2,
        RecordSchema((ID, WIDE_PRICE)),
    )
    assert database.schemas.latest("orders") == (2, RecordSchema((ID, WIDE_PRICE)))
    stored = query(database, "SELECT version, columns FROM batch_pipeline.schema_version")
    assert stored == [
        (1, [["id", "integer"], ["price", "integer"]]),
        (2, [["id", "integer"], ["price", "number"]]),
    ]


def test_widen_by_what_already_fits_gives_the_version_that_is_there(database: Database) -> None:
    """Expect no new version for a narrower column or for none."""
    database.schemas.widen("orders", [ID, WIDE_PRICE], text_source=True)
    for seen in ([PRICE], [ID], []):
        assert database.schemas.widen("orders", seen, text_source=True)[0] == 1


def test_widen_by_nothing_makes_the_first_version(database: Database) -> None:
    for _ in range(2):
        assert database.schemas.widen("orders", [], text_source=True) == (1, RecordSchema())


def test_widen_jobs_apart_shares_nothing(database: Database) -> None:
    """Expect each job to count its own versions."""
    database.schemas.widen("orders", [ID], text_source=True)
    assert database.schemas.widen("clicks", [PRICE], text_source=True) == (
        1,
        RecordSchema((PRICE,)),
    )


def test_widen_mixed_types_depends_on_the_source(database: Database) -> None:
    """Expect text cells to become strings and typed values to become anything."""
    text = Column(name="id", type=ColumnType.STRING)
    for name, text_source, expected in (
        ("orders", True, ColumnType.STRING),
        ("clicks", False, ColumnType.ANY),
    ):
        database.schemas.widen(name, [ID], text_source=text_source)
        _, schema = database.schemas.widen(name, [text], text_source=text_source)
        assert schema.columns == (Column(name="id", type=expected),)


def test_widen_by_two_at_once_forms_one_line(database: Database, rival: Database) -> None:
    """Expect one version for each new column, and all of them in the newest."""

    def widen(inventory: Database, name: str) -> None:
        for number in range(10):
            column = Column(name=f"{name}{number}", type=ColumnType.INTEGER)
            inventory.schemas.widen("orders", [column], text_source=True)

    assert together(partial(widen, database, "a"), partial(widen, rival, "b")) == [None, None]
    version, schema = database.schemas.latest("orders")
    assert (version, len(schema.columns)) == (20, 20)


def test_widen_keeps_with_the_version_what_changed_and_where(database: Database) -> None:
    """Expect the first record that showed a column, and all changes of the version."""
    discount = Column(name="discount", type=ColumnType.NUMBER)
    place: dict[str, Any] = {"item_id": 7, "location": "file:///landing/b.csv", "line": 3}
    because = [
        Misfit(column=WIDE_PRICE, **place),
        Misfit(column=discount, item_id=8, location="file:///landing/c.csv", line=None),
    ]
    database.schemas.widen("orders", [ID, PRICE], text_source=True)

    seen = [misfit.column for misfit in because]
    database.schemas.widen("orders", seen, text_source=True, because=because)

    kept = "SELECT item_id, location, line, changes, declared FROM batch_pipeline.schema_version"
    first, second = query(database, f"{kept} ORDER BY version")
    assert first[:3] == (None, None, None)
    assert [change["column"] for change in first[3]] == ["id", "price"]
    assert second[:3] == (7, "file:///landing/b.csv", 3)
    assert second[3] == [
        {"column": "price", "before": "integer", "after": "number", **place},
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


def test_declare_makes_the_first_version_and_then_none(database: Database) -> None:
    """Expect the declaration to be version 1, and to serve as long as it stays the same."""
    declared = RecordSchema((ID, PRICE))
    for _ in range(2):
        assert database.schemas.declare("orders", declared) == (1, declared)
    assert database.schemas.declare("clicks", RecordSchema()) == (1, RecordSchema())
    kept = query(database, "SELECT declared, location FROM batch_pipeline.schema_version")
    assert kept == [([["id", "integer"], ["price", "integer"]], None), ([], None)]


def test_declare_wider_than_before_makes_a_version(database: Database) -> None:
    """Expect the wider type, and columns that records brought to stay."""
    database.schemas.declare("orders", RecordSchema((PRICE,)))
    database.schemas.widen("orders", [ID], text_source=False)
    expected = (3, RecordSchema((WIDE_PRICE, ID)))
    assert database.schemas.declare("orders", RecordSchema((WIDE_PRICE,))) == expected


def test_declare_what_records_have_outgrown_changes_nothing(database: Database) -> None:
    """Expect an unchanged declaration to go on serving beside the wider type."""
    declared = RecordSchema((PRICE,))
    database.schemas.declare("orders", declared)
    wider = database.schemas.widen("orders", [WIDE_PRICE], text_source=False)
    assert database.schemas.declare("orders", declared) == wider


def test_declare_narrower_than_before_is_refused(database: Database) -> None:
    """Expect the present version to stay and the operator to learn which column it is."""
    declared = RecordSchema((WIDE_PRICE,))
    database.schemas.declare("orders", declared)
    with pytest.raises(ConfigurationError, match="column price is declared integer"):
        database.schemas.declare("orders", RecordSchema((PRICE,)))
    assert database.schemas.latest("orders") == (1, declared)
