"""Choose how to find the high watermark of a meta table, and store its candidates.

The exact strategy of the database is used if its conditions hold, else the age of rows.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.meta_tables.connection import read_transaction
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.watermarks import (
    Candidate,
    Candidates,
    CandidateStore,
    HighestIdWatermark,
    HighWatermark,
    InMemoryCandidates,
    LockingReadWatermark,
    LocksWatermark,
    SettleBy,
    SettleTimeWatermark,
)
from batch_pipeline.inventory.tables import ceiling_candidate
from batch_pipeline.model.errors import watermark_unavailable
from batch_pipeline.model.id_range import MAX_ID, MIN_ID
from batch_pipeline.model.stream import Strategy

_CACHE_MARK = "(CACHE)"
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
class WatermarkChoice:
    """A high watermark, the reason for its strategy, and warnings for the operator."""

    watermark: HighWatermark
    strategy: Strategy
    reason: str
    warnings: tuple[str, ...] = ()


def choose_watermark(
    table: ReflectedMetaTable,
    requested: Strategy | None = None,
    *,
    settle_by: SettleBy | None = None,
    store: CandidateStore | None = None,
) -> WatermarkChoice:
    """Choose the strategy for a table's high watermark, or check the requested strategy.

    The default is `locks` on Postgres, `locking_read` on InnoDB and `sqlite` on SQLite if their
    conditions hold, else `settle`. `registrar` is never the default, since only the operator knows
    whether ids become visible in commit order.

    Raises:
        MetaTableError: the conditions of the requested strategy do not hold, `settle` is needed and
            no time column is named, or the time column is not valid.
    """
    memory = InMemoryCandidates() if store is None else store
    exact, obstacle = _exact_strategy(table)
    strategy = requested or (Strategy.SETTLE if obstacle else exact)
    if strategy is Strategy.SETTLE:
        reason = "requested" if requested else obstacle or "requested"
        choice = _settle_choice(table, settle_by, memory, reason)
        return replace(choice, warnings=(*choice.warnings, *_cache_warning(obstacle)))
    if strategy is Strategy.REGISTRAR:
        return WatermarkChoice(
            watermark=HighestIdWatermark(table=table, strategy=strategy),
            strategy=strategy,
            reason="requested: ids are assigned in commit order",
            warnings=_cache_warning(obstacle),
        )
    if strategy is not exact or obstacle:
        problem = obstacle or f"{table.engine.dialect.name} has {exact.value!r} for this"
        raise watermark_unavailable(
            table.canonical_name,
            strategy.value,
            problem,
            "Leave the strategy out to use the default.",
        )
    return _exact_choice(table, strategy, memory)


def _exact_choice(
    table: ReflectedMetaTable, strategy: Strategy, store: CandidateStore
) -> WatermarkChoice:
    if strategy is Strategy.LOCKS:
        watermark: HighWatermark = LocksWatermark(table=table, store=store)
        return WatermarkChoice(
            watermark=watermark, strategy=strategy, reason="ids come from one sequence with CACHE 1"
        )
    if strategy is Strategy.LOCKING_READ:
        watermark = LockingReadWatermark(table=table, store=store)
        return WatermarkChoice(
            watermark=watermark, strategy=strategy, reason="an AUTO_INCREMENT id in InnoDB"
        )
    return WatermarkChoice(
        watermark=HighestIdWatermark(table=table, strategy=strategy),
        strategy=strategy,
        reason="SQLite has one writer at a time",
        warnings=_reuse_warning(table),
    )


def _settle_choice(
    table: ReflectedMetaTable, settle_by: SettleBy | None, store: CandidateStore, reason: str
) -> WatermarkChoice:
    if settle_by is None:
        raise watermark_unavailable(
            table.canonical_name,
            Strategy.SETTLE.value,
            "no column with insert times is named"
            if reason == "requested"
            else f"{reason}, and no column with insert times is named",
            "Name one, or use 'registrar' if ids become visible in their order.",
        )
    watermark = SettleTimeWatermark(table=table, settle_by=settle_by, store=store)
    warning = f"rows of a transaction longer than {settle_by.delay} are found only by an audit"
    return WatermarkChoice(
        watermark=watermark, strategy=Strategy.SETTLE, reason=reason, warnings=(warning,)
    )


def _exact_strategy(table: ReflectedMetaTable) -> tuple[Strategy, str | None]:
    """Return the exact strategy of this database, and the obstacle to it if there is one."""
    dialect = table.engine.dialect.name
    view = f"{table.canonical_name} is a view" if table.is_view else None
    if dialect == "postgresql":
        return Strategy.LOCKS, view or _postgres_obstacle(table)
    if dialect in {"mysql", "mariadb"}:
        return Strategy.LOCKING_READ, view or _innodb_obstacle(table)
    if dialect == "sqlite":
        return Strategy.SQLITE, view
    return Strategy.SETTLE, f"there is no exact strategy for {dialect}"


def _names(table: ReflectedMetaTable) -> dict[str, object]:
    return {"table": table.table.name, "schema": table.table.schema, "uid": table.columns.uid}


def _postgres_obstacle(table: ReflectedMetaTable) -> str | None:
    with read_transaction(table.engine) as connection:
        row = connection.execute(_POSTGRES, _names(table)).one()
    obstacles = (
        (row.replica, "the server is a replica, which does not see the locks of its primary"),
        (row.foreign_rows, "the rows of the table are on another server"),
        (row.subscribed, "rows come from another server by logical replication"),
        (row.sequences == 0, f"ids of {table.columns.uid} do not come from a sequence"),
        (row.sequences > 1, f"ids of {table.columns.uid} come from several sequences"),
        ((row.cache or 1) > 1, f"the sequence hands out {row.cache} ids at once {_CACHE_MARK}"),
        (row.rising is False, "the sequence is descending or cycles"),
    )
    return next((text for applies, text in obstacles if applies), None)


def _innodb_obstacle(table: ReflectedMetaTable) -> str | None:
    with read_transaction(table.engine) as connection:
        row = connection.execute(_INNODB, _names(table)).one()
        dialect = connection.dialect
        version = dialect.server_version_info or (0,)
        is_mariadb = bool(getattr(dialect, "is_mariadb", False))
    obstacles = (
        (not is_mariadb and version < (8, 0, 1), "MySQL before 8.0 cannot read without waiting"),
        (row.engine != "InnoDB", f"the table's engine is {row.engine}, not InnoDB"),
        ("auto_increment" not in row.extra, f"{table.columns.uid} is not AUTO_INCREMENT"),
        (bool(row.read_only), "the server is read only, so rows come by replication"),
    )
    return next((text for applies, text in obstacles if applies), None)


def _cache_warning(obstacle: str | None) -> tuple[str, ...]:
    if obstacle is None or not obstacle.endswith(_CACHE_MARK):
        return ()
    warning = (
        f"{obstacle}: rows with such ids may appear long after rows with higher ids, and then only "
        f"an audit finds them; set the sequence to CACHE 1"
    )
    return (warning,)


def _reuse_warning(table: ReflectedMetaTable) -> tuple[str, ...]:
    with read_transaction(table.engine) as connection:
        has_autoincrement = connection.execute(_SQLITE, {"table": table.table.name}).scalar_one()
    if has_autoincrement:
        return ()
    warning = (
        f"{table.canonical_name} is not AUTOINCREMENT: SQLite reuses the id of a deleted last row, "
        f"and a job that has planned the id skips the new row"
    )
    return (warning,)


@dataclass(frozen=True, slots=True)
class StoredCandidates:
    """The candidates of high watermarks in the inventory, one row for each meta table.

    `scope` names the meta tables' database, since canonical names are unique only within it. Each
    call is one autocommitted statement that locks only the row of the table.

    Raises:
        DatabaseUnreachableError: the inventory does not answer.
        RetryableError: another process held the row of the table for more than 5 s.
    """

    engine: sa.Engine
    scope: str

    def load(self, table: str) -> Candidates | None:
        """Return the last saved state; None if there is none or it is not valid."""
        query = sa.select(ceiling_candidate.c.state).where(*self._key(table))
        with transaction(self._autocommit()) as connection:
            state = connection.execute(query).scalar_one_or_none()
        return _from_json(state)

    def save(self, table: str, candidates: Candidates) -> None:
        """Replace the saved state, unless it is the same."""
        state = sa.literal(_to_json(candidates), pg.JSONB)
        same = sa.exists().where(*self._key(table), ceiling_candidate.c.state == state)
        row = sa.select(sa.literal(self.scope), sa.literal(table), state).where(~same)
        insert = pg.insert(ceiling_candidate).from_select(["scope", "meta_table", "state"], row)
        upsert = insert.on_conflict_do_update(
            constraint=ceiling_candidate.primary_key,
            set_={"state": insert.excluded.state, "saved_at": sa.func.clock_timestamp()},
        )
        with transaction(self._autocommit()) as connection:
            connection.execute(upsert)

    def _key(self, table: str) -> tuple[sa.ColumnElement[bool], ...]:
        columns = ceiling_candidate.c
        return columns.scope == self.scope, columns.meta_table == table

    def _autocommit(self) -> sa.Engine:
        # One round trip for each call; BEGIN and COMMIT would be two more.
        return self.engine.execution_options(isolation_level="AUTOCOMMIT")


def _to_json(candidates: Candidates) -> dict[str, Any]:
    return {
        "strategy": candidates.strategy.value,
        "epoch": candidates.epoch,
        "released": candidates.released,
        "waiting": [[candidate.id, sorted(candidate.holders)] for candidate in candidates.waiting],
    }


def _from_json(state: Any) -> Candidates | None:
    """Return the state; None if `_to_json` could not have written it, e.g. another release."""
    try:
        candidates = Candidates(
            strategy=Strategy(state["strategy"]),
            epoch=state["epoch"],
            released=state["released"],
            waiting=tuple(Candidate(uid, frozenset(names)) for uid, names in state["waiting"]),
        )
        is_whole = _to_json(candidates) == state
    except (KeyError, TypeError, ValueError):
        return None
    return candidates if is_whole and _is_valid(candidates) else None


def _is_valid(candidates: Candidates) -> bool:
    released = [] if candidates.released is None else [candidates.released]
    ids = [*released, *(candidate.id for candidate in candidates.waiting)]
    names = [
        candidates.epoch,
        *(name for candidate in candidates.waiting for name in candidate.holders),
    ]
    return (
        all(type(uid) is int and MIN_ID <= uid <= MAX_ID for uid in ids)
        and all(below < above for below, above in pairwise(ids))
        and all(isinstance(name, str) for name in names)
    )
