"""Checks of `doctor`: the server, work that stands still, and the cost of filters."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.diagnostics import (
    FilterCost,
    check_dagster,
    check_server,
    check_work,
    filter_cost,
)
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.checks import Finding
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.id_range import IdRange
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    MARIADB,
    item_ids,
    recorded,
    rows_touched,
)
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    execute as execute_on,
)
from batch_pipeline_tests.seeds import claimed, execute, insert_batches, planned

OFF = ("fsync", "full_page_writes", "autovacuum")
DAEMONS = """
CREATE TABLE daemon_heartbeats (daemon_type text, timestamp timestamp);
CREATE TABLE runs (status text);
INSERT INTO daemon_heartbeats SELECT name, timezone('UTC', now()) - interval ':seconds s'
  FROM unnest(ARRAY['SENSOR', 'SCHEDULER', 'QUEUED_RUN_COORDINATOR']) name
"""


def told(found: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Give what was found as plain tuples."""
    return [(one.level.value, one.subject, one.text) for one in found]


@contextmanager
def open_transaction(database: Database) -> Iterator[None]:
    """Keep a transaction of another program open, begun longer ago than is usual."""
    with database.engine.connect() as other, other.begin():
        other.exec_driver_sql("SET application_name = 'a notebook'")
        other.exec_driver_sql("SELECT 1")
        yield


def beside_settings(found: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Leave out what is off on the server of the tests, so that it is fast."""
    return [one for one in told(found) if not one[2].startswith(OFF)]


def test_settings_that_may_lose_commits_are_told(database: Database) -> None:
    """Expect each of those that the server of the tests has, what may happen, and what to do."""
    found = told(check_server(database.engine))
    assert [text.partition(" is off: ")[0] for _, _, text in found] == list(OFF)
    assert {level for level, _, _ in found} == {"warn"}
    assert all(text.endswith("Turn it on.") for _, _, text in found)


def test_index_that_is_not_valid_fails_with_the_statement_that_mends_it(
    database: Database,
) -> None:
    """Expect its name; a `CREATE INDEX CONCURRENTLY` that was cancelled leaves such a one."""
    execute(
        database,
        "UPDATE pg_index SET indisvalid = false "
        "WHERE indexrelid = 'batch_pipeline.load_stream_id_idx'::regclass",
    )
    [(level, _, text)] = beside_settings(check_server(database.engine))
    assert level == "fail"
    assert "REINDEX INDEX CONCURRENTLY batch_pipeline.load_stream_id_idx;" in text
    execute(database, "REINDEX INDEX batch_pipeline.load_stream_id_idx")
    assert beside_settings(check_server(database.engine)) == []


def test_transaction_that_was_left_open_is_named(database: Database) -> None:
    """Expect the program and its pid, once it counts as long."""
    with open_transaction(database):
        assert beside_settings(check_server(database.engine)) == []
        found = beside_settings(check_server(database.engine, long=timedelta(0)))
    [(level, _, text)] = found
    assert level == "warn"
    assert text.startswith("a notebook (pid ")
    assert "SELECT pg_terminate_backend(" in text


def test_paused_job_is_told_with_reason_and_command(database: Database) -> None:
    """Expect since when, why, and what resumes it."""
    planned(database)
    assert told(check_work(database.engine)) == []
    database.jobs.pause("orders", "the target is being moved")
    [(level, subject, text)] = told(check_work(database.engine))
    assert (level, subject) == ("warn", "orders")
    assert "UTC: the target is being moved." in text
    assert text.endswith("Run `batch-pipeline jobs resume orders` to resume it.")


def test_attempt_that_nobody_closed_is_told(database: Database) -> None:
    """Expect it ten minutes after its lease, since sensors and `reconcile` close such at once."""
    [one] = planned(database)
    lapse = "UPDATE batch_pipeline.attempt SET lease_until = clock_timestamp() - interval '{} min'"
    with claimed(database, one):
        execute(database, lapse.format(9))
        assert told(check_work(database.engine)) == []
        execute(database, lapse.format(11))
        [(level, subject, text)] = told(check_work(database.engine))
    assert (level, subject) == ("warn", "orders")
    assert text.startswith("running attempts whose lease expired more than ten minutes ago: 1")
    assert text.endswith("Run `batch-pipeline reconcile`.")


def test_asset_with_50000_partitions_is_warned_of_and_with_fewer_not(database: Database) -> None:
    one_batch = Backfill.of_stream("orders", "again", Selection(), limits(max_count=3))
    planned(database)
    database.backfills.plan(one_batch, database.meta_table("orders"))
    execute(database, "DELETE FROM batch_pipeline.batch_state")
    execute(database, "DELETE FROM batch_pipeline.batch")
    insert_batches(database, "orders.again", 49_999)
    assert told(check_work(database.engine)) == []
    insert_batches(database, "orders", 50_000)
    [(level, subject, text)] = told(check_work(database.engine))
    assert (level, subject) == ("warn", "orders")
    assert text.startswith("orders/batches has 50,000 partitions. Dagster advises at most 100,000")
    assert "Choose a larger `batch.max_weight` and `batch.max_count` for orders;" in text
    execute(
        database,
        "UPDATE batch_pipeline.batch_state SET state = 'superseded' WHERE batch_id = "
        "(SELECT max(batch_id) FROM batch_pipeline.batch_state)",
    )
    assert told(check_work(database.engine)) == []


def test_daemon_of_dagster_is_looked_for_where_there_is_one(database: Database) -> None:
    """Expect no finding to be bad before Dagster was ever started, and while its daemon is up."""
    engine = database.engine
    assert told(check_dagster(engine, is_own=False)) == [
        ("ok", "dagster", "was never started on this database.")
    ]
    execute(database, DAEMONS.replace(":seconds", "20"))
    assert told(check_dagster(engine, is_own=False)) == [
        ("ok", "dagster", "its daemon is up; runs in the queue: 0.")
    ]


@pytest.mark.parametrize(
    ("is_own", "queued", "level"),
    [
        (False, 0, "warn"),
        (True, 0, "ok"),
        (True, 1, "warn"),
    ],
)
def test_daemon_that_is_silent_is_told(
    database: Database, is_own: bool, queued: int, level: str
) -> None:
    """Expect it to matter for a service, and on our own server only when runs wait for it."""
    execute(database, DAEMONS.replace(":seconds", "400"))
    for _ in range(queued):
        execute(database, "INSERT INTO runs VALUES ('QUEUED')")
    [(found, _, text)] = told(check_dagster(database.engine, is_own=is_own))
    assert found == level
    assert text.startswith("its daemon sent its last heartbeat at ")
    runs = f"queued runs ({queued})"
    told_more = f"{runs} do not start. Start `batch-pipeline dev`" in text
    assert told_more is (level == "warn")


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
    execute_on(engine, CREATE, FILL + numbers)
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
    execute_on(kinds, "CREATE VIEW some_kinds AS SELECT * FROM kinds")
    table = ReflectedMetaTable.open(kinds, "some_kinds", where=parse_filter([RARE]))
    assert filter_cost(table, 0, 10**9) == FilterCost(scanned=100_000, kept=100)
    execute_on(kinds, "DROP VIEW some_kinds")


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
    execute_on(postgres, CREATE, FILL + NUMBERS, "ANALYZE kinds")
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
    execute_on(
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
    execute_on(sqlite, CREATE, FILL + NUMBERS)
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
