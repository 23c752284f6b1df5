"""Meta tables whose ids start again: noticed before new rows are passed over in silence.

A job never looks below its bookmark again. So when nothing is left for it, the id that the database
gives next is compared with the bookmark. Reads only.
"""

import logging
from collections.abc import Iterator
from functools import cache

from batch_pipeline.domain.errors import MetaTableRestartedError
from batch_pipeline.inventory.meta.next_id import next_ids
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable

log = logging.getLogger(__name__)


def check_not_restarted(table: ReflectedMetaTable, job: str, planned_up_to: int) -> None:
    """Check that the next rows of a table get ids above what a job has planned.

    A table that was truncated with its sequence, dropped and made again, or whose sequence was set
    back, fails; one whose last rows were merely deleted does not. Where the database does not tell
    the next id and the highest one is below the bookmark, a warning is logged, once for each job
    and process. Rows that came after a restart and have passed the bookmark already are not
    noticed here: their batches have changed, which an audit finds.

    Raises:
        MetaTableRestartedError: the next row would get an id that the job never looks at again.
    """
    highest = table.highest_id()
    if highest is not None and highest >= planned_up_to:
        return
    following = next_ids(table, highest)
    unknown = following.unknown or "several sequences give them"
    if following.ids and min(following.ids) > planned_up_to:
        return
    if following.ids and max(following.ids) <= planned_up_to:
        given = max(following.ids)
        if highest is None or highest < given:
            raise MetaTableRestartedError(job, table.canonical_name, planned_up_to, given)
        unknown = f"the database would give {given} next, so they come from elsewhere"
    if next(_first_time(job, table.canonical_name), False):
        end = "there are none" if highest is None else f"end at {highest}"
        log.warning(
            "%s: ids of %s are planned up to %d and now %s; whether they start again cannot be "
            "known (%s). Rows that get ids up to %d would not be acquired.",
            *(job, table.canonical_name, planned_up_to, end, unknown, planned_up_to),
        )


@cache  # kept for the life of the process, so that a worker that polls says it once
def _first_time(_job: str, _table: str) -> Iterator[bool]:
    return iter((True,))
