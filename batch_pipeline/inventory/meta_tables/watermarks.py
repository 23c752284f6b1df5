"""The strategies that find the high watermark of a meta table, their choice and stored candidates.

The exact strategy of the database is used if its conditions hold, else the age of rows.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Protocol, assert_never

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.inventory.connection import fetch_value, named_statement, transaction
from batch_pipeline.inventory.meta_tables.connection import (
    LOCK_NOT_AVAILABLE,
    MYSQL_CLUSTER,
    database_label,
    error_code,
    read_transaction,
)
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.tables import ceiling_candidate
from batch_pipeline.model.batch import MAX_ID, MIN_ID
from batch_pipeline.model.errors import (
    InvalidValueError,
    MetaTableChangedError,
    MetaTableError,
    PermissionDeniedError,
    unfit_column,
    watermark_unavailable,
)
from batch_pipeline.model.planning import MAX_DURATION
from batch_pipeline.model.stream import Strategy

MAX_CANDIDATES = 64
_MAX_NAME_LENGTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A transaction that blocks a high watermark.

    `pid` is None for a prepared transaction; `age_seconds` is None if the role may not see it.
    """

    pid: int | None
    application: str
    age_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkReading:
    """The highest id below which no row can still appear; None if it is not known yet.

    `held_by` lists the transactions that block it, oldest first, if the database reports them.
    """

    value: int | None
    strategy: Strategy
    held_by: tuple[LockHolder, ...] = ()


def describe_reading(reading: WatermarkReading) -> str:
    """Return one line with the high watermark and what holds it back.

    Names of applications and prepared transactions are untrusted text, so unprintable characters
    are removed and long names are truncated.
    """
    value, held_by = reading.value, reading.held_by
    cause = "nothing holds it back"
    if held_by:
        more = f", and {len(held_by) - 1} more" if len(held_by) > 1 else ""
        cause = f"held back by {_holder_text(held_by[0])}{more}"
    elif reading.strategy is Strategy.LOCKING_READ:
        cause = "the database does not report what may hold it back"
    elif reading.strategy is Strategy.SETTLE:
        cause = "rows younger than its delay are ignored"
    position = "no high watermark yet" if value is None else f"high watermark {value}"
    return f"{position} ({reading.strategy}); {cause}"


def _holder_text(holder: LockHolder) -> str:
    # A prepared transaction has no process; `application` holds its name.
    printable = "".join(filter(str.isprintable, holder.application)).strip()
    name = printable if len(printable) <= _MAX_NAME_LENGTH else f"{printable[:_MAX_NAME_LENGTH]}…"
    if holder.pid is not None:
        name = f"pid {holder.pid} ({name})" if name else f"pid {holder.pid}"
    return name if holder.age_seconds is None else f"{name} for {max(holder.age_seconds, 0):.0f} s"


class HighWatermark(Protocol):
    """The high watermark of one meta table."""

    def read(self) -> WatermarkReading:
        """Read the high watermark without waiting for writers and without blocking them.

        Raises:
            MetaTableError: the table cannot be read.
            MetaUnreachableError: its database does not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A highest visible id, and the transactions that held a table lock right after it was read."""

    id: int
    holders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The state after a reading: the high watermark, and waiting ids in ascending order.

    `epoch` identifies what the state is valid for: on Postgres the start of the server, the
    database, the table and its storage, on InnoDB the time at which the table was created. A state
    of another epoch is discarded.
    """

    strategy: Strategy
    epoch: str
    released: int | None = None
    waiting: tuple[Candidate, ...] = ()

    def limited_to(self, highest: int | None) -> "Candidates":
        """Drop ids above the highest id, since rows were deleted or ids restarted."""
        if highest is None:
            return replace(self, released=None, waiting=())
        released = self.released if self.released is None or self.released <= highest else None
        waiting = tuple(candidate for candidate in self.waiting if candidate.id <= highest)
        return replace(self, released=released, waiting=waiting)

    def with_candidate(self, candidate: Candidate) -> "Candidates":
        """Add a candidate that is above all others."""
        known = self.waiting[-1].id if self.waiting else self.released
        if known is not None and candidate.id <= known:
            return self
        return replace(self, waiting=(*self.waiting, candidate))

    def released_up_to(self, value: int) -> "Candidates":
        """Raise the high watermark and drop the candidates up to it."""
        waiting = tuple(candidate for candidate in self.waiting if candidate.id > value)
        return replace(self, released=value, waiting=waiting)

    def pruned(self) -> "Candidates":
        """Drop redundant candidates, then every second one while there are too many.

        A candidate is redundant if a higher one waits for a subset of its transactions.
        """
        kept: list[Candidate] = []
        for candidate in reversed(self.waiting):
            if not kept or not kept[-1].holders <= candidate.holders:
                kept.append(candidate)
        return replace(self, waiting=tuple(reversed(kept))).thinned()

    def thinned(self) -> "Candidates":
        """Drop every second candidate while there are too many; the highest one stays."""
        kept = self.waiting[::-1]
        while len(kept) > MAX_CANDIDATES:
            kept = kept[::2]
        return replace(self, waiting=kept[::-1])


@dataclass(frozen=True, slots=True)
class StoredCandidates:
    """The candidates of high watermarks in the inventory, one row for each meta table.

    `scope` identifies the meta tables' database: names are unique only within it. For `settle`, it
    also has the column and the delay, since readers with different ones have different states. Each
    call is one autocommitted statement that locks only the row of the table.
    Readers may overwrite each other: every saved state stays valid, and a lost one costs only time.

    Raises:
        DatabaseUnreachableError: the inventory does not answer.
        RetryableError: another process held the row of the table for more than 5 s.
    """

    engine: sa.Engine
    scope: str

    def load(self, table: str) -> Candidates | None:
        """Return the last saved state; None if there is none or it is not valid."""
        query = sa.select(ceiling_candidate.c.state).where(*self._key(table))
        return _from_json(fetch_value(self._autocommit(), query))

    def save(self, table: str, candidates: Candidates) -> None:
        """Replace the saved state, unless it is the same or the role may only read."""
        state = sa.literal(_to_json(candidates), pg.JSONB)
        same = sa.exists().where(*self._key(table), ceiling_candidate.c.state == state)
        row = sa.select(sa.literal(self.scope), sa.literal(table), state).where(~same)
        insert = pg.insert(ceiling_candidate).from_select(["scope", "meta_table", "state"], row)
        upsert = insert.on_conflict_do_update(
            constraint=ceiling_candidate.primary_key,
            set_={"state": insert.excluded.state, "saved_at": sa.func.clock_timestamp()},
        )
        with suppress(PermissionDeniedError), transaction(self._autocommit()) as connection:
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
    """Return the state; None if `_to_json` cannot have written it, as after a change of release."""
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
    released = [] if candidates.released is None else [candidates.released]
    ids = [*released, *(candidate.id for candidate in candidates.waiting)]
    names = [candidates.epoch, *(name for one in candidates.waiting for name in one.holders)]
    is_valid = (
        is_whole
        and all(type(uid) is int and MIN_ID <= uid <= MAX_ID for uid in ids)
        and all(below < above for below, above in pairwise(ids))
        and all(isinstance(name, str) for name in names)
    )
    return candidates if is_valid else None


def load_candidates(
    store: StoredCandidates, table: str, strategy: Strategy, epoch: str
) -> Candidates:
    """Return the state of a table, an empty one if the strategy or the epoch differs."""
    state = store.load(table)
    if state is None or (state.strategy, state.epoch) != (strategy, epoch):
        return Candidates(strategy=strategy, epoch=epoch)
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestIdWatermark:
    """The high watermark of a table with one writer at a time: a registrar, or any in SQLite."""

    table: ReflectedMetaTable
    strategy: Strategy

    def read(self) -> WatermarkReading:
        """Return the highest id."""
        return WatermarkReading(value=self.table.highest_id(), strategy=self.strategy)


@dataclass(frozen=True, slots=True)
class SettleBy:
    """The column of insert times, and the age at which a row counts as settled.

    Raises:
        InvalidValueError: the delay is not positive, or longer than 36,500 days.
    """

    column: str
    delay: timedelta = timedelta(minutes=15)

    def __post_init__(self) -> None:
        if not timedelta(0) < self.delay <= MAX_DURATION:
            expected = "more than 0 s, at most 36,500 days"
            raise InvalidValueError("settle delay", str(self.delay), expected)


def insert_time(table: ReflectedMetaTable, name: str) -> sa.ColumnElement[Any]:
    """Return the insert times in the column with this name, in a form that can be compared.

    Raises:
        MetaTableError: the column does not exist or holds no times.
    """
    column = table.column(name, "insert time")
    if not isinstance(column.type, sa.DateTime):
        raise no_insert_time(table, name, f"its type is {column.type!r}, but a timestamp is needed")
    if table.engine.dialect.name == "sqlite":  # any text, for example with a time zone
        return sa.func.datetime(column, type_=column.type)
    return column


def no_insert_time(table: ReflectedMetaTable, name: str, problem: str) -> MetaTableError:
    """Build the error for a column that does not hold insert times."""
    step = "Name a column of timestamps that the database sets when a row is inserted."
    return unfit_column(table.canonical_name, name, "insert time", problem, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleTimeWatermark:
    """The high watermark of any table with insert times.

    A column without a zone holds the local time of the database session (UTC on SQLite).

    Raises:
        MetaTableError: the column does not exist or holds no times.
    """

    table: ReflectedMetaTable
    settle_by: SettleBy
    store: StoredCandidates

    def __post_init__(self) -> None:
        insert_time(self.table, self.settle_by.column)

    def read(self) -> WatermarkReading:
        """Return the highest id below the first row that is not settled or has no time."""
        table = self.table
        time = insert_time(table, self.settle_by.column)
        # Another stream may read the same table with a shorter delay or another column.
        epoch = f"{self.settle_by.column} {self.settle_by.delay}"
        store = replace(self.store, scope=f"{self.store.scope} {epoch}")
        state = load_candidates(store, table.canonical_name, Strategy.SETTLE, epoch)
        if state.released is None:  # release 0.1 stored it without column and delay in the scope
            state = load_candidates(self.store, table.canonical_name, Strategy.SETTLE, epoch)
        state = state.limited_to(table.highest_id())
        with read_transaction(table.engine) as connection:
            settled_until = database_time(connection, time) - self.settle_by.delay
            unsettled = sa.or_(time.is_(None), time > sa.literal(settled_until, time.type))
            if state.released is not None:
                unsettled = sa.and_(
                    table.uid > sa.literal(state.released, sa.BigInteger), unsettled
                )
            first = sa.select(sa.func.min(table.uid)).where(unsettled).scalar_subquery()
            # Not `<= first - 1`, which MySQL refuses and MariaDB misreads for an unsigned 0.
            is_below = sa.or_(first.is_(None), table.uid < first)
            value = connection.execute(
                sa.select(sa.func.max(table.uid)).where(is_below)
            ).scalar_one()
            if connection.dialect.name == "sqlite":
                self._check_first(connection, sa.and_(table.uid == first, time.is_(None)))
        if value is not None:
            state = state.released_up_to(value)
        store.save(table.canonical_name, state)
        return WatermarkReading(value=state.released, strategy=Strategy.SETTLE)

    def _check_first(self, connection: sa.Connection, is_first: sa.ColumnElement[bool]) -> None:
        """Raise if the first row without a time has another value: it would never be settled."""
        table, name = self.table, self.settle_by.column
        value = sa.cast(table.table.c[name], sa.Text)
        query = sa.select(table.uid, value).where(is_first, value.is_not(None))
        for uid, text in connection.execute(query):
            raise no_insert_time(table, name, f"row {uid} has {text!r}")


def database_time(connection: sa.Connection, column: sa.ColumnElement[Any]) -> datetime:
    """Return the time of the database, with a time zone if the column has one."""
    if connection.dialect.name == "sqlite":
        text = connection.execute(sa.select(sa.func.datetime("now"))).scalar_one()
        return datetime.fromisoformat(text)
    if connection.dialect.name == "postgresql":
        form = sa.TIMESTAMP(timezone=isinstance(column.type, sa.DateTime) and column.type.timezone)
        clock = sa.cast(sa.func.clock_timestamp(), form)
        return connection.execute(sa.select(clock)).scalar_one()
    return connection.execute(sa.select(sa.func.now())).scalar_one()


# Prepared transactions get another virtual id when the server crashes or restarts.
_RECOVERED = "-1/"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocksWatermark:
    """The high watermark of a Postgres table whose ids come from a sequence with CACHE 1."""

    table: ReflectedMetaTable
    store: StoredCandidates

    def read(self) -> WatermarkReading:
        """Add the highest id as a candidate and release those whose lock holders are gone."""
        name = self.table.canonical_name
        # Each statement needs its own snapshot: first the highest id, then the locks.
        with read_transaction(self.table.engine, "AUTOCOMMIT") as connection:
            reflected = self.table.table
            names = {"table": reflected.name, "schema": reflected.schema}
            row = connection.execute(named_statement("meta_tables/epoch"), names).one_or_none()
            if row is None:
                raise MetaTableChangedError(database_label(self.table.engine), f"no table {name}")
            epoch, relation = row
            # Load first: a state that another process saves later may be above the ids read here.
            before = load_candidates(self.store, name, Strategy.LOCKS, epoch)
            highest = connection.execute(sa.select(sa.func.max(self.table.uid))).scalar_one()
            holder_rows = connection.execute(
                named_statement("meta_tables/lock_holders"), {"relation": relation}
            )
            holders = frozenset(holder_rows.scalars())
            state = advance(before, highest, holders)
            held_by = _read_holders(connection, state, holders)
        self.store.save(name, state)
        return WatermarkReading(value=state.released, strategy=Strategy.LOCKS, held_by=held_by)


def advance(state: Candidates, highest: int | None, holders: frozenset[str]) -> Candidates:
    """Return the next state from the highest id and the lock holders read after it."""
    state = state.limited_to(highest)
    if highest is not None:
        state = state.with_candidate(Candidate(highest, holders))
    # A finished transaction never takes a lock again, so a candidate only loses holders.
    waiting = tuple(
        replace(candidate, holders=candidate.holders & holders) for candidate in state.waiting
    )
    state = replace(state, waiting=waiting)
    if not any(holder.startswith(_RECOVERED) for holder in holders):
        free_ids = [candidate.id for candidate in state.waiting if not candidate.holders]
        state = state.released_up_to(free_ids[-1]) if free_ids else state
    return state.pruned()


def _read_holders(
    connection: sa.Connection, state: Candidates, holders: frozenset[str]
) -> tuple[LockHolder, ...]:
    if not state.waiting:
        return ()
    recovered = {holder for holder in holders if holder.startswith(_RECOVERED)}
    names = {"holders": sorted(state.waiting[0].holders | recovered)}
    lock_holders = [
        LockHolder(pid=row.pid, application=row.application or "", age_seconds=row.age_seconds)
        for row in connection.execute(named_statement("meta_tables/lock_holder_details"), names)
    ]
    return tuple(sorted(lock_holders, key=lambda candidate: -(candidate.age_seconds or 0.0)))


_PAGE_ROWS = 10_000
_CREATED_AT = sa.text("""
SELECT unix_timestamp(create_time) FROM information_schema.tables
 WHERE table_schema = :schema AND table_name = :table
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockingReadWatermark:
    """The high watermark of an InnoDB table with an AUTO_INCREMENT id; reads each row once."""

    table: ReflectedMetaTable
    store: StoredCandidates

    def read(self) -> WatermarkReading:
        """Read from the last high watermark to each candidate, up to the first open insert."""
        name = self.table.canonical_name
        with read_transaction(self.table.engine) as connection:
            epoch = str(connection.execute(_CREATED_AT, catalogue_names(self.table)).scalar())
        # Load first: a state that another process saves later may be above the ids read here.
        state = load_candidates(self.store, name, Strategy.LOCKING_READ, epoch)
        highest = self.table.highest_id()
        state = state.limited_to(highest)
        if highest is not None:
            state = state.with_candidate(Candidate(highest))
        for candidate in state.waiting:
            reached = self._settled_up_to(state.released, candidate.id)
            if reached is not None:
                state = state.released_up_to(reached)
            if reached != candidate.id:
                break
        self.store.save(name, state.thinned())
        return WatermarkReading(value=state.released, strategy=Strategy.LOCKING_READ)

    def _settled_up_to(self, after_id: int | None, last_id: int) -> int | None:
        """Lock and release page by page; return the last id before the page of an open insert."""
        while after_id is None or after_id < last_id:
            page_end = self._page_end(after_id, last_id)
            if not self._is_settled(after_id, page_end):
                break
            after_id = page_end
        return after_id

    def _page_end(self, after_id: int | None, last_id: int) -> int:
        page = sa.select(self.table.uid.label("uid")).where(*self._between(after_id, last_id))
        rows = page.order_by(self.table.uid).limit(_PAGE_ROWS).subquery()
        query = sa.select(sa.func.count(), sa.func.max(rows.c.uid)).select_from(rows)
        with read_transaction(self.table.engine, "READ COMMITTED") as connection:
            count, highest = connection.execute(query).one()
        return int(highest) if count == _PAGE_ROWS else last_id

    def _is_settled(self, after_id: int | None, last_id: int) -> bool:
        # Descending: an ascending scan would also lock the row after the last one.
        query = sa.select(self.table.uid).where(*self._between(after_id, last_id))
        query = query.order_by(self.table.uid.desc()).with_for_update(read=True, nowait=True)
        with read_transaction(self.table.engine, "READ COMMITTED") as connection:
            try:
                connection.execute(query).all()
            except exc.DBAPIError as error:
                if error_code(error) in LOCK_NOT_AVAILABLE:
                    return False
                raise
        return True

    def _between(self, after_id: int | None, last_id: int) -> list[sa.ColumnElement[bool]]:
        uid = self.table.uid
        above = [] if after_id is None else [uid > sa.literal(after_id, sa.BigInteger)]
        return [*above, uid <= sa.literal(last_id, sa.BigInteger)]


_CACHE_MARK = "(CACHE)"

INNODB = sa.text("""
SELECT t.engine AS engine, t.auto_increment AS next_id, c.extra AS extra,
       @@global.read_only AS read_only, @@global.innodb_read_only AS innodb_read_only
  FROM information_schema.tables t
  JOIN information_schema.columns c
    ON c.table_schema = t.table_schema AND c.table_name = t.table_name
 WHERE t.table_schema = :schema AND t.table_name = :table AND c.column_name = :uid
""")

# A group with one primary needs no check: its other members are read only.
_GROUP = sa.text("SHOW GLOBAL VARIABLES LIKE 'group_replication_single_primary_mode'")

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

    @classmethod
    def registrar(cls, table: ReflectedMetaTable, reason: str) -> "WatermarkChoice":
        """Return the choice for a table whose ids become visible in their order."""
        strategy = Strategy.REGISTRAR
        watermark = HighestIdWatermark(table=table, strategy=strategy)
        return cls(watermark=watermark, strategy=strategy, reason=reason)


def choose_watermark(
    table: ReflectedMetaTable,
    requested: Strategy | None = None,
    *,
    settle_by: SettleBy | None = None,
    store: StoredCandidates,
) -> WatermarkChoice:
    """Choose the strategy for a table's high watermark, or check the requested strategy.

    The default is `locks` on Postgres, `locking_read` on InnoDB and `sqlite` on SQLite if their
    conditions hold, else `settle`. `registrar` is never the default, since only the operator knows
    whether ids become visible in commit order.

    Raises:
        MetaTableError: the conditions of the requested strategy do not hold, `settle` is needed and
            no time column is named, or the time column is not valid.
    """
    exact, obstacle = _exact_strategy(table)
    strategy = requested or (Strategy.SETTLE if obstacle else exact)
    is_exact = strategy is exact and obstacle is None
    if strategy not in {Strategy.SETTLE, Strategy.REGISTRAR} and not is_exact:
        problem = obstacle or f"{table.engine.dialect.name} has {exact.value!r} for this"
        step = "Omit the strategy to use the default."
        raise watermark_unavailable(table.canonical_name, strategy.value, problem, step)
    watermark: HighWatermark = HighestIdWatermark(table=table, strategy=strategy)
    warnings: tuple[str, ...] = ()
    if obstacle is not None and obstacle.endswith(_CACHE_MARK):
        late = "rows with such ids may appear long after rows with higher ids, and then only an"
        warnings = (f"{obstacle}: {late} audit finds them; set the sequence to CACHE 1",)
    match strategy:
        case Strategy.SETTLE:
            watermark = _settle_watermark(table, settle_by, store, "" if requested else obstacle)
            delay = watermark.settle_by.delay
            late = (
                f"rows that become visible more than {delay} after their insert time, as in a "
                "long transaction or on a lagging replica, are found only by an audit"
            )
            reason, warnings = "requested" if requested else str(obstacle), (late, *warnings)
        case Strategy.REGISTRAR:
            reason = "requested: ids are assigned in commit order"
        case Strategy.LOCKS:
            watermark = LocksWatermark(table=table, store=store)
            reason = "ids come from one sequence with CACHE 1"
        case Strategy.LOCKING_READ:
            watermark = LockingReadWatermark(table=table, store=store)
            reason = "an AUTO_INCREMENT id in InnoDB"
        case Strategy.SQLITE:
            reason, warnings = "SQLite has one writer at a time", _reuse_warning(table)
        case _:
            assert_never(strategy)
    return WatermarkChoice(watermark=watermark, strategy=strategy, reason=reason, warnings=warnings)


def _settle_watermark(
    table: ReflectedMetaTable,
    settle_by: SettleBy | None,
    store: StoredCandidates,
    obstacle: str | None,
) -> SettleTimeWatermark:
    if settle_by is not None:
        return SettleTimeWatermark(table=table, settle_by=settle_by, store=store)
    problem = "no column with insert times is named"
    problem = f"{obstacle}, and {problem}" if obstacle else problem
    step = "Name one, or use 'registrar' if ids become visible in their order."
    raise watermark_unavailable(table.canonical_name, Strategy.SETTLE.value, problem, step)


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


def catalogue_names(table: ReflectedMetaTable) -> dict[str, object]:
    """Return the parameters of catalogue queries on a table's ids."""
    return {"table": table.table.name, "schema": table.table.schema, "uid": table.columns.uid}


def _postgres_obstacle(table: ReflectedMetaTable) -> str | None:
    sequences = named_statement("meta_tables/sequences_of_uid").text
    statement = named_statement("meta_tables/locks_conditions", SEQUENCES=sequences)
    with read_transaction(table.engine) as connection:
        row = connection.execute(statement, catalogue_names(table)).one()
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


def mysql_version(connection: sa.Connection) -> tuple[Any, ...] | None:
    """Return the version of a MySQL server, which is not MariaDB; None for others."""
    dialect = connection.dialect
    return None if getattr(dialect, "is_mariadb", False) else dialect.server_version_info or (0,)


def _innodb_obstacle(table: ReflectedMetaTable) -> str | None:
    with read_transaction(table.engine) as connection:
        row = connection.execute(INNODB, catalogue_names(table)).one()
        has_nodes = any(value.strip("0-") for _, value in connection.execute(MYSQL_CLUSTER))
        has_nodes |= any(value == "OFF" for _, value in connection.execute(_GROUP))
        version = mysql_version(connection)
    # Only the second one is set on a reader of Aurora. MariaDB 12 returns the first one as text.
    is_read_only = not {str(row.read_only), str(row.innodb_read_only)} <= {"0", "OFF"}
    obstacles = (
        (version and version < (8, 0, 1), "MySQL before 8.0 cannot read without waiting"),
        (row.engine != "InnoDB", f"the table's engine is {row.engine}, not InnoDB"),
        ("auto_increment" not in row.extra, f"{table.columns.uid} is not AUTO_INCREMENT"),
        (is_read_only, "the server is read only, so rows come from another server"),
        (has_nodes, "the server is one node of a cluster and does not see the locks of the others"),
    )
    return next((text for applies, text in obstacles if applies), None)


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
