"""Texts that nothing depends on any more: errors and logs of attempts and loads that others
followed.

Rows stay, and so does everything that is counted, compared or sent: only words for people go.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.load import LoadStatus
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import attempt, batch, job, load
from batch_pipeline.inventory.upkeep.migrate import check_still
from batch_pipeline.inventory.work.generations import IS_REPLACED

REMOVED = "(removed by the setting keep_logs)"  # in place of an error
AT_ONCE = 1_000

_later_attempt = attempt.alias("later_attempt")
_later_load = load.alias("later_load")
_is_followed = sa.exists().where(
    _later_attempt.c.batch_id == attempt.c.batch_id, _later_attempt.c.number > attempt.c.number
)
_is_live = sa.and_(attempt.c.generation.is_not(None), ~IS_REPLACED)
_is_done = sa.or_(
    load.c.status == LoadStatus.SUCCEEDED,
    sa.exists().where(
        _later_load.c.attempt_id == load.c.attempt_id,
        _later_load.c.target == load.c.target,
        _later_load.c.number > load.c.number,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Rows whose texts were old, and the size of these."""

    attempts: int = 0
    loads: int = 0
    size_bytes: int = 0


def forget_texts(engine: sa.Engine, stream: str, keep: timedelta, *, dry_run: bool) -> Texts:
    """Remove texts of a stream that are older; `dry_run` only counts them.

    Of a batch its last attempt and its newest generation keep theirs, of a load that failed the
    last one does: they are what `status` shows and what is acted on. A thousand rows are a
    transaction; whoever is stopped is gone on from. Rows that somebody works on are left for later.
    """
    attempts = _Old(
        attempt,
        (attempt.c.error, attempt.c.logging),
        sa.and_(_is_followed, ~_is_live, attempt.c.batch_id.in_(_batches(stream))),
    )
    loads = _Old(load, (load.c.error, load.c.log), sa.and_(_is_done, load.c.stream == stream))
    found = [_forgotten(engine, one, keep, dry_run=dry_run) for one in (attempts, loads)]
    return Texts(attempts=found[0][0], loads=found[1][0], size_bytes=found[0][1] + found[1][1])


@dataclass(frozen=True, slots=True)
class _Old:
    """Rows of a table with two texts, an error and a log, of which some may go."""

    table: sa.Table
    texts: tuple[sa.Column[Any], sa.Column[Any]]
    may_go: sa.ColumnElement[bool]

    @property
    def size_bytes(self) -> sa.ColumnElement[int]:
        error, log = self.texts
        return sa.func.coalesce(
            sa.func.octet_length(sa.func.nullif(error, REMOVED)), 0
        ) + sa.func.coalesce(sa.func.octet_length(log), 0)

    def older(self, keep: timedelta) -> sa.ColumnElement[bool]:
        error, log = self.texts
        has_text = sa.or_(log.is_not(None), error != REMOVED)
        is_old = self.table.c.finished_at < sa.func.clock_timestamp() - keep
        return sa.and_(is_old, has_text, self.may_go)


def _batches(stream: str) -> sa.Select[Any]:
    return sa.select(batch.c.id).join(job, job.c.id == batch.c.job_id).where(job.c.stream == stream)


def _forgotten(engine: sa.Engine, old: _Old, keep: timedelta, *, dry_run: bool) -> tuple[int, int]:
    """Give rows and bytes."""
    total = sa.cast(sa.func.coalesce(sa.func.sum(old.size_bytes), 0), sa.BigInteger)
    if dry_run:
        query = sa.select(sa.func.count(), total).select_from(old.table).where(old.older(keep))
        with transaction(engine) as connection:
            rows, size = connection.execute(query).one()
        return rows, size
    rows = size = 0
    while True:
        some = _forget_some(engine, old, keep)
        rows, size = rows + len(some), size + sum(some)
        failpoint("trim.page")
        if len(some) < AT_ONCE:
            return rows, size


def _forget_some(engine: sa.Engine, old: _Old, keep: timedelta) -> list[int]:
    """Forget a page; gives the size of each row's texts."""
    error, log = old.texts
    page = (
        sa.select(old.table.c.id, old.size_bytes.label("size_bytes"))
        .where(old.older(keep))
        .limit(AT_ONCE)
        .with_for_update(skip_locked=True, of=old.table)
    )
    shorter = sa.case((error.is_not(None), sa.literal(REMOVED)))
    with transaction(engine) as connection:
        check_still(connection)
        found = connection.execute(page).all()
        update = (
            sa.update(old.table)
            .where(old.table.c.id.in_([row.id for row in found]))
            .values({error: shorter, log: None})
        )
        if found:
            connection.execute(update)
    return [row.size_bytes for row in found]
