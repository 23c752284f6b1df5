"""Identifying the database of a meta table, however it is addressed.

The same database must be recognized by another alias, through a pooler, with another password and
after a failover. No identity holds a user or a password.
"""

import os

import sqlalchemy as sa

from batch_pipeline.domain.table_identity import INVENTORY, DatabaseIdentity
from batch_pipeline.inventory.meta.meta_engine import place, reading
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.work.acquire_in_server import share_a_database

_LOCAL = {"", "localhost", "127.0.0.1", "::1"}
_POSTGRES = sa.text("""
SELECT d.oid::text AS oid, d.datname AS name,
       coalesce(pg_catalog.has_function_privilege(
           pg_catalog.to_regprocedure('pg_catalog.pg_control_system()'), 'EXECUTE'), false)
           AS tells_system
  FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
""")
_SYSTEM = sa.text("SELECT system_identifier::text FROM pg_catalog.pg_control_system()")
# A group or cluster first: its members have ids of their own.
_MYSQL_CLUSTER = sa.text("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_state_uuid'")
_MYSQL_VARIABLES = sa.text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
    "('group_replication_group_name', 'server_uuid', 'server_uid')"
)
_MYSQL_SERVER = sa.text("SELECT @@hostname, @@port, @@datadir")


def database_identity(meta: sa.Engine, inventory: sa.Engine) -> DatabaseIdentity:
    """Return the identity of a meta table's database; a constant where it is the inventory's own.

    Costs a few queries, so it is read when a table is opened and not for every batch.

    Raises:
        MetaUnreachableError: it does not answer.
    """
    if meta is inventory:
        return INVENTORY
    if meta.dialect.name != "postgresql":
        with reading(meta) as connection:
            return _identity(connection, meta)
    with reading(meta) as connection:
        found = _of_postgres(connection, place(meta))
    with transaction(inventory) as connection:
        own = _of_postgres(connection, "")
    # A standby of the inventory's server is the inventory's database, too, and shares no locks.
    if found.servers and own.servers:
        return INVENTORY if found.is_same(own) else found
    return INVENTORY if share_a_database(inventory, meta) else found


def _identity(connection: sa.Connection, engine: sa.Engine) -> DatabaseIdentity:
    kind = engine.dialect.name
    if kind in {"mysql", "mariadb"}:
        return _of_mysql(connection, engine)
    if kind == "sqlite":
        return _of_sqlite(connection)
    return DatabaseIdentity(kind=kind, shown=f"{kind} {place(engine)}", database=place(engine))


def _of_postgres(connection: sa.Connection, address: str) -> DatabaseIdentity:
    row = connection.execute(_POSTGRES).one()
    if not row.tells_system:
        shown = f"{address} (PostgreSQL database {row.oid})"
        database = f"{row.oid} {row.name}"
        return DatabaseIdentity(kind="postgresql", shown=shown, database=database)
    system: str = connection.execute(_SYSTEM).scalar_one()
    shown = f"{address} (PostgreSQL system {system}, database {row.oid})"
    return DatabaseIdentity(
        kind="postgresql", shown=shown, database=row.oid, servers=(f"system {system}",)
    )


def _of_mysql(connection: sa.Connection, engine: sa.Engine) -> DatabaseIdentity:
    """Identify the server; the schema is a part of the table's canonical name.

    The nodes of a cluster, and the servers behind an address after a failover, have ids of their
    own, so a shared address is enough, too. Local addresses are those of every machine.
    """
    rows = [*connection.execute(_MYSQL_CLUSTER), *connection.execute(_MYSQL_VARIABLES)]
    servers = [f"{name} {value}" for name, value in rows if str(value).strip("0-")]
    if not servers:
        hostname, port, folder = connection.execute(_MYSQL_SERVER).one()
        servers = [f"server {hostname}:{port} {folder}"]
    host = (engine.url.host or "").casefold()
    if host not in _LOCAL:
        servers.append(f"address {host}:{engine.url.port or 3306}")
    shown = f"{place(engine)} (MySQL or MariaDB, {servers[0]})"
    return DatabaseIdentity(kind="mysql", shown=shown, servers=tuple(servers))


def _of_sqlite(connection: sa.Connection) -> DatabaseIdentity:
    rows = connection.execute(sa.text("PRAGMA database_list")).all()
    file = next((row[2] for row in rows if row[1] == "main"), "")
    path = os.path.realpath(file) if file else ":memory:"
    return DatabaseIdentity(kind="sqlite", shown=f"the SQLite file {path}", database=path)
