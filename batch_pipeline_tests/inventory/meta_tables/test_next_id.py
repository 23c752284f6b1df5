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
    FILES,
    delete,
    execute,
    insert,
    new_role,
)

RESTART = {
    "postgresql": ["TRUNCATE ops.files RESTART IDENTITY"],
    "sqlite": ["DELETE FROM files", "DELETE FROM sqlite_sequence"],
    "mysql": ["TRUNCATE files"],
}


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


def test_deleted_rows_are_no_restart(
    any_table: ReflectedMetaTable, warnings: pytest.LogCaptureFixture
) -> None:
    """The next id is still 6, whether none, some or all rows were deleted."""
    add(any_table, 5)
    for above in (5, 3, 0):
        delete(any_table, any_table.uid > above)
        assert restart_next_id(any_table) is None
    assert warnings.records == []


def test_truncated_table_with_restarted_ids_is_reported(any_table: ReflectedMetaTable) -> None:
    """Until it has grown past the bookmark; then the rows below are left to an audit."""
    add(any_table, 5)
    execute(any_table.engine, *RESTART[any_table.engine.dialect.name])
    for next_id in (1, 2, 3, 4, 5, None):
        assert restart_next_id(any_table) == next_id
        add(any_table, 1)


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
        step = "grant SELECT on it (and USAGE on its schema)"
        assert f"ops.files_id_seq may not be read: {step}" in warnings.text
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


def test_sqlite_without_autoincrement_reuses_id_and_is_reported(sqlite: sa.Engine) -> None:
    """A new row would be skipped otherwise."""
    table = sqlite_table(sqlite, "id INTEGER PRIMARY KEY")
    add(table, 5)
    assert restart_next_id(table) is None
    for above in (4, 0):
        delete(table, table.uid > above)
        assert restart_next_id(table) == above + 1


def sqlite_table(sqlite: sa.Engine, uid: str) -> ReflectedMetaTable:
    """Create the table `files` again, with another definition of its ids."""
    columns = f"{uid}, file_location TEXT, size_in_bytes BIGINT"
    execute(sqlite, "DROP TABLE files", f"CREATE TABLE files ({columns})")
    return ReflectedMetaTable.open(sqlite, "files", FILES)


def test_sqlite_key_without_rowid_alias_warns(
    sqlite: sa.Engine, warnings: pytest.LogCaptureFixture
) -> None:
    table = sqlite_table(sqlite, "id BIGINT PRIMARY KEY NOT NULL")
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
