"""Meta tables whose ids start again are reported, those that merely lost rows are not."""

import logging
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import check_not_restarted
from batch_pipeline.model.errors import MetaTableRestartedError
from batch_pipeline_tests.client.client_tables import CREATE_META_TABLE, acquire_or_none, drained
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    MARIADB,
    execute,
    insert,
)

TABLES = ["files", "sqlite_files", *(["mariadb_files"] if MARIADB else [])]
RESTART = {
    "postgresql": ["TRUNCATE ops.files RESTART IDENTITY"],
    "sqlite": ["DELETE FROM files", "DELETE FROM sqlite_sequence"],
    "mysql": ["TRUNCATE files"],
}
MAKE_AGAIN = {
    "postgresql": CREATE_FILES,
    "sqlite": "CREATE TABLE files (id INTEGER PRIMARY KEY AUTOINCREMENT, file_location TEXT, "
    "size_in_bytes BIGINT)",
    "mysql": "CREATE TABLE files (id BIGINT AUTO_INCREMENT PRIMARY KEY, "
    "file_location VARCHAR(500), size_in_bytes BIGINT)",
}


@pytest.fixture(params=TABLES)
def five(request: pytest.FixtureRequest) -> ReflectedMetaTable:
    """A meta table with ids 1 to 5, once in every database that there is."""
    table: ReflectedMetaTable = request.getfixturevalue(request.param)
    add(table, 5)
    return table


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What was warned of."""
    with caplog.at_level(logging.WARNING):
        yield caplog


def add(table: ReflectedMetaTable, rows: int) -> None:
    """Insert rows whose ids the database gives."""
    values = {"file_location": "f", "size_in_bytes": 1}
    for _ in range(rows):
        with table.engine.begin() as connection:
            connection.execute(sa.insert(table.table).values(values))


def remove(table: ReflectedMetaTable, *, above: int) -> None:
    """Delete the rows above an id."""
    with table.engine.begin() as connection:
        connection.execute(sa.delete(table.table).where(table.uid > above))


def restart(table: ReflectedMetaTable) -> None:
    """Empty a table so that its ids start again."""
    execute(table.engine, *RESTART[table.engine.dialect.name])


def problem(table: ReflectedMetaTable, job: str = "job", planned_up_to: int = 5) -> int | None:
    """Check, and give the next id when it is below what is planned."""
    try:
        check_not_restarted(table, job, planned_up_to)
    except MetaTableRestartedError as error:
        return error.next_id
    return None


@pytest.mark.parametrize("above", [5, 3, 0])
def test_table_that_lost_its_last_rows_has_not_restarted(
    five: ReflectedMetaTable, warnings: pytest.LogCaptureFixture, above: int
) -> None:
    """Expect nothing to be said when none, some or all rows were deleted: ids go on at 6."""
    remove(five, above=above)
    assert problem(five) is None
    assert warnings.records == []


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_truncated_table_whose_ids_start_again_is_reported(
    five: ReflectedMetaTable, rows: int
) -> None:
    """Expect the next id to be named, also while the table is empty."""
    restart(five)
    add(five, rows)
    assert problem(five) == rows + 1


def test_table_that_has_grown_past_the_bookmark_again_passes(five: ReflectedMetaTable) -> None:
    """Expect silence once new rows are acquired: what lies below is for an audit to find."""
    restart(five)
    add(five, 5)
    assert problem(five) is None


def test_table_dropped_and_made_again_is_reported(five: ReflectedMetaTable) -> None:
    """Expect a new table of the same name to be known by its low ids."""
    dialect = five.engine.dialect.name
    drop = "DROP TABLE ops.files" if dialect == "postgresql" else "DROP TABLE files"
    execute(five.engine, drop, MAKE_AGAIN[dialect])
    add(five, 2)
    assert problem(five) == 3


def test_table_filled_with_ids_of_its_own_is_warned_of_once_for_each_job(
    files: ReflectedMetaTable, warnings: pytest.LogCaptureFixture
) -> None:
    """Expect no error where the sequence is not what gives the ids, and one line for each job."""
    insert(files, {1: 1, 2: 1})
    for _ in range(3):
        assert problem(files, "copied") is None
        assert problem(files, "copied too") is None
    assert [record.getMessage().split(":")[0] for record in warnings.records] == [
        "copied",
        "copied too",
    ]
    assert "the database would give 1 next" in warnings.text


def test_sequence_that_may_not_be_read_is_warned_of(
    files: ReflectedMetaTable, warnings: pytest.LogCaptureFixture
) -> None:
    """Expect the grant that is missing to be named, and certainty once it is given."""
    engine, role = files.engine, "sequence_reader"
    execute(
        engine,
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA ops TO {role}",
        f"GRANT SELECT ON ops.files TO {role}",
    )
    reader = sa.create_engine(engine.url.set(username=role))
    try:
        table = ReflectedMetaTable.open(reader, "ops.files", FILES)
        assert problem(table, "of a reader") is None
        assert "ops.files_id_seq may not be read: grant SELECT" in warnings.text
        execute(engine, f"GRANT SELECT ON SEQUENCE ops.files_id_seq TO {role}")
        assert problem(table, "of a reader") == 1
    finally:
        reader.dispose()
        execute(engine, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_sequence_that_the_table_does_not_own_is_asked_too(postgres: sa.Engine) -> None:
    """Expect a default of a free sequence to count, also by a quoted name."""
    execute(
        postgres,
        'CREATE SEQUENCE ops."the Ids" INCREMENT 10',
        "CREATE TABLE ops.files (id bigint PRIMARY KEY DEFAULT nextval('ops.\"the Ids\"'), "
        "file_location text, size_in_bytes bigint)",
    )
    table = ReflectedMetaTable.open(postgres, "ops.files", FILES)
    add(table, 2)
    execute(postgres, "TRUNCATE ops.files RESTART IDENTITY")
    assert problem(table, planned_up_to=11) is None
    execute(postgres, 'ALTER SEQUENCE ops."the Ids" RESTART')
    assert problem(table, planned_up_to=11) == 1


def test_view_is_warned_of(files: ReflectedMetaTable, warnings: pytest.LogCaptureFixture) -> None:
    """Expect a view to be named as what does not tell its next id."""
    execute(files.engine, "CREATE VIEW ops.recent AS SELECT * FROM ops.files")
    view = ReflectedMetaTable.open(files.engine, "ops.recent", FILES)
    assert problem(view, "of a view") is None
    assert "it is a view" in warnings.text


def test_sqlite_without_autoincrement_gives_the_id_of_a_deleted_last_row_again(
    sqlite: sa.Engine,
) -> None:
    """Expect that to be reported: the next row would be passed over."""
    execute(sqlite, "DROP TABLE files")
    execute(
        sqlite,
        "CREATE TABLE files (id INTEGER PRIMARY KEY, file_location TEXT, size_in_bytes BIGINT)",
    )
    table = ReflectedMetaTable.open(sqlite, "files", FILES)
    add(table, 5)
    assert problem(table) is None
    remove(table, above=4)
    assert problem(table) == 5
    remove(table, above=0)
    assert problem(table) == 1


def test_sqlite_with_ids_given_by_hand_is_warned_of(
    sqlite: sa.Engine, warnings: pytest.LogCaptureFixture
) -> None:
    """Expect a key that is no rowid to tell nothing."""
    execute(sqlite, "DROP TABLE files")
    execute(
        sqlite,
        "CREATE TABLE files (id BIGINT PRIMARY KEY NOT NULL, file_location TEXT, "
        "size_in_bytes BIGINT)",
    )
    table = ReflectedMetaTable.open(sqlite, "files", FILES)
    assert problem(table, "by hand") is None
    assert "ids of id are not given by SQLite" in warnings.text


def test_acquiring_from_a_restarted_table_is_refused_and_leaves_all_as_it_was(
    meta_table: Database,
) -> None:
    """Expect new rows below the bookmark to be an error and not silence, until ids are above."""
    rows = "INSERT INTO meta_table (file, size_in_mib) SELECT 'f', 1 FROM generate_series(1, 5)"
    execute(meta_table.engine, rows)
    assert list(drained()) == [(1, 5)]
    execute(meta_table.engine, "DELETE FROM meta_table WHERE id > 3")
    assert acquire_or_none() is None
    execute(meta_table.engine, "DROP TABLE meta_table", CREATE_META_TABLE, rows[:-2] + "2)")
    with pytest.raises(
        MetaTableRestartedError, match=r"'job' has planned its ids up to 5, .* is 3"
    ):
        acquire_or_none()
    execute(meta_table.engine, "ALTER TABLE meta_table ALTER id RESTART WITH 6", rows)
    assert list(drained()) == [(6, 10)]
