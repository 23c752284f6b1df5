"""The id that a database will give to the next row of a table: asked, never taken.

Reads only. Where it cannot be told, the reason is for people.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.meta.meta_engine import reading
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable

_SEQUENCES = sa.text("""
WITH uid AS (
    SELECT a.attrelid, a.attnum
      FROM pg_catalog.pg_attribute a
      JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relname = :table AND n.nspname = :schema AND a.attname = :uid
), source AS (
    SELECT d.refobjid AS oid
      FROM uid
      JOIN pg_catalog.pg_attrdef e ON e.adrelid = uid.attrelid AND e.adnum = uid.attnum
      JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::regclass
                                 AND d.objid = e.oid
                                 AND d.refclassid = 'pg_catalog.pg_class'::regclass
    UNION
    SELECT d.objid
      FROM uid
      JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::regclass
                                 AND d.refclassid = 'pg_catalog.pg_class'::regclass
                                 AND d.refobjid = uid.attrelid AND d.refobjsubid = uid.attnum
                                 AND d.deptype = 'i'
)
SELECT n.nspname AS schema, c.relname AS name, s.seqincrement AS step,
       pg_catalog.has_sequence_privilege(c.oid, 'SELECT')
           AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS readable
  FROM source
  JOIN pg_catalog.pg_sequence s ON s.seqrelid = source.oid
  JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
""")

_AUTO_INCREMENT = sa.text("""
SELECT t.auto_increment
  FROM information_schema.tables t
  JOIN information_schema.columns c
    ON c.table_schema = t.table_schema AND c.table_name = t.table_name
 WHERE t.table_schema = :schema AND t.table_name = :table AND c.column_name = :uid
   AND c.extra LIKE '%auto_increment%'
""")

_SQLITE_COLUMN = sa.text("""
SELECT upper(type) = 'INTEGER' AND pk = 1
       AND (SELECT sum(pk > 0) FROM pragma_table_info(:table, :schema)) = 1
  FROM pragma_table_info(:table, :schema) WHERE name = :uid
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class NextIds:
    """The next ids of all that gives ids to a table, none where `unknown` says why not."""

    ids: tuple[int, ...] = ()
    unknown: str = ""


def next_ids(table: ReflectedMetaTable, highest: int | None) -> NextIds:
    """Ask what ids the next rows will get; `highest` is the highest one that is there."""
    dialect = table.engine.dialect.name
    if table.is_view:
        return NextIds(unknown="it is a view")
    with reading(table.engine) as connection:
        if dialect == "postgresql":
            return _of_sequences(connection, table)
        if dialect in {"mysql", "mariadb"}:
            return _of_auto_increment(connection, table)
        if dialect == "sqlite":
            return _of_rowid(connection, table, highest)
    return NextIds(unknown=f"{dialect} is not asked for the next id")


def _names(table: ReflectedMetaTable) -> dict[str, Any]:
    return {"table": table.table.name, "schema": table.table.schema, "uid": table.columns.uid}


def _of_sequences(connection: sa.Connection, table: ReflectedMetaTable) -> NextIds:
    found = connection.execute(_SEQUENCES, _names(table)).all()
    if not found:
        return NextIds(unknown=f"ids of {table.columns.uid} do not come from a sequence")
    hidden = [f"{one.schema}.{one.name}" for one in found if not one.readable]
    if hidden:
        role = "grant SELECT on it to this role"
        return NextIds(unknown=f"its sequence {', '.join(hidden)} may not be read: {role}")
    return NextIds(ids=tuple(_after(connection, one) for one in found))


def _after(connection: sa.Connection, one: sa.Row[Any]) -> int:
    sequence = sa.table(
        one.name, sa.column("last_value"), sa.column("is_called"), schema=one.schema
    )
    last_value, is_called = connection.execute(sa.select(sequence)).one()
    following: int = last_value + one.step if is_called else last_value
    return following


def _of_auto_increment(connection: sa.Connection, table: ReflectedMetaTable) -> NextIds:
    if not getattr(connection.dialect, "is_mariadb", False):
        # MySQL 8 answers with what it knew up to a day ago unless one asks for it afresh.
        connection.execute(sa.text("SET SESSION information_schema_stats_expiry = 0"))
    found = connection.execute(_AUTO_INCREMENT, _names(table)).scalar_one_or_none()
    if found is None:
        return NextIds(unknown=f"{table.columns.uid} is not AUTO_INCREMENT")
    return NextIds(ids=(int(found),))


def _of_rowid(connection: sa.Connection, table: ReflectedMetaTable, highest: int | None) -> NextIds:
    names, schema = _names(table), table.table.schema
    master = sa.table("sqlite_master", sa.column("name"), sa.column("sql"), schema=schema)
    query = sa.select(master.c.sql).where(master.c.name == table.table.name)
    made_by = (connection.execute(query).scalar_one_or_none() or "").upper()
    is_rowid = connection.execute(_SQLITE_COLUMN, names).scalar_one_or_none()
    if not is_rowid or "WITHOUT ROWID" in made_by:
        return NextIds(unknown=f"ids of {table.columns.uid} are not given by SQLite")
    if "AUTOINCREMENT" not in made_by:
        return NextIds(ids=(1 if highest is None else highest + 1,))
    given = sa.table("sqlite_sequence", sa.column("name"), sa.column("seq"), schema=schema)
    last = sa.select(sa.func.max(given.c.seq)).where(given.c.name == table.table.name)
    return NextIds(ids=(max(connection.execute(last).scalar_one() or 0, highest or 0) + 1,))
