"""Job identity: spellings of names, columns, their database; text that cannot be stored."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import batch_pipeline
from batch_pipeline import (
    acquire_batch,
    audit_job,
    cancel_job,
    client,
    estimate_backfill,
    job_status,
    pause_job,
    plan_backfill,
    resume_job,
    retry_job,
)
from batch_pipeline.client.session import SESSIONS
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.connection import open_meta_engine
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSources, UserMetaTable
from batch_pipeline.model.errors import (
    InvalidValueError,
    JobChangedError,
    MetaTableError,
    UnknownJobError,
)
from batch_pipeline.model.stream import TableSource
from batch_pipeline_tests.cli.commands import invoke
from batch_pipeline_tests.client.client_tables import (
    COLUMNS,
    CREATE_META_TABLE,
    acquire_or_none,
    acquired,
    files,
    fill_evenly,
)
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.logins import copied_database, database_name
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    execute,
    meta_engine,
    record_statements,
)
from batch_pipeline_tests.seeds import execute as run
from batch_pipeline_tests.seeds import query

CONFIG = "SELECT config FROM batch_pipeline.job WHERE name = 'job'"
OTHER_COLUMNS = """
ALTER TABLE meta_table ADD seq2 bigint, ADD note text, ADD lines bigint DEFAULT 1;
UPDATE meta_table SET seq2 = 11 - id;
ALTER TABLE meta_table ALTER seq2 SET NOT NULL, ADD UNIQUE (seq2)
"""
REVOKE_CONTROL_SYSTEM = "REVOKE EXECUTE ON FUNCTION pg_control_system FROM PUBLIC"
GRANTS = "CREATE ROLE guest_of_files LOGIN; GRANT SELECT ON meta_table TO guest_of_files"
CREATE_SQLITE = """
CREATE TABLE meta_table (id INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT, size_in_mib BIGINT)
"""
USES: tuple[tuple[Callable[..., object], str], ...] = (
    (acquire_batch, "job"),
    (job_status, "job"),
    (plan_backfill, "old"),
    (estimate_backfill, "old"),
    (acquire_batch, "old"),
)


def _remove_identity(database: Database) -> None:
    """Change the jobs to the form that an earlier release stored, and start a new session."""
    run(database, "UPDATE batch_pipeline.job SET config = config - 'columns' - 'database'")
    client.configure(settings=SESSIONS.current().settings.model_dump())


def documented_statements() -> list[str]:
    """Return the documented statements for moving a meta table."""
    page = Path(batch_pipeline.__file__).parent / "docs/reference/meta_tables.md"
    section = page.read_text(encoding="utf-8").split("## Moving a meta table")[1].split("\n## ")[0]
    return re.findall(r"```sql\n(.+?)```", section, re.DOTALL)


@pytest.fixture
def ten_files(meta_table: Database) -> Database:
    """Ten files of 10 MiB: `job` has acquired four, the backfill `old` has all."""
    fill_evenly(meta_table.engine, 10)
    run(meta_table, OTHER_COLUMNS)
    acquired(batch_count=4).succeeded()
    plan_backfill("old", "meta_table", COLUMNS)
    return meta_table


@pytest.fixture
def use_sqlite_file(database_url: str, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Configure a SQLite file, with a table of ten rows, as the meta database."""

    def configure(name: str) -> None:
        file = tmp_path / name
        if not file.exists():
            with meta_engine(f"sqlite:///{file}") as engine:
                execute(engine, CREATE_SQLITE)
                fill_evenly(engine, 10)
        client.configure(
            settings={"inventory_conn": database_url, "meta_conn": f"sqlite:///{file}"}
        )

    yield configure
    client.close()


def test_job_with_other_column_is_rejected(ten_files: Database) -> None:
    others = (("uid", "seq2"), ("item", "note"), ("weight", "lines"), ("weight", None))
    for (use, job), (role, name) in product(USES, others):
        with pytest.raises(JobChangedError) as caught:
            use(job, "meta_table", COLUMNS | {role: name}, ceiling="registrar")
        message = str(caught.value)
        assert f"its {role} column is {COLUMNS[role]!r}, and now {name!r}" in message
        assert "another name for the job" in message
    assert acquired().items == files(5, 10)


def test_job_with_table_in_other_database_is_rejected(
    database: Database, use_sqlite_file: Callable[[str], None]
) -> None:
    """An audit reports it and plans nothing. The documented statement moves the job."""
    use_sqlite_file("a.db")
    acquired(batch_count=4).succeeded()
    use_sqlite_file("b.db")
    with pytest.raises(JobChangedError) as caught:
        acquire_or_none()
    assert "a.db" in str(caught.value)
    assert "b.db" in str(caught.value)
    assert "docs/reference/meta_tables.md" in str(caught.value)
    audit = audit_job("job")
    assert not audit.is_clean
    assert "a.db" in audit.sentence()
    assert (audit.batches, audit.late_batches) == (0, 0)
    use_sqlite_file("a.db")
    assert audit_job("job").is_clean
    assert acquired(batch_count=2).process(list) == files(5, 6)
    use_sqlite_file("b.db")
    run(database, documented_statements()[0].replace("ops.files", "main.meta_table"))
    assert acquired(batch_count=2).items == files(7, 8)
    use_sqlite_file("a.db")
    with pytest.raises(JobChangedError, match=r"b\.db"):
        acquire_or_none()


def test_job_of_earlier_release_takes_columns_from_its_batches(ten_files: Database) -> None:
    """It stores its identity at the next use."""
    (stored,) = query(ten_files, CONFIG)
    assert stored[0] == {"columns": COLUMNS, "database": "inventory"}
    _remove_identity(ten_files)
    with pytest.raises(JobChangedError, match="its uid column is 'id'"):
        acquire_batch("job", "meta_table", COLUMNS | {"uid": "seq2"}, ceiling="registrar")
    assert acquired().items == files(5, 10)
    assert query(ten_files, CONFIG) == [stored]


def test_audit_reports_two_id_columns_and_plans_nothing(ten_files: Database) -> None:
    _remove_identity(ten_files)
    cut_by_other_ids = {"meta_table": {"cols": COLUMNS | {"uid": "seq2"}}}
    acquired(batch_count=2).succeeded()
    run(
        ten_files,
        "UPDATE batch_pipeline.batch SET config = config || CAST(:config AS jsonb) "
        "WHERE id = (SELECT max(id) FROM batch_pipeline.batch)",
        config=json.dumps(cut_by_other_ids),
    )
    audit = audit_job("job")
    assert not audit.is_clean
    assert "ids of several columns ('id', 'seq2')" in audit.sentence()
    assert (audit.batches, audit.late_batches) == (0, 0)


def test_documented_statement_lets_job_continue_with_renamed_column(ten_files: Database) -> None:
    run(ten_files, "ALTER TABLE meta_table RENAME file TO file_location")
    renamed = COLUMNS | {"item": "file_location"}
    with pytest.raises(JobChangedError, match="its item column is 'file'"):
        acquire_batch("job", "meta_table", renamed)
    run(ten_files, documented_statements()[1].replace("ops.files", "public.meta_table"))
    batch = acquire_batch("job", "meta_table", renamed)
    assert batch is not None
    assert batch.items == files(5, 10)


def test_job_in_inventory_database_survives_restore_elsewhere(
    ten_files: Database, server_url: str
) -> None:
    url = ten_files.engine.url.render_as_string(hide_password=False)
    ten_files.close()
    client.close()
    with copied_database(server_url, database_name(url)) as restored:
        client.configure(settings={"inventory_conn": restored})
        assert acquired().items == files(5, 10)
        client.close()


def test_other_login_and_url_are_same_database(
    ten_files: Database, database_url: str, empty_database_url: str
) -> None:
    run(ten_files, "DROP ROLE IF EXISTS other_login; CREATE ROLE other_login LOGIN SUPERUSER")
    with meta_engine(empty_database_url) as engine:
        execute(engine, CREATE_META_TABLE)
        fill_evenly(engine, 10)
    other_login = empty_database_url.replace("postgres@", "other_login:unused@")
    for meta_conn in (empty_database_url, f"{other_login}&application_name=other"):
        client.configure(settings={"inventory_conn": database_url, "meta_conn": meta_conn})
        acquired("elsewhere", batch_count=2).succeeded()
    stored = str(query(ten_files, "SELECT config FROM batch_pipeline.job WHERE name = 'elsewhere'"))
    assert "system" in stored
    assert "unused" not in stored
    client.close()
    run(ten_files, "DROP ROLE other_login")


def test_role_without_control_system_identifies_database_by_name(
    ten_files: Database, database_url: str, empty_database_url: str
) -> None:
    with meta_engine(empty_database_url) as engine:
        execute(engine, CREATE_META_TABLE, REVOKE_CONTROL_SYSTEM, GRANTS)
        fill_evenly(engine, 10)
        settings = {
            "inventory_conn": database_url,
            "meta_conn": empty_database_url.replace("postgres@", "guest_of_files@"),
        }
        client.configure(settings=settings)
        for _ in range(2):
            acquired("elsewhere", batch_count=2).succeeded()
        client.close()
        execute(engine, "DROP OWNED BY guest_of_files; DROP ROLE guest_of_files")
    ((config,),) = query(
        ten_files, "SELECT config FROM batch_pipeline.job WHERE name = 'elsewhere'"
    )
    assert config["database"]["servers"] == []
    assert database_name(empty_database_url) in config["database"]["database"]


def test_stream_on_other_database_is_rejected(
    database: Database, use_sqlite_file: Callable[[str], None], tmp_path: Path
) -> None:
    described = TableSource(
        table="meta_table", roots=("file:///",), uid="id", item="file", weight="size_in_mib"
    )
    tables = []
    for name in ("a.db", "b.db"):
        use_sqlite_file(name)
        engine = open_meta_engine(f"sqlite:///{tmp_path / name}")
        table = UserMetaTable(
            inventory=database.engine,
            sources=MetaSources(engine, database.engine),
            stream="orders",
            table_source=described,
        )
        tables.append(table)
    assert database.batches.plan(tables[0], limits(), drain=True).batches
    with pytest.raises(JobChangedError, match=r"a\.db"):
        database.batches.plan(tables[1], limits(), drain=True)


def test_acquire_does_not_query_database_identity(ten_files: Database) -> None:
    acquired(batch_count=1).succeeded()
    engines = (SESSIONS.current().database.engine, SESSIONS.current()._pipeline.meta_engine)
    with record_statements(engines[0]) as own, record_statements(engines[1]) as meta:
        acquired(batch_count=1)
    assert not any("pg_database" in text or "pg_control" in text for text, _ in [*own, *meta])
    assert len([*own, *meta]) <= 2


CALLS: dict[str, Callable[[str], object]] = {
    "job_identifier": lambda text: acquire_batch("job", "meta_table", COLUMNS, job_identifier=text),
    "job": lambda text: acquire_batch(text, "meta_table", COLUMNS),
    "job of status": lambda text: job_status(text, "meta_table", COLUMNS),
    "where": lambda text: acquire_batch(
        "job", "meta_table", COLUMNS, where=[{"column": "file", "operator": "=", "value": text}]
    ),
    "reason": lambda text: pause_job("known", text),
    "paused": pause_job,
    "cancelled": cancel_job,
    "retried": retry_job,
}


@pytest.fixture
def known_job(meta_table: Database) -> Database:
    """A job `known` that has acquired a batch of `meta_table`."""
    fill_evenly(meta_table.engine, 4)
    acquired("known", batch_count=1).succeeded()
    return meta_table


@pytest.mark.usefixtures("known_job")
def test_text_that_cannot_be_stored_is_rejected() -> None:
    for call in CALLS.values():
        for text in ("a\0b", "a\ud800b"):
            with pytest.raises(InvalidValueError) as caught:
                call(text)
            assert repr(text) in str(caught.value)


def test_any_spelling_of_table_name_finds_job(known_job: Database) -> None:
    spelled = 'PUBLIC."meta_table"'
    pause_job("known", "by the library", spelled)
    resume_job("known", spelled)
    url = known_job.engine.url.render_as_string(hide_password=False)
    environment = {"BATCH_PIPELINE_INVENTORY_CONN": url}
    for command in ("pause", "list", "resume", "retry", "cancel"):
        words = ["jobs", command, "known", "--meta-table", spelled]
        done = invoke(*words, env=environment)
        assert done.exit_code == 0, done.output


def test_nonexistent_table_raises_unknown_job(known_job: Database) -> None:
    with pytest.raises(UnknownJobError, match="jobs: known"):
        pause_job("known", meta_table_name="public.others")
    assert query(known_job, "SELECT paused_at FROM batch_pipeline.job") == [(None,)]


@pytest.mark.parametrize(("uid", "rows"), [("high", 1), (1.5, 3)])
def test_non_integer_sqlite_id_is_rejected(sqlite: sa.Engine, uid: Any, rows: int) -> None:
    execute(sqlite, "CREATE TABLE odd (uid BIGINT NOT NULL UNIQUE, item TEXT, weight BIGINT)")
    for value in (uid, *range(1, rows)):
        execute(sqlite, "INSERT INTO odd VALUES (:uid, 'file', 1)", uid=value)
    with pytest.raises(MetaTableError, match=f"the id {uid!r} is not an integer"):
        ReflectedMetaTable.open(sqlite, "odd", MetaColumns()).next_cut(None, 10, limits())
