"""Identify the database of a meta table, independent of its address.

A database keeps its identity under another host name, through a pooler, with another password and
after a failover. An identity contains no user and no password.
"""

import os

import sqlalchemy as sa

from batch_pipeline.inventory.acquire_in_server import is_same_database
from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.meta_tables.connection import database_label, read_transaction
from batch_pipeline.model.job import INVENTORY, DatabaseIdentity

_LOCAL_HOSTS = {"", "localhost", "127.0.0.1", "::1"}
_POSTGRES = sa.text("""
SELECT d.oid::text AS oid, d.datname AS name,
       coalesce(pg_catalog.has_function_privilege(
           pg_catalog.to_regprocedure('pg_catalog.pg_control_system()'), 'EXECUTE'), false)
           AS tells_system
  FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
""")
_SYSTEM = sa.text("SELECT system_identifier::text FROM pg_catalog.pg_control_system()")
# The id of the group or cluster comes first, since each member also has its own id.
_MYSQL_CLUSTER = sa.text("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_state_uuid'")
_MYSQL_VARIABLES = sa.text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
    "('group_replication_group_name', 'server_uuid', 'server_uid')"
)
_MYSQL_SERVER = sa.text("SELECT @@hostname, @@port, @@datadir")


def database_identity(meta: sa.Engine, inventory: sa.Engine) -> DatabaseIdentity:
    """Return the identity of a meta table's database; `INVENTORY` if it is the inventory's own.

    This takes a few queries, so it is read when a table is opened and not for every batch.

    Raises:
        MetaUnreachableError: the database does not answer.
    """
    if meta is inventory:
        return INVENTORY
    if meta.dialect.name != "postgresql":
        with read_transaction(meta) as connection:
            return _identity(connection, meta)
    with read_transaction(meta) as connection:
        identity = _postgres_identity(connection, database_label(meta))
    with transaction(inventory) as connection:
        own_identity = _postgres_identity(connection, "")
    # A standby of the inventory's server has the same identity, although it shares no locks.
    if identity.servers and own_identity.servers:
        return INVENTORY if identity.is_same(own_identity) else identity
    return INVENTORY if is_same_database(inventory, meta) else identity


def _identity(connection: sa.Connection, engine: sa.Engine) -> DatabaseIdentity:
    kind = engine.dialect.name
    if kind in {"mysql", "mariadb"}:
        return _mysql_identity(connection, engine)
    if kind == "sqlite":
        return _sqlite_identity(connection)
    return DatabaseIdentity(
        kind=kind, shown=f"{kind} {database_label(engine)}", database=database_label(engine)
    )


def _postgres_identity(connection: sa.Connection, address: str) -> DatabaseIdentity:
    row = connection.execute(_POSTGRES).one()
    if not row.tells_system:
        label = f"{address} (PostgreSQL database {row.oid})"
        database = f"{row.oid} {row.name}"
        return DatabaseIdentity(kind="postgresql", shown=label, database=database)
    system: str = connection.execute(_SYSTEM).scalar_one()
    label = f"{address} (PostgreSQL system {system}, database {row.oid})"
    return DatabaseIdentity(
        kind="postgresql", shown=label, database=row.oid, servers=(f"system {system}",)
    )


def _mysql_identity(connection: sa.Connection, engine: sa.Engine) -> DatabaseIdentity:
    """Return the identity of the server. The schema is part of the table's canonical name.

    The nodes of a cluster, and the servers behind an address before and after a failover, have
    different ids, so the address is an alternative identity. Local addresses are excluded.
    """
    rows = [*connection.execute(_MYSQL_CLUSTER), *connection.execute(_MYSQL_VARIABLES)]
    servers = [f"{name} {value}" for name, value in rows if str(value).strip("0-")]
    if not servers:
        hostname, port, folder = connection.execute(_MYSQL_SERVER).one()
        servers = [f"server {hostname}:{port} {folder}"]
    host = (engine.url.host or "").casefold()
    if host not in _LOCAL_HOSTS:
        servers.append(f"address {host}:{engine.url.port or 3306}")
    label = f"{database_label(engine)} (MySQL or MariaDB, {servers[0]})"
    return DatabaseIdentity(kind="mysql", shown=label, servers=tuple(servers))


def _sqlite_identity(connection: sa.Connection) -> DatabaseIdentity:
    rows = connection.execute(sa.text("PRAGMA database_list")).all()
    file = next((row[2] for row in rows if row[1] == "main"), "")
    path = os.path.realpath(file) if file else ":memory:"
    return DatabaseIdentity(kind="sqlite", shown=f"the SQLite file {path}", database=path)
