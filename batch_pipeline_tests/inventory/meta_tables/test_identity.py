"""What identifies a job besides its name and table: the columns it reads, and their database."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import batch_pipeline
from batch_pipeline import (
    acquire_batch,
    audit_job,
    client,
    estimate_backfill,
    job_status,
    plan_backfill,
)
from batch_pipeline.client.session import SESSIONS
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.connection import open_meta_engine
from batch_pipeline.inventory.meta_tables.sources import MetaSources, UserMetaTable
from batch_pipeline.model.errors import JobChangedError
from batch_pipeline.model.stream import TableSource
from batch_pipeline_tests.client.client_tables import (
    COLUMNS,
    CREATE_META_TABLE,
    acquire_or_none,
    acquired,
    files,
    fill_evenly,
)
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.logins import copied, name_of
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute, meta_engine, recorded
from batch_pipeline_tests.seeds import execute as run
from batch_pipeline_tests.seeds import query

CONFIG = "SELECT config FROM batch_pipeline.job WHERE name = 'job'"
OTHER_COLUMNS = """
ALTER TABLE meta_table ADD seq2 bigint, ADD note text, ADD lines bigint DEFAULT 1;
UPDATE meta_table SET seq2 = 11 - id;
ALTER TABLE meta_table ALTER seq2 SET NOT NULL, ADD UNIQUE (seq2)
"""
NO_SYSTEM = "REVOKE EXECUTE ON FUNCTION pg_control_system FROM PUBLIC"
GRANTS = "CREATE ROLE guest_of_files LOGIN; GRANT SELECT ON meta_table TO guest_of_files"
CREATE_SQLITE = """
CREATE TABLE meta_table (id INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT, size_in_mib BIGINT)
"""
USES: dict[str, Callable[..., object]] = {
    "acquire": lambda columns: acquire_batch("job", "meta_table", columns, ceiling="registrar"),
    "status": lambda columns: job_status("job", "meta_table", columns, ceiling="registrar"),
    "plan": lambda columns: plan_backfill("old", "meta_table", columns, ceiling="registrar"),
    "estimate": lambda columns: estimate_backfill(
        "old", "meta_table", columns, ceiling="registrar"
    ),
    "acquire planned": lambda columns: acquire_batch(
        "old", "meta_table", columns, ceiling="registrar"
    ),
}


def _forgotten(database: Database) -> None:
    """Leave the jobs as an earlier release made them, for a process that starts afterwards."""
    run(database, "UPDATE batch_pipeline.job SET config = config - 'columns' - 'database'")
    client.configure(settings=SESSIONS.current().settings.model_dump())


def documented_statements() -> list[str]:
    """Return the statements that the page on meta tables names for a meta table that moved."""
    page = Path(batch_pipeline.__file__).parent / "docs/reference/meta_tables.md"
    section = page.read_text(encoding="utf-8").split("## Moving a meta table")[1].split("\n## ")[0]
    return re.findall(r"```sql\n(.+?)```", section, re.DOTALL)


@pytest.fixture
def ten(meta_table: Database) -> Database:
    """Ten files of 10 MiB, of which `job` has acquired four, and the backfill `old` has all."""
    fill_evenly(meta_table.engine, 10)
    run(meta_table, OTHER_COLUMNS)
    acquired(batch_count=4).succeeded()
    plan_backfill("old", "meta_table", COLUMNS)
    return meta_table


@pytest.fixture
def move(database_url: str, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Configure a SQLite file with a table of ten rows as the database of meta tables."""

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


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("role", "name"), [("uid", "seq2"), ("item", "note"), ("weight", "lines"), ("weight", None)]
)
def test_job_with_another_column_is_refused(
    ten: Database, use: str, role: str, name: str | None
) -> None:
    with pytest.raises(JobChangedError) as caught:
        USES[use](COLUMNS | {role: name})
    message = str(caught.value)
    assert f"its {role} column is {COLUMNS[role]!r}, and now {name!r}" in message
    assert "another name for the job" in message
    assert acquired().items == files(5, 10)


def test_job_with_its_table_in_another_database_is_refused(
    database: Database, move: Callable[[str], None]
) -> None:
    move("a.db")
    acquired(batch_count=4).succeeded()
    move("b.db")
    with pytest.raises(JobChangedError) as caught:
        acquire_or_none()
    assert "a.db" in str(caught.value)
    assert "b.db" in str(caught.value)
    assert "docs/reference/meta_tables.md" in str(caught.value)
    move("a.db")
    assert acquired().items == files(5, 10)


def test_job_of_an_earlier_release_adopts_its_table_at_the_next_use(ten: Database) -> None:
    (stored,) = query(ten, CONFIG)
    _forgotten(ten)
    acquired(batch_count=2).succeeded()
    assert query(ten, CONFIG) == [stored]
    assert stored[0] == {"columns": COLUMNS, "database": "inventory"}


def test_job_of_an_earlier_release_adopts_the_columns_of_its_batches(ten: Database) -> None:
    _forgotten(ten)
    with pytest.raises(JobChangedError, match="its uid column is 'id'"):
        acquire_batch("job", "meta_table", COLUMNS | {"uid": "seq2"}, ceiling="registrar")
    assert acquired().items == files(5, 10)


def test_audit_of_a_job_that_used_two_id_columns_reports_it_and_plans_nothing(
    ten: Database,
) -> None:
    _forgotten(ten)
    cut_by_other_ids = {"meta_table": {"cols": COLUMNS | {"uid": "seq2"}}}
    acquired(batch_count=2).succeeded()
    run(
        ten,
        "UPDATE batch_pipeline.batch SET config = config || CAST(:config AS jsonb) "
        "WHERE id = (SELECT max(id) FROM batch_pipeline.batch)",
        config=json.dumps(cut_by_other_ids),
    )
    audit = audit_job("job")
    assert not audit.is_clean
    assert "ids of several columns ('id', 'seq2')" in audit.sentence()
    assert (audit.batches, audit.late_batches) == (0, 0)


def test_audit_of_a_job_whose_database_changed_reports_it_and_plans_nothing(
    database: Database, move: Callable[[str], None]
) -> None:
    move("a.db")
    acquired(batch_count=4).succeeded()
    move("b.db")
    audit = audit_job("job")
    assert not audit.is_clean
    assert "a.db" in audit.sentence()
    assert (audit.batches, audit.late_batches) == (0, 0)
    move("a.db")
    assert audit_job("job").is_clean


def test_job_goes_on_when_the_documented_statement_forgets_its_database(
    database: Database, move: Callable[[str], None]
) -> None:
    move("a.db")
    acquired(batch_count=4).succeeded()
    move("b.db")
    for statement in documented_statements()[:1]:
        run(database, statement.replace("ops.files", "main.meta_table"))
    assert acquired(batch_count=2).items == files(5, 6)
    move("a.db")
    with pytest.raises(JobChangedError, match=r"b\.db"):
        acquire_or_none()


def test_job_goes_on_when_the_documented_statement_renames_its_column(ten: Database) -> None:
    run(ten, "ALTER TABLE meta_table RENAME file TO file_location")
    renamed = COLUMNS | {"item": "file_location"}
    with pytest.raises(JobChangedError, match="its item column is 'file'"):
        acquire_batch("job", "meta_table", renamed)
    run(ten, documented_statements()[1].replace("ops.files", "public.meta_table"))
    batch = acquire_batch("job", "meta_table", renamed)
    assert batch is not None
    assert batch.items == files(5, 10)


def test_job_in_the_inventorys_database_survives_a_restore_elsewhere(
    ten: Database, server_url: str
) -> None:
    url = ten.engine.url.render_as_string(hide_password=False)
    ten.close()
    client.close()
    with copied(server_url, name_of(url)) as restored:
        client.configure(settings={"inventory_conn": restored})
        assert acquired().items == files(5, 10)
        client.close()


def test_database_is_the_same_by_another_login_and_url(
    ten: Database, database_url: str, empty_database_url: str
) -> None:
    run(ten, "DROP ROLE IF EXISTS other_login; CREATE ROLE other_login LOGIN SUPERUSER")
    with meta_engine(empty_database_url) as engine:
        execute(engine, CREATE_META_TABLE)
        fill_evenly(engine, 10)
    others = (
        empty_database_url,
        empty_database_url.replace("postgres@", "other_login:unused@"),
        empty_database_url + "&application_name=other",
    )
    for meta_conn in others:
        client.configure(settings={"inventory_conn": database_url, "meta_conn": meta_conn})
        acquired("elsewhere", batch_count=2).succeeded()
    stored = str(query(ten, "SELECT config FROM batch_pipeline.job WHERE name = 'elsewhere'"))
    assert "system" in stored
    assert "unused" not in stored
    client.close()
    run(ten, "DROP ROLE other_login")


def test_database_of_a_role_that_may_not_ask_for_the_system_is_known_by_its_name(
    ten: Database, database_url: str, empty_database_url: str
) -> None:
    with meta_engine(empty_database_url) as engine:
        execute(engine, CREATE_META_TABLE, NO_SYSTEM, GRANTS)
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
    ((config,),) = query(ten, "SELECT config FROM batch_pipeline.job WHERE name = 'elsewhere'")
    assert config["database"]["servers"] == []
    assert name_of(empty_database_url) in config["database"]["database"]


def test_stream_on_another_database_is_refused(
    database: Database, move: Callable[[str], None], tmp_path: Path
) -> None:
    for name in ("a.db", "b.db"):
        move(name)
    plans = []
    for name in ("a.db", "b.db"):
        engine = open_meta_engine(f"sqlite:///{tmp_path / name}")
        described = TableSource(
            table="meta_table",
            roots=("file:///",),
            uid="id",
            item="file",
            weight="size_in_mib",
        )
        plans.append(
            UserMetaTable(
                inventory=database.engine,
                sources=MetaSources(engine, database.engine),
                stream="orders",
                table_source=described,
            )
        )
    assert database.batches.plan(plans[0], limits(), drain=True).batches
    with pytest.raises(JobChangedError, match=r"a\.db"):
        database.batches.plan(plans[1], limits(), drain=True)


def test_acquire_asks_no_database_for_its_identity(ten: Database) -> None:
    acquired(batch_count=1).succeeded()
    engines = (SESSIONS.current().database.engine, SESSIONS.current()._pipeline.meta_engine)
    with recorded(engines[0]) as own, recorded(engines[1]) as meta:
        acquired(batch_count=1)
    assert not any("pg_database" in text or "pg_control" in text for text, _ in [*own, *meta])
    assert len([*own, *meta]) <= 2
