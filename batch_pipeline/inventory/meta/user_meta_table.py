"""A stream's items where they are rows of the user's own table: read there, never written.

What such a table says of a file is where it is and what it weighs; sizes and times are the file's
own business.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import sqlalchemy as sa

from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.errors import (
    BadItemError,
    BadWeightError,
    InvalidValueError,
    UnknownMetaColumnError,
)
from batch_pipeline.domain.file_range import MARK
from batch_pipeline.domain.filter import Filter
from batch_pipeline.domain.id_range import MAX_ID, MIN_ID
from batch_pipeline.domain.item import FoundFile, Item
from batch_pipeline.domain.location import (
    S3,
    S3_SCHEMES,
    is_object,
    scheme_of,
    to_location,
    to_path,
)
from batch_pipeline.domain.planning import Cut, Limits
from batch_pipeline.domain.record_rules import OnBadFile
from batch_pipeline.domain.stream import Stream, TableSource
from batch_pipeline.domain.table_identity import TableIdentity
from batch_pipeline.inventory.jobs.late_items import late_items
from batch_pipeline.inventory.meta.ceilings.ceiling import CeilingReading
from batch_pipeline.inventory.meta.ceilings.settle import SettleBy, database_time
from batch_pipeline.inventory.meta.column_roles import MetaColumns
from batch_pipeline.inventory.meta.key_cuts import cuts_before_bad
from batch_pipeline.inventory.meta.meta_engine import reading, reading_once
from batch_pipeline.inventory.meta.meta_queries import Facts
from batch_pipeline.inventory.meta.meta_source import MetaSource
from batch_pipeline.inventory.meta.meta_sources import MetaSources, SourceTerms
from batch_pipeline.inventory.meta.reflected_table import MetaItem, ReflectedMetaTable
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.work.bisect import listed

_FOUND = 20
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMetaTable:
    """The items of one stream in a user's table.

    Ids of streams are not negative, since partition keys have no sign.
    """

    inventory: sa.Engine
    sources: MetaSources
    stream: str
    described: TableSource
    on_bad_file: OnBadFile = OnBadFile.FAIL

    @classmethod
    def of(cls, stream: Stream, described: TableSource, **parts: Any) -> "UserMetaTable":
        """Give the table of a stream; `parts` are the inventory and the open tables."""
        rule = stream.on_bad_file.missing
        return cls(stream=stream.name, described=described, on_bad_file=rule, **parts)

    @property
    def name(self) -> str:
        """Its canonical name."""
        return self.source.name

    @property
    def where(self) -> Filter | None:
        """The filter that every read keeps to."""
        return self.described.where

    @property
    def identity(self) -> TableIdentity | None:
        """The database and the columns that the table is read by."""
        return self.source.table.identity

    @property
    def time_column(self) -> str | None:
        """The column of insert times, where one is named."""
        return self.described.imported

    @property
    def source(self) -> MetaSource:
        """The open table with its ceiling.

        Raises:
            ConfigurationError: the table cannot be opened.
            MetaUnreachableError: its database does not answer.
        """
        return self._use(lambda source: source)

    def reflected(self) -> ReflectedMetaTable:
        """Give the table as it is read."""
        return self.source.table

    def reading(self) -> CeilingReading:
        """Look at the ceiling once."""
        return self._use(MetaSource.reading)

    def ceiling(self) -> int | None:
        """Give the highest id below which no row can still appear."""
        return self.reading().value

    def cuts(self, after_id: int | None, ceiling: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above an id up to the ceiling, in one pass.

        A row whose weight is refused ends the cuts before it; when it is the next one, it is told.

        Raises:
            BadWeightError: the next item has a weight that is refused.
            MetaColumnUnfitError: an id is negative, or there twice.
        """

        def started(source: MetaSource) -> tuple[Cut | None, Iterator[Cut]]:
            found = cuts_before_bad(source.table, after_id, ceiling, limits)
            return next(found, None), found

        first, others = self._use(started)
        if first is not None:
            yield first
            yield from others

    def waited(self, after_id: int | None) -> timedelta | None:
        """Tell how long the oldest item above an id has been there; None without insert times."""
        name = self.described.imported
        if name is None:
            return None

        def ask(source: MetaSource) -> timedelta | None:
            table = source.table
            column = _column(table, name, "insert time")
            items = table.weighed(_next_id(after_id), MAX_ID).order_by(None)
            with reading(table.engine) as connection:
                query = items.with_only_columns(sa.func.min(column, type_=column.type))
                oldest = connection.execute(query).scalar_one()
                return None if oldest is None else database_time(connection, column) - oldest

        return self._use(ask)

    def backlog(self, after_id: int | None) -> tuple[int, int]:
        """Count the items above an id and their weight; a refused weight counts nothing."""

        def ask(source: MetaSource) -> tuple[int, int]:
            bounds = {"first_id": _next_id(after_id), "last_id": MAX_ID}
            with reading_once(source.table.engine) as connection:
                facts = Facts.of(connection.execute(source.table.queries.facts, bounds).one())
            return facts.count, facts.weight

        return self._use(ask)

    def check_not_restarted(self, planned_up_to: int) -> None:
        """Check that ids still go on above what is planned.

        Raises:
            MetaTableRestartedError: they start again.
        """
        self._use(lambda source: source.check_not_restarted(self.stream, planned_up_to))

    def items(self, batch: Batch) -> Sequence[Item]:
        """Read the items of a batch in id order: those of its list, or those that its range was
        planned with and that are in no list of late arrivals.

        Raises:
            BadItemError: a row names no file, or has a weight that is refused.
        """
        try:
            rows = self._use(lambda source: listed(self.inventory, source.table, batch))
        except BadWeightError as error:
            problem = f"the weight is {error.weight!r}; expected a number from 0 to 2^63 - 1"
            raise BadItemError(error.table, error.item_id, problem) from error
        late: set[int] = set()
        if batch.item_ids is None:
            with transaction(self.inventory) as connection:
                late = set(connection.execute(late_items(batch)).scalars())
        return [self._item(row) for row in rows if row.id not in late]

    def find(self, what: str) -> list[Item]:
        """Find items by id, by whole location, or by the last part of it; at most 20."""

        def ask(source: MetaSource) -> list[MetaItem]:
            table = source.table
            query = table.queries.items.where(_named(table, what)).limit(_FOUND)
            bounds = {"first_id": MIN_ID, "last_id": MAX_ID}
            with reading_once(table.engine) as connection:
                rows = connection.execute(query, bounds).all()
            return [MetaItem(id=row[0], item=row[1], weight=row[2] or 0) for row in rows]

        return [
            Item(id=row.id, file=FoundFile(location=_as_shown(row.item)), row_weight=row.weight)
            for row in self._use(ask)
        ]

    def _use(self, work: Callable[[MetaSource], _Result]) -> _Result:
        return self.sources.use(source_terms(self.described), work)

    def _item(self, row: MetaItem) -> Item:
        try:
            location = to_location(row.item)
        except InvalidValueError as error:
            if self.on_bad_file is OnBadFile.FAIL:
                problem = f"the location is {_shown(row.item)}; expected {error.expected}"
                raise BadItemError(self.name, row.id, problem) from error
            location = _unopened(row.item)  # whoever opens it sets it aside
        roots = self.described.within
        if self.on_bad_file is OnBadFile.FAIL and roots.refuse(location):
            problem = f"the location is {_shown(row.item)}, which {roots.advice}"
            raise BadItemError(self.name, row.id, problem)
        return Item(id=row.id, file=FoundFile(location=location), row_weight=row.weight)


def source_terms(described: TableSource) -> SourceTerms:
    """Say which table is read, and how."""
    imported, settle = described.imported, described.settle
    settle_by = None
    if imported is not None:
        settle_by = SettleBy(imported) if settle is None else SettleBy(imported, settle)
    return SourceTerms(
        name=described.table,
        columns=MetaColumns(uid=described.uid, item=described.item, weight=described.weight),
        where=described.where,
        on_bad_weight=described.on_bad_weight,
        ceiling=described.ceiling,
        settle_by=settle_by,
    )


def _named(table: ReflectedMetaTable, what: str) -> sa.ColumnElement[bool]:
    column: sa.Column[Any] = table.table.c[table.columns.item]
    text = column if isinstance(column.type, sa.String) else sa.cast(column, sa.String(4_000))
    ways = {what}
    try:
        locations = _spellings(to_location(what))
    except InvalidValueError:
        locations = ()  # a name, or an id
    ways.update(locations)
    is_range = any(MARK in one for one in locations)
    if locations and not is_range and scheme_of(locations[0]) == "file":
        ways.add(to_path(locations[0]))
    fits = [text == way for way in sorted(ways)]
    if not is_range:
        fits += [text.startswith(one + MARK, autoescape=True) for one in locations]
    if "/" not in what:
        fits.append(text.endswith(f"/{what}", autoescape=True))
        fits.append(text.contains(f"/{what}{MARK}", autoescape=True))
    if what.isascii() and what.isdigit() and len(what) < 19:
        fits.append(table.uid == sa.literal(int(what), sa.BigInteger))
    return sa.or_(*fits)


def _spellings(location: str) -> tuple[str, ...]:
    """Give the URIs by which a table may name the same file."""
    if not is_object(location):
        return (location,)
    return tuple(scheme + location.removeprefix(S3) for scheme in S3_SCHEMES)


def _column(table: ReflectedMetaTable, name: str, role: str) -> sa.Column[Any]:
    if name not in table.table.c:
        raise UnknownMetaColumnError(table.canonical_name, name, role, tuple(table.table.c.keys()))
    return table.table.c[name]


def _next_id(after_id: int | None) -> int:
    return MIN_ID if after_id is None else after_id + 1


def _as_shown(written: object) -> str:
    try:
        return to_location(written)
    except InvalidValueError:
        return _unopened(written)


def _unopened(written: object) -> str:
    """Show what stands in a row as what is no location: what was cut off must not make it one."""
    text = _shown(written)
    return f"<{text}>" if text.startswith("/") or "://" in text else text


def _shown(written: object) -> str:
    """Show what stands in a row, without a password that may be in it."""
    text = written if isinstance(written, str) else repr(written)
    return re.sub(r"//[^/@\s]*@", "//***@", text)[:300]
