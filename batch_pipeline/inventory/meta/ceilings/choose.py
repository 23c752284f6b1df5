"""Picking the ceiling of a meta table: the exact way where its conditions hold, else by age."""

from dataclasses import dataclass, replace

import sqlalchemy as sa

from batch_pipeline.domain.errors import CeilingUnavailableError
from batch_pipeline.inventory.meta.ceilings.ceiling import (
    CandidatesInMemory,
    CandidateStore,
    Ceiling,
    Strategy,
)
from batch_pipeline.inventory.meta.ceilings.highest_id import HighestIdCeiling
from batch_pipeline.inventory.meta.ceilings.locking_read import LockingReadCeiling
from batch_pipeline.inventory.meta.ceilings.locks import LocksCeiling
from batch_pipeline.inventory.meta.ceilings.settle import SettleBy, SettleCeiling
from batch_pipeline.inventory.meta.meta_engine import reading
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable

_CACHED = "(CACHE)"
_POSTGRES = sa.text("""
WITH RECURSIVE family AS (
    SELECT c.oid
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relname = :table AND n.nspname = :schema
    UNION
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN family f ON i.inhparent = f.oid
), uid AS (
    SELECT a.attrelid, a.attnum FROM pg_catalog.pg_attribute a JOIN family f ON a.attrelid = f.oid
     WHERE a.attname = :uid
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
SELECT pg_catalog.pg_is_in_recovery() AS replica,
       EXISTS (SELECT FROM family JOIN pg_catalog.pg_class USING (oid)
                WHERE relkind NOT IN ('r', 'p')) AS foreign_rows,
       EXISTS (SELECT FROM pg_catalog.pg_subscription_rel r JOIN family f ON r.srrelid = f.oid)
           AS subscribed,
       count(s.seqrelid) AS sequences,
       max(s.seqcache) AS cache,
       bool_and(s.seqincrement > 0 AND NOT s.seqcycle) AS rising
  FROM source JOIN pg_catalog.pg_sequence s ON s.seqrelid = source.oid
""")

_INNODB = sa.text("""
SELECT t.engine AS engine, c.extra AS extra, @@global.read_only AS read_only
  FROM information_schema.tables t
  JOIN information_schema.columns c
    ON c.table_schema = t.table_schema AND c.table_name = t.table_name
 WHERE t.table_schema = :schema AND t.table_name = :table AND c.column_name = :uid
""")

_SQLITE = sa.text("""
SELECT count(*) FROM sqlite_master
 WHERE type = 'table' AND name = :table AND upper(sql) LIKE '%AUTOINCREMENT%'
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A ceiling, why it was chosen, and what the operator should know of it."""

    ceiling: Ceiling
    strategy: Strategy
    reason: str
    warnings: tuple[str, ...] = ()


def choose_ceiling(
    table: ReflectedMetaTable,
    requested: Strategy | None = None,
    *,
    settle_by: SettleBy | None = None,
    store: CandidateStore | None = None,
) -> Choice:
    """Pick the way to find a table's ceiling, or check the one that was asked for.

    Without a request: `locks` on Postgres, `locking_read` on InnoDB, `sqlite` on SQLite where their
    conditions hold, else `settle`. `registrar` is never picked: only the operator knows that ids
    are given in commit order.

    Raises:
        CeilingUnavailableError: the conditions of the request do not hold, or `settle` is needed
            and no time column is named.
        UnknownMetaColumnError, MetaColumnUnfitError: the time column cannot be used.
    """
    memory = CandidatesInMemory() if store is None else store
    exact, obstacle = _exact_strategy(table)
    strategy = requested or (Strategy.SETTLE if obstacle else exact)
    if strategy is Strategy.SETTLE:
        reason = obstacle if requested is None else "asked for"
        choice = _settle(table, settle_by, memory, reason or "asked for")
        return replace(choice, warnings=(*choice.warnings, *_cache_warning(obstacle)))
    if strategy is Strategy.REGISTRAR:
        return Choice(
            ceiling=HighestIdCeiling(table=table, strategy=strategy),
            strategy=strategy,
            reason="asked for: ids are given in commit order",
            warnings=_cache_warning(obstacle),
        )
    if strategy is not exact or obstacle:
        problem = obstacle or f"{table.engine.dialect.name} has {exact.value!r} for this"
        raise CeilingUnavailableError(
            table.canonical_name,
            strategy.value,
            problem,
            "Leave the strategy out, so that one that fits is picked.",
        )
    return _exact(table, strategy, memory)


def _exact(table: ReflectedMetaTable, strategy: Strategy, store: CandidateStore) -> Choice:
    if strategy is Strategy.LOCKS:
        ceiling: Ceiling = LocksCeiling(table=table, store=store)
        return Choice(
            ceiling=ceiling, strategy=strategy, reason="ids come from one sequence with CACHE 1"
        )
    if strategy is Strategy.LOCKING_READ:
        ceiling = LockingReadCeiling(table=table, store=store)
        return Choice(ceiling=ceiling, strategy=strategy, reason="an AUTO_INCREMENT id in InnoDB")
    return Choice(
        ceiling=HighestIdCeiling(table=table, strategy=strategy),
        strategy=strategy,
        reason="SQLite has one writer at a time",
        warnings=_reuse_warning(table),
    )


def _settle(
    table: ReflectedMetaTable, settle_by: SettleBy | None, store: CandidateStore, reason: str
) -> Choice:
    if settle_by is None:
        raise CeilingUnavailableError(
            table.canonical_name,
            Strategy.SETTLE.value,
            "no column with insert times is named"
            if reason == "asked for"
            else f"{reason}, and no column with insert times is named",
            "Name one, or ask for 'registrar' if ids become visible in their order.",
        )
    ceiling = SettleCeiling(table=table, settle_by=settle_by, store=store)
    warning = (
        f"rows of a transaction longer than {settle_by.delay} are found late, by the audit only"
    )
    return Choice(ceiling=ceiling, strategy=Strategy.SETTLE, reason=reason, warnings=(warning,))


def _exact_strategy(table: ReflectedMetaTable) -> tuple[Strategy, str | None]:
    """Give the exact way of this database, and what stands against it."""
    dialect = table.engine.dialect.name
    view = f"{table.canonical_name} is a view" if table.is_view else None
    if dialect == "postgresql":
        return Strategy.LOCKS, view or _postgres_obstacle(table)
    if dialect in {"mysql", "mariadb"}:
        return Strategy.LOCKING_READ, view or _innodb_obstacle(table)
    if dialect == "sqlite":
        return Strategy.SQLITE, view
    return Strategy.SETTLE, f"no exact way is known for {dialect}"


def _names(table: ReflectedMetaTable) -> dict[str, object]:
    return {"table": table.table.name, "schema": table.table.schema, "uid": table.columns.uid}


def _postgres_obstacle(table: ReflectedMetaTable) -> str | None:
    with reading(table.engine) as connection:
        found = connection.execute(_POSTGRES, _names(table)).one()
    obstacles = (
        (found.replica, "the server is a replica, which does not see the locks of its primary"),
        (found.foreign_rows, "rows of the table live on another server"),
        (found.subscribed, "rows come from another server by logical replication"),
        (found.sequences == 0, f"ids of {table.columns.uid} do not come from a sequence"),
        (found.sequences > 1, f"ids of {table.columns.uid} come from several sequences"),
        ((found.cache or 1) > 1, f"the sequence hands out {found.cache} ids at once {_CACHED}"),
        (found.rising is False, "the sequence does not rise for ever"),
    )
    return next((text for holds, text in obstacles if holds), None)


def _innodb_obstacle(table: ReflectedMetaTable) -> str | None:
    with reading(table.engine) as connection:
        found = connection.execute(_INNODB, _names(table)).one()
        dialect = connection.dialect
        version = dialect.server_version_info or (0,)
        is_mariadb = bool(getattr(dialect, "is_mariadb", False))
    obstacles = (
        (not is_mariadb and version < (8, 0, 1), "MySQL before 8.0 cannot read without waiting"),
        (found.engine != "InnoDB", f"the table's engine is {found.engine}, not InnoDB"),
        ("auto_increment" not in found.extra, f"{table.columns.uid} is not AUTO_INCREMENT"),
        (bool(found.read_only), "the server is read only, so rows come by replication"),
    )
    return next((text for holds, text in obstacles if holds), None)


def _cache_warning(obstacle: str | None) -> tuple[str, ...]:
    """Warn of ids that a session keeps for later."""
    if obstacle is None or not obstacle.endswith(_CACHED):
        return ()
    warning = (
        f"{obstacle}: rows with such ids may appear long after higher ones, where only the audit "
        f"finds them; let it have CACHE 1"
    )
    return (warning,)


def _reuse_warning(table: ReflectedMetaTable) -> tuple[str, ...]:
    with reading(table.engine) as connection:
        named = connection.execute(_SQLITE, {"table": table.table.name}).scalar_one()
    if named:
        return ()
    warning = (
        f"{table.canonical_name} is not AUTOINCREMENT: SQLite gives the id of a deleted last row "
        f"again, and a batch that passed it would not see the new row"
    )
    return (warning,)
