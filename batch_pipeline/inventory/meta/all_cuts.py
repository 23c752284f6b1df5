"""Planning everything at once: all cuts of a meta table in one pass, as near to the rows as it can.

On Postgres the pass runs in the server, and only cuts come here; what is left there, a temporary
function, ends with the connection. What may not be in this module: SQL that is put together from
names or values, and any write.
"""

from collections.abc import Generator, Iterator, Sequence
from importlib import resources
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.id_range import MAX_ID, IdRange
from batch_pipeline.domain.id_runs import IdRuns, unless_full
from batch_pipeline.domain.planning import Cut, Limits, cut
from batch_pipeline.inventory.meta.meta_engine import reading
from batch_pipeline.inventory.meta.meta_queries import runs_of
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable

_PAGE_ROWS = 50_000
_KNOWN = sa.text(
    "SELECT to_regprocedure('pg_temp.batch_pipeline_cuts"
    "(bigint[], bigint[], bigint, bigint, bigint, bigint)') IS NOT NULL"
)


def all_cuts(
    table: ReflectedMetaTable,
    after_id: int | None,
    ceiling: int,
    limits: Limits,
    *,
    page_rows: int = _PAGE_ROWS,
) -> Iterator[Cut]:
    """Cut everything above `after_id` (None: from the first row on) up to the ceiling.

    Gives what `domain.planning.cut` makes of `table.weights`, and holds one read transaction open
    until the last cut is taken. Memory is bounded by `page_rows` in the server and by the cuts of
    a page here. Views, other databases than Postgres, and roles that may not make temporary
    objects have their rows streamed instead, which is slower.

    Raises:
        BadWeightError: a row has a weight that is refused; the batches before it were given.
        InvalidValueError: the weight limit is no 64-bit integer.
        MetaColumnUnfitError: an id is there twice.
    """
    if limits.max_weight > MAX_ID:
        raise InvalidValueError("batch.max_weight", limits.max_weight, "at most 2^63 - 1")
    first_id = table.lowest_id() if after_id is None else after_id + 1
    if first_id is None or first_id > ceiling:
        return
    if _is_for_server(table):
        first_id = yield from _cuts_in_server(table, first_id, ceiling, limits, page_rows)
    if first_id is not None:
        weights = table.weights(first_id - 1, ceiling)
        yield from cut(weights, after_id=first_id - 1, ceiling=ceiling, limits=limits)


def _is_for_server(table: ReflectedMetaTable) -> bool:
    # A note says that ids are unique on trust only, and the server does not look for doubles. A
    # view, which always has one, might also compute all its rows anew for every page.
    return table.engine.dialect.name == "postgresql" and not table.notes


def _cuts_in_server(
    table: ReflectedMetaTable, first_id: int, ceiling: int, limits: Limits, page_rows: int
) -> Generator[Cut, None, int | None]:
    """Give the cuts that the server can make, and where to go on without it; None when done."""
    next_id, weight, count = first_id, 0, 0
    earlier: list[IdRuns] = []  # ids of the open batch in the pages before
    with reading(table.engine, "REPEATABLE READ") as connection:
        if not _has_function(connection):
            return first_id
        query = _cuts_of_a_page(table, IdRange(first_id=first_id, last_id=ceiling), limits)
        while next_id <= ceiling:
            state = {"next_id": next_id, "open_weight": weight, "open_items": count}
            *closed, last = connection.execute(query, state | {"page_rows": page_rows}).all()
            runs = _runs_of_a_page(connection, table, next_id, closed, last)
            for row in closed:
                ids = IdRange(first_id=first_id, last_id=row.id - 1)
                planned = unless_full(IdRuns.joined([*earlier, runs.within(ids)]), ids)
                yield Cut(
                    id_range=ids, weight=row.weight, count=row.items, closed=True, runs=planned
                )
                first_id, earlier = row.id, []
            if last.state == "unfit":
                return first_id
            weight, count = last.weight, last.items
            if last.id is not None:
                earlier.append(runs.within(IdRange(first_id=first_id, last_id=last.id)))
            next_id = last.id + 1 if last.rows == page_rows else ceiling + 1
    if count:
        full = weight >= limits.max_weight or count == limits.max_count
        ids = IdRange(first_id=first_id, last_id=ceiling)
        planned = unless_full(IdRuns.joined(earlier), ids)
        yield Cut(id_range=ids, weight=weight, count=count, closed=full, runs=planned)
    return None


def _runs_of_a_page(
    connection: sa.Connection,
    table: ReflectedMetaTable,
    next_id: int,
    closed: Sequence[sa.Row[Any]],
    last: sa.Row[Any],
) -> IdRuns:
    """Return the ids of a page from `next_id` on, in the snapshot that it was read in.

    A page without gaps needs no query. Of one that ends with a bad row, the ids of the batches that
    end in it are enough.
    """
    is_unfit = last.state == "unfit"
    last_id = closed[-1].id - 1 if is_unfit and closed else None if is_unfit else last.id
    if last_id is None:
        return IdRuns((), ())
    if not is_unfit and last.rows == last_id - next_id + 1:
        return IdRuns([next_id], [last_id])
    bounds = {"first_id": next_id, "last_id": last_id}
    return runs_of(connection.execute(table.queries.runs, bounds).one())


def _has_function(connection: sa.Connection) -> bool:
    """Look for the function, or make it; a standby or a missing right refuses it.

    It is made once for a connection: the server keeps what it has compiled of a function for as
    long as the connection lives, even when the function has gone, 200 kB each time.
    """
    if connection.execute(_KNOWN).scalar_one():
        return True
    text = resources.files(__package__).joinpath("all_cuts.sql").read_text()
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(text)
    except sa.exc.DBAPIError as error:
        if error.connection_invalidated:
            raise
        return False
    return True


def _cuts_of_a_page(table: ReflectedMetaTable, within: IdRange, limits: Limits) -> sa.Select[Any]:
    """Give the query of a page's cuts; built once, since building takes as long as a page does."""
    page = (
        table.weighed(within.first_id, within.last_id)
        .where(table.uid >= _bound("next_id"))
        .limit(_bound("page_rows"))
        .subquery()
    )
    arrays = sa.select(
        sa.func.array_agg(sa.cast(page.c.uid, sa.BigInteger)).label("ids"),
        sa.func.array_agg(page.c.weight).label("weights"),
        sa.func.count().label("rows"),
    ).subquery()
    cuts = sa.func.pg_temp.batch_pipeline_cuts(
        arrays.c.ids,
        arrays.c.weights,
        _bound("open_weight"),
        _bound("open_items"),
        sa.literal(limits.max_weight, sa.BigInteger),
        sa.literal(min(limits.max_count, MAX_ID), sa.BigInteger),
    )
    found = cuts.table_valued("state", "id", "weight", "items").lateral()
    return sa.select(found, arrays.c.rows).select_from(arrays.join(found, sa.true()))


def _bound(name: str) -> sa.BindParameter[int]:
    return sa.bindparam(name, type_=sa.BigInteger)
