"""What goes wrong with a database, by the domain's names and without a password."""

import traceback
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.connection import (
    check_version,
    lock_planning,
    normalize_url,
    open_engine,
    transaction,
)
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.tables import item
from batch_pipeline.model.errors import (
    ConfigurationError,
    DatabaseUnreachableError,
    InvalidValueError,
    PermissionDeniedError,
    RetryableError,
    SettingError,
)
from batch_pipeline_tests.concurrency import eventually
from batch_pipeline_tests.factories import NOON, found_file, limits
from batch_pipeline_tests.seeds import execute, plan, query, register, unplanned

SECRET = "s3cr3t-w0rd"  # noqa: S105 - what must not be seen


def _shown(error: BaseException) -> str:
    """Give all that a person can get to see of an error, the trail of its causes included."""
    return "".join(traceback.format_exception(error))


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """A role of its own with that secret for a password and rights to nothing."""
    name = f"role_{uuid4().hex}"
    execute(database, f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
    yield name
    execute(database, f"DROP OWNED BY {name}")
    execute(database, f"DROP ROLE {name}")


@pytest.fixture
def password_rule(server_url: str, database: Database, role: str) -> Iterator[None]:
    """A server that asks this role for its password."""

    def reload() -> None:
        with psycopg.connect(server_url, autocommit=True) as connection:
            before = connection.execute("SELECT pg_conf_load_time()").fetchone()
            connection.execute("SELECT pg_reload_conf()")

        def is_reloaded() -> bool:
            with psycopg.connect(server_url) as connection:
                return connection.execute("SELECT pg_conf_load_time()").fetchone() != before

        eventually(is_reloaded)

    rules = Path(query(database, "SHOW hba_file")[0][0])
    original = rules.read_text()
    rules.write_text(f"local all {role} scram-sha-256\n{original}")
    reload()
    yield
    rules.write_text(original)
    reload()


def _as(role: str, password: str, database_url: str) -> str:
    return database_url.replace("//postgres@", f"//{role}:{password}@")


def test_open_engine_of_a_silent_port_is_unreachable_without_the_password() -> None:
    """Expect host and database to be named, and the password nowhere."""
    with pytest.raises(DatabaseUnreachableError) as caught:
        open_engine(f"postgresql://me:{SECRET}@127.0.0.1:1/inventory")
    assert caught.value.location == "127.0.0.1:1/inventory"
    assert SECRET not in _shown(caught.value)


def test_open_engine_of_an_unknown_database_is_no_retryable_error(database_url: str) -> None:
    url = database_url.replace("/test_", f"/no_such_test_{uuid4().hex}")
    with pytest.raises(SettingError, match="does not exist"):
        open_engine(url)


@pytest.mark.usefixtures("password_rule")
def test_open_engine_with_a_wrong_password_does_not_show_it(role: str, database_url: str) -> None:
    """Expect the refusal to name the role and no password, neither the right nor the wrong one."""
    with pytest.raises(DatabaseUnreachableError, match="password authentication failed") as caught:
        open_engine(_as(role, f"not-{SECRET}", database_url))
    assert SECRET not in _shown(caught.value)
    open_engine(_as(role, SECRET, database_url)).dispose()


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://me:{SECRET}@localhost/inventory",
        f"postgresql:{SECRET}",
        f"me:{SECRET}",
        f"postgresql://me:half@{SECRET}@localhost/inventory",
        f"postgresql://me@localhost:{SECRET}/inventory",
        f"postgresql://me@localhost/inventory?{SECRET}={SECRET}",
        "",
    ],
)
def test_open_engine_of_no_postgres_url_shows_no_part_of_it(url: str) -> None:
    """Expect what cannot be read to be refused before anything of it can be printed."""
    with pytest.raises(InvalidValueError) as caught:
        open_engine(url)
    assert caught.value.name == "BATCH_PIPELINE_INVENTORY_CONN"
    assert SECRET not in _shown(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2"])
def test_normalized_url_names_the_driver(scheme: str) -> None:
    """Expect every way to write Postgres to mean the one driver."""
    url = normalize_url(f"{scheme}://me:p%40ss@db:5433/inventory?sslmode=require", driver="x")
    assert url == "postgresql+x://me:p%40ss@db:5433/inventory?sslmode=require"


def test_check_version_of_an_old_server_names_both_versions(database: Database) -> None:
    """Expect 12.4 to be refused and 13.0 to be enough."""
    with database.engine.connect():  # the dialect learns the version on connecting
        pass
    database.engine.dialect.server_version_info = (12, 4)
    with pytest.raises(ConfigurationError, match="Upgrade the server, or set") as caught:
        check_version(database.engine)
    assert "is PostgreSQL 12.4; at least 13.0 is required" in str(caught.value)
    database.engine.dialect.server_version_info = (13, 0)
    check_version(database.engine)


@pytest.mark.guarantee("G12")
def test_transaction_that_waits_too_long_for_a_lock_may_be_repeated(
    database: Database, database_url: str
) -> None:
    """Expect a planner behind a held lock to give up with a retryable error and no change."""
    register(database, 1)
    plan(database, limits())
    (job_id,) = query(database, "SELECT id FROM batch_pipeline.job")[0]
    register(database, 1, first=2)
    impatient = open_database(database_url, migrated=None)
    sa.event.listen(
        impatient.engine,
        "begin",
        lambda connection: connection.exec_driver_sql("SET LOCAL lock_timeout = '50ms'"),
    )
    with transaction(database.engine) as holder:
        lock_planning(holder, job_id)
        pid = holder.execute(sa.select(sa.func.pg_backend_pid())).scalar_one()
        told = rf"lock timeout; blocked by: pid {pid} \(batch-pipeline, in a transaction for 0 s\)"
        with pytest.raises(RetryableError, match=told):
            plan(impatient, limits())
    assert len(plan(impatient, limits())) == 1
    impatient.close()


def test_role_that_may_only_read_is_told_so(
    database: Database, database_url: str, role: str
) -> None:
    """Expect reading to work and writing to be refused by name, with nothing changed."""
    register(database, 1)
    execute(database, f"GRANT USAGE ON SCHEMA batch_pipeline TO {role}")
    execute(database, f"GRANT SELECT ON ALL TABLES IN SCHEMA batch_pipeline TO {role}")
    reader = open_database(_as(role, SECRET, database_url), migrated=False)
    assert unplanned(reader, reader.meta_table("orders")) == (1, 10)
    with pytest.raises(PermissionDeniedError, match="permission denied for table item"):
        reader.meta_table("orders").register([found_file(2)], accept_changed=False)
    with pytest.raises(PermissionDeniedError):
        plan(reader, limits())
    reader.close()
    assert unplanned(database, database.meta_table("orders")) == (1, 10)


def test_server_that_only_reads_is_told_as_a_missing_right(
    database: Database, database_url: str
) -> None:
    """Expect writing to a standby, which is read-only, to be refused by name."""
    execute(
        database,
        f"ALTER DATABASE {database.engine.url.database} SET default_transaction_read_only = on",
    )
    reader = open_database(database_url, migrated=None)
    with pytest.raises(PermissionDeniedError, match="read-only"):
        register(reader, 1)
    reader.close()


def test_connection_cut_inside_a_transaction_is_unreachable_and_then_replaced(
    database: Database, rival: Database
) -> None:
    """Expect the cut transaction to leave nothing, and the next one to work."""
    insert = sa.text("INSERT INTO batch_pipeline.job (name, meta_table) VALUES ('orders', 'x')")

    def work() -> None:
        with transaction(database.engine) as connection:
            pid = connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one()
            connection.execute(insert)
            query(rival, "SELECT pg_terminate_backend(:pid, 10000)", pid=pid)
            connection.execute(insert)

    with pytest.raises(DatabaseUnreachableError):
        work()
    assert query(database, "SELECT FROM batch_pipeline.job") == []


def test_pooled_connection_cut_while_idle_is_replaced_unnoticed(
    database: Database, rival: Database
) -> None:
    """Expect a restart of the server between two transactions not to be felt."""
    register(database, 1)
    query(
        rival,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    register(database, 2)
    assert unplanned(database, database.meta_table("orders")) == (2, 20)


def test_own_table_on_an_unreachable_server_is_the_inventory_not_a_users_database(
    database: Database, rival: Database
) -> None:
    """Its reads share the code of users' tables, whose errors name BATCH_PIPELINE_META_CONN."""

    def refuse(*_: object) -> None:
        raise psycopg.OperationalError("connection refused")

    rival.engine.dispose()
    sa.event.listen(rival.engine, "do_connect", refuse)
    with pytest.raises(DatabaseUnreachableError, match="connection refused"):
        rival.meta_table("orders").backlog(None)


def test_reads_of_the_own_table_leave_other_statements_prepared(database: Database) -> None:
    """A connection of the pool that never prepares again would slow down acquiring."""
    database.meta_table("orders").backlog(None)
    with database.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.prepare_threshold == 5


def test_reads_of_a_users_table_are_never_prepared(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    """A generic plan would not use a partial index, and could read the whole table."""
    files.highest_id()
    with postgres.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.prepare_threshold is None


def test_other_database_errors_leave_as_they_are(database: Database) -> None:
    """Expect a broken check, which would be our bug, not to be dressed up as an outage."""
    negative = {
        "stream": "orders",
        "id": 1,
        "location": "x",
        "size_bytes": -1,
        "modified_at": NOON,
    }

    def work() -> None:
        with transaction(database.engine) as connection:
            connection.execute(sa.insert(item), negative)

    with pytest.raises(sa.exc.IntegrityError, match="item_size_not_negative"):
        work()
