"""The view of published batches as the meta table of chained jobs.

A chained job names its upstream job in its filter. It must not read its own output, directly or
through other jobs.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns, parse_name
from batch_pipeline.inventory.meta_tables.connection import database_label, read_one_statement
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource, MetaSources, SourceTerms
from batch_pipeline.inventory.meta_tables.watermarks import WatermarkChoice
from batch_pipeline.inventory.tables import SCHEMA, batch, job
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    MetaTableChangedError,
    MetaTableRestartedError,
    watermark_unavailable,
)
from batch_pipeline.model.filter import Upstream, parse_filter, upstream_of
from batch_pipeline.model.job import COLUMNS, INVENTORY, Job
from batch_pipeline.model.planning import Cut, Limits
from batch_pipeline.model.stream import Strategy

PUBLISHED = f"{SCHEMA}.published"


def resolve_upstream(connection: sa.Connection, reader: str, upstream: Upstream) -> Upstream | None:
    """Return the upstream job of a reader with its meta table; None while it does not exist.

    If several jobs have the name, an existing reader keeps reading the oldest.

    Raises:
        ConfigurationError: several jobs have the name and the reader is new, or the reader would
            read its own output.
    """
    rows = _jobs_with_name(connection, upstream)
    is_own = upstream.job == reader and upstream.meta_table in {None, PUBLISHED}
    tables = {row.meta_table for row in rows} | ({PUBLISHED} if is_own else set())
    if len(tables) > 1 and not _jobs_with_name(
        connection, Upstream(job=reader, meta_table=PUBLISHED)
    ):
        ordered = sorted(tables, key=lambda name: (name == PUBLISHED, name))
        raise ConfigurationError(
            f"Job {reader!r} reads what {upstream.job!r} has published, and there are jobs "
            f"of this name on {', '.join(ordered)}. Nothing was acquired. Select one: add "
            f'{{"column": "meta_table", "operator": "=", "value": "{ordered[0]}"}} to `where`.'
        )
    _ensure_no_cycle(connection, reader, upstream)
    return None if not rows else Upstream(job=rows[0].name, meta_table=rows[0].meta_table)


def _ensure_no_cycle(connection: sa.Connection, reader: str, upstream: Upstream) -> None:
    visited, step = [reader], upstream
    while True:
        rows = _jobs_with_name(connection, step)
        if not rows and step.job == reader and step.meta_table in {None, PUBLISHED}:
            raise _chain_cycle((*visited, reader))  # as soon as the reader exists
        if not rows or rows[0].meta_table != PUBLISHED:
            return
        name: str = rows[0].name
        if name in visited:
            raise _chain_cycle((*visited[visited.index(name) :], name))
        visited.append(name)
        step = upstream_of(name, parse_filter(rows[0].config["where"]))


def _jobs_with_name(connection: sa.Connection, upstream: Upstream) -> tuple[sa.Row[Any], ...]:
    """Return the jobs with a name, the oldest first."""
    query = sa.select(job.c.name, job.c.meta_table, job.c.config).where(job.c.name == upstream.job)
    if upstream.meta_table is not None:
        query = query.where(job.c.meta_table == upstream.meta_table)
    return tuple(connection.execute(query.order_by(job.c.id)))


def _chain_cycle(jobs: tuple[str, ...]) -> ConfigurationError:
    chain = " reads ".join(repr(name) for name in jobs)
    return ConfigurationError(
        f"Jobs would read their own output: {chain}. Nothing was acquired. Change one of them to "
        f"read another job or another meta table."
    )


PUBLISHED_COLUMNS = MetaColumns(uid="publish_number", item="job_result_item", weight="batch_weight")
_PUBLISHED_NAMES = {(None, "inventory"), (SCHEMA, "inventory"), (SCHEMA, "published")}


def is_published(name: str) -> bool:
    """Return whether a name refers to the view of published batches.

    Raises:
        InvalidValueError: the name is not `table` or `schema.table`.
    """
    schema, table = parse_name(name)
    return (
        None if schema is None else schema.text.casefold(),
        table.text.casefold(),
    ) in _PUBLISHED_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable(ReflectedMetaTable):
    """The published batches of one job; empty while the job does not exist."""

    upstream: Upstream
    job_exists: bool

    def lowest_id(self) -> int | None:
        """Return the first publish number; None if nothing is published."""
        return None if self.highest_id() is None else 1

    def highest_id(self) -> int | None:
        """Return the last publish number of the job; None if nothing is published.

        Raises:
            MetaTableChangedError: the job was created after the table was opened.
        """
        query = sa.select(job.c.publish_count).where(job.c.name == self.upstream.job)
        if self.upstream.meta_table is not None:
            query = query.where(job.c.meta_table == self.upstream.meta_table)
        with read_one_statement(self.engine) as connection:
            count = connection.execute(query.limit(1)).scalar_one_or_none()
        if count is not None and not self.job_exists:
            raise MetaTableChangedError(database_label(self.engine), f"job {self.upstream} is new")
        return count or None

    def next_cut(self, after_id: int | None, high_watermark: int, limits: Limits) -> Cut | None:
        """Cut the next batch as `ReflectedMetaTable` does; the first publish number is 1."""
        return super(PublishedTable, self).next_cut(after_id or 0, high_watermark, limits)

    def _filter(self) -> list[sa.ColumnElement[bool]]:
        columns = self.table.c
        conditions = [columns.job == self.upstream.job]
        if self.upstream.meta_table is not None:
            conditions.append(columns.meta_table == self.upstream.meta_table)
        return [*conditions, *super(PublishedTable, self)._filter()]


@dataclass(slots=True, kw_only=True)
class ChainedSource(MetaSource):
    """The published batches of a job with their high watermark."""

    table: PublishedTable

    def check_not_restarted(self, job: str, planned_up_to: int) -> None:
        """Check that new publish numbers are above those already planned.

        Raises:
            MetaTableRestartedError: the upstream job was deleted, and perhaps created again.
        """
        highest = self.table.highest_id() or 0
        if highest < planned_up_to:
            name = f"{PUBLISHED} of job {self.table.upstream}"
            raise MetaTableRestartedError(job, name, planned_up_to, highest + 1)


class PublishedSources(MetaSources):
    """Opens and caches the published batches of jobs, on the inventory's own server."""

    def table(self, terms: SourceTerms) -> PublishedTable:
        """Open the published batches of the job that the filter names.

        Raises:
            ConfigurationError: the filter names no job or several, or the reader would read its
                own output.
            MetaTableError: a strategy other than `registrar` is requested.
            InvalidValueError, MetaTableError: as for any table.
        """
        _check_terms(terms)
        reader = terms.reader or ""
        upstream = upstream_of(reader, terms.where)
        with transaction(self._inventory) as connection:
            resolved = resolve_upstream(connection, reader, upstream)
            if resolved is None:
                known = sa.select(job.c.name).distinct().order_by(job.c.name)
                names = ", ".join(connection.execute(known).scalars()) or "none"
                self._warn(f"{reader}: there is no job {upstream} yet to read from (jobs: {names})")
        return PublishedTable.open(
            self._engine,
            PUBLISHED,
            terms.columns,
            terms.where,
            terms.on_bad_weight,
            notes=(),  # publish numbers are unique within a job
            database=INVENTORY,
            upstream=resolved or upstream,
            job_exists=resolved is not None,
        )

    def canonical_name(self, name: str) -> str:
        """Return the view's canonical name for any of its names."""
        return PUBLISHED

    def _forget(self, terms: SourceTerms) -> None:
        # A job was created. The table is unchanged, so its connections stay open.
        with self._opening:
            self._opened.pop(terms.key, None)

    def _open(self, terms: SourceTerms) -> MetaSource:
        table = self.table(terms)
        choice = WatermarkChoice.registrar(table, "publish numbers are assigned in commit order")
        return ChainedSource(table=table, choice=choice)


def _check_terms(terms: SourceTerms) -> None:
    if terms.strategy not in {None, Strategy.REGISTRAR} or terms.settle_by is not None:
        problem = "publish numbers are assigned in commit order, so 'registrar' is exact"
        strategy = (terms.strategy or Strategy.SETTLE).value
        step = "Omit `ceiling` and `settle_by`."
        raise watermark_unavailable(PUBLISHED, strategy, problem, step)
    uid = PUBLISHED_COLUMNS.uid
    if terms.columns.uid != uid:
        expected = f"{uid!r}: other ids are not in the order in which batches are published"
        raise InvalidValueError("meta_table_cols['uid']", terms.columns.uid, expected)


def terms_of_job(inventory: sa.Engine, for_job: Job) -> SourceTerms:
    """Return the options for reading a job's meta table.

    The columns are those of the job, else of the last batch that stores them, else the default
    names.
    """
    stored_columns = batch.c.config["meta_table"]["cols"]
    query = (
        sa.select(batch.c.config)
        .join(job, job.c.id == batch.c.job_id)
        .where(job.c.meta_table == for_job.meta_table, stored_columns.is_not(None))
        .order_by((job.c.id == for_job.id).desc(), batch.c.id.desc())
        .limit(1)
    )
    with transaction(inventory) as connection:
        config = connection.execute(query).scalar_one_or_none()
        job_config = connection.execute(
            sa.select(job.c.config).where(job.c.id == for_job.id)
        ).scalar_one()
    where = job_config.get("where")
    column_roles = job_config.get(COLUMNS) or (config and config["meta_table"]["cols"])
    default_columns = PUBLISHED_COLUMNS if is_published(for_job.meta_table) else MetaColumns()
    return SourceTerms(
        name=for_job.meta_table,
        columns=MetaColumns(**column_roles) if column_roles else default_columns,
        where=None if where is None else parse_filter(where),
        on_bad_weight=None if config is None else config.get("on_bad_weight"),
        reader=for_job.name,
    )
