"""Weights that are no whole numbers: rounded up for each item, alike in every database."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import inf, nan

import pytest
import sqlalchemy as sa

from batch_pipeline import acquire_batches, audit_job, client
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import (
    ReflectedMetaTable,
    all_cuts,
    range_facts,
)
from batch_pipeline.model.errors import BadWeightError, MetaTableError
from batch_pipeline.model.id_range import MAX_ID, IdRange
from batch_pipeline_tests.client.client_tables import COLUMNS, acquire_or_none, fill
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import MARIADB, drained, execute, insert
from batch_pipeline_tests.seeds import query

ROLES = MetaColumns(uid="id", item="file", weight="weight")
TYPES = [
    *(("postgres", kind) for kind in ("float8", "real", "numeric", "numeric(30, 6)")),
    *(("sqlite", kind) for kind in ("FLOAT", "REAL", "DOUBLE", "NUMERIC", "DECIMAL(10, 2)", "")),
    *(("mariadb", kind) for kind in ("FLOAT", "DOUBLE", "DECIMAL(30, 6)") if MARIADB),
]
FRACTIONS = {1: 0.25, 2: 1.5, 3: 2, 4: 0, 5: 2.75, 6: 0.5}
ROUNDED = [1, 2, 2, 0, 3, 1]
LARGEST_BELOW_2_63 = 9_223_372_036_854_774_784
FLOATING = [one for one in TYPES if one[1] in {"float8", "DOUBLE"}]


@dataclass(frozen=True, slots=True)
class Made:
    """Makes meta tables with weights of one type."""

    engine: sa.Engine
    kind: str

    def table(self, on_bad_weight: int | None = None) -> ReflectedMetaTable:
        """Open the table."""
        return ReflectedMetaTable.open(self.engine, "weighed", ROLES, on_bad_weight=on_bad_weight)


@pytest.fixture(params=TYPES, ids=" ".join)
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    """An empty table `weighed` whose weights are of a type."""
    database, kind = request.param
    engine: sa.Engine = request.getfixturevalue(database)
    create = (
        f"CREATE TABLE weighed (id bigint NOT NULL PRIMARY KEY, file varchar(99), weight {kind})"
    )
    execute(engine, create)
    yield Made(engine, kind)
    execute(engine, "DROP TABLE weighed")


def test_fractions_are_rounded_up_for_each_item_by_every_read(made: Made) -> None:
    table = made.table()
    insert(table, FRACTIONS)
    everything = IdRange(first_id=1, last_id=6)
    assert [item.weight for item in table.items(everything)] == ROUNDED
    assert [weight for _, weight in table.weights(None, 6)] == ROUNDED
    assert table.facts(everything).weight == sum(ROUNDED)
    halves = [IdRange(first_id=1, last_id=3), IdRange(first_id=4, last_id=6)]
    assert [facts.weight for facts in range_facts(table, halves) if facts] == [5, 4]
    bounds = limits(max_weight=4)
    cuts = drained(table, 6, bounds)
    assert [(cut.count, cut.weight) for cut in cuts] == [(2, 3), (2, 2), (2, 4)]
    assert list(all_cuts(table, None, 6, bounds)) == cuts


def test_weights_that_cannot_be_counted_are_refused_by_their_row(made: Made) -> None:
    for bad in (None, -0.5):
        table = made.table()
        execute(made.engine, "DELETE FROM weighed")
        insert(table, {1: 1.5, 2: bad})
        with pytest.raises(BadWeightError) as caught:
            drained(table, 2, limits(max_weight=10))
        assert caught.value.item_id == 2
        assert table.facts(IdRange(first_id=1, last_id=1)).weight == 2
        counted = made.table(on_bad_weight=7).items(IdRange(first_id=1, last_id=2))
        assert [item.weight for item in counted] == [2, 7]


@pytest.mark.parametrize(
    ("made", "largest", "too_large", "weight"),
    [
        *((one, float(LARGEST_BELOW_2_63), float(2**63), LARGEST_BELOW_2_63) for one in FLOATING),
        (
            ("postgres", "numeric"),
            Decimal(MAX_ID) - Decimal("0.5"),
            Decimal(MAX_ID) + Decimal("0.1"),
            MAX_ID,
        ),
    ],
    indirect=["made"],
)
def test_weights_up_to_64_bits_are_weighed_and_larger_ones_refused(
    made: Made, largest: float | Decimal, too_large: float | Decimal, weight: int
) -> None:
    table = made.table()
    insert(table, {1: largest, 2: too_large})
    assert table.items(IdRange(first_id=1, last_id=1))[0].weight == weight
    with pytest.raises(BadWeightError):
        table.items(IdRange(first_id=2, last_id=2))


@pytest.mark.parametrize(
    "made",
    [one for one in TYPES if one[0] == "postgres" and one[1] != "numeric(30, 6)"],
    indirect=True,
    ids=" ".join,
)
@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_nan_and_infinity_are_refused(made: Made, bad: float) -> None:
    table = made.table()
    execute(made.engine, "INSERT INTO weighed VALUES (1, 'file-1', :bad)", bad=bad)
    with pytest.raises(BadWeightError) as caught:
        drained(table, 1, limits())
    assert "from 0 to 2^63 - 1" in str(caught.value)


def test_text_of_sqlite_is_no_weight(sqlite: sa.Engine) -> None:
    execute(sqlite, "CREATE TABLE weighed (id INTEGER PRIMARY KEY, file TEXT, weight FLOAT)")
    execute(sqlite, "INSERT INTO weighed VALUES (1, 'a', 'heavy')")
    table = ReflectedMetaTable.open(sqlite, "weighed", ROLES)
    with pytest.raises(BadWeightError):
        table.items(IdRange(first_id=1, last_id=1))


@pytest.mark.usefixtures("configured")
def test_library_batches_by_rounded_weights_and_finds_nothing_changed(database: Database) -> None:
    execute(
        database.engine,
        "CREATE TABLE meta_table (id bigserial PRIMARY KEY, file text, size_in_mib float8)",
    )
    fill(database.engine, FRACTIONS)
    batches = acquire_batches("job", "meta_table", COLUMNS, batch_weight=4)
    weights = []
    for batch in batches:
        weights.append((batch.weight, [row.weight for row in batch.rows]))
        batch.succeeded()
    assert weights == [(3, [1, 2]), (2, [2, 0]), (4, [3, 1])]
    assert audit_job("job").is_clean
    execute(database.engine, "INSERT INTO meta_table VALUES (0, 'file-0', 3.2)")
    audit = audit_job("job")
    assert audit.late.count == 1
    late = acquire_or_none()
    assert late is not None
    assert (late.items, late.weight) == (["file-0"], 4)
    assert query(database, "SELECT max(batch_weight) FROM batch_pipeline.inventory") == [(4,)]
    client.close()


def test_weights_of_text_are_refused(sqlite: sa.Engine) -> None:
    execute(sqlite, "CREATE TABLE weighed (id INTEGER PRIMARY KEY, file TEXT, weight TEXT)")
    with pytest.raises(MetaTableError, match="weights must be numbers"):
        ReflectedMetaTable.open(sqlite, "weighed", ROLES)
