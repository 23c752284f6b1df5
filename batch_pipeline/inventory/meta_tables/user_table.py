"""The items of a stream whose meta table belongs to the user. The table is only read.

Its rows hold the location and the weight of each file. Sizes and times come from the file itself.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import sqlalchemy as sa

from batch_pipeline.inventory.batch_states import late_items
from batch_pipeline.inventory.connection import fetch_column
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.connection import read_one_statement, read_transaction
from batch_pipeline.inventory.meta_tables.reflected_table import (
    MetaItem,
    ReflectedMetaTable,
    cuts_before_bad_weight,
)
from batch_pipeline.inventory.meta_tables.registered_table import read_items
from batch_pipeline.inventory.meta_tables.sources import MetaSource, MetaSources, SourceTerms
from batch_pipeline.inventory.meta_tables.watermarks import (
    SettleBy,
    WatermarkReading,
    database_time,
)
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.errors import (
    BadWeightError,
    BatchDataError,
    InvalidValueError,
)
from batch_pipeline.model.filter import Filter
from batch_pipeline.model.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.job import TableIdentity
from batch_pipeline.model.location import (
    MARK,
    S3,
    S3_SCHEMES,
    is_object,
    scheme_of,
    to_location,
    to_path,
)
from batch_pipeline.model.planning import Cut, Limits
from batch_pipeline.model.record_rules import OnBadFile
from batch_pipeline.model.stream import Stream, TableSource

_MAX_MATCHES = 20
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMetaTable:
    """The items of one stream in a user's table.

    Ids of streams are not negative, since partition keys have no sign.
    """

    inventory: sa.Engine
    sources: MetaSources
    stream: str
    table_source: TableSource
    on_bad_file: OnBadFile = OnBadFile.FAIL

    @classmethod
    def of(cls, stream: Stream, table_source: TableSource, **parts: Any) -> "UserMetaTable":
        """Return the table of a stream. `parts` are the `inventory` and the `sources`."""
        rule = stream.on_bad_file.missing
        return cls(stream=stream.name, table_source=table_source, on_bad_file=rule, **parts)

    @property
    def name(self) -> str:
        """The table's canonical name."""
        return self.source.name

    @property
    def where(self) -> Filter | None:
        """The filter that every read applies."""
        return self.table_source.where

    @property
    def identity(self) -> TableIdentity | None:
        """The database and the columns that the table is read with."""
        return self.source.table.identity

    @property
    def time_column(self) -> str | None:
        """The column of insert times, None if the stream names none."""
        return self.table_source.imported

    @property
    def source(self) -> MetaSource:
        """The open table with its high watermark.

        Raises:
            ConfigurationError: the table cannot be opened.
            MetaUnreachableError: its database does not answer.
        """
        return self._use(lambda source: source)

    def reflected(self) -> ReflectedMetaTable:
        """Return the table that the queries run against."""
        return self.source.table

    def read_high_watermark(self) -> WatermarkReading:
        """Read the high watermark from the database."""
        return self._use(MetaSource.read_high_watermark)

    def high_watermark(self) -> int | None:
        """Return the highest id below which no row can still appear."""
        return self.read_high_watermark().value

    def cuts(self, after_id: int | None, high_watermark: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above an id up to the high watermark, in one pass.

        The cuts end before a row with a rejected weight.

        Raises:
            BadWeightError: the first item above `after_id` has a rejected weight.
            MetaTableError: an id is negative or a duplicate.
        """

        def started(source: MetaSource) -> tuple[Cut | None, Iterator[Cut]]:
            cuts = cuts_before_bad_weight(source.table, after_id, high_watermark, limits)
            return next(cuts, None), cuts

        first, others = self._use(started)
        if first is not None:
            yield first
            yield from others

    def oldest_age(self, after_id: int | None) -> timedelta | None:
        """Return the age of the oldest item above an id; None without a column of insert times."""
        name = self.table_source.imported
        if name is None:
            return None

        def query_source(source: MetaSource) -> timedelta | None:
            table = source.table
            column = table.column(name, "insert time")
            items = table.weighed(_next_id(after_id), MAX_ID).order_by(None)
            with read_transaction(table.engine) as connection:
                query = items.with_only_columns(sa.func.min(column, type_=column.type))
                oldest = connection.execute(query).scalar_one()
                return None if oldest is None else database_time(connection, column) - oldest

        return self._use(query_source)

    def backlog(self, after_id: int | None) -> tuple[int, int]:
        """Return count and weight of the items above an id; a rejected weight counts as 0."""

        ids = IdRange(first_id=_next_id(after_id), last_id=MAX_ID)
        facts = self._use(lambda source: source.table.facts(ids))
        return facts.count, facts.weight

    def check_not_restarted(self, planned_up_to: int) -> None:
        """Check that new rows still get ids above those already planned.

        Raises:
            MetaTableRestartedError: the ids start again.
        """
        self._use(lambda source: source.check_not_restarted(self.stream, planned_up_to))

    def items(self, batch: Batch) -> Sequence[Item]:
        """Read the items of a batch in id order.

        A batch of late arrivals has a list of ids. A range has the items that it was planned with,
        without those that another batch lists as late arrivals.

        Raises:
            BatchDataError: a row names no file, or has a rejected weight.
        """
        try:
            rows = self._use(lambda source: read_items(self.inventory, source.table, batch))
        except BadWeightError as error:
            problem = f"the weight is {error.weight!r}; expected a number from 0 to 2^63 - 1"
            raise _item_error(error.table, error.item_id, problem) from error
        is_range = batch.item_ids is None
        late = set(fetch_column(self.inventory, late_items(batch)) if is_range else ())
        return [self._item(row) for row in rows if row.id not in late]

    def find(self, text: str) -> list[Item]:
        """Return at most 20 items whose id, location or last part of the location is `text`."""

        def query_source(source: MetaSource) -> Sequence[sa.Row[*tuple[Any, ...]]]:
            table = source.table
            query = table.queries.items.where(_matches(table, text)).limit(_MAX_MATCHES)
            bounds = {"first_id": MIN_ID, "last_id": MAX_ID}
            with read_one_statement(table.engine) as connection:
                return connection.execute(query, bounds).all()

        return [
            Item(
                id=row[0],
                file=LandedFile(location=_display_location(row[1])),
                row_weight=row[2] or 0,
            )
            for row in self._use(query_source)
        ]

    def _use(self, work: Callable[[MetaSource], _Result]) -> _Result:
        return self.sources.use(source_terms_of_stream(self.table_source), work)

    def _item(self, row: MetaItem) -> Item:
        try:
            location = to_location(row.item)
        except InvalidValueError as error:
            if self.on_bad_file is OnBadFile.FAIL:
                problem = f"the location is {_redact(row.item)}; expected {error.expected}"
                raise _item_error(self.name, row.id, problem) from error
            location = _mark_invalid(row.item)  # fails when it is opened, which quarantines it
        roots = self.table_source.within
        if self.on_bad_file is OnBadFile.FAIL and roots.refuse(location):
            problem = f"the location is {_redact(row.item)}, which {roots.advice}"
            raise _item_error(self.name, row.id, problem)
        return Item(id=row.id, file=LandedFile(location=location), row_weight=row.weight)


def source_terms_of_stream(table_source: TableSource) -> SourceTerms:
    """Return the options for reading the table of a stream."""
    imported, settle = table_source.imported, table_source.settle
    settle_by = None
    if imported is not None:
        settle_by = SettleBy(imported) if settle is None else SettleBy(imported, settle)
    return SourceTerms(
        name=table_source.table,
        columns=MetaColumns(
            uid=table_source.uid, item=table_source.item, weight=table_source.weight
        ),
        where=table_source.where,
        on_bad_weight=table_source.on_bad_weight,
        strategy=table_source.ceiling,
        settle_by=settle_by,
    )


def _matches(table: ReflectedMetaTable, query: str) -> sa.ColumnElement[bool]:
    column: sa.Column[Any] = table.table.c[table.columns.item]
    text = column if isinstance(column.type, sa.String) else sa.cast(column, sa.String(4_000))
    spellings = {query}
    try:
        locations = _equivalent_uris(to_location(query))
    except InvalidValueError:
        locations = ()  # a name, or an id
    spellings.update(locations)
    is_range = any(MARK in location for location in locations)
    if locations and not is_range and scheme_of(locations[0]) == "file":
        spellings.add(to_path(locations[0]))
    conditions = [text == spelling for spelling in sorted(spellings)]
    if not is_range:
        conditions += [text.startswith(location + MARK, autoescape=True) for location in locations]
    if "/" not in query:
        conditions.append(text.endswith(f"/{query}", autoescape=True))
        conditions.append(text.contains(f"/{query}{MARK}", autoescape=True))
    if query.isascii() and query.isdigit() and len(query) < 19:
        conditions.append(table.uid == sa.literal(int(query), sa.BigInteger))
    return sa.or_(*conditions)


def _equivalent_uris(location: str) -> tuple[str, ...]:
    """Return the URIs by which a table may name the same file."""
    if not is_object(location):
        return (location,)
    return tuple(scheme + location.removeprefix(S3) for scheme in S3_SCHEMES)


def _next_id(after_id: int | None) -> int:
    return MIN_ID if after_id is None else after_id + 1


def _display_location(value: object) -> str:
    try:
        return to_location(value)
    except InvalidValueError:
        return _mark_invalid(value)


def _mark_invalid(value: object) -> str:
    """Return a row's text in brackets if truncation could make it look like a location."""
    text = _redact(value)
    return f"<{text}>" if text.startswith("/") or "://" in text else text


def _redact(value: object) -> str:
    """Return a row's text without passwords, truncated to 300 characters."""
    text = value if isinstance(value, str) else repr(value)
    return re.sub(r"//[^/@\s]*@", "//***@", text)[:300]


def _item_error(table: str, item_id: int, problem: str) -> BatchDataError:
    return BatchDataError(
        f"{table}: {problem} (id {item_id}). Nothing of this batch was "
        f"published. Correct the row and run again."
    )
