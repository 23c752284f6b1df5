"""Database errors: translated, and without passwords."""

import os
import resource
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

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
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.logins import url_for_login
from batch_pipeline_tests.seeds import (
    execute,
    limit_lock_waits,
    plan,
    query,
    register,
    unplanned,
)

SECRET = "s3cr3t-w0rd"  # noqa: S105 - must not appear in errors


def _traceback_text(error: BaseException) -> str:
    """Return the formatted traceback, including causes."""
    return "".join(traceback.format_exception(error))


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """A role with a password and no privileges."""
    name = f"role_{uuid4().hex}"
    execute(database, f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
    yield name
    execute(database, f"DROP OWNED BY {name}")
    execute(database, f"DROP ROLE {name}")


@pytest.fixture
def password_rule(server_url: str, database: Database, role: str) -> Iterator[None]:
    """Make the server require this role's password."""

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


def test_unreachable_server_error_hides_password() -> None:
    with pytest.raises(DatabaseUnreachableError) as caught:
        open_engine(f"postgresql://me:{SECRET}@127.0.0.1:1/inventory")
    assert caught.value.location == "127.0.0.1:1/inventory"
    assert SECRET not in _traceback_text(caught.value)


def test_nonexistent_database_raises_setting_error(database_url: str) -> None:
    url = database_url.replace("/copy_", "/no_such_")
    with pytest.raises(SettingError, match="does not exist"):
        open_engine(url)


@pytest.mark.usefixtures("password_rule")
def test_wrong_password_error_hides_password(role: str, database_url: str) -> None:
    with pytest.raises(DatabaseUnreachableError, match="password authentication failed") as caught:
        open_engine(url_for_login(database_url, f"{role}:not-{SECRET}"))
    assert SECRET not in _traceback_text(caught.value)
    open_engine(url_for_login(database_url, f"{role}:{SECRET}")).dispose()


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
def test_invalid_url_error_hides_url(url: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        open_engine(url)
    assert caught.value.name == "BATCH_PIPELINE_INVENTORY_CONN"
    assert SECRET not in _traceback_text(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2"])
def test_normalize_url_sets_driver(scheme: str) -> None:
    url = normalize_url(f"{scheme}://me:p%40ss@db:5433/inventory?sslmode=require", driver="x")
    assert url == "postgresql+x://me:p%40ss@db:5433/inventory?sslmode=require"


def test_old_server_version_is_rejected(database: Database) -> None:
    with database.engine.connect():  # the dialect reads the version on connect
        pass
    database.engine.dialect.server_version_info = (12, 4)
    with pytest.raises(ConfigurationError, match="Upgrade the server, or set") as caught:
        check_version(database.engine)
    assert "is PostgreSQL 12.4; at least 13.0 is required" in str(caught.value)
    database.engine.dialect.server_version_info = (13, 0)
    check_version(database.engine)


@pytest.mark.guarantee("G12")
def test_lock_timeout_is_retryable(database: Database, database_url: str) -> None:
    """The message names the blocking session, and nothing is changed."""
    register(database, 1)
    plan(database, limits())
    (job_id,) = query(database, "SELECT id FROM batch_pipeline.job")[0]
    register(database, 1, first=2)
    impatient = open_database(database_url, migrated=None)
    limit_lock_waits(impatient.engine, 50)
    with transaction(database.engine) as holder:
        lock_planning(holder, job_id)
        pid = holder.execute(sa.select(sa.func.pg_backend_pid())).scalar_one()
        message = (
            rf"lock timeout; blocked by: pid {pid} \(batch-pipeline, in a transaction for 0 s\)"
        )
        with pytest.raises(RetryableError, match=message):
            plan(impatient, limits())
    assert len(plan(impatient, limits())) == 1
    impatient.close()


def test_read_only_server_raises_permission_denied(database: Database, database_url: str) -> None:
    """As on a standby."""
    execute(
        database,
        f"ALTER DATABASE {database.engine.url.database} SET default_transaction_read_only = on",
    )
    reader = open_database(database_url, migrated=None)
    with pytest.raises(PermissionDeniedError, match="read-only"):
        register(reader, 1)
    reader.close()


def test_idle_pooled_connection_is_replaced_silently(database: Database, rival: Database) -> None:
    register(database, 1)
    query(
        rival,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    register(database, 2)
    assert unplanned(database, database.meta_table("orders")) == (2, 20)


def test_process_with_many_open_files_can_connect(database_url: str) -> None:
    limit, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, 2_000), maximum))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (limit, maximum))
        for _ in range(1_024):
            stack.callback(os.close, os.dup(0))
        opened = open_database(database_url, migrated=False)
        stack.callback(opened.close)
        for _ in range(2):
            assert query(opened, "SELECT 1") == [(1,)]


def test_unreachable_own_table_raises_inventory_error(database: Database, rival: Database) -> None:
    """Its reads share the code of users' tables, whose errors name BATCH_PIPELINE_META_CONN."""

    def refuse(*_: object) -> None:
        raise psycopg.OperationalError("connection refused")

    rival.engine.dispose()
    sa.event.listen(rival.engine, "do_connect", refuse)
    with pytest.raises(DatabaseUnreachableError, match="connection refused"):
        rival.meta_table("orders").backlog(None)


def test_reads_of_own_table_keep_prepared_statements(database: Database) -> None:
    """A pooled connection that never prepares statements would slow down acquiring."""
    database.meta_table("orders").backlog(None)
    with database.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.prepare_threshold == 5


def test_reads_of_users_table_are_not_prepared(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    """A generic plan would not use a partial index, and could read the whole table."""
    files.highest_id()
    with postgres.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.prepare_threshold is None


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation = 'repeatable read'",
        "datestyle = 'German'",
        "intervalstyle = 'iso_8601'",
    ],
)
def test_settings_of_the_database_do_not_change_sessions(
    database: Database, database_url: str, setting: str
) -> None:
    [(name,)] = query(database, "SELECT current_database()")
    execute(database, f'ALTER DATABASE "{name}" SET {setting}')
    engine = open_engine(database_url)
    with transaction(engine) as connection:
        statement = "SELECT current_setting('transaction_isolation'), now(), interval '1 day'"
        isolation, now, day = connection.execute(sa.text(statement)).one()
    engine.dispose()
    assert isolation == "read committed"
    assert (now.utcoffset(), day) == (timedelta(0), timedelta(days=1))


def test_server_ends_sessions_of_a_vanished_machine_after_a_minute(server_url: str) -> None:
    """Also in COPY, for which there is no other limit. They apply to TCP, not to this socket."""
    engine = open_engine(server_url)
    statement = "SELECT name, reset_val FROM pg_settings WHERE name ~ '^tcp_(user|keepalives_i)'"
    with engine.connect() as connection:
        settings = {(row.name, row.reset_val) for row in connection.execute(sa.text(statement))}
    engine.dispose()
    keepalives = {("tcp_keepalives_idle", "30"), ("tcp_keepalives_interval", "10")}
    assert settings == keepalives | {("tcp_user_timeout", "60000")}


def test_database_without_an_encoding_can_be_opened(server_url: str) -> None:
    """As `initdb` creates it under LANG=C."""
    name = f"ascii_{uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as administrator:
        create = "CREATE DATABASE {} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        administrator.execute(sql.SQL(create).format(sql.Identifier(name)))
        url = sa.make_url(normalize_url(server_url, driver="psycopg")).set(database=name)
        engine = open_engine(url.render_as_string(hide_password=False))
        with transaction(engine) as connection:
            assert connection.execute(sa.text("SELECT 'é'")).scalar() == "é"
        engine.dispose()
        administrator.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


def test_statement_that_the_server_ends_is_not_an_unreachable_server(database: Database) -> None:
    def sleep() -> None:
        with transaction(database.engine) as connection:
            connection.execute(sa.text("SET LOCAL statement_timeout = 1"))
            connection.execute(sa.text("SELECT pg_sleep(10)"))

    with pytest.raises(RetryableError, match="refused a statement") as caught:
        sleep()
    assert "statement timeout" in str(caught.value)
    assert not isinstance(caught.value, DatabaseUnreachableError)


def test_other_database_errors_are_not_translated(database: Database) -> None:
    """A violated check would be our bug, not an outage."""
    register(database, 1)
    violation = pytest.raises(sa.exc.IntegrityError, match="item_size_not_negative")
    with violation as caught, transaction(database.engine) as connection:
        connection.execute(sa.update(item).values(size_bytes=-1))
    assert isinstance(caught.value.__cause__, psycopg.errors.CheckViolation)
