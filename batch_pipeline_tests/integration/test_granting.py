"""`migrate --roles`: by whom it can be run, what it leaves, and what it says when it may not."""

from contextlib import closing
from functools import partial
from uuid import uuid4

import pytest
from click.testing import CliRunner

from batch_pipeline.cli import cli
from batch_pipeline.domain.errors import (
    InvalidValueError,
    PermissionDeniedError,
    RoleRightsError,
)
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.upkeep.migrate import REVISION
from batch_pipeline.inventory.upkeep.roles import script
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.integration.logins import create_login, name_of, run, url_of
from batch_pipeline_tests.integration.seeds import plan, query, register

OWNERS = """
SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class
 WHERE relnamespace = 'batch_pipeline'::regnamespace AND relkind IN ('r', 'v', 'S')
 UNION SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'batch_pipeline'
"""
RIGHTS = """
SELECT relname, relacl::text FROM pg_class
 WHERE relnamespace = 'batch_pipeline'::regnamespace AND relkind IN ('r', 'v')
 UNION ALL
SELECT attrelid::regclass || '.' || attname, attacl::text FROM pg_attribute
 WHERE attacl IS NOT NULL AND attrelid::regclass::text LIKE 'batch\\_pipeline.%'
 ORDER BY 1
"""


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test uses: roles belong to the whole server."""
    return f"p{uuid4().hex[:12]}"


def _admin(url: str) -> closing[Database]:
    return closing(open_database(url, migrated=None))


def test_migrate_with_roles_gives_all_to_the_owner(empty_database_url: str, prefix: str) -> None:
    """Expect every table, sequence and view, and the schema, to be the owner group's."""
    with _admin(empty_database_url) as database:
        assert database.migrate(role_prefix=prefix) == ("none", REVISION)
        assert query(database, OWNERS) == [(f"{prefix}_owner",)]
        logins = "SELECT FROM pg_roles WHERE rolcanlogin AND starts_with(rolname, :prefix)"
        assert query(database, logins, prefix=prefix) == []


def test_migrate_with_roles_again_changes_nothing(empty_database_url: str, prefix: str) -> None:
    """Expect the same rights after a second run, and none of those that somebody added since."""
    with _admin(empty_database_url) as database:
        database.migrate(role_prefix=prefix)
        granted = query(database, RIGHTS)
        run(empty_database_url, f"GRANT DELETE ON batch_pipeline.item TO {prefix}_worker, PUBLIC")
        run(empty_database_url, f"GRANT UPDATE (id) ON batch_pipeline.item TO {prefix}_reader")
        assert query(database, RIGHTS) != granted
        assert database.migrate(role_prefix=prefix) == (REVISION, REVISION)
        assert query(database, RIGHTS) == granted


def test_migrate_with_roles_by_a_login_that_may_create_roles(
    empty_database_url: str, prefix: str
) -> None:
    """Expect the owner of a database to need CREATEROLE and no superuser, from the first table."""
    create_login(empty_database_url, f"{prefix}_dba", rights="CREATEROLE")
    run(empty_database_url, f"ALTER DATABASE {name_of(empty_database_url)} OWNER TO {prefix}_dba")
    with _admin(url_of(empty_database_url, f"{prefix}_dba")) as database:
        assert database.migrate(role_prefix=prefix) == ("none", REVISION)
        assert query(database, OWNERS) == [(f"{prefix}_owner",)]
        assert database.migrate(role_prefix=prefix) == (REVISION, REVISION)


def test_migrate_with_roles_without_createrole_names_the_statement(
    empty_database_url: str, prefix: str
) -> None:
    """Expect nothing to be left of the try, and the printed script to make it succeed."""
    create_login(empty_database_url, f"{prefix}_dev")
    name = name_of(empty_database_url)
    run(empty_database_url, f"ALTER DATABASE {name} OWNER TO {prefix}_dev")
    with _admin(url_of(empty_database_url, f"{prefix}_dev")) as database:
        with pytest.raises(RoleRightsError) as caught:
            database.migrate(role_prefix=prefix)
        assert caught.value.statement == f'CREATE ROLE "{prefix}_owner" NOLOGIN'
        assert "--roles PREFIX --print" in str(caught.value)
        assert query(database, "SELECT to_regnamespace('batch_pipeline')") == [(None,)]
        database.migrate()
        run(empty_database_url, script(prefix))
        with pytest.raises(PermissionDeniedError):
            database.meta_table("orders").ceiling()
        run(empty_database_url, f"GRANT {prefix}_owner TO {prefix}_dev")
        assert database.migrate(role_prefix=prefix) == (REVISION, REVISION)
        assert query(database, OWNERS) == [(f"{prefix}_owner",)]


def test_migrate_with_roles_of_somebody_elses_inventory_is_refused(
    database_url: str, prefix: str
) -> None:
    """Expect a login that may create roles but owns nothing to leave neither roles nor rights."""
    create_login(database_url, f"{prefix}_guest", rights="CREATEROLE")
    run(database_url, f"GRANT USAGE ON SCHEMA batch_pipeline TO {prefix}_guest")
    run(database_url, f"GRANT SELECT ON batch_pipeline.alembic_version TO {prefix}_guest")
    with _admin(url_of(database_url, f"{prefix}_guest")) as database:
        with pytest.raises(RoleRightsError, match="must be owner of schema batch_pipeline"):
            database.migrate(role_prefix=prefix)
        made = "SELECT rolname FROM pg_roles WHERE starts_with(rolname, :prefix)"
        assert query(database, made, prefix=prefix) == [(f"{prefix}_guest",)]


@pytest.mark.parametrize("prefix", ["", "Team", "a-b", "1st", 'x"; DROP ROLE y', "a" * 56, "ä"])
def test_role_prefix_that_is_no_plain_name_is_refused(database: Database, prefix: str) -> None:
    """Expect nothing that would have to be quoted, and nothing that the server would cut off."""
    for refused in (script, lambda wrong: database.migrate(role_prefix=wrong)):
        with pytest.raises(InvalidValueError, match="--roles is"):
            refused(prefix)


def test_script_makes_what_migrate_makes(
    empty_database_url: str, database_url: str, prefix: str
) -> None:
    """Expect the printed statements, run twice, to leave the same rights as the command."""
    with _admin(empty_database_url) as database:
        database.migrate(role_prefix=prefix)
        granted = query(database, RIGHTS)
    for _ in range(2):
        run(database_url, script(prefix))
    with _admin(database_url) as database:
        assert query(database, RIGHTS) == granted


def test_migrate_command_grants_and_prints(empty_database_url: str, prefix: str) -> None:
    """Expect the printed SQL to be the script, and the command to say whom it gave rights."""
    environment = {"BATCH_PIPELINE_INVENTORY_CONN": empty_database_url}
    migrate = partial(CliRunner().invoke, cli, env=environment, catch_exceptions=False)
    printed = migrate(["migrate", "--roles", prefix, "--print"])
    assert printed.output == script(prefix)
    with _admin(empty_database_url) as database:
        assert query(database, "SELECT to_regnamespace('batch_pipeline')") == [(None,)]
        done = migrate(["migrate", "--roles", prefix])
        assert f"went from revision none to {REVISION}." in done.output
        assert f"{prefix}_owner, {prefix}_planner, {prefix}_worker, {prefix}_reader." in done.output
        assert query(database, OWNERS) == [(f"{prefix}_owner",)]
    assert migrate(["migrate", "--print"]).exit_code == 2


def test_inventory_with_an_empty_search_path_is_made_and_used(empty_database_url: str) -> None:
    """Expect every statement of migrations and of planning to name its schema."""
    name = name_of(empty_database_url)
    run(empty_database_url, f"ALTER DATABASE {name} SET search_path = ''")
    with closing(open_database(empty_database_url, migrated=True)) as database:
        register(database, 3)
        assert len(plan(database, limits(max_count=3))) == 1
