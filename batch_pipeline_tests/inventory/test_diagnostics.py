"""Checks of `doctor`: server settings, stalled work, and the cost of filters."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.diagnostics import (
    FilterCost,
    check_dagster,
    check_inventory,
    check_server,
    check_work,
    filter_cost,
)
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.batch import IdRange
from batch_pipeline.model.checks import Finding
from batch_pipeline.model.errors import OLDER
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.status import MANY_PARTITIONS
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.logins import Logins, run
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute as execute_on
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    item_ids,
    record_statements,
    rows_scanned,
)
from batch_pipeline_tests.seeds import claimed, execute, insert_batches, planned, planned_backfill

DISABLED_SETTINGS = ("fsync", "full_page_writes", "autovacuum")
DAEMONS = """
CREATE TABLE daemon_heartbeats (daemon_type text, timestamp timestamp, body text);
CREATE TABLE runs (status text);
INSERT INTO daemon_heartbeats SELECT name, timezone('{zone}', sent_at),
       '{{"__class__": "DaemonHeartbeat", "timestamp": ' || extract(epoch FROM sent_at) || '}}'
  FROM unnest(ARRAY['SENSOR', 'SCHEDULER', 'QUEUED_RUN_COORDINATOR']) name,
       (SELECT now() - interval '{seconds} s') AS last (sent_at)
"""


def findings(results: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Return findings as (level, subject, text)."""
    return [(finding.level.value, finding.subject, finding.text) for finding in results]


def findings_without_settings(results: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Leave out the settings that the test server disables for speed."""
    return [
        finding for finding in findings(results) if not finding[2].startswith(DISABLED_SETTINGS)
    ]


def test_embedded_inventory_of_a_later_release_fails(database: Database) -> None:
    """One of an earlier release is migrated by the next command."""
    set_revision = "UPDATE batch_pipeline.alembic_version SET version_num = :revision"
    execute(database, set_revision, revision="0008")
    [_, (level, _, text)] = findings(check_inventory(database.engine, is_own=True))
    assert (level, text) == (
        "ok",
        "the next command that needs its schema creates or migrates it.",
    )
    execute(database, set_revision, revision="9999")
    [_, (level, _, text)] = findings(check_inventory(database.engine, is_own=True))
    assert level == "fail"
    assert "Install the release that the schema belongs to" in text


def test_settings_that_may_lose_commits_warn(database: Database) -> None:
    name = database.engine.url.database
    execute(database, f"ALTER DATABASE {name} SET synchronous_commit = off")
    database.engine.dispose()
    warnings = findings(check_server(database.engine))
    names = {text.partition(" is off: ")[0] for _, _, text in warnings}
    assert names == {*DISABLED_SETTINGS, "synchronous_commit"}
    assert {level for level, _, _ in warnings} == {"warn"}
    assert all(text.endswith("Turn it on.") for _, _, text in warnings)


def test_invalid_index_fails_with_reindex_statement(database: Database) -> None:
    """A cancelled `CREATE INDEX CONCURRENTLY` leaves an invalid index."""
    execute(
        database,
        "UPDATE pg_index SET indisvalid = false "
        "WHERE indexrelid = 'batch_pipeline.load_stream_id_idx'::regclass",
    )
    [(level, _, text)] = findings_without_settings(check_server(database.engine))
    assert level == "fail"
    assert "REINDEX INDEX CONCURRENTLY batch_pipeline.load_stream_id_idx;" in text
    execute(database, "REINDEX INDEX batch_pipeline.load_stream_id_idx")
    assert findings_without_settings(check_server(database.engine)) == []


def test_long_transaction_warns(database: Database) -> None:
    with database.engine.connect() as other, other.begin():
        other.exec_driver_sql("SET application_name = 'a notebook'")
        assert findings_without_settings(check_server(database.engine)) == []
        [(level, _, text)] = findings_without_settings(
            check_server(database.engine, long=timedelta(0))
        )
    assert level == "warn"
    assert text.startswith("a notebook (pid ")
    assert "SELECT pg_terminate_backend(" in text


def test_paused_job_warns_with_reason_and_command(database: Database) -> None:
    planned(database)
    assert findings(check_work(database.engine)) == []
    database.jobs.pause("orders", "the target is being moved")
    [(level, subject, text)] = findings(check_work(database.engine))
    assert (level, subject) == ("warn", "orders")
    assert "UTC: the target is being moved." in text
    assert text.endswith(" `batch-pipeline jobs resume orders` resumes it.")
    database.jobs.pause("orders", f"{OLDER}: reconcile --discard")
    [(_, _, text)] = findings(check_work(database.engine))
    assert text.endswith(f"UTC: {OLDER}: reconcile --discard.")


def test_running_attempt_with_expired_lease_warns(database: Database) -> None:
    """It warns after ten minutes, because sensors normally close such attempts at once."""
    [batch] = planned(database)
    lapse = "UPDATE batch_pipeline.attempt SET lease_until = clock_timestamp() - interval '{} min'"
    with claimed(database, batch):
        execute(database, lapse.format(9))
        assert findings(check_work(database.engine)) == []
        execute(database, lapse.format(11))
        [(level, subject, text)] = findings(check_work(database.engine))
        execute(database, "UPDATE batch_pipeline.job SET stream = NULL")  # a job of the library
        [(*_, text_of_library)] = findings(check_work(database.engine))
    assert (level, subject) == ("warn", "orders")
    assert text.startswith("running attempts whose lease expired more than ten minutes ago: 1")
    assert text.endswith("Run `batch-pipeline reconcile`.")
    assert text_of_library.endswith(
        "Resume the job if it is paused, and acquire from it, which closes them."
    )


def test_asset_with_many_partitions_warns(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MANY_PARTITIONS == 50_000
    monkeypatch.setattr("batch_pipeline.inventory.status.MANY_PARTITIONS", 5_000)
    planned(database)
    planned_backfill(database, "again")
    execute(database, "DELETE FROM batch_pipeline.batch_state")
    execute(database, "DELETE FROM batch_pipeline.batch")
    insert_batches(database, "orders.again", 4_999)
    assert findings(check_work(database.engine)) == []
    insert_batches(database, "orders", 4_000)
    execute(
        database,
        "INSERT INTO batch_pipeline.job (name, meta_table, kind, stream, parent_id) "
        "SELECT 'orders.late', meta_table, 'late', stream, id FROM batch_pipeline.job "
        "WHERE name = 'orders'",
    )
    insert_batches(database, "orders.late", 1_000)
    [(level, subject, text)] = findings(check_work(database.engine))
    assert (level, subject) == ("warn", "orders")
    assert text.startswith("orders/batches has 5,000 partitions. Dagster advises at most 100,000")
    assert "Choose a larger `batch.max_weight` and `batch.max_count` for orders;" in text
    execute(
        database,
        "UPDATE batch_pipeline.batch_state SET state = 'superseded' WHERE batch_id = "
        "(SELECT max(batch_id) FROM batch_pipeline.batch_state)",
    )
    assert findings(check_work(database.engine)) == []


def test_dagster_daemon_not_started_or_running_is_ok(database: Database) -> None:
    """Dagster stores the heartbeat's time in the server's zone, here hours behind UTC."""
    engine = database.engine
    assert findings(check_dagster(engine, is_own=False)) == [
        ("ok", "dagster", "was never started on this database.")
    ]
    execute(database, DAEMONS.format(seconds=20, zone="America/New_York"))
    assert findings(check_dagster(engine, is_own=False)) == [
        ("ok", "dagster", "its daemon is up; runs in the queue: 0.")
    ]


def test_dagster_tables_that_a_login_may_not_read_are_not_checked(logins: Logins) -> None:
    """Its schema `public` may be closed to other logins."""
    run(logins.url, DAEMONS.format(seconds=20, zone="UTC"))
    run(logins.url, "CREATE TABLE instigators (status text)")
    run(logins.url, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO rita")
    run(logins.url, "REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    reader = logins.of("rita")
    text = "not checked: this login may not read its tables."
    assert findings(check_dagster(reader.engine, is_own=False)) == [("ok", "dagster", text)]
    assert reader.stream_statuses.automation() is None


@pytest.mark.parametrize(
    ("is_own", "queued", "level"), [(False, 0, "warn"), (True, 0, "ok"), (True, 1, "warn")]
)
def test_silent_dagster_daemon_warns(
    database: Database, is_own: bool, queued: int, level: str
) -> None:
    """On the embedded server it matters only if runs are queued."""
    execute(database, DAEMONS.format(seconds=400, zone="Europe/Berlin"))
    for _ in range(queued):
        execute(database, "INSERT INTO runs VALUES ('QUEUED')")
    [(actual_level, _, text)] = findings(check_dagster(database.engine, is_own=is_own))
    assert actual_level == level
    assert text.startswith("its daemon sent its last heartbeat at ")
    runs = f"queued runs ({queued})"
    assert (f"{runs} do not start. Start `batch-pipeline dev`" in text) is (level == "warn")


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


SEQUENCE = "(SELECT seq AS n FROM seq_1_to_120000) AS numbers"  # a sequence table of MariaDB


@pytest.fixture
def kinds(any_engine: sa.Engine) -> sa.Engine:
    """A database with 120,000 items, ids 10 apart, every thousandth of a rare kind."""
    numbers = SEQUENCE if any_engine.dialect.name in {"mysql", "mariadb"} else NUMBERS
    execute_on(any_engine, CREATE, FILL + numbers)
    return any_engine


def open_filtered(engine: sa.Engine, *conditions: dict[str, Any]) -> ReflectedMetaTable:
    """Open the table with a filter."""
    return ReflectedMetaTable.open(engine, "kinds", where=parse_filter(list(conditions)))


def run_with_driver(engine: sa.Engine, statement: str) -> None:
    """Run a statement through the bare driver, which does not interpret percent signs."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        raw.cursor().execute(statement)


def test_filter_cost_is_that_of_rows_between_bookmark_and_watermark(kinds: sa.Engine) -> None:
    """An index is proposed for a selective filter only, and not for a view."""
    for kind, kept in (("a", 50_000), ("z", 0)):
        table = open_filtered(kinds, {"column": "kind", "operator": "=", "value": kind})
        cost = filter_cost(table, 0, 10**9)
        assert (cost.scanned, cost.kept) == (100_000, kept)
        assert (cost.proposal is None) == (kept > 0)
    table = open_filtered(kinds, RARE)
    assert filter_cost(table, 1_100_000, 1_200_000).scanned == 10_000
    assert filter_cost(table, 1_199_000, 10**9) == FilterCost(scanned=100, kept=1)
    assert filter_cost(table, 1_200_000, 10**9) == FilterCost(scanned=0, kept=0)
    assert filter_cost(table, None, 0) == FilterCost(scanned=0, kept=0)
    unfiltered = ReflectedMetaTable.open(kinds, "kinds")
    with record_statements(kinds) as statements:
        assert filter_cost(unfiltered, None, 10**9) == FilterCost(scanned=0, kept=0)
    assert statements == []
    execute_on(kinds, "CREATE VIEW some_kinds AS SELECT * FROM kinds")
    view = ReflectedMetaTable.open(kinds, "some_kinds", where=parse_filter([RARE]))
    assert filter_cost(view, 0, 10**9) == FilterCost(scanned=100_000, kept=100)
    execute_on(kinds, "DROP VIEW some_kinds")
    cost = filter_cost(table, 0, 10 * ROWS)
    assert (cost.scanned, cost.kept) == (100_000, 100)
    assert cost.proposal is not None
    run_with_driver(kinds, cost.proposal)
    assert filter_cost(table, 0, 10 * ROWS) == FilterCost(scanned=100, kept=100)
    ids = IdRange(first_id=1, last_id=30_000)
    assert item_ids(table, ids) == [10_000, 20_000, 30_000]


def test_next_cut_with_proposed_index_reads_batch_and_one_more_row(postgres: sa.Engine) -> None:
    """Postgres recognizes that the index covers the filter, whatever its operator."""
    execute_on(postgres, CREATE, FILL + NUMBERS, "ANALYZE kinds")
    late: dict[str, Any] = {"column": "note", "operator": "=", "value": "late"}
    filters: list[list[dict[str, Any]]] = [
        [RARE],
        [{"column": "kind", "operator": "in", "value": ["50%'s", "z"]}],
        [{"column": "kind", "operator": "like", "value": "50\\%%"}],
        [late],
        [{"column": "note", "operator": "is not null"}],
        [{"column": "ready", "operator": "=", "value": True}],
        [{"column": "price", "operator": "=", "value": 0}],
        [{"column": "price", "operator": "<", "value": 0.5}],
        [RARE, {"column": "day", "operator": ">", "value": "2026-02-28"}],
        [{"any": [RARE, late]}],
    ]
    for conditions in filters:
        table = open_filtered(postgres, *conditions)
        cost = filter_cost(table, None, 10**9)
        assert cost.kept == 100
        assert cost.proposal is not None
        created = re.fullmatch(
            r"CREATE INDEX CONCURRENTLY (kinds_batches_\w{8}) ON public\.kinds \(uid\) "
            r"INCLUDE \(weight\) WHERE .+",
            cost.proposal,
        )
        assert created is not None
        run_with_driver(postgres, cost.proposal)
        with record_statements(postgres) as statements:
            cut = table.next_cut(0, 10**9, limits(max_count=20))
        assert cut is not None
        assert cut.count == 20
        # The filter leaves gaps between ids, so a second statement reads which ids the batch has.
        assert rows_scanned(postgres, statements[:1]) == 21
        assert rows_scanned(postgres, statements) == 21 + 20
        execute_on(postgres, f"DROP INDEX {created[1]}")


def test_proposed_index_of_partitioned_table_can_be_created(postgres: sa.Engine) -> None:
    """Postgres rejects CONCURRENTLY there."""
    execute_on(
        postgres,
        CREATE + " PARTITION BY RANGE (uid)",
        "CREATE TABLE ops.low PARTITION OF kinds FOR VALUES FROM (0) TO (900000)",
        "CREATE TABLE ops.high PARTITION OF kinds FOR VALUES FROM (900000) TO (9000000)",
        FILL + NUMBERS,
    )
    table = open_filtered(postgres, RARE)
    cost = filter_cost(table, 0, 10**9)
    assert cost.proposal is not None
    assert "CONCURRENTLY" not in cost.proposal
    run_with_driver(postgres, cost.proposal)
    assert filter_cost(table, 0, 10**9) == FilterCost(scanned=100, kept=100)


@pytest.mark.parametrize(
    ("name", "mysql_text"),
    [("MiXed %s", mysql.TEXT), ("quo\"te's; --", mysql.TINYTEXT), ("表" * 20, mysql.LONGTEXT)],
)
def test_proposed_index_quotes_names_and_takes_texts(
    any_engine: sa.Engine, name: str, mysql_text: type[sa.String]
) -> None:
    uid = sa.Column(name, sa.BigInteger, primary_key=True, autoincrement=False)
    text = sa.Text().with_variant(mysql_text(), "mysql", "mariadb")
    sql_table = sa.Table(name, sa.MetaData(), uid, sa.Column("item", text))
    sql_table.create(any_engine)
    with any_engine.begin() as connection:
        rows = [{name: n, "item": name if n == 7 else "x"} for n in range(1, 2_001)]
        connection.execute(sa.insert(sql_table), rows)
    columns = MetaColumns(uid=name, item="item", weight=None)
    where = parse_filter([{"column": "item", "operator": "=", "value": name}])
    quoted = '"' + name.replace('"', '""') + '"'
    table = ReflectedMetaTable.open(any_engine, quoted, columns, where)
    cost = filter_cost(table, None, 2_000)
    assert cost.proposal is not None
    run_with_driver(any_engine, cost.proposal)
    assert filter_cost(table, None, 2_000) == FilterCost(scanned=1, kept=1)
    sql_table.drop(any_engine)


def test_sqlite_uses_proposed_index(sqlite: sa.Engine) -> None:
    """The index is searched by kind and id, without sorting."""
    execute_on(sqlite, CREATE, FILL + NUMBERS)
    table = open_filtered(sqlite, RARE)
    cost = filter_cost(table, 0, 10**9)
    assert cost.proposal is not None
    run_with_driver(sqlite, cost.proposal)
    with record_statements(sqlite) as statements:
        table.next_cut(0, 10**9, limits())
    statement, parameters = statements[0]
    with sqlite.connect() as connection:
        explain = f"EXPLAIN QUERY PLAN {statement}"
        plan = connection.exec_driver_sql(explain, parameters).all()
    assert len(plan) == 1  # no sorting after the search
    assert re.search(r"USING INDEX \w+ \(kind=\? AND uid>\? AND uid<\?\)", plan[0][3])
