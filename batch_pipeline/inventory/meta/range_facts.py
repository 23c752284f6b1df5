"""What many id ranges of a meta table hold now, for comparing it with what attempts saw.

Reads only, each range by the index of its ids.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.errors import BadWeightError
from batch_pipeline.domain.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.inventory.meta.meta_engine import reading
from batch_pipeline.inventory.meta.meta_queries import Facts, summed
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable

_STREAM_ROWS = 10_000
_BIGINTS = sa.ARRAY(sa.BigInteger)


def facts_of(table: ReflectedMetaTable, ranges: Sequence[IdRange]) -> list[Facts | None]:
    """Sum up ranges in their order, on Postgres in one statement.

    None stands for a range with a weight that is refused, so that it has no sum.
    """
    if table.engine.dialect.name != "postgresql":
        return [_facts_of_one(table, ids) for ids in ranges]
    with reading(table.engine) as connection:
        found = connection.execute(_facts_of_all(table, ranges)).all()
    return [_facts(row[1:]) for row in found]


def present(table: ReflectedMetaTable, ids: IdRange) -> Iterator[tuple[int, int | None]]:
    """Stream `(id, weight)` of a range in id order; a weight that is refused is None."""
    query = table.weighed(ids.first_id, ids.last_id)
    with reading(table.engine) as connection:
        streamed = connection.execution_options(yield_per=_STREAM_ROWS).execute(query)
        for row in streamed:
            yield row[0], row[1]


def _facts_of_one(table: ReflectedMetaTable, ids: IdRange) -> Facts | None:
    try:
        return table.facts(ids)
    except BadWeightError:
        return None


def _facts_of_all(table: ReflectedMetaTable, ranges: Sequence[IdRange]) -> sa.Select[Any]:
    """Give `position`, then the columns of `summed`, for each range.

    For each range by itself: a join would let the planner read the whole table once.
    """
    bounds = sa.func.unnest(
        sa.literal([ids.first_id for ids in ranges], _BIGINTS),
        sa.literal([ids.last_id for ids in ranges], _BIGINTS),
    ).table_valued(
        sa.column("first_id", sa.BigInteger),
        sa.column("last_id", sa.BigInteger),
        with_ordinality="position",
    )
    asked = bounds.render_derived()
    rows = (
        table.weighed(MIN_ID, MAX_ID)
        .order_by(None)
        .where(table.uid >= asked.c.first_id, table.uid <= asked.c.last_id)
        .correlate(asked)
        .subquery()
    )
    found = summed(rows).correlate(asked).lateral()
    query = sa.select(asked.c.position, found).join_from(asked, found, sa.true())
    return query.order_by(asked.c.position)


def _facts(row: Sequence[Any]) -> Facts | None:
    return Facts.of(row) if row[-1] is None else None
