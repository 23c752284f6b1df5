"""Fractional weights: rounded up for each item, the same in every database."""

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
from batch_pipeline.model.batch import MAX_ID, IdRange
from batch_pipeline.model.errors import BadWeightError
from batch_pipeline_tests.client.client_tables import COLUMNS, acquire_or_none, fill
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import MARIADB, cut_all, execute, insert
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
FLOATING = [kind for kind in TYPES if kind[1] in {"float8", "DOUBLE"}]


@dataclass(frozen=True, slots=True)
class WeightedTable:
    """A table `weighed` with weights of one type."""

    engine: sa.Engine
    kind: str

    def table(self, on_bad_weight: int | None = None) -> ReflectedMetaTable:
        """Open the table."""
        return ReflectedMetaTable.open(self.engine, "weighed", ROLES, on_bad_weight=on_bad_weight)


@pytest.fixture(params=TYPES, ids=" ".join)
def weighted(request: pytest.FixtureRequest) -> Iterator[WeightedTable]:
    """An empty table `weighed` for each weight type."""
    database, kind = request.param
    engine: sa.Engine = request.getfixturevalue(database)
    create = (
        f"CREATE TABLE weighed (id bigint NOT NULL PRIMARY KEY, file varchar(99), weight {kind})"
    )
    execute(engine, create)
    yield WeightedTable(engine, kind)
    execute(engine, "DROP TABLE weighed")


def test_every_read_rounds_fractions_up_per_item(weighted: WeightedTable) -> None:
    table = weighted.table()
    insert(table, FRACTIONS)
    everything = IdRange(first_id=1, last_id=6)
    assert [item.weight for item in table.items(everything)] == ROUNDED
    assert [weight for _, weight in table.weights(None, 6)] == ROUNDED
    assert table.facts(everything).weight == sum(ROUNDED)
    halves = [IdRange(first_id=1, last_id=3), IdRange(first_id=4, last_id=6)]
    assert [facts.weight for facts in range_facts(table, halves) if facts] == [5, 4]
    bounds = limits(max_weight=4)
    cuts = cut_all(table, 6, bounds)
    assert [(cut.count, cut.weight) for cut in cuts] == [(2, 3), (2, 2), (2, 4)]
    assert list(all_cuts(table, None, 6, bounds)) == cuts


def test_null_and_negative_weights_are_rejected(weighted: WeightedTable) -> None:
    for bad in (None, -0.5):
        table = weighted.table()
        execute(weighted.engine, "DELETE FROM weighed")
        insert(table, {1: 1.5, 2: bad})
        with pytest.raises(BadWeightError) as caught:
            cut_all(table, 2, limits(max_weight=10))
        assert caught.value.item_id == 2
        assert table.facts(IdRange(first_id=1, last_id=1)).weight == 2
        counted = weighted.table(on_bad_weight=7).items(IdRange(first_id=1, last_id=2))
        assert [item.weight for item in counted] == [2, 7]


@pytest.mark.parametrize(
    ("weighted", "largest", "too_large", "weight"),
    [
        *((kind, float(LARGEST_BELOW_2_63), float(2**63), LARGEST_BELOW_2_63) for kind in FLOATING),
        (
            ("postgres", "numeric"),
            Decimal(MAX_ID) - Decimal("0.5"),
            Decimal(MAX_ID) + Decimal("0.1"),
            MAX_ID,
        ),
    ],
    indirect=["weighted"],
)
def test_weights_beyond_64_bits_are_rejected(
    weighted: WeightedTable, largest: float | Decimal, too_large: float | Decimal, weight: int
) -> None:
    table = weighted.table()
    insert(table, {1: largest, 2: too_large})
    assert table.items(IdRange(first_id=1, last_id=1))[0].weight == weight
    with pytest.raises(BadWeightError):
        table.items(IdRange(first_id=2, last_id=2))


@pytest.mark.parametrize(
    "weighted",
    [kind for kind in TYPES if kind[0] == "postgres" and kind[1] != "numeric(30, 6)"],
    indirect=True,
    ids=" ".join,
)
@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_nan_and_infinity_are_rejected(weighted: WeightedTable, bad: float) -> None:
    table = weighted.table()
    execute(weighted.engine, "INSERT INTO weighed VALUES (1, 'file-1', :bad)", bad=bad)
    with pytest.raises(BadWeightError) as caught:
        cut_all(table, 1, limits())
    assert "from 0 to 2^63 - 1" in str(caught.value)


def test_text_in_sqlite_weight_column_is_rejected(sqlite: sa.Engine) -> None:
    execute(sqlite, "CREATE TABLE weighed (id INTEGER PRIMARY KEY, file TEXT, weight FLOAT)")
    execute(sqlite, "INSERT INTO weighed VALUES (1, 'a', 'heavy')")
    table = ReflectedMetaTable.open(sqlite, "weighed", ROLES)
    with pytest.raises(BadWeightError):
        table.items(IdRange(first_id=1, last_id=1))


@pytest.mark.usefixtures("configured")
def test_library_batches_and_audits_by_rounded_weights(database: Database) -> None:
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
