"""The two kinds of meta table as backfills read them: the product's own, and a user's.

Both give `(id, weight)` in rising order, streamed over a connection of their own. Nothing is
written here.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from typing import Protocol

import sqlalchemy as sa

from batch_pipeline.domain.backfill import Selection
from batch_pipeline.domain.errors import (
    InvalidValueError,
    MetaColumnUnfitError,
    UnknownMetaColumnError,
)
from batch_pipeline.domain.filter import AllOf, Condition, Filter, Operator
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.planning import Cut, Limits
from batch_pipeline.domain.table_identity import TableIdentity
from batch_pipeline.inventory.meta.all_cuts import all_cuts
from batch_pipeline.inventory.meta.ceilings.ceiling import describe
from batch_pipeline.inventory.meta.key_cuts import check_not_negative, cuts_of_keys
from batch_pipeline.inventory.meta.meta_source import MetaSource
from batch_pipeline.inventory.meta.meta_table import OwnMetaTable
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta.user_meta_table import UserMetaTable
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import item

_STREAM_ROWS = 10_000
_CHUNK = 1_000
WeighedIds = Iterator[tuple[int, int]]
log = logging.getLogger(__name__)


class Past(Protocol):
    """A meta table below its ceiling."""

    @property
    def name(self) -> str:
        """The table's canonical name."""
        ...

    @property
    def where(self) -> Filter | None:
        """The filter that every read keeps to."""
        ...

    @property
    def identity(self) -> TableIdentity | None:
        """The database and the columns that the table is read by; None where unknown."""
        ...

    def ceiling(self) -> int | None:
        """Give the highest id below which no row can still appear; None when nothing is known."""
        ...

    def cuts(self, after_id: int | None, last_id: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above an id (None: from the first row on) up to one, in one pass."""
        ...

    def chosen(self, ids: IdRange, selection: Selection) -> WeighedIds:
        """Give the items of a range whose time the selection takes."""
        ...

    def listed(self, ids: Sequence[int]) -> WeighedIds:
        """Give those items of a rising list that are there."""
        ...


def past_of(source: OwnMetaTable | UserMetaTable | MetaSource) -> Past:
    """Give a table as backfills read it."""
    if isinstance(source, UserMetaTable):
        return StreamPast(source.source, source.time_column)
    return OwnPast(source) if isinstance(source, OwnMetaTable) else UserPast(source)


@dataclass(frozen=True, slots=True)
class OwnPast:
    """The items of a stream; their times are when the product registered them."""

    table: OwnMetaTable

    @property
    def name(self) -> str:
        """The table's canonical name."""
        return self.table.name

    @property
    def where(self) -> Filter | None:
        """None: a stream has all its items."""
        return None

    @property
    def identity(self) -> TableIdentity:
        """The database and the columns of the items."""
        return self.table.identity

    def ceiling(self) -> int | None:
        """Give the highest id."""
        return self.table.ceiling()

    def cuts(self, after_id: int | None, last_id: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above an id up to one, in one pass."""
        return self.table.cuts(after_id, last_id, limits)

    def chosen(self, ids: IdRange, selection: Selection) -> WeighedIds:
        """Give the items of a range that were registered at the selection's times.

        Raises:
            UnknownMetaColumnError: another time is asked for.
        """
        if selection.time_column not in {None, item.c.registered_at.name}:
            columns = (item.c.registered_at.name,)
            raise UnknownMetaColumnError(self.name, selection.time_column or "", "time", columns)
        when = []
        if selection.since is not None:
            when.append(item.c.registered_at >= selection.since)
        if selection.until is not None:
            when.append(item.c.registered_at < selection.until)
        yield from self._weighed(item.c.id.between(ids.first_id, ids.last_id), *when)

    def listed(self, ids: Sequence[int]) -> WeighedIds:
        """Give those items of a rising list that are there."""
        for start in range(0, len(ids), _CHUNK):
            chunk = sa.cast(list(ids[start : start + _CHUNK]), sa.ARRAY(sa.BigInteger))
            yield from self._weighed(item.c.id == sa.any_(chunk))

    def _weighed(self, *which: sa.ColumnElement[bool]) -> WeighedIds:
        query = (
            sa.select(item.c.id, item.c.size_bytes)
            .where(item.c.stream == self.table.stream, *which)
            .order_by(item.c.id)
            .execution_options(yield_per=_STREAM_ROWS)
        )
        with transaction(self.table.engine) as connection, connection.execute(query) as found:
            for row in found:
                yield row.id, row.size_bytes


@dataclass(frozen=True, slots=True)
class UserPast:
    """The items of a user's table, through its filter; `time_column` if no selection names one."""

    source: MetaSource
    time_column: str | None = None

    @property
    def name(self) -> str:
        """The table's canonical name."""
        return self.source.name

    @property
    def where(self) -> Filter | None:
        """The filter that the table was opened with."""
        return self.source.table.where

    @property
    def identity(self) -> TableIdentity | None:
        """The database and the columns that the table was opened with."""
        return self.source.table.identity

    def ceiling(self) -> int | None:
        """Look at the ceiling once; what holds it back is logged."""
        reading = self.source.reading()
        if reading.held_by:
            log.warning("%s: nothing is planned above the %s", self.name, describe(reading))
        return reading.value

    def cuts(self, after_id: int | None, last_id: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above an id (None: from the first row on) up to one, in one pass."""
        return all_cuts(self.source.table, after_id, last_id, limits)

    def chosen(self, ids: IdRange, selection: Selection) -> WeighedIds:
        """Give the items of a range whose time column is within the selection's times.

        A column without a zone is taken as UTC. NULL is within no times.

        Raises:
            InvalidValueError, UnknownMetaColumnError, MetaColumnUnfitError: the time column is not
                named, not there, or holds no times.
        """
        table = self.source.table
        if selection.has_times:
            table = _filtered(table, *_times(table, selection, self.time_column))
        return table.weights(ids.first_id - 1, ids.last_id)

    def listed(self, ids: Sequence[int]) -> WeighedIds:
        """Give those items of a rising list that are there."""
        table = self.source.table
        for start in range(0, len(ids), _CHUNK):
            chunk = tuple(ids[start : start + _CHUNK])
            these = _filtered(table, Condition(table.columns.uid, Operator.IN, chunk))
            yield from these.weights(chunk[0] - 1, chunk[-1])


@dataclass(frozen=True, slots=True)
class StreamPast(UserPast):
    """The items of a stream that a user's table lists: ids that partition keys can name."""

    def cuts(self, after_id: int | None, last_id: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above an id (None: from the first row on) up to one, in one pass."""
        return cuts_of_keys(self.source.table, after_id, last_id, limits)

    def chosen(self, ids: IdRange, selection: Selection) -> WeighedIds:
        """Give the items of a range whose time column is within the selection's times."""
        check_not_negative(self.source.table)
        return UserPast.chosen(self, ids, selection)


def _filtered(table: ReflectedMetaTable, *conditions: Filter) -> ReflectedMetaTable:
    parts = conditions if table.where is None else (table.where, *conditions)
    return replace(table, where=AllOf(parts))


def _times(
    table: ReflectedMetaTable, selection: Selection, time_column: str | None
) -> list[Filter]:
    name = selection.time_column or time_column
    if name is None:
        raise InvalidValueError("time_column", None, "the name of a column of times")
    if name not in table.table.c:
        columns = tuple(table.table.c.keys())
        raise UnknownMetaColumnError(table.canonical_name, name, "time", columns)
    kind = table.table.c[name].type
    if not isinstance(kind, sa.DateTime | sa.Date):
        problem = f"its type is {kind!r}, and a date or a time is needed"
        step = "Name the column that tells when a row was inserted."
        raise MetaColumnUnfitError(table.canonical_name, name, "time", problem, step)
    days = isinstance(kind, sa.Date)
    bounds = (
        ("since", Operator.GREATER_OR_EQUAL, selection.since),
        ("until", Operator.LESS, selection.until),
    )
    return [
        Condition(name, operator, _text(bound, moment, days=days))
        for bound, operator, moment in bounds
        if moment is not None
    ]


def _text(bound: str, moment: datetime, *, days: bool) -> str:
    moment = moment.astimezone(UTC)
    if not days:
        return moment.isoformat()
    if moment.time() != time(0):
        raise InvalidValueError(bound, moment.isoformat(), "a whole day, for a column of days")
    return moment.date().isoformat()
