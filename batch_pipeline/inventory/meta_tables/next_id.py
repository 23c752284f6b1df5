"""Read the id that the next row of a table will get, and detect ids that start again.

No id is consumed: everything here only reads.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.meta_tables.connection import read_transaction
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.errors import MetaTableRestartedError

log = logging.getLogger(__name__)

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
    """The next id of each sequence of a table; empty if `unknown` holds the reason."""

    ids: tuple[int, ...] = ()
    unknown: str = ""


def next_ids(table: ReflectedMetaTable, highest: int | None) -> NextIds:
    """Return the ids that the next rows will get. `highest` is the table's highest id."""
    dialect = table.engine.dialect.name
    if table.is_view:
        return NextIds(unknown="it is a view")
    with read_transaction(table.engine) as connection:
        if dialect == "postgresql":
            return _next_sequence_ids(connection, table)
        if dialect in {"mysql", "mariadb"}:
            return _next_auto_increment_id(connection, table)
        if dialect == "sqlite":
            return _next_rowid(connection, table, highest)
    return NextIds(unknown=f"{dialect} is not asked for the next id")


def _names(table: ReflectedMetaTable) -> dict[str, Any]:
    return {"table": table.table.name, "schema": table.table.schema, "uid": table.columns.uid}


def _next_sequence_ids(connection: sa.Connection, table: ReflectedMetaTable) -> NextIds:
    sequences = connection.execute(_SEQUENCES, _names(table)).all()
    if not sequences:
        return NextIds(unknown=f"ids of {table.columns.uid} do not come from a sequence")
    unreadable = [
        f"{sequence.schema}.{sequence.name}" for sequence in sequences if not sequence.readable
    ]
    if unreadable:
        step = "grant SELECT on it to this role"
        return NextIds(unknown=f"its sequence {', '.join(unreadable)} may not be read: {step}")
    return NextIds(ids=tuple(_next_value(connection, sequence) for sequence in sequences))


def _next_value(connection: sa.Connection, sequence: sa.Row[Any]) -> int:
    sequence_table = sa.table(
        sequence.name, sa.column("last_value"), sa.column("is_called"), schema=sequence.schema
    )
    last_value, is_called = connection.execute(sa.select(sequence_table)).one()
    next_value: int = last_value + sequence.step if is_called else last_value
    return next_value


def _next_auto_increment_id(connection: sa.Connection, table: ReflectedMetaTable) -> NextIds:
    if not getattr(connection.dialect, "is_mariadb", False):
        # By default MySQL 8 answers with statistics that are up to a day old.
        connection.execute(sa.text("SET SESSION information_schema_stats_expiry = 0"))
    next_value = connection.execute(_AUTO_INCREMENT, _names(table)).scalar_one_or_none()
    if next_value is None:
        return NextIds(unknown=f"{table.columns.uid} is not AUTO_INCREMENT")
    return NextIds(ids=(int(next_value),))


def _next_rowid(
    connection: sa.Connection, table: ReflectedMetaTable, highest: int | None
) -> NextIds:
    names, schema = _names(table), table.table.schema
    master = sa.table("sqlite_master", sa.column("name"), sa.column("sql"), schema=schema)
    query = sa.select(master.c.sql).where(master.c.name == table.table.name)
    definition = (connection.execute(query).scalar_one_or_none() or "").upper()
    is_rowid = connection.execute(_SQLITE_COLUMN, names).scalar_one_or_none()
    if not is_rowid or "WITHOUT ROWID" in definition:
        return NextIds(unknown=f"ids of {table.columns.uid} are not given by SQLite")
    if "AUTOINCREMENT" not in definition:
        return NextIds(ids=(1 if highest is None else highest + 1,))
    sequences = sa.table("sqlite_sequence", sa.column("name"), sa.column("seq"), schema=schema)
    last = sa.select(sa.func.max(sequences.c.seq)).where(sequences.c.name == table.table.name)
    return NextIds(ids=(max(connection.execute(last).scalar_one() or 0, highest or 0) + 1,))


def check_not_restarted(table: ReflectedMetaTable, job: str, planned_up_to: int) -> None:
    """Check that the next rows of a table get ids above those that a job has planned.

    The check fails if the table was truncated with its sequence or created again, or if the
    sequence was reset. It passes if only the last rows were deleted. If the next id is unknown and
    the highest id is below the bookmark, it logs a warning, once for each job and process. Rows
    inserted after a restart whose ids already exceed the bookmark are not detected; their batches
    have changed, which an audit finds.

    Raises:
        MetaTableRestartedError: the next row would get an id that the job has already planned.
    """
    highest = table.highest_id()
    if highest is not None and highest >= planned_up_to:
        return
    next_rows = next_ids(table, highest)
    reason = next_rows.unknown or "several sequences give them"
    if next_rows.ids and min(next_rows.ids) > planned_up_to:
        return
    if next_rows.ids and max(next_rows.ids) <= planned_up_to:
        next_id = max(next_rows.ids)
        if highest is None or highest < next_id:
            raise MetaTableRestartedError(job, table.canonical_name, planned_up_to, next_id)
        reason = f"the database would give {next_id} next, so they come from elsewhere"
    if next(_first_call(job, table.canonical_name), False):
        current_end = "there are none" if highest is None else f"end at {highest}"
        log.warning(
            "%s: ids of %s are planned up to %d and now %s; whether they start again cannot be "
            "known (%s). Rows that get ids up to %d would not be acquired.",
            *(job, table.canonical_name, planned_up_to, current_end, reason, planned_up_to),
        )


@cache  # a worker that polls logs each warning once
def _first_call(_job: str, _table: str) -> Iterator[bool]:
    return iter((True,))
