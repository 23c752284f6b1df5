"""What a filter scans in vain, and the index that is proposed against it."""

import re
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.diagnostics import FilterCost, filter_cost
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.id_range import IdRange
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    MARIADB,
    execute,
    item_ids,
    recorded,
    rows_touched,
)

ENGINES = ["postgres", "sqlite", *(["mariadb"] if MARIADB else [])]
ROWS = 120_000
CREATE = (
    "CREATE TABLE kinds (uid bigint NOT NULL PRIMARY KEY, item varchar(20), weight bigint, "
    "kind varchar(10), note text, ready boolean, price numeric(10, 2), day date)"
)
FILL = (
    "INSERT INTO kinds SELECT 10 * n, 'f', 1, "
    "CASE WHEN n % 1000 = 0 THEN '50%''s' WHEN n % 2 = 0 THEN 'b' ELSE 'a' END, "
    "CASE WHEN n % 1000 = 0 THEN 'late' END, n % 1000 = 0, n % 1000, '2026-03-01' FROM "
)
NUMBERS = (
    "(WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 120000) "
    "SELECT n FROM counted) AS numbers"
)
RARE = {"column": "kind", "operator": "=", "value": "50%'s"}


SEQUENCE = "(SELECT seq AS n FROM seq_1_to_120000) AS numbers"  # MariaDB's own


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> sa.Engine:
    """A user's database, once of every kind that there is."""
    found: sa.Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def kinds(engine: sa.Engine) -> sa.Engine:
    """A database with 120,000 items, ids 10 apart, each thousandth of a rare kind."""
    numbers = SEQUENCE if engine.dialect.name in {"mysql", "mariadb"} else NUMBERS
    execute(engine, CREATE, FILL + numbers)
    return engine


def opened(engine: sa.Engine, *conditions: dict[str, Any]) -> ReflectedMetaTable:
    """The table through a filter."""
    return ReflectedMetaTable.open(engine, "kinds", where=parse_filter(list(conditions)))


def run_as_a_person_would(engine: sa.Engine, statement: str) -> None:
    """Run a statement through the bare driver, where a percent sign is one."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        raw.cursor().execute(statement)


def test_filter_that_keeps_one_in_a_thousand_is_given_an_index_that_ends_the_scan(
    kinds: sa.Engine,
) -> None:
    """Expect the proposed statement to run as it is, and the cost to be gone with it."""
    table = opened(kinds, RARE)
    cost = filter_cost(table, 0, 10 * ROWS)
    assert (cost.scanned, cost.kept) == (100_000, 100)
    assert cost.proposal is not None
    run_as_a_person_would(kinds, cost.proposal)
    assert filter_cost(table, 0, 10 * ROWS) == FilterCost(scanned=100, kept=100)
    assert item_ids(table, IdRange(first_id=1, last_id=30_000)) == [
        10_000,
        20_000,
        30_000,
    ]


@pytest.mark.parametrize(("kind", "kept"), [("a", 50_000), ("z", 0)])
def test_filter_that_keeps_nothing_is_given_an_index_and_one_in_two_is_left_alone(
    kinds: sa.Engine, kind: str, kept: int
) -> None:
    table = opened(kinds, {"column": "kind", "operator": "=", "value": kind})
    cost = filter_cost(table, 0, 10**9)
    assert (cost.scanned, cost.kept) == (100_000, kept)
    assert (cost.proposal is None) == (kept > 0)


def test_sample_lies_above_the_bookmark_and_below_the_ceiling(kinds: sa.Engine) -> None:
    """Expect only the rows that are still to be cut to count, and few of them never to matter."""
    table = opened(kinds, RARE)
    assert filter_cost(table, 1_100_000, 1_200_000).scanned == 10_000
    assert filter_cost(table, 1_199_000, 10**9) == FilterCost(scanned=100, kept=1)
    assert filter_cost(table, 1_200_000, 10**9) == FilterCost(scanned=0, kept=0)
    assert filter_cost(table, None, 0) == FilterCost(scanned=0, kept=0)


def test_table_without_a_filter_costs_nothing_and_is_not_read(kinds: sa.Engine) -> None:
    """Expect no statement at all."""
    table = ReflectedMetaTable.open(kinds, "kinds")
    with recorded(kinds) as statements:
        assert filter_cost(table, None, 10**9) == FilterCost(scanned=0, kept=0)
    assert statements == []


def test_view_is_given_no_index(kinds: sa.Engine) -> None:
    """Expect its cost to be told, and no statement that cannot run."""
    execute(kinds, "CREATE VIEW some_kinds AS SELECT * FROM kinds")
    table = ReflectedMetaTable.open(kinds, "some_kinds", where=parse_filter([RARE]))
    assert filter_cost(table, 0, 10**9) == FilterCost(scanned=100_000, kept=100)
    execute(kinds, "DROP VIEW some_kinds")


@pytest.mark.parametrize(
    "conditions",
    [
        [RARE],
        [{"column": "kind", "operator": "in", "value": ["50%'s", "z"]}],
        [{"column": "kind", "operator": "like", "value": "50\\%%"}],
        [{"column": "note", "operator": "=", "value": "late"}],
        [{"column": "note", "operator": "is not null"}],
        [{"column": "ready", "operator": "=", "value": True}],
        [{"column": "price", "operator": "=", "value": 0}],
        [{"column": "price", "operator": "<", "value": 0.5}],
        [RARE, {"column": "day", "operator": ">", "value": "2026-02-28"}],
        [{"any": [RARE, {"column": "note", "operator": "=", "value": "late"}]}],
    ],
)
def test_next_cut_with_the_proposed_index_touches_the_batch_and_one_row(
    postgres: sa.Engine, conditions: list[dict[str, Any]]
) -> None:
    """Expect Postgres to see that the index holds the rows of the filter, whatever its operator."""
    execute(postgres, CREATE, FILL + NUMBERS, "ANALYZE kinds")
    table = opened(postgres, *conditions)
    cost = filter_cost(table, None, 10**9)
    assert cost.kept == 100
    assert cost.proposal is not None
    assert re.fullmatch(
        r"CREATE INDEX CONCURRENTLY kinds_batches_\w{8} ON public\.kinds \(uid\) "
        r"INCLUDE \(weight\) WHERE .+",
        cost.proposal,
    )
    run_as_a_person_would(postgres, cost.proposal)
    with recorded(postgres) as statements:
        found = table.next_cut(0, 10**9, limits(max_count=20))
    assert found is not None
    assert found.count == 20
    # The filter leaves gaps between ids, so a second statement reads which ids the batch has.
    assert rows_touched(postgres, statements[:1]) == 21
    assert rows_touched(postgres, statements) == 21 + 20


def test_proposed_index_of_a_partitioned_table_can_be_made(postgres: sa.Engine) -> None:
    """Expect a statement without CONCURRENTLY, which Postgres refuses there."""
    execute(
        postgres,
        CREATE + " PARTITION BY RANGE (uid)",
        "CREATE TABLE ops.low PARTITION OF kinds FOR VALUES FROM (0) TO (900000)",
        "CREATE TABLE ops.high PARTITION OF kinds FOR VALUES FROM (900000) TO (9000000)",
        FILL + NUMBERS,
    )
    table = opened(postgres, RARE)
    cost = filter_cost(table, 0, 10**9)
    assert cost.proposal is not None
    assert "CONCURRENTLY" not in cost.proposal
    run_as_a_person_would(postgres, cost.proposal)
    assert filter_cost(table, 0, 10**9) == FilterCost(scanned=100, kept=100)


@pytest.mark.parametrize("odd", ["MiXed", "per%cent", 'quo"te', "quo'te", "x; --", "表" * 20])
def test_names_of_any_spelling_are_quoted_in_a_proposal_that_runs(
    engine: sa.Engine, odd: str
) -> None:
    """Expect names and values to be only ever names and values."""
    uid = sa.Column(odd, sa.BigInteger, primary_key=True, autoincrement=False)
    odd_table = sa.Table(odd, sa.MetaData(), uid, sa.Column("item", sa.Text))
    odd_table.create(engine)
    with engine.begin() as connection:
        rows = [{odd: n, "item": odd if n == 7 else "x"} for n in range(1, 2_001)]
        connection.execute(sa.insert(odd_table), rows)
    columns = MetaColumns(uid=odd, item="item", weight=None)
    where = parse_filter([{"column": "item", "operator": "=", "value": odd}])
    quoted = '"' + odd.replace('"', '""') + '"'
    table = ReflectedMetaTable.open(engine, quoted, columns, where)
    cost = filter_cost(table, None, 2_000)
    assert cost.proposal is not None
    run_as_a_person_would(engine, cost.proposal)
    assert filter_cost(table, None, 2_000) == FilterCost(scanned=1, kept=1)
    odd_table.drop(engine)


def test_sqlite_reads_batches_through_the_proposed_index(sqlite: sa.Engine) -> None:
    """Expect the index to be searched by kind and id, in the order of ids."""
    execute(sqlite, CREATE, FILL + NUMBERS)
    table = opened(sqlite, RARE)
    cost = filter_cost(table, 0, 10**9)
    assert cost.proposal is not None
    run_as_a_person_would(sqlite, cost.proposal)
    with recorded(sqlite) as statements:
        table.next_cut(0, 10**9, limits())
    statement, parameters = statements[0]
    with sqlite.connect() as connection:
        explain = f"EXPLAIN QUERY PLAN {statement}"
        plan = connection.exec_driver_sql(explain, parameters).all()
    assert len(plan) == 1  # no sorting after the search
    assert re.search(r"USING INDEX \w+ \(kind=\? AND uid>\? AND uid<\?\)", plan[0][3])
