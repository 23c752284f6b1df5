"""The statements that read a meta table; expressions give the same numbers in every database.

Nothing is sent from here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.id_range import MAX_ID, IdRange
from batch_pipeline.domain.id_runs import IdRuns
from batch_pipeline.domain.planning import Cut, Limits

_PRIME = 2**31 - 1
_TOO_LARGE = sa.literal(2.0**63, sa.Double)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an id range holds: rows, their weight, and a hash of the set of their ids."""

    count: int
    weight: int
    fingerprint: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> "Facts":
        """Read a row of `summed` that has no bad weight."""
        count, upper, lower, hashed, _ = row
        weight = (int(upper or 0) << 32) + int(lower or 0)
        return cls(count=count, weight=weight, fingerprint=int(hashed or 0))


def counted_weight(
    column: sa.Column[Any], on_bad_weight: int | None, dialect: str
) -> sa.Label[Any]:
    """Give a row's weight as bigint, rounded up; a bad one gives what it counts, NULL if refused.

    Whole numbers are taken as they are. NaN is greater than any number on Postgres.
    """
    bad = sa.or_(column.is_(None), column < 0)
    whole: sa.ColumnElement[int] = sa.cast(column, sa.BigInteger)
    is_integer = isinstance(column.type, sa.Integer)
    if dialect == "sqlite" and not is_integer:
        bad = sa.or_(bad, sa.func.typeof(column).not_in(["integer", "real"]), column >= _TOO_LARGE)
        whole += sa.case((column > whole, 1), else_=0)  # its ceil() may be left out of a build
    elif isinstance(column.type, sa.Float):
        bad = sa.or_(bad, column >= _TOO_LARGE)  # MAX_ID itself is no float
        whole = sa.cast(sa.func.ceil(column), sa.BigInteger)
    elif isinstance(column.type, sa.Numeric) and column.type.scale != 0:
        bad = sa.or_(bad, column > sa.literal(MAX_ID, sa.BigInteger))
        whole = sa.cast(sa.func.ceil(column), sa.BigInteger)
    elif not is_integer or dialect != "postgresql":
        bad = sa.or_(bad, column > sa.literal(MAX_ID, sa.BigInteger))
    if dialect == "sqlite" and is_integer:  # values have types there, columns have wishes
        bad = sa.or_(bad, sa.func.typeof(column) != "integer")
    counted = sa.null() if on_bad_weight is None else sa.literal(on_bad_weight, sa.BigInteger)
    return sa.case((bad, counted), else_=whole).label("weight")


@dataclass(frozen=True, slots=True)
class BatchQueries:
    """The statements that every batch of a table sends, built once and bound anew each time.

    Building a statement and finding its compiled form costs more than running it does.
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
        """Build them; all bind `first_id` and `last_id`, cuts `max_weight` and `max_count` too."""
        # Bound as bigint even where the column is narrower: a ceiling may lie beyond its type.
        within = (uid >= _bound("first_id"), uid <= _bound("last_id"), *where)
        rows = sa.select(uid.label("uid"), weight).where(*within).subquery()
        cut = _cut(rows)
        lowest = sa.select(sa.func.min(uid)).scalar_subquery().label("lowest")
        return cls(
            cut=cut,
            first_cut=cut.add_columns(lowest),
            items=sa.select(uid, item, weight).where(*within).order_by(uid),
            ids=sa.select(uid).where(*within).order_by(uid),
            facts=summed(rows),
            runs=_runs(rows),
        )


def cut_up_to(last: sa.Row[Any], first_id: int, ceiling: int, limits: Limits) -> Cut:
    """Give the batch that ends with a row of `BatchQueries.cut`, without the runs of its ids."""
    rest_fits = last.next_uid is None
    weight, count = int(last.total), last.position
    full = not rest_fits or weight >= limits.max_weight or count == limits.max_count
    last_id = ceiling if rest_fits else last.next_uid - 1
    id_range = IdRange(first_id=first_id, last_id=last_id)
    return Cut(id_range=id_range, weight=weight, count=count, closed=full)


def runs_of(row: Sequence[Any]) -> IdRuns:
    """Return the ids of a row of `BatchQueries.runs`."""
    return IdRuns(*(row[-2:] if row[0] else ((), ())))


def _bound(name: str) -> sa.BindParameter[int]:
    return sa.bindparam(name, type_=sa.BigInteger)


def _cut(rows: sa.Subquery) -> sa.Select[Any]:
    """Find the last row of the batch that starts with the first of the rows `uid, weight`.

    Gives one row: `uid` and `weight` of the last item, `position` (how many there are), `total`
    (what they weigh), `next_uid` and `next_weight` of the first row beyond, NULL when the rest
    fits; no row when there are none. A row before one that is bad ends the batch, too: a weight
    that is refused (NULL), or its own id once more.

    Streams in the order of the id's index and looks one row ahead, so it has read the batch and one
    row when it stops. All functions share one `ROWS` frame: `RANGE` would look for equals ahead.
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
    # Ordered inside: below an ORDER BY Postgres plans for all rows of a subquery and, in a table
    # not analysed since it grew, sorts all of them instead of stopping early.
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


def _runs(rows: sa.Subquery) -> sa.Select[Any]:
    """Find the runs of neighbours among the ids of rows `uid, weight`, on Postgres only.

    Gives one row: how many rows there are, what they weigh, then the first ids and the last ids of
    the runs, in order. It reads the rows once in the order of the id's index; for scattered ids,
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
    # Nothing is subtracted from an id that may be the lowest, or added to one that may be the
    # highest, of its type.
    is_first = sa.or_(row.before.is_(None), row.before + 1 < row.uid)
    is_last = sa.or_(row.after.is_(None), row.after - 1 > row.uid)
    columns: list[sa.ColumnElement[Any]] = [
        sa.func.count().label("items"),
        sa.func.sum(row.weight).label("weight"),
        _collected(row.uid, is_first).label("firsts"),
        _collected(row.uid, is_last).label("lasts"),
    ]
    return sa.select(*columns)


def _collected(
    uid: sa.ColumnElement[int], which: sa.ColumnElement[bool]
) -> sa.FunctionFilter[Sequence[int]]:
    return sa.func.array_agg(uid, type_=sa.ARRAY(sa.BigInteger)).filter(which)


def summed(rows: sa.Subquery) -> sa.Select[Any]:
    """Sum up rows `uid, weight`: how many, both halves of their weight, their hash, a bad id."""
    uid, weight = rows.c
    bad = sa.func.min(sa.case((weight.is_(None), uid)))
    return sa.select(sa.func.count(), *_halves(weight), _fingerprint(uid), bad)


def _fingerprint(uid: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Give an aggregate that changes when the set of ids does: the sum of id^3 mod 2^31 - 1.

    The remainder has the sign of the id; the sum does not depend on the order of the rows.
    """
    prime = sa.literal(_PRIME, sa.BigInteger)
    rest = sa.cast(uid, sa.BigInteger) % prime
    return sa.func.sum(rest * rest % prime * rest % prime)


def _halves(weight: sa.ColumnElement[Any]) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """Give aggregates of the upper and of the lower 32 bits, whose sums overflow nowhere."""
    bits = sa.literal(32, sa.Integer)
    low = sa.literal(2**32 - 1, sa.BigInteger)
    return sa.func.sum(weight.bitwise_rshift(bits)), sa.func.sum(weight.bitwise_and(low))
