"""Read a user's meta table in any database that SQLAlchemy supports.

Names are reflected, never formatted into SQL. The expressions return the same numbers in every
database. Every method opens its own short transaction on the meta table's engine; none uses the
inventory. `all_cuts` cuts a whole table in one pass over its streamed rows.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import psycopg
import sqlalchemy as sa
from sqlalchemy.sql import visitors

from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns, find_table, resolve_columns
from batch_pipeline.inventory.meta_tables.connection import read_one_statement, read_transaction
from batch_pipeline.inventory.meta_tables.filters import filter_expression
from batch_pipeline.model.batch import MAX_ID, MIN_ID, Batch, IdRange, IdRuns
from batch_pipeline.model.errors import (
    BadWeightError,
    InvalidValueError,
    MetaTableError,
    missing_column,
    unfit_column,
)
from batch_pipeline.model.filter import Filter
from batch_pipeline.model.job import DatabaseIdentity, TableIdentity
from batch_pipeline.model.planning import Cut, Limits, cut

log = logging.getLogger(__name__)

_PRIME = 2**31 - 1
_FIRST_TOO_LARGE = sa.literal(2.0**63, sa.Double)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFacts:
    """The number of rows of an id range, their weight, and a hash of the set of their ids.

    `bad_id` is the lowest id of a row with a rejected weight, which counts as 0.
    """

    count: int
    weight: int
    fingerprint: int
    bad_id: int | None = None

    @classmethod
    def of(cls, row: Sequence[Any]) -> "RangeFacts":
        """Return the facts of a row of `_summary_query`."""
        count, upper, lower, hashed, bad_id = row
        weight = (int(upper or 0) << 32) + int(lower or 0)
        return cls(count=count, weight=weight, fingerprint=int(hashed or 0), bad_id=bad_id)


def weight_expression(
    column: sa.Column[Any], on_bad_weight: int | None, dialect: str
) -> sa.Label[Any]:
    """Return the weight as bigint, rounded up; a bad weight becomes `on_bad_weight`.

    If `on_bad_weight` is None, bad weights are NULL and rejected by the reader. On Postgres, NaN is
    greater than any number.
    """
    bad = sa.or_(column.is_(None), column < 0)
    whole: sa.ColumnElement[int] = sa.cast(column, sa.BigInteger)
    is_integer = isinstance(column.type, sa.Integer)
    if dialect == "sqlite" and not is_integer:
        bad = sa.or_(
            bad, sa.func.typeof(column).not_in(["integer", "real"]), column >= _FIRST_TOO_LARGE
        )
        whole += sa.case((column > whole, 1), else_=0)  # ceil() is optional in builds of SQLite
    elif isinstance(column.type, sa.Float):
        bad = sa.or_(bad, column >= _FIRST_TOO_LARGE)  # a float cannot represent MAX_ID
        whole = sa.cast(sa.func.ceil(column), sa.BigInteger)
    elif isinstance(column.type, sa.Numeric) and column.type.scale != 0:
        bad = sa.or_(bad, column > sa.literal(MAX_ID, sa.BigInteger))
        whole = sa.cast(sa.func.ceil(column), sa.BigInteger)
    elif not is_integer or dialect != "postgresql":
        bad = sa.or_(bad, column > sa.literal(MAX_ID, sa.BigInteger))
    if dialect == "sqlite" and is_integer:  # a value can differ in type from its column
        bad = sa.or_(bad, sa.func.typeof(column) != "integer")
    counted = sa.null() if on_bad_weight is None else sa.literal(on_bad_weight, sa.BigInteger)
    return sa.case((bad, counted), else_=whole).label("weight")


@dataclass(frozen=True, slots=True)
class BatchQueries:
    """The statements for every batch of a table, built once.

    Building a statement and looking up its compiled form takes longer than executing it.
    """

    cut: sa.Select[Any]
    first_cut: sa.Select[Any]
    items: sa.Select[Any]
    facts: sa.Select[Any]
    runs: sa.Select[Any]

    @classmethod
    def build(
        cls,
        uid: sa.Column[Any],
        item: sa.Column[Any],
        weight: sa.Label[Any],
        where: Sequence[sa.ColumnElement[bool]],
    ) -> "BatchQueries":
        """Build the statements.

        All bind `first_id` and `last_id`; cuts also bind `max_weight` and `max_count`.
        """
        # Bound as bigint even if the column is narrower: the high watermark may exceed its type.
        within = (uid >= _bound("first_id"), uid <= _bound("last_id"), *where)
        rows = sa.select(uid.label("uid"), weight).where(*within).subquery()
        cut = _cut_query(rows)
        lowest = sa.select(sa.func.min(uid)).scalar_subquery().label("lowest")
        return cls(
            cut=cut,
            first_cut=cut.add_columns(lowest),
            items=sa.select(uid, item, weight).where(*within).order_by(uid),
            facts=_summary_query(rows),
            runs=_runs_query(rows),
        )


def _bound(name: str) -> sa.BindParameter[int]:
    return sa.bindparam(name, type_=sa.BigInteger)


def _cut_query(rows: sa.Subquery) -> sa.Select[Any]:
    """Select the last row of the batch that starts at the first of the rows `uid, weight`.

    The result is one row: `uid` and `weight` of the last item, `position` (the number of items),
    `total` (their weight), and `next_uid` and `next_weight` of the row after the batch, NULL if
    there is none. Without rows the result is empty. The batch also ends before a bad row: a
    rejected weight (NULL) or a duplicate id.

    Rows are streamed in the order of the id's index with one row of lookahead, so only the batch
    and one more row are read. All functions share one `ROWS` frame, since `RANGE` would read ahead
    for peers.
    """
    row = rows.c

    def over(function: sa.Function[Any]) -> sa.Over[Any]:
        return function.over(order_by=row.uid, rows=(None, 0))

    numbered = sa.select(
        row.uid,
        row.weight,
        over(sa.func.row_number()).label("position"),
        over(sa.func.sum(row.weight)).label("total"),
        over(sa.func.lead(row.uid)).label("next_uid"),
        over(sa.func.lead(row.weight)).label("next_weight"),
    )
    # With the ORDER BY outside the subquery, Postgres would plan for all its rows and, if the table
    # was not analyzed since it grew, sort all of them instead of stopping early.
    ordered = numbered.order_by(row.uid).subquery()
    last = ordered.c
    ends = sa.or_(
        last.weight.is_(None),
        last.next_weight.is_(None),  # bad, or there is no next row
        last.position >= _bound("max_count"),
        last.total > _bound("max_weight") - last.next_weight,
        last.uid == last.next_uid,
    )
    return sa.select(ordered).where(ends).limit(sa.literal_column("1"))


def _runs_query(rows: sa.Subquery) -> sa.Select[Any]:
    """Select the runs of consecutive ids among the rows `uid, weight`, on Postgres only.

    The result is one row: the number of rows, their weight, then the first ids and the last ids of
    the runs, in order. The rows are read once in the order of the id's index. For scattered ids,
    grouping them into islands takes three times as long, and `range_agg` ten times.
    """
    uid = rows.c.uid
    around = sa.select(
        sa.cast(uid, sa.BigInteger).label("uid"),
        rows.c.weight,
        sa.func.lag(uid).over(order_by=uid).label("before"),
        sa.func.lead(uid).over(order_by=uid).label("after"),
    )
    row = around.order_by(uid).subquery().c
    # Avoid overflow: never subtract from a possibly lowest id, or add to a possibly highest id.
    is_first = sa.or_(row.before.is_(None), row.before + 1 < row.uid)
    is_last = sa.or_(row.after.is_(None), row.after - 1 > row.uid)
    columns: list[sa.ColumnElement[Any]] = [
        sa.func.count().label("items"),
        sa.func.sum(row.weight).label("weight"),
        _collect(row.uid, is_first).label("firsts"),
        _collect(row.uid, is_last).label("lasts"),
    ]
    return sa.select(*columns)


def _collect(
    uid: sa.ColumnElement[int], condition: sa.ColumnElement[bool]
) -> sa.FunctionFilter[Sequence[int]]:
    return sa.func.array_agg(uid, type_=sa.ARRAY(sa.BigInteger)).filter(condition)


def _summary_query(rows: sa.Subquery) -> sa.Select[Any]:
    """Select count, both halves of the weight, hash and lowest bad id of rows `uid, weight`.

    The weight is summed by its upper and its lower 32 bits, so that no sum overflows. The hash is
    the sum of id^3 mod 2^31 - 1, where the remainder has the sign of the id; it does not depend on
    the order of the rows.
    """
    uid, weight = rows.c
    prime = sa.literal(_PRIME, sa.BigInteger)
    remainder = sa.cast(uid, sa.BigInteger) % prime
    columns: list[sa.ColumnElement[Any]] = [
        sa.func.count(),
        sa.func.sum(weight.bitwise_rshift(sa.literal(32, sa.Integer))),
        sa.func.sum(weight.bitwise_and(sa.literal(2**32 - 1, sa.BigInteger))),
        sa.func.sum(remainder * remainder % prime * remainder % prime),
        sa.func.min(sa.case((weight.is_(None), uid))),
    ]
    return sa.select(*columns)


_PARAMETER_NUMBERS = {"first_id": "$1", "last_id": "$2", "max_weight": "$3", "max_count": "$4"}


def numbered_sql(engine: sa.Engine, statement: sa.Select[Any]) -> str:
    """Return a statement as Postgres text with `first_id`, … as $1 to $4.

    SQLAlchemy quotes names, and psycopg quotes all other values.

    Raises:
        MetaUnreachableError: the database does not answer.
    """

    def numbered(element: Any, **_given: Any) -> Any:
        if isinstance(element, sa.BindParameter) and element.key in _PARAMETER_NUMBERS:
            return sa.literal_column(_PARAMETER_NUMBERS[element.key], element.type)
        return None

    numbered_statement: Any = visitors.replacement_traverse(statement, {}, numbered)
    compiled = numbered_statement.compile(engine, compile_kwargs={"render_postcompile": True})
    with read_transaction(engine) as connection:
        driver_connection: Any = connection.connection.driver_connection
        return psycopg.ClientCursor(driver_connection).mogrify(str(compiled), compiled.params)


_STREAM_ROWS = 10_000
_PAGE_ROWS = 128
_LARGEST_PAGE_ROWS = 8_192
_ID_CHUNK = 1_000
_BIGINTS = sa.ARRAY(sa.BigInteger)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaItem:
    """One row of a meta table: its id, the stored value of the item column, and its weight."""

    id: int
    item: Any
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStatements:
    """The text of the statements that cut a batch. $1 and $2 are the first and the last id.

    `cut` selects the last item of a batch; $3 and $4 are its weight limit and count limit. `runs`
    selects the runs of existing ids.
    """

    cut: str
    runs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectedMetaTable:
    """A table or view that lists items, with the columns for each role.

    `notes` lists what could not be checked. Weights are rounded up. `on_bad_weight` replaces a
    weight that is NULL, negative, above 2^63 - 1 or not a number; None rejects such rows.
    `database` is None if the database was not identified.
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
        **fields: Any,
    ) -> Self:
        """Look up the table and check its columns. `fields` override the catalogue.

        Raises:
            InvalidValueError: the name, a filter's value or `on_bad_weight` is not valid.
            UnknownMetaTableError: there is no such table.
            MetaTableError: a column does not exist or cannot have its role, or the database role
                may not read the table.
            MetaUnreachableError: the database does not answer.
        """
        if on_bad_weight is not None and not 0 <= on_bad_weight <= MAX_ID:
            raise InvalidValueError("on_bad_weight", on_bad_weight, "a weight from 0 to 2^63 - 1")
        entry = find_table(engine, name)
        roles = columns or MetaColumns()
        resolved, notes = resolve_columns(entry, roles, where, engine.dialect.name)
        facts: dict[str, Any] = {
            "engine": engine,
            "table": sa.Table(entry.name, sa.MetaData(), *entry.columns, schema=entry.schema),
            "canonical_name": entry.canonical_name,
            "is_view": entry.is_view,
            "columns": resolved,
            "where": where,
            "on_bad_weight": on_bad_weight,
            "notes": notes,
        }
        table = cls(**facts | fields)
        table._probe()
        return table

    @property
    def identity(self) -> TableIdentity | None:
        """The database and the columns that the table is read with; None if unknown."""
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

    def column(self, name: str, role: str) -> sa.Column[Any]:
        """Return a column by its name.

        Raises:
            MetaTableError: there is no such column.
        """
        if name not in self.table.c:
            raise missing_column(self.canonical_name, name, role, tuple(self.table.c.keys()))
        return self.table.c[name]

    def lowest_id(self) -> int | None:
        """Return the lowest id of the table, ignoring the filter; None if the table is empty."""
        return self._edge(sa.func.min(self.uid))

    def highest_id(self) -> int | None:
        """Return the highest visible id, ignoring the filter; None if the table is empty."""
        return self._edge(sa.func.max(self.uid))

    def next_cut(self, after_id: int | None, high_watermark: int, limits: Limits) -> Cut | None:
        """Cut the next batch above `after_id` (None: from the first row on).

        Return the first cut of `model.planning.cut`, None if no item is left. On Postgres this
        reads the batch and one more row in one round trip, elsewhere the batch and at most a page.

        Raises:
            BadWeightError: a row of the batch has a rejected weight.
            InvalidValueError: the weight limit is not a 64-bit integer.
            MetaTableError: an id is a duplicate.
        """
        if limits.max_weight > MAX_ID:
            raise InvalidValueError("batch.max_weight", limits.max_weight, "at most 2^63 - 1")
        if after_id is not None and after_id >= high_watermark:
            return None
        if self.engine.dialect.name == "postgresql":
            return self._window_cut(after_id, high_watermark, limits)
        lowest = self.lowest_id() if after_id is None else after_id + 1
        if lowest is None or lowest > high_watermark:
            return None
        # MariaDB and SQLite compute the whole window before its first row; paging can stop early.
        pages = self._pages(lowest, high_watermark, limits.max_count)
        cuts = cut(pages, after_id=lowest - 1, high_watermark=high_watermark, limits=limits)
        return next(cuts, None)

    def cut_statements(self) -> CutStatements:
        """Return the statements of `next_cut` as text."""
        return CutStatements(
            cut=numbered_sql(self.engine, self.queries.cut),
            runs=numbered_sql(self.engine, self.queries.runs),
        )

    def weights(self, after_id: int | None, high_watermark: int) -> Iterator[tuple[int, int]]:
        """Yield `(id, weight)` in id order from one open cursor, in constant memory.

        Raises:
            BadWeightError: a row has a rejected weight.
            MetaTableError: an id is a duplicate.
        """
        last_id = None
        first_id = MIN_ID if after_id is None else after_id + 1
        if first_id > high_watermark:
            return
        for item_id, weight in stream_weights(
            self, IdRange(first_id=first_id, last_id=high_watermark)
        ):
            if weight is None:
                raise self._bad_weight(item_id)
            if item_id == last_id:
                raise self._twice(item_id)
            yield self._integer(item_id), weight
            last_id = item_id

    def items_of_batch(
        self,
        planned_batch: Batch,
        planned: IdRuns | None,
        late_ids: Callable[[], Collection[int]] = tuple,
    ) -> list[MetaItem]:
        """Return the existing items of a batch that are among its planned ids (None: all).

        Those of a list of ids are read 1,000 ids at a time. `late_ids` returns the ids in the range
        that other batches list; it is called after the range was read.

        Raises:
            BadWeightError: a row of the batch has a rejected weight.
        """
        if planned_batch.item_ids is None:
            read = self._rows(self.queries.items, planned_batch.id_range)
            late = {*late_ids()}
            own = [row for row in read if row[0] not in late]
            return self._to_items([row for row in own if planned is None or row[0] in planned])
        listed = sorted(planned_batch.item_ids)
        rows: list[Sequence[Any]] = []
        for start in range(0, len(listed), _ID_CHUNK):
            chunk = listed[start : start + _ID_CHUNK]
            query = self.queries.items.where(self.uid.in_(chunk))
            rows += self._rows(query, IdRange(first_id=chunk[0], last_id=chunk[-1]))
        return self._to_items(rows)

    def facts(self, id_range: IdRange) -> RangeFacts:
        """Return the facts of a range, computed by the database, to detect later changes."""
        with read_one_statement(self.engine) as connection:
            return RangeFacts.of(connection.execute(self.queries.facts, _bounds(id_range)).one())

    def _probe(self) -> None:
        """Check the privileges on every column used, and the range of the ids."""
        with read_transaction(self.engine) as connection:
            query = sa.select(self.uid, self.table.c[self.columns.item], self._weight())
            connection.execute(query.where(*self._filter()).limit(0)).all()
        highest = self.highest_id()
        if highest is not None and highest > MAX_ID:
            raise InvalidValueError(f"{self.canonical_name}.{self.columns.uid}", highest, "64 bits")

    def _edge(self, edge: sa.ColumnElement[Any]) -> int | None:
        with read_one_statement(self.engine) as connection:
            edge_id = connection.execute(sa.select(edge)).scalar_one()
        return None if edge_id is None else self._integer(edge_id)

    def _integer(self, item_id: Any) -> int:
        """Return an id if it is an integer; SQLite accepts any value in columns other than rowids.

        Raises:
            MetaTableError: the id is not an integer.
        """
        if isinstance(item_id, int):
            return item_id
        problem = f"the id {item_id!r} is not an integer"
        step = "Correct the row, or read the table through a view without it."
        raise unfit_column(self.canonical_name, self.columns.uid, "uid", problem, step)

    def _rows(self, query: sa.Select[Any], id_range: IdRange) -> Sequence[Sequence[Any]]:
        with read_one_statement(self.engine) as connection:
            return connection.execute(query, _bounds(id_range)).all()

    def _to_items(self, rows: Sequence[Sequence[Any]]) -> list[MetaItem]:
        for row in rows:
            if row[2] is None:
                raise self._bad_weight(row[0])
        return [MetaItem(id=row[0], item=row[1], weight=row[2]) for row in rows]

    def _window_cut(self, after_id: int | None, high_watermark: int, limits: Limits) -> Cut | None:
        values = {
            "first_id": MIN_ID if after_id is None else after_id + 1,
            "last_id": high_watermark,
            "max_weight": limits.max_weight,
            "max_count": min(limits.max_count, MAX_ID),
        }
        query = self.queries.first_cut if after_id is None else self.queries.cut
        with read_one_statement(self.engine) as connection:
            planned = self._cut_by(connection, query, values, limits)
            if (
                planned is None
                or planned.count == planned.id_range.last_id - planned.id_range.first_id + 1
            ):
                return planned
            runs = self._runs(connection, planned)
        if runs is not None:
            return replace(planned, runs=runs)
        # Rows changed between the two statements.
        with read_transaction(self.engine, "REPEATABLE READ") as connection:
            planned = self._cut_by(connection, query, values, limits)
            runs = None if planned is None else self._runs(connection, planned)
        return None if planned is None else replace(planned, runs=runs)

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
            raise self._bad_weight(last.uid)
        if last.uid == last.next_uid:
            raise self._twice(last.uid)
        beyond = last.position >= limits.max_count
        if last.next_uid is not None and last.next_weight is None and not beyond:
            raise self._bad_weight(last.next_uid)
        first_id = last.lowest if query is self.queries.first_cut else values["first_id"]
        rest_fits = last.next_uid is None
        weight, count = int(last.total), last.position
        is_full = not rest_fits or weight >= limits.max_weight or count == limits.max_count
        id_range = IdRange(
            first_id=first_id, last_id=values["last_id"] if rest_fits else last.next_uid - 1
        )
        return Cut(id_range=id_range, weight=weight, count=count, closed=is_full)

    def _runs(self, connection: sa.Connection, planned: Cut) -> IdRuns | None:
        """Return the ids of a batch; None if its rows changed after it was cut."""
        row = connection.execute(self.queries.runs, _bounds(planned.id_range)).one()
        is_same = (row.items, int(row.weight or 0)) == (planned.count, planned.weight)
        return IdRuns(row.firsts, row.lasts) if is_same else None

    def _pages(
        self, first_id: int, high_watermark: int, max_count: int
    ) -> Iterator[tuple[int, int]]:
        """Yield `(id, weight)` page by page, so that a short batch reads few rows."""
        last_id, is_full, count, size = None, True, 0, min(max_count + 1, _PAGE_ROWS)
        while is_full:
            with read_transaction(self.engine) as connection:
                page = connection.execute(self.weighed(first_id, high_watermark).limit(size)).all()
            # A page starts at the last row of the previous page, to detect duplicate ids. That row
            # may be gone by now.
            repeats = bool(page) and page[0][0] == last_id
            for item_id, weight in page[repeats:]:
                count += 1
                if weight is None and count <= max_count:
                    raise self._bad_weight(item_id)
                if item_id == last_id:
                    raise self._twice(item_id)
                # The row after the batch may have a bad weight.
                yield self._integer(item_id), weight or 0
                last_id = item_id
            is_full, first_id = len(page) == size, page[-1][0] if page else first_id
            size = min(4 * size, _LARGEST_PAGE_ROWS)

    def weighed(self, first_id: int, high_watermark: int) -> sa.Select[Any]:
        """Return the query of `(uid, weight)` in id order; a rejected weight is NULL."""
        return (
            sa.select(self.uid.label("uid"), self._weight())
            .where(*self._between(first_id, high_watermark))
            .order_by(self.uid)
        )

    def _weight(self) -> sa.Label[Any]:
        if self.columns.weight is None:
            return sa.literal(0, sa.BigInteger).label("weight")
        column = self.table.c[self.columns.weight]
        return weight_expression(column, self.on_bad_weight, self.engine.dialect.name)

    def _between(self, first_id: int, last_id: int) -> list[sa.ColumnElement[bool]]:
        # Bound as bigint even if the column is narrower: the high watermark may exceed its type.
        first, last = (sa.literal(bound, sa.BigInteger) for bound in (first_id, last_id))
        return [self.uid >= first, self.uid <= last, *self._filter()]

    def _filter(self) -> list[sa.ColumnElement[bool]]:
        where = self.where
        return [] if where is None else [filter_expression(self.table, where, self.engine.dialect)]

    def _twice(self, item_id: int) -> MetaTableError:
        problem = f"id {item_id} is a duplicate"
        step = (
            "Change the view to return each id once."
            if self.is_view
            else "Change the table so that each row has its own id."
        )
        return unfit_column(self.canonical_name, self.columns.uid, "uid", problem, step)

    def _bad_weight(self, item_id: int) -> BadWeightError:
        raw = self.table.c[self.columns.weight or self.columns.uid]
        query = sa.select(raw).where(self.uid == sa.literal(item_id, sa.BigInteger)).limit(1)
        with read_one_statement(self.engine) as connection:
            return BadWeightError(self.canonical_name, item_id, connection.execute(query).scalar())


def _bounds(id_range: IdRange) -> dict[str, int]:
    return {"first_id": id_range.first_id, "last_id": id_range.last_id}


def range_facts(table: ReflectedMetaTable, ranges: Sequence[IdRange]) -> list[RangeFacts]:
    """Return the facts of ranges in the given order; on Postgres with one statement."""
    if table.engine.dialect.name != "postgresql":
        return [table.facts(ids) for ids in ranges]
    with read_transaction(table.engine) as connection:
        rows = connection.execute(_range_facts_query(table, ranges)).all()
    return [RangeFacts.of(row[1:]) for row in rows]


def stream_weights(table: ReflectedMetaTable, ids: IdRange) -> Iterator[tuple[int, int | None]]:
    """Yield `(id, weight)` of a range in id order; a rejected weight is None."""
    query = table.weighed(ids.first_id, ids.last_id).execution_options(yield_per=_STREAM_ROWS)
    with read_transaction(table.engine) as connection, connection.execute(query) as result:
        for rows in result.partitions():
            yield from rows


def _range_facts_query(table: ReflectedMetaTable, ranges: Sequence[IdRange]) -> sa.Select[Any]:
    """Select `position`, then the columns of `_summary_query`, for each range.

    The subquery is lateral; with a plain join the planner could read the whole table.
    """
    bounds = sa.func.unnest(
        sa.literal([ids.first_id for ids in ranges], _BIGINTS),
        sa.literal([ids.last_id for ids in ranges], _BIGINTS),
    ).table_valued(
        sa.column("first_id", sa.BigInteger),
        sa.column("last_id", sa.BigInteger),
        with_ordinality="position",
    )
    requested = bounds.render_derived()
    rows = (
        table.weighed(MIN_ID, MAX_ID)
        .order_by(None)
        .where(table.uid >= requested.c.first_id, table.uid <= requested.c.last_id)
        .correlate(requested)
        .subquery()
    )
    summary = _summary_query(rows).correlate(requested).lateral()
    query = sa.select(requested.c.position, summary).join_from(requested, summary, sa.true())
    return query.order_by(requested.c.position)


def all_cuts(
    table: ReflectedMetaTable, after_id: int | None, high_watermark: int, limits: Limits
) -> Iterator[Cut]:
    """Cut everything above `after_id` (None: from the first row on) up to the high watermark.

    The result equals that of `model.planning.cut` on `table.weights`. A read transaction stays open
    until the last cut is yielded; memory is bounded. On Postgres, cutting in the server was no
    faster in measurements with 1,000,000 rows.

    Raises:
        BadWeightError: a row has a rejected weight; earlier batches were yielded.
        InvalidValueError: the weight limit is not a 64-bit integer.
        MetaTableError: an id is a duplicate.
    """
    if limits.max_weight > MAX_ID:
        raise InvalidValueError("batch.max_weight", limits.max_weight, "at most 2^63 - 1")
    first_id = table.lowest_id() if after_id is None else after_id + 1
    if first_id is None or first_id > high_watermark:
        return
    weights = table.weights(first_id - 1, high_watermark)
    yield from cut(weights, after_id=first_id - 1, high_watermark=high_watermark, limits=limits)


def cuts_with_keys(
    table: ReflectedMetaTable, after_id: int | None, high_watermark: int, limits: Limits
) -> Iterator[Cut]:
    """Cut a table into ranges whose ids are not negative, as partition keys require.

    Raises:
        MetaTableError: the id of an item is negative.
    """
    lowest = table.lowest_id() if after_id is None else None
    if lowest is not None and lowest < 0:
        ensure_ids_not_negative(table)
        after_id = -1
    yield from all_cuts(table, after_id, high_watermark, limits)


def ensure_ids_not_negative(table: ReflectedMetaTable) -> None:
    """Check that no item has a negative id, which a partition key cannot contain.

    Raises:
        MetaTableError: an item has a negative id.
    """
    with read_one_statement(table.engine) as connection:
        row = connection.execute(table.weighed(MIN_ID, -1).limit(1)).first()
    if row is not None:
        problem = f"the id {row[0]} is negative, but partition keys have no sign"
        condition = f"{{column: {table.columns.uid}, operator: '>=', value: 0}}"
        step = f"Exclude such rows: `where: [{condition}]`"
        name = table.canonical_name
        raise unfit_column(name, table.columns.uid, "uid", problem, f"{step}.")


def cuts_before_bad_weight(
    table: ReflectedMetaTable, after_id: int | None, high_watermark: int, limits: Limits
) -> Iterator[Cut]:
    """Cut as `cuts_with_keys` does, but stop before the first row with a rejected weight.

    Raises:
        BadWeightError: that row is the first item.
    """
    last_id = after_id
    try:
        for planned_cut in cuts_with_keys(table, after_id, high_watermark, limits):
            yield planned_cut
            last_id = planned_cut.id_range.last_id
    except BadWeightError as error:
        for planned_cut in cuts_with_keys(table, last_id, error.item_id - 1, limits):
            yield planned_cut
            last_id = planned_cut.id_range.last_id
        if last_id == after_id:
            raise
        log.warning("%s", error)
