"""The user's own meta table, in any database that SQLAlchemy speaks: read only, by reflected names.

Every method opens a short transaction of its own on the meta engine; none knows the inventory.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.errors import BadWeightError, InvalidValueError, MetaColumnUnfitError
from batch_pipeline.domain.filter import Filter
from batch_pipeline.domain.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.domain.id_runs import IdRuns
from batch_pipeline.domain.planning import Cut, Limits, cut
from batch_pipeline.domain.table_identity import DatabaseIdentity, TableIdentity
from batch_pipeline.inventory.meta.catalogue import find_table
from batch_pipeline.inventory.meta.column_roles import MetaColumns, checked_columns
from batch_pipeline.inventory.meta.filters import clause
from batch_pipeline.inventory.meta.meta_engine import reading, reading_once
from batch_pipeline.inventory.meta.meta_queries import (
    BatchQueries,
    Facts,
    counted_weight,
    cut_up_to,
    runs_of,
)
from batch_pipeline.inventory.meta.statement_text import text_of

_STREAM_ROWS = 10_000
_PAGE_ROWS = 128
_LARGEST_PAGE_ROWS = 8_192
_LISTED_IDS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaItem:
    """One row of a user's meta table: id, the item column as it is stored, counted weight."""

    id: int
    item: Any
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTexts:
    """Statements as text. $1 and $2 are the first and the last id.

    `cut` finds the last item of a batch, $3 and $4 are the weight and the count that it may have.
    `runs` finds which ids are there.
    """

    cut: str
    runs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectedMetaTable:
    """A table or view that lists items, with the columns that play the roles.

    `notes` says what could not be checked. Weights are rounded up. `on_bad_weight` is what a row
    counts whose weight is NULL, negative, above 2^63 - 1 or no number; None refuses such rows.
    `database` is None where nothing was asked to identify it.
    """

    engine: sa.Engine
    table: sa.Table
    canonical_name: str
    is_view: bool
    columns: MetaColumns
    where: Filter | None
    on_bad_weight: int | None
    notes: tuple[str, ...]
    database: DatabaseIdentity | None = None
    queries: BatchQueries = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        roles = (self.uid, self.table.c[self.columns.item], self._weight())
        object.__setattr__(self, "queries", BatchQueries.build(*roles, self._filter()))

    @classmethod
    def open(
        cls,
        engine: sa.Engine,
        name: str,
        columns: MetaColumns | None = None,
        where: Filter | None = None,
        on_bad_weight: int | None = None,
        *,
        database: DatabaseIdentity | None = None,
    ) -> "ReflectedMetaTable":
        """Find the table and check that it can be what its columns are said to be.

        Raises:
            InvalidValueError: the name, a filter's value or `on_bad_weight` cannot be used.
            UnknownMetaTableError, UnknownMetaColumnError: a name is not in the catalogue.
            MetaColumnUnfitError: a column cannot play its role.
            MetaPermissionError: the role may not read it.
            MetaUnreachableError: the database does not answer.
        """
        if on_bad_weight is not None and not 0 <= on_bad_weight <= MAX_ID:
            raise InvalidValueError("on_bad_weight", on_bad_weight, "a weight from 0 to 2^63 - 1")
        found = find_table(engine, name)
        roles = columns or MetaColumns()
        used, notes = checked_columns(found, roles, where, engine.dialect.name)
        opened = cls(
            engine=engine,
            table=sa.Table(found.name, sa.MetaData(), *found.columns, schema=found.schema),
            canonical_name=found.canonical_name,
            is_view=found.is_view,
            columns=used,
            where=where,
            on_bad_weight=on_bad_weight,
            notes=notes,
            database=database,
        )
        opened._probe()
        return opened

    @property
    def identity(self) -> TableIdentity | None:
        """The database and the columns that the table is read by; None where unknown."""
        if self.database is None:
            return None
        roles = self.columns
        return TableIdentity(
            uid=roles.uid, item=roles.item, weight=roles.weight, database=self.database
        )

    @property
    def uid(self) -> sa.Column[Any]:
        """The column that orders the items."""
        return self.table.c[self.columns.uid]

    def lowest_id(self) -> int | None:
        """Read the lowest id of the table, whatever the filter; None when it is empty."""
        return self._edge(sa.func.min(self.uid))

    def highest_id(self) -> int | None:
        """Read the highest visible id of the table, whatever the filter; None when it is empty."""
        return self._edge(sa.func.max(self.uid))

    def next_cut(self, after_id: int | None, ceiling: int, limits: Limits) -> Cut | None:
        """Cut the next batch above `after_id` (None: from the first row on) up to the ceiling.

        Gives what the first cut of `domain.planning.cut` is, None when no item is left. Reads the
        batch and one row, in one round trip, on Postgres, the batch and at most a page elsewhere.

        Raises:
            BadWeightError: a row with a weight that is refused would belong to the batch.
            InvalidValueError: the weight limit is no 64-bit integer.
            MetaColumnUnfitError: an id is there twice.
        """
        if limits.max_weight > MAX_ID:
            raise InvalidValueError("batch.max_weight", limits.max_weight, "at most 2^63 - 1")
        if after_id is not None and after_id >= ceiling:
            return None
        if self.engine.dialect.name == "postgresql":
            return self._window_cut(after_id, ceiling, limits)
        lowest = self.lowest_id() if after_id is None else after_id + 1
        if lowest is None or lowest > ceiling:
            return None
        # MariaDB and SQLite compute the whole window before its first row: pages stop early there.
        pages = self._pages(lowest, ceiling, limits.max_count)
        cuts = cut(pages, after_id=lowest - 1, ceiling=ceiling, limits=limits)
        return next(cuts, None)

    def cut_texts(self) -> CutTexts:
        """Write the statements of `next_cut` as text."""
        return CutTexts(
            cut=text_of(self.engine, self.queries.cut), runs=text_of(self.engine, self.queries.runs)
        )

    def weights(self, after_id: int | None, ceiling: int) -> Iterator[tuple[int, int]]:
        """Stream `(id, weight)` in id order over one open cursor; memory is constant.

        Raises:
            BadWeightError: a row has a weight that is refused.
            MetaColumnUnfitError: an id is there twice.
        """
        last_id = None
        first_id = MIN_ID if after_id is None else after_id + 1
        if first_id > ceiling:
            return
        query = self.weighed(first_id, ceiling).execution_options(yield_per=_STREAM_ROWS)
        with reading(self.engine) as connection, connection.execute(query) as found:
            for rows in found.partitions():
                for item_id, weight in rows:
                    if weight is None:
                        raise self._bad_weight(connection, item_id)
                    if item_id == last_id:
                        raise self._twice(item_id)
                    yield self._integer(item_id), weight
                    last_id = item_id

    def items(self, id_range: IdRange) -> list[MetaItem]:
        """Read the items of a range in id order.

        Raises:
            BadWeightError: a row has a weight that is refused.
        """
        return self._items(self.queries.items, id_range)

    def items_of(self, ids: Iterable[int]) -> list[MetaItem]:
        """Read those items of a list that are there, in id order, 1,000 ids at a time.

        Raises:
            BadWeightError: a row has a weight that is refused.
        """
        rising, items = sorted(set(ids)), []
        for at in range(0, len(rising), _LISTED_IDS):
            chunk = rising[at : at + _LISTED_IDS]
            query = self.queries.items.where(self.uid.in_(chunk))
            items += self._items(query, IdRange(first_id=chunk[0], last_id=chunk[-1]))
        return items

    def ids(self, id_range: IdRange) -> list[int]:
        """Read the ids of a range in order."""
        with reading_once(self.engine) as connection:
            return list(connection.execute(self.queries.ids, _bounds(id_range)).scalars())

    def facts(self, id_range: IdRange) -> Facts:
        """Sum up a range in the database, so that a later look can tell whether it changed.

        Raises:
            BadWeightError: a row has a weight that is refused.
        """
        with reading_once(self.engine) as connection:
            row = connection.execute(self.queries.facts, _bounds(id_range)).one()
            if row[-1] is not None:
                raise self._bad_weight(connection, row[-1])
        return Facts.of(row)

    def _probe(self) -> None:
        """Touch every column that is used, for the rights on them, and the range of the ids."""
        with reading(self.engine) as connection:
            query = sa.select(self.uid, self.table.c[self.columns.item], self._weight())
            connection.execute(query.where(*self._filter()).limit(0)).all()
        highest = self.highest_id()
        if highest is not None and highest > MAX_ID:
            raise InvalidValueError(f"{self.canonical_name}.{self.columns.uid}", highest, "64 bits")

    def _edge(self, edge: sa.ColumnElement[Any]) -> int | None:
        with reading_once(self.engine) as connection:
            found = connection.execute(sa.select(edge)).scalar_one()
        return None if found is None else self._integer(found)

    def _integer(self, item_id: Any) -> int:
        """Return an id. SQLite lets anything into a column of integers that is no rowid.

        Raises:
            MetaColumnUnfitError: it is no integer.
        """
        if isinstance(item_id, int):
            return item_id
        problem = f"the id {item_id!r} is no integer"
        step = "Correct the row, or read the table by a view without it."
        raise MetaColumnUnfitError(self.canonical_name, self.columns.uid, "uid", problem, step)

    def _items(self, query: sa.Select[Any], id_range: IdRange) -> list[MetaItem]:
        with reading_once(self.engine) as connection:
            rows = connection.execute(query, _bounds(id_range)).all()
            bad = next((item_id for item_id, _, weight in rows if weight is None), None)
            if bad is not None:
                raise self._bad_weight(connection, bad)
        return [MetaItem(id=row[0], item=row[1], weight=row[2]) for row in rows]

    def _window_cut(self, after_id: int | None, ceiling: int, limits: Limits) -> Cut | None:
        values = {
            "first_id": MIN_ID if after_id is None else after_id + 1,
            "last_id": ceiling,
            "max_weight": limits.max_weight,
            "max_count": min(limits.max_count, MAX_ID),
        }
        query = self.queries.first_cut if after_id is None else self.queries.cut
        with reading_once(self.engine) as connection:
            found = self._cut_by(connection, query, values, limits)
            if found is None or found.count == _width(found.id_range):
                return found
            runs = self._runs(connection, found)
        if runs is not None:
            return replace(found, runs=runs)
        with reading(self.engine, "REPEATABLE READ") as connection:  # rows came or went in between
            found = self._cut_by(connection, query, values, limits)
            return None if found is None else replace(found, runs=self._runs(connection, found))

    def _cut_by(
        self,
        connection: sa.Connection,
        query: sa.Select[Any],
        values: dict[str, int],
        limits: Limits,
    ) -> Cut | None:
        last = connection.execute(query, values).one_or_none()
        if last is None:
            return None
        if last.weight is None:
            raise self._bad_weight(connection, last.uid)
        if last.uid == last.next_uid:
            raise self._twice(last.uid)
        beyond = last.position >= limits.max_count
        if last.next_uid is not None and last.next_weight is None and not beyond:
            raise self._bad_weight(connection, last.next_uid)
        first_id = last.lowest if query is self.queries.first_cut else values["first_id"]
        return cut_up_to(last, first_id, values["last_id"], limits)

    def _runs(self, connection: sa.Connection, one: Cut) -> IdRuns | None:
        """Read which ids a batch has; None if they are not the ones that it was cut with."""
        found = connection.execute(self.queries.runs, _bounds(one.id_range)).one()
        is_same = (found.items, int(found.weight or 0)) == (one.count, one.weight)
        return runs_of(found) if is_same else None

    def _pages(self, first_id: int, ceiling: int, max_count: int) -> Iterator[tuple[int, int]]:
        """Give `(id, weight)` page by page, so that who stops early has read little."""
        last_id, full, position, size = None, True, 0, min(max_count + 1, _PAGE_ROWS)
        while full:
            with reading(self.engine) as connection:
                page = connection.execute(self.weighed(first_id, ceiling).limit(size)).all()
                bad = next((item_id for item_id, weight in page if weight is None), None)
                error = None if bad is None else self._bad_weight(connection, bad)
            # A page starts with the last row of the one before: an id that is there twice shows.
            for item_id, weight in page[0 if last_id is None else 1 :]:
                position += 1
                if error is not None and weight is None and position <= max_count:
                    raise error
                if item_id == last_id:
                    raise self._twice(item_id)
                yield self._integer(item_id), weight or 0  # beyond the count, whatever it weighs
                last_id = item_id
            full, first_id = len(page) == size, page[-1][0] if page else first_id
            size = min(4 * size, _LARGEST_PAGE_ROWS)

    def weighed(self, first_id: int, ceiling: int) -> sa.Select[Any]:
        """Give the query of `(uid, weight)` in id order; a refused weight is NULL."""
        return (
            sa.select(self.uid.label("uid"), self._weight())
            .where(*self._between(first_id, ceiling))
            .order_by(self.uid)
        )

    def _weight(self) -> sa.Label[Any]:
        if self.columns.weight is None:
            return sa.literal(0, sa.BigInteger).label("weight")
        column = self.table.c[self.columns.weight]
        return counted_weight(column, self.on_bad_weight, self.engine.dialect.name)

    def _between(self, first_id: int, last_id: int) -> list[sa.ColumnElement[bool]]:
        # Bound as bigint even where the column is narrower: a ceiling may lie beyond its type.
        first, last = (sa.literal(one, sa.BigInteger) for one in (first_id, last_id))
        return [self.uid >= first, self.uid <= last, *self._filter()]

    def _filter(self) -> list[sa.ColumnElement[bool]]:
        where = self.where
        return [] if where is None else [clause(self.table, where, self.engine.dialect)]

    def _twice(self, item_id: int) -> MetaColumnUnfitError:
        problem, step = f"id {item_id} is there twice", "Let the view give every id once."
        return MetaColumnUnfitError(self.canonical_name, self.columns.uid, "uid", problem, step)

    def _bad_weight(self, connection: sa.Connection, item_id: int) -> BadWeightError:
        raw = self.table.c[self.columns.weight or self.columns.uid]
        query = sa.select(raw).where(self.uid == sa.literal(item_id, sa.BigInteger)).limit(1)
        return BadWeightError(self.canonical_name, item_id, connection.execute(query).scalar())


def _width(id_range: IdRange) -> int:
    return id_range.last_id - id_range.first_id + 1


def _bounds(id_range: IdRange) -> dict[str, int]:
    return {"first_id": id_range.first_id, "last_id": id_range.last_id}
