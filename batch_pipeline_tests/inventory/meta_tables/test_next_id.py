"""Restarted ids of meta tables are reported; deleted rows are not."""

import logging
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.meta_tables.watermarks import WatermarkChoice
from batch_pipeline.model.errors import MetaTableRestartedError
from batch_pipeline_tests.client.client_tables import CREATE_META_TABLE, acquire_or_none, drained
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    execute,
    insert,
    new_role,
)

RESTART = {
    "postgresql": ["TRUNCATE ops.files RESTART IDENTITY"],
    "sqlite": ["DELETE FROM files", "DELETE FROM sqlite_sequence"],
    "mysql": ["TRUNCATE files"],
}
RECREATE = {
    "postgresql": CREATE_FILES,
    "sqlite": "CREATE TABLE files (id INTEGER PRIMARY KEY AUTOINCREMENT, file_location TEXT, "
    "size_in_bytes BIGINT)",
    "mysql": "CREATE TABLE files (id BIGINT AUTO_INCREMENT PRIMARY KEY, "
    "file_location VARCHAR(500), size_in_bytes BIGINT)",
}


@pytest.fixture
def table_with_5_rows(any_table: ReflectedMetaTable) -> ReflectedMetaTable:
    """A meta table with ids 1 to 5 in each available database."""
    add(any_table, 5)
    return any_table


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Captured warnings."""
    with caplog.at_level(logging.WARNING):
        yield caplog


def add(table: ReflectedMetaTable, rows: int) -> None:
    """Insert rows with generated ids."""
    values = {"file_location": "f", "size_in_bytes": 1}
    for _ in range(rows):
        with table.engine.begin() as connection:
            connection.execute(sa.insert(table.table).values(values))


def remove(table: ReflectedMetaTable, *, above: int) -> None:
    """Delete the rows above an id."""
    with table.engine.begin() as connection:
        connection.execute(sa.delete(table.table).where(table.uid > above))


def restart(table: ReflectedMetaTable) -> None:
    """Empty a table and restart its ids."""
    execute(table.engine, *RESTART[table.engine.dialect.name])


def restart_next_id(
    table: ReflectedMetaTable, job: str = "job", planned_up_to: int = 5
) -> int | None:
    """Return the next id that the restart error names, or None without an error."""
    try:
        choice = WatermarkChoice.registrar(table, "ids are not read")
        MetaSource(table=table, choice=choice).check_not_restarted(job, planned_up_to)
    except MetaTableRestartedError as error:
        return error.next_id
    return None


@pytest.mark.parametrize("above", [5, 3, 0])
def test_deleted_rows_are_no_restart(
    table_with_5_rows: ReflectedMetaTable, warnings: pytest.LogCaptureFixture, above: int
) -> None:
    """The next id is still 6, whether none, some or all rows were deleted."""
    remove(table_with_5_rows, above=above)
    assert restart_next_id(table_with_5_rows) is None
    assert warnings.records == []


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_truncated_table_with_restarted_ids_is_reported(
    table_with_5_rows: ReflectedMetaTable, rows: int
) -> None:
    restart(table_with_5_rows)
    add(table_with_5_rows, rows)
    assert restart_next_id(table_with_5_rows) == rows + 1


def test_restarted_table_that_grew_past_bookmark_passes(
    table_with_5_rows: ReflectedMetaTable,
) -> None:
    """Rows below the bookmark are left to an audit."""
    restart(table_with_5_rows)
    add(table_with_5_rows, 5)
    assert restart_next_id(table_with_5_rows) is None


def test_recreated_table_is_reported(table_with_5_rows: ReflectedMetaTable) -> None:
    dialect = table_with_5_rows.engine.dialect.name
    drop = "DROP TABLE ops.files" if dialect == "postgresql" else "DROP TABLE files"
    execute(table_with_5_rows.engine, drop, RECREATE[dialect])
    add(table_with_5_rows, 2)
    assert restart_next_id(table_with_5_rows) == 3


def test_explicit_ids_warn_once_per_job(
    files: ReflectedMetaTable, warnings: pytest.LogCaptureFixture
) -> None:
    insert(files, {1: 1, 2: 1})
    for _ in range(3):
        assert restart_next_id(files, "copied") is None
        assert restart_next_id(files, "copied too") is None
    assert [record.getMessage().split(":")[0] for record in warnings.records] == [
        "copied",
        "copied too",
    ]
    assert "the database would assign 1 next" in warnings.text


def test_unreadable_sequence_warns(
    files: ReflectedMetaTable, warnings: pytest.LogCaptureFixture
) -> None:
    """The warning names the missing grant; with the grant the restart is detected."""
    grant = "GRANT SELECT ON {} TO sequence_reader"
    with new_role(files.engine, "sequence_reader", grant.format("ops.files")) as reader:
        table = ReflectedMetaTable.open(reader, "ops.files", FILES)
        assert restart_next_id(table, "of a reader") is None
        assert "ops.files_id_seq may not be read: grant SELECT" in warnings.text
        execute(files.engine, grant.format("SEQUENCE ops.files_id_seq"))
        assert restart_next_id(table, "of a reader") == 1


def test_sequence_not_owned_by_table_is_checked(postgres: sa.Engine) -> None:
    """The sequence has a quoted name and an increment."""
    execute(
        postgres,
        'CREATE SEQUENCE ops."the Ids" INCREMENT 10',
        "CREATE TABLE ops.files (id bigint PRIMARY KEY DEFAULT nextval('ops.\"the Ids\"'), "
        "file_location text, size_in_bytes bigint)",
    )
    table = ReflectedMetaTable.open(postgres, "ops.files", FILES)
    add(table, 2)
    execute(postgres, "TRUNCATE ops.files RESTART IDENTITY")
    assert restart_next_id(table, planned_up_to=11) is None
    execute(postgres, 'ALTER SEQUENCE ops."the Ids" RESTART')
    assert restart_next_id(table, planned_up_to=11) == 1


def test_view_warns(files: ReflectedMetaTable, warnings: pytest.LogCaptureFixture) -> None:
    execute(files.engine, "CREATE VIEW ops.recent AS SELECT * FROM ops.files")
    view = ReflectedMetaTable.open(files.engine, "ops.recent", FILES)
    assert restart_next_id(view, "of a view") is None
    assert "it is a view" in warnings.text


def test_sqlite_without_autoincrement_reuses_id_and_is_reported(
    sqlite: sa.Engine,
) -> None:
    """A new row would be skipped otherwise."""
    execute(sqlite, "DROP TABLE files")
    execute(
        sqlite,
        "CREATE TABLE files (id INTEGER PRIMARY KEY, file_location TEXT, size_in_bytes BIGINT)",
    )
    table = ReflectedMetaTable.open(sqlite, "files", FILES)
    add(table, 5)
    assert restart_next_id(table) is None
    remove(table, above=4)
    assert restart_next_id(table) == 5
    remove(table, above=0)
    assert restart_next_id(table) == 1


def test_sqlite_key_without_rowid_alias_warns(
    sqlite: sa.Engine, warnings: pytest.LogCaptureFixture
) -> None:
    execute(sqlite, "DROP TABLE files")
    execute(
        sqlite,
        "CREATE TABLE files (id BIGINT PRIMARY KEY NOT NULL, file_location TEXT, "
        "size_in_bytes BIGINT)",
    )
    table = ReflectedMetaTable.open(sqlite, "files", FILES)
    assert restart_next_id(table, "by hand") is None
    assert "ids of id are not assigned by SQLite" in warnings.text


def test_acquire_from_restarted_table_raises_and_changes_nothing(
    meta_table: Database,
) -> None:
    """It works again once ids are above the bookmark."""
    rows = "INSERT INTO meta_table (file, size_in_mib) SELECT 'f', 1 FROM generate_series(1, 5)"
    execute(meta_table.engine, rows)
    assert list(drained()) == [(1, 5)]
    execute(meta_table.engine, "DELETE FROM meta_table WHERE id > 3")
    assert acquire_or_none() is None
    execute(meta_table.engine, "DROP TABLE meta_table", CREATE_META_TABLE, rows[:-2] + "2)")
    with pytest.raises(
        MetaTableRestartedError, match=r"'job' has planned its ids up to 5, .* will be 3"
    ):
        acquire_or_none()
    execute(meta_table.engine, "ALTER TABLE meta_table ALTER id RESTART WITH 6", rows)
    assert list(drained()) == [(6, 10)]
