"""Cutting a user's table for a stream: into ranges that partition keys can name."""

import logging
from collections.abc import Iterator

from batch_pipeline.domain.errors import BadWeightError, MetaColumnUnfitError
from batch_pipeline.domain.id_range import MIN_ID
from batch_pipeline.domain.planning import Cut, Limits
from batch_pipeline.inventory.meta.all_cuts import all_cuts
from batch_pipeline.inventory.meta.meta_engine import reading_once
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable

log = logging.getLogger(__name__)


def cuts_of_keys(
    table: ReflectedMetaTable, after_id: int | None, ceiling: int, limits: Limits
) -> Iterator[Cut]:
    """Cut all items of a table into ranges that partition keys can name.

    Raises:
        MetaColumnUnfitError: an item's id is negative.
    """
    lowest = table.lowest_id() if after_id is None else None
    if lowest is not None and lowest < 0:
        check_not_negative(table)
        after_id = -1
    yield from all_cuts(table, after_id, ceiling, limits)


def check_not_negative(table: ReflectedMetaTable) -> None:
    """Check that no item has an id that partition keys cannot name.

    Raises:
        MetaColumnUnfitError: one has.
    """
    with reading_once(table.engine) as connection:
        found = connection.execute(table.weighed(MIN_ID, -1).limit(1)).first()
    if found is not None:
        problem = f"the id {found[0]} is negative, and partition keys have no sign"
        condition = f"{{column: {table.columns.uid}, operator: '>=', value: 0}}"
        step = f"Leave such rows out: `where: [{condition}]`"
        name = table.canonical_name
        raise MetaColumnUnfitError(name, table.columns.uid, "uid", problem, f"{step}.")


def cuts_before_bad(
    table: ReflectedMetaTable, after_id: int | None, ceiling: int, limits: Limits
) -> Iterator[Cut]:
    """Cut as `cuts_of_keys` does, and end right before a row whose weight is refused.

    Raises:
        BadWeightError: it is the next item.
    """
    last_id = after_id
    try:
        for one in cuts_of_keys(table, after_id, ceiling, limits):
            yield one
            last_id = one.id_range.last_id
    except BadWeightError as error:
        for one in cuts_of_keys(table, last_id, error.item_id - 1, limits):
            yield one
            last_id = one.id_range.last_id
        if last_id == after_id:
            raise
        log.warning("%s", error)
