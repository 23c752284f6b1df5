"""The meta tables that backfills read: the product's own, and users'.

Each yields `(id, weight)` pairs in ascending order, streamed over a connection of its own. Reads
only.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from typing import Protocol

import sqlalchemy as sa

from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.meta_tables.cutting import (
    all_cuts,
    cuts_with_keys,
    ensure_ids_not_negative,
)
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.registered_table import OwnMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.meta_tables.user_table import UserMetaTable
from batch_pipeline.inventory.meta_tables.watermarks import describe_reading
from batch_pipeline.inventory.tables import item
from batch_pipeline.model.backfill import Selection
from batch_pipeline.model.errors import InvalidValueError, missing_column, unfit_column
from batch_pipeline.model.filter import AllOf, Condition, Filter, Operator
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.job import TableIdentity
from batch_pipeline.model.planning import Cut, Limits

_STREAM_ROWS = 10_000
_CHUNK = 1_000
WeighedIds = Iterator[tuple[int, int]]
log = logging.getLogger(__name__)


class BackfillSource(Protocol):
    """A meta table up to its high watermark."""

    @property
    def name(self) -> str:
        """The table's canonical name."""
        ...

    @property
    def where(self) -> Filter | None:
        """The filter of every read."""
        ...

    @property
    def identity(self) -> TableIdentity | None:
        """The database and columns of the table; None if unknown."""
        ...

    def high_watermark(self) -> int | None:
        """Return the high watermark; None if it is unknown."""
        ...

    def cuts(self, after_id: int | None, last_id: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above `after_id` (None: from the first row) up to `last_id`."""
        ...

    def chosen(self, ids: IdRange, selection: Selection) -> WeighedIds:
        """Yield the items of a range whose time matches the selection."""
        ...

    def listed(self, ids: Sequence[int]) -> WeighedIds:
        """Yield the existing items of an ascending list of ids."""
        ...


def open_backfill_source(source: OwnMetaTable | UserMetaTable | MetaSource) -> BackfillSource:
    """Return the backfill source of a meta table."""
    if isinstance(source, UserMetaTable):
        return StreamTableSource(source.source, source.time_column)
    return RegisteredSource(source) if isinstance(source, OwnMetaTable) else UserTableSource(source)


@dataclass(frozen=True, slots=True)
class RegisteredSource:
    """The items of a stream; their times are when the product registered them."""

    table: OwnMetaTable

    @property
    def name(self) -> str:
        """The table's canonical name."""
        return self.table.name

    @property
    def where(self) -> Filter | None:
        """None: a stream reads all its items."""
        return None

    @property
    def identity(self) -> TableIdentity:
        """The database and the columns of the items."""
        return self.table.identity

    def high_watermark(self) -> int | None:
        """Return the highest id."""
        return self.table.high_watermark()

    def cuts(self, after_id: int | None, last_id: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above `after_id` up to `last_id`, in one pass."""
        return self.table.cuts(after_id, last_id, limits)

    def chosen(self, ids: IdRange, selection: Selection) -> WeighedIds:
        """Yield the items of a range that were registered within the selection's times.

        Raises:
            MetaTableError: the selection names another time column.
        """
        if selection.time_column not in {None, item.c.registered_at.name}:
            columns = (item.c.registered_at.name,)
            raise missing_column(self.name, selection.time_column or "", "time", columns)
        conditions = []
        if selection.since is not None:
            conditions.append(item.c.registered_at >= selection.since)
        if selection.until is not None:
            conditions.append(item.c.registered_at < selection.until)
        yield from self._weighed(item.c.id.between(ids.first_id, ids.last_id), *conditions)

    def listed(self, ids: Sequence[int]) -> WeighedIds:
        """Yield the existing items of an ascending list of ids."""
        for start in range(0, len(ids), _CHUNK):
            chunk = sa.cast(list(ids[start : start + _CHUNK]), sa.ARRAY(sa.BigInteger))
            yield from self._weighed(item.c.id == sa.any_(chunk))

    def _weighed(self, *conditions: sa.ColumnElement[bool]) -> WeighedIds:
        query = (
            sa.select(item.c.id, item.c.size_bytes)
            .where(item.c.stream == self.table.stream, *conditions)
            .order_by(item.c.id)
            .execution_options(yield_per=_STREAM_ROWS)
        )
        with transaction(self.table.engine) as connection, connection.execute(query) as result:
            for row in result:
                yield row.id, row.size_bytes


@dataclass(frozen=True, slots=True)
class UserTableSource:
    """The filtered items of a user's table; `time_column` is the default of selections."""

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

    def high_watermark(self) -> int | None:
        """Read the high watermark; log what holds it back."""
        reading = self.source.read_high_watermark()
        if reading.held_by:
            log.warning("%s: nothing is planned above the %s", self.name, describe_reading(reading))
        return reading.value

    def cuts(self, after_id: int | None, last_id: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above `after_id` (None: from the first row) up to `last_id`."""
        return all_cuts(self.source.table, after_id, last_id, limits)

    def chosen(self, ids: IdRange, selection: Selection) -> WeighedIds:
        """Return the items of a range whose time column is within the selection's times.

        A column without a time zone is in UTC. NULL never matches.

        Raises:
            InvalidValueError: no time column is named.
            MetaTableError: the time column does not exist or has another type.
        """
        table = self.source.table
        if selection.has_times:
            table = _filtered(table, *_times(table, selection, self.time_column))
        return table.weights(ids.first_id - 1, ids.last_id)

    def listed(self, ids: Sequence[int]) -> WeighedIds:
        """Yield the existing items of an ascending list of ids."""
        table = self.source.table
        for start in range(0, len(ids), _CHUNK):
            chunk = tuple(ids[start : start + _CHUNK])
            listed_table = _filtered(table, Condition(table.columns.uid, Operator.IN, chunk))
            yield from listed_table.weights(chunk[0] - 1, chunk[-1])


@dataclass(frozen=True, slots=True)
class StreamTableSource(UserTableSource):
    """The items of a stream that a user's table lists, with ids that are valid partition keys."""

    def cuts(self, after_id: int | None, last_id: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above `after_id` (None: from the first row) up to `last_id`."""
        return cuts_with_keys(self.source.table, after_id, last_id, limits)

    def chosen(self, ids: IdRange, selection: Selection) -> WeighedIds:
        """Return the items of a range whose time column is within the selection's times."""
        ensure_ids_not_negative(self.source.table)
        return UserTableSource.chosen(self, ids, selection)


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
        raise missing_column(table.canonical_name, name, "time", columns)
    column_type = table.table.c[name].type
    if not isinstance(column_type, sa.DateTime | sa.Date):
        problem = f"its type is {column_type!r}, and a date or a time is needed"
        step = "Name the column that tells when a row was inserted."
        raise unfit_column(table.canonical_name, name, "time", problem, step)
    is_date = isinstance(column_type, sa.Date)
    bounds = (
        ("since", Operator.GREATER_OR_EQUAL, selection.since),
        ("until", Operator.LESS, selection.until),
    )
    return [
        Condition(name, operator, _format_bound(bound, moment, days=is_date))
        for bound, operator, moment in bounds
        if moment is not None
    ]


def _format_bound(bound: str, moment: datetime, *, days: bool) -> str:
    moment = moment.astimezone(UTC)
    if not days:
        return moment.isoformat()
    if moment.time() != time(0):
        raise InvalidValueError(bound, moment.isoformat(), "a whole day, for a column of days")
    return moment.date().isoformat()
