"""Cut a whole meta table into batches in one pass.

On Postgres the server computes the cuts, in a temporary function that lasts as long as the
connection. The statements write no rows, and no SQL text is built from names or values.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from importlib import resources
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.meta_tables.connection import read_one_statement, read_transaction
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable, runs_from_row
from batch_pipeline.model.errors import BadWeightError, InvalidValueError, unfit_column
from batch_pipeline.model.id_range import MAX_ID, MIN_ID, IdRange, IdRuns, unless_full
from batch_pipeline.model.planning import Cut, Limits, cut

log = logging.getLogger(__name__)

_PAGE_ROWS = 50_000
_FUNCTION_EXISTS = sa.text(
    "SELECT to_regprocedure('pg_temp.batch_pipeline_cuts"
    "(bigint[], bigint[], bigint, bigint, bigint, bigint)') IS NOT NULL"
)


def all_cuts(
    table: ReflectedMetaTable,
    after_id: int | None,
    high_watermark: int,
    limits: Limits,
    *,
    page_rows: int = _PAGE_ROWS,
) -> Iterator[Cut]:
    """Cut everything above `after_id` (None: from the first row on) up to the high watermark.

    The result equals that of `model.planning.cut` on `table.weights`. A read transaction stays open
    until the last cut is yielded. Memory is bounded by `page_rows` in the server and by the cuts of
    one page here. For views, databases other than Postgres, and roles that may not create
    temporary objects, the rows are streamed instead, which is slower.

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
    if _can_run_in_server(table):
        first_id = yield from _cuts_in_server(table, first_id, high_watermark, limits, page_rows)
    if first_id is not None:
        weights = table.weights(first_id - 1, high_watermark)
        yield from cut(weights, after_id=first_id - 1, high_watermark=high_watermark, limits=limits)


def _can_run_in_server(table: ReflectedMetaTable) -> bool:
    # A note means that ids may not be unique, and the function does not look for duplicates. A
    # view always has a note; it might also compute all its rows again for every page.
    return table.engine.dialect.name == "postgresql" and not table.notes


def _cuts_in_server(
    table: ReflectedMetaTable, first_id: int, high_watermark: int, limits: Limits, page_rows: int
) -> Generator[Cut, None, int | None]:
    """Yield the cuts of the server; return the id to continue from without it, None at the end."""
    next_id, weight, count = first_id, 0, 0
    earlier_runs: list[IdRuns] = []  # ids of the open batch in earlier pages
    with read_transaction(table.engine, "REPEATABLE READ") as connection:
        if not _ensure_function(connection):
            return first_id
        query = _page_cuts_query(table, IdRange(first_id=first_id, last_id=high_watermark), limits)
        while next_id <= high_watermark:
            state = {"next_id": next_id, "open_weight": weight, "open_items": count}
            *closed, last = connection.execute(query, state | {"page_rows": page_rows}).all()
            runs = _page_runs(connection, table, next_id, closed, last)
            for row in closed:
                id_range = IdRange(first_id=first_id, last_id=row.id - 1)
                planned_runs = unless_full(
                    IdRuns.joined([*earlier_runs, runs.within(id_range)]), id_range
                )
                yield Cut(
                    id_range=id_range,
                    weight=row.weight,
                    count=row.items,
                    closed=True,
                    runs=planned_runs,
                )
                first_id, earlier_runs = row.id, []
            if last.state == "unfit":
                return first_id
            weight, count = last.weight, last.items
            if last.id is not None:
                earlier_runs.append(runs.within(IdRange(first_id=first_id, last_id=last.id)))
            next_id = last.id + 1 if last.rows == page_rows else high_watermark + 1
    if count:
        is_full = weight >= limits.max_weight or count == limits.max_count
        id_range = IdRange(first_id=first_id, last_id=high_watermark)
        planned_runs = unless_full(IdRuns.joined(earlier_runs), id_range)
        yield Cut(id_range=id_range, weight=weight, count=count, closed=is_full, runs=planned_runs)
    return None


def _page_runs(
    connection: sa.Connection,
    table: ReflectedMetaTable,
    next_id: int,
    closed: Sequence[sa.Row[Any]],
    last: sa.Row[Any],
) -> IdRuns:
    """Return the ids of a page from `next_id` on, in the snapshot of the page.

    A page without gaps needs no query. If a page ends with a bad row, only the ids of the batches
    that end in the page are needed.
    """
    is_unfit = last.state == "unfit"
    last_id = closed[-1].id - 1 if is_unfit and closed else None if is_unfit else last.id
    if last_id is None:
        return IdRuns((), ())
    if not is_unfit and last.rows == last_id - next_id + 1:
        return IdRuns([next_id], [last_id])
    bounds = {"first_id": next_id, "last_id": last_id}
    return runs_from_row(connection.execute(table.queries.runs, bounds).one())


def _ensure_function(connection: sa.Connection) -> bool:
    """Create the function if it is missing; return whether it exists.

    A standby or a role without the right cannot create it. It is created once for each connection,
    because the server keeps the compiled function, 200 kB, until the connection ends, even if the
    function is dropped.
    """
    if connection.execute(_FUNCTION_EXISTS).scalar_one():
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


def _page_cuts_query(table: ReflectedMetaTable, within: IdRange, limits: Limits) -> sa.Select[Any]:
    """Return the query of a page's cuts. Building it takes as long as reading a page."""
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
    cuts_row = cuts.table_valued("state", "id", "weight", "items").lateral()
    return sa.select(cuts_row, arrays.c.rows).select_from(arrays.join(cuts_row, sa.true()))


def _bound(name: str) -> sa.BindParameter[int]:
    return sa.bindparam(name, type_=sa.BigInteger)


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
        MetaTableError: an item has one.
    """
    with read_one_statement(table.engine) as connection:
        row = connection.execute(table.weighed(MIN_ID, -1).limit(1)).first()
    if row is not None:
        problem = f"the id {row[0]} is negative, and partition keys have no sign"
        condition = f"{{column: {table.columns.uid}, operator: '>=', value: 0}}"
        step = f"Leave such rows out: `where: [{condition}]`"
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
