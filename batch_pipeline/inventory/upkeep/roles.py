"""Making the four group roles of the inventory, and granting each no more than it needs.

Nothing here opens a connection of its own. Ids come from identity columns and locks are advisory,
so no role needs a right on a sequence or a function.
"""

import re
from collections.abc import Iterable, Iterator

import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import exc

from batch_pipeline.domain.errors import InvalidValueError, RoleRightsError
from batch_pipeline.inventory.server.engine import location
from batch_pipeline.inventory.tables import SCHEMA
from batch_pipeline.inventory.upkeep.rights import RIGHTS, Role

_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,54}")
_INSUFFICIENT_PRIVILEGE = "42501"


def make_roles(connection: sa.Connection, prefix: str) -> None:
    """Create the group roles that are missing and make the login a member of the owner.

    Raises:
        InvalidValueError: the prefix cannot begin a role's name.
        RoleRightsError: the login may not.
    """
    _check(prefix)
    roles = {role.named(prefix) for role in Role}
    known = sa.text("SELECT rolname FROM pg_catalog.pg_roles WHERE rolname = ANY (:names)")
    there = set(connection.execute(known, {"names": sorted(roles)}).scalars())
    _run(connection, [_create(name) for name in sorted(roles - there)])
    owner = Role.OWNER.named(prefix)
    usable = sa.select(sa.func.pg_has_role(sa.func.current_user(), owner, "USAGE"))
    if not connection.execute(usable).scalar_one():
        _run(connection, [sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(owner))])


def grant(connection: sa.Connection, prefix: str) -> None:
    """Give everything to the owner and each group its rights, no more than these.

    Raises:
        RoleRightsError: the login may not.
    """
    _run(connection, grants(prefix))


def grants(prefix: str) -> list[sql.Composed]:
    """Compose the statements that give the inventory to its owner and the rights to the others.

    Running them again changes nothing; rights that an earlier release gave are taken back.

    Raises:
        InvalidValueError: the prefix cannot begin a role's name.
    """
    _check(prefix)
    schema = sql.Identifier(SCHEMA)
    others = sql.SQL(", ").join(
        sql.Identifier(role.named(prefix)) for role in Role if role is not Role.OWNER
    )
    return [
        _give_to(Role.OWNER.named(prefix)),
        sql.SQL("REVOKE ALL ON SCHEMA {} FROM PUBLIC, {}").format(schema, others),
        sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA {} FROM PUBLIC, {}").format(schema, others),
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, others),
        *(
            sql.SQL("GRANT {} ON {} TO {}").format(
                privileges, sql.Identifier(SCHEMA, table), sql.Identifier(role.named(prefix))
            )
            for role in Role
            for table, privileges in _privileges(role)
        ),
    ]


def script(prefix: str) -> str:
    """Write down all statements for an administrator who runs them in place of this program.

    Raises:
        InvalidValueError: the prefix cannot begin a role's name.
    """
    _check(prefix)
    creations = [_create_unless_there(role.named(prefix)) for role in Role]
    statements = (text.as_string(None) for text in (*creations, *grants(prefix)))
    return "".join(f"{text};\n" for text in ("BEGIN", *statements, "COMMIT"))


def _check(prefix: str) -> None:
    if _PREFIX.fullmatch(prefix) is None:
        expected = "small letters, digits and _, not beginning with a digit, at most 55"
        raise InvalidValueError("--roles", prefix, expected)


def _run(connection: sa.Connection, statements: Iterable[sql.Composed]) -> None:
    for statement in statements:
        text = statement.as_string(None)
        try:
            connection.execution_options(no_parameters=True).exec_driver_sql(text)
        except exc.ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
                raise
            reason = str(error.orig).strip().splitlines()[0]
            raise RoleRightsError(location(connection.engine), text, reason) from error


def _create(name: str) -> sql.Composed:
    return sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(name))


def _create_unless_there(name: str) -> sql.Composed:
    return sql.SQL(
        "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {}) "
        "THEN {}; END IF; END $$"
    ).format(sql.Literal(name), _create(name))


def _give_to(owner: str) -> sql.Composed:
    # Changing an owner waits for everybody, so what the owner has already is left alone.
    return sql.SQL("""DO $$ DECLARE one regclass; BEGIN
IF (SELECT nspowner FROM pg_catalog.pg_namespace WHERE nspname = {schema_name})
   <> CAST({owner_name} AS regrole) THEN
    ALTER SCHEMA {schema} OWNER TO {owner};
END IF;
FOR one IN SELECT oid FROM pg_catalog.pg_class
            WHERE relnamespace = CAST({schema_name} AS regnamespace)
              AND relkind IN ('r', 'p', 'v') AND relowner <> CAST({owner_name} AS regrole) LOOP
    EXECUTE 'ALTER TABLE ' || one || ' OWNER TO ' || quote_ident({owner_name});
END LOOP; END $$""").format(
        schema_name=sql.Literal(SCHEMA),
        schema=sql.Identifier(SCHEMA),
        owner_name=sql.Literal(owner),
        owner=sql.Identifier(owner),
    )


def _privileges(role: Role) -> Iterator[tuple[str, sql.Composable]]:
    """Give what a role may do with each table it has to do with."""
    rights = [right for right in RIGHTS if role in right.roles]
    whole: dict[str, set[sa.FromClause]] = {
        "SELECT": {table for right in rights for table in right.selects},
        "INSERT": {table for right in rights for table in right.inserts},
        "DELETE": {table for right in rights for table in right.deletes},
    }
    columns = {column for right in rights for column in right.updates}
    tables = {column.table for column in columns}.union(*whole.values())
    for table in sorted(tables, key=_name):
        allowed: list[sql.Composable] = [
            sql.SQL(verb) for verb, granted in whole.items() if table in granted
        ]
        names = sorted(column.name for column in columns if column.table is table)
        if names:
            listed = sql.SQL(", ").join(map(sql.Identifier, names))
            allowed.append(sql.SQL("UPDATE ({})").format(listed))
        yield _name(table), sql.SQL(", ").join(allowed)


def _name(table: sa.FromClause) -> str:
    return str(getattr(table, "name"))  # noqa: B009 - selectables without a name are none of these
