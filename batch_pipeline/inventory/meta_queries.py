"""Expressions over a meta table that give the same numbers in every database."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.id_range import MAX_ID
from batch_pipeline.domain.planning import Limits

_PRIME = 2**31 - 1


def counted_weight(
    column: sa.Column[Any], on_bad_weight: int | None, dialect: str
) -> sa.Label[Any]:
    """Give a row's weight as bigint; a bad one gives what it counts, NULL where it is refused."""
    bad = sa.or_(column.is_(None), column < 0)
    if not isinstance(column.type, sa.SmallInteger | sa.Integer) or dialect != "postgresql":
        bad = sa.or_(bad, column > sa.literal(MAX_ID, sa.BigInteger))
    if dialect == "sqlite":  # values have types there, columns have wishes
        bad = sa.or_(bad, sa.func.typeof(column) != "integer")
    counted = sa.null() if on_bad_weight is None else sa.literal(on_bad_weight, sa.BigInteger)
    return sa.case((bad, counted), else_=sa.cast(column, sa.BigInteger)).label("weight")


def fingerprint(uid: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Give an aggregate that changes when the set of ids does: the sum of id^3 mod 2^31 - 1.

    The remainder has the sign of the id; the sum does not depend on the order of the rows.
    """
    prime = sa.literal(_PRIME, sa.BigInteger)
    rest = sa.cast(uid, sa.BigInteger) % prime
    return sa.func.sum(rest * rest % prime * rest % prime)


def halves(weight: sa.ColumnElement[Any]) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """Give aggregates of the upper and of the lower 32 bits, whose sums overflow nowhere."""
    bits = sa.literal(32, sa.Integer)
    low = sa.literal(2**32 - 1, sa.BigInteger)
    return sa.func.sum(weight.bitwise_rshift(bits)), sa.func.sum(weight.bitwise_and(low))


@dataclass(frozen=True, slots=True)
class Window:
    """The rows that the next batch comes from, with what lies before each of them.

    Streams in the order of the id's index and stops at the first row that no longer fits: with
    `ROWS`, since `RANGE` looks for equals ahead. The frame ends before the current row, so no sum
    goes beyond the batch, and none can overflow.
    """

    uid: sa.ColumnElement[Any]
    weight: sa.Label[Any]
    rows: Sequence[sa.ColumnElement[bool]]

    def first_excluded(self, limits: Limits) -> sa.Select[Any]:
        """Find the first row beyond the batch, or the first with a refused weight.

        Gives one row `uid, weight, position, before` (position counts from 1, `before` is the
        weight of all rows before it), or none when the rest fits.
        """
        before = sa.func.sum(self.weight).over(order_by=self.uid, rows=(None, -1))
        numbered = (
            sa.select(
                self.uid.label("uid"),
                self.weight,
                sa.func.row_number().over(order_by=self.uid).label("position"),
                before.label("before"),
            )
            .where(*self.rows)
            .subquery()
        )
        row = numbered.c
        room = sa.literal(limits.max_weight, sa.BigInteger) - row.weight
        beyond = sa.or_(
            row.weight.is_(None),
            row.position > sa.literal(min(limits.max_count, MAX_ID), sa.BigInteger),
            sa.and_(row.position > 1, row.before > room),
        )
        return sa.select(numbered).where(beyond).order_by(row.uid).limit(1)

    def rest(self) -> sa.Select[int, int | None]:
        """Count and weigh all rows."""
        return sa.select(sa.func.count(), sa.func.sum(self.weight)).where(*self.rows)
