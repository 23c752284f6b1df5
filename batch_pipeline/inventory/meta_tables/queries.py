"""Build the statements that read a meta table.

The expressions return the same numbers in every database. Nothing is executed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.sql import visitors

from batch_pipeline.model.id_range import MAX_ID, IdRange, IdRuns
from batch_pipeline.model.planning import Cut, Limits

_PRIME = 2**31 - 1
_FIRST_TOO_LARGE = sa.literal(2.0**63, sa.Double)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFacts:
    """The number of rows of an id range, their weight, and a hash of the set of their ids."""

    count: int
    weight: int
    fingerprint: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> "RangeFacts":
        """Return the facts of a row of `summary_query` without a bad weight."""
        count, upper, lower, hashed, _ = row
        weight = (int(upper or 0) << 32) + int(lower or 0)
        return cls(count=count, weight=weight, fingerprint=int(hashed or 0))


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
    if (
        dialect == "sqlite" and is_integer
    ):  # in SQLite the type of a value can differ from the column's
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
    ids: sa.Select[Any]
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
            ids=sa.select(uid).where(*within).order_by(uid),
            facts=summary_query(rows),
            runs=_runs_query(rows),
        )


def cut_from_row(last: sa.Row[Any], first_id: int, high_watermark: int, limits: Limits) -> Cut:
    """Return the batch that ends with a row of `BatchQueries.cut`, without the runs of its ids."""
    rest_fits = last.next_uid is None
    weight, count = int(last.total), last.position
    is_full = not rest_fits or weight >= limits.max_weight or count == limits.max_count
    last_id = high_watermark if rest_fits else last.next_uid - 1
    id_range = IdRange(first_id=first_id, last_id=last_id)
    return Cut(id_range=id_range, weight=weight, count=count, closed=is_full)


def runs_from_row(row: Sequence[Any]) -> IdRuns:
    """Return the ids of a row of `BatchQueries.runs`."""
    return IdRuns(*(row[-2:] if row[0] else ((), ())))


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
    # The ORDER BY is inside: outside, Postgres plans for all rows of the subquery and, if the table
    # was not analyzed since it grew, sorts all of them instead of stopping early.
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
    # Avoid overflow: never subtract from what may be the lowest id, or add to the highest.
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


def summary_query(rows: sa.Subquery) -> sa.Select[Any]:
    """Select count, both halves of the weight, hash and lowest bad id of rows `uid, weight`."""
    uid, weight = rows.c
    bad = sa.func.min(sa.case((weight.is_(None), uid)))
    return sa.select(sa.func.count(), *_sum_halves(weight), _id_fingerprint(uid), bad)


def _id_fingerprint(uid: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return an aggregate that hashes the set of ids: the sum of id^3 mod 2^31 - 1.

    The remainder has the sign of the id. The sum does not depend on the order of the rows.
    """
    prime = sa.literal(_PRIME, sa.BigInteger)
    remainder = sa.cast(uid, sa.BigInteger) % prime
    return sa.func.sum(remainder * remainder % prime * remainder % prime)


def _sum_halves(
    weight: sa.ColumnElement[Any],
) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """Return the sums of the upper and the lower 32 bits, neither of which overflows."""
    bits = sa.literal(32, sa.Integer)
    low = sa.literal(2**32 - 1, sa.BigInteger)
    return sa.func.sum(weight.bitwise_rshift(bits)), sa.func.sum(weight.bitwise_and(low))


_PARAMETER_NUMBERS = {"first_id": "$1", "last_id": "$2", "max_weight": "$3", "max_count": "$4"}


def numbered_sql(engine: sa.Engine, statement: sa.Select[Any]) -> str:
    """Return a statement as Postgres text with `first_id`, … as $1 to $4.

    SQLAlchemy quotes names, and psycopg quotes all other values.
    """

    def numbered(element: Any, **_given: Any) -> Any:
        if isinstance(element, sa.BindParameter) and element.key in _PARAMETER_NUMBERS:
            return sa.literal_column(_PARAMETER_NUMBERS[element.key], element.type)
        return None

    numbered_statement: Any = visitors.replacement_traverse(statement, {}, numbered)
    compiled = numbered_statement.compile(engine, compile_kwargs={"render_postcompile": True})
    with engine.connect() as connection:
        driver_connection: Any = connection.connection.driver_connection
        return psycopg.ClientCursor(driver_connection).mogrify(str(compiled), compiled.params)
