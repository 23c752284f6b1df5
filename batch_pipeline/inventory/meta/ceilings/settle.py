"""The ceiling by age: rows younger than a delay, and all above the first of them, are left alone.

Safe as long as no writer's transaction lasts longer than the delay (a default of `now()` is the
start of the transaction) less what clocks differ.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.errors import (
    InvalidValueError,
    MetaColumnUnfitError,
    UnknownMetaColumnError,
)
from batch_pipeline.domain.id_range import MAX_ID
from batch_pipeline.inventory.meta.ceilings.ceiling import (
    CandidateStore,
    CeilingReading,
    Strategy,
    recalled,
)
from batch_pipeline.inventory.meta.meta_engine import reading
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable


@dataclass(frozen=True, slots=True)
class SettleBy:
    """The column that holds each row's insert time, and how long a row is left alone.

    Raises:
        InvalidValueError: the delay is not positive.
    """

    column: str
    delay: timedelta = timedelta(minutes=15)

    def __post_init__(self) -> None:
        if self.delay <= timedelta(0):
            raise InvalidValueError("settle delay", str(self.delay), "more than 0 s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleCeiling:
    """The ceiling of any table with insert times.

    A column without a zone holds the local time of the database session (UTC on SQLite).

    Raises:
        UnknownMetaColumnError: the column is not there.
        MetaColumnUnfitError: it holds no times.
    """

    table: ReflectedMetaTable
    settle_by: SettleBy
    store: CandidateStore

    def __post_init__(self) -> None:
        name, table = self.settle_by.column, self.table
        if name not in table.table.c:
            columns = tuple(table.table.c.keys())
            raise UnknownMetaColumnError(table.canonical_name, name, "insert time", columns)
        if not isinstance(table.table.c[name].type, sa.DateTime):
            problem = f"its type is {table.table.c[name].type!r}, and a date with time is needed"
            step = "Name a column of timestamps that the database sets when a row is inserted."
            raise MetaColumnUnfitError(table.canonical_name, name, "insert time", problem, step)

    def read(self) -> CeilingReading:
        """Give the highest id below the first row that is younger than the delay or has no time."""
        table = self.table
        time: sa.Column[Any] = table.table.c[self.settle_by.column]
        # Another stream may look at the same table with a shorter delay, or by another column.
        epoch = f"{self.settle_by.column} {self.settle_by.delay}"
        state = recalled(self.store, table.canonical_name, Strategy.SETTLE, epoch)
        state = state.limited_to(table.highest_id())
        with reading(table.engine) as connection:
            settled_until = database_time(connection, time) - self.settle_by.delay
            unsettled = sa.or_(time.is_(None), time > sa.literal(settled_until, time.type))
            if state.released is not None:
                unsettled = sa.and_(
                    table.uid > sa.literal(state.released, sa.BigInteger), unsettled
                )
            first = sa.select(sa.func.min(table.uid)).where(unsettled).scalar_subquery()
            last = sa.func.coalesce(first - 1, sa.literal(MAX_ID, sa.BigInteger))
            value = connection.execute(
                sa.select(sa.func.max(table.uid)).where(table.uid <= last)
            ).scalar_one()
        if value is not None:
            state = state.released_up_to(value)
        self.store.save(table.canonical_name, state)
        return CeilingReading(value=state.released, strategy=Strategy.SETTLE)


def database_time(connection: sa.Connection, column: sa.Column[Any]) -> datetime:
    """Ask the database for its time, in the form that a column of times has."""
    if connection.dialect.name == "sqlite":
        text = connection.execute(sa.select(sa.func.datetime("now"))).scalar_one()
        return datetime.fromisoformat(text)
    if connection.dialect.name == "postgresql":
        form = sa.TIMESTAMP(timezone=isinstance(column.type, sa.DateTime) and column.type.timezone)
        clock = sa.cast(sa.func.clock_timestamp(), form)
        return connection.execute(sa.select(clock)).scalar_one()
    return connection.execute(sa.select(sa.func.now())).scalar_one()
