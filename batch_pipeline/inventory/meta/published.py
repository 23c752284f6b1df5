"""What a job has published, in publish order, as the meta table of another job.

Publish numbers are given under the row lock of the job, so they become visible in their order: the
job's counter is the ceiling. What runs or has failed has no number. Reads only; which job is read,
and that no job reads itself, is decided when the table is opened.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from batch_pipeline.domain.chain import Upstream, upstream_of
from batch_pipeline.domain.errors import (
    CeilingUnavailableError,
    InvalidValueError,
    MetaTableChangedError,
    MetaTableRestartedError,
)
from batch_pipeline.domain.planning import Cut, Limits
from batch_pipeline.domain.table_identity import INVENTORY
from batch_pipeline.inventory.meta.catalogue import find_table, parse_name
from batch_pipeline.inventory.meta.ceilings.ceiling import Strategy
from batch_pipeline.inventory.meta.ceilings.choose import Choice
from batch_pipeline.inventory.meta.ceilings.highest_id import HighestIdCeiling
from batch_pipeline.inventory.meta.column_roles import MetaColumns, checked_columns
from batch_pipeline.inventory.meta.meta_engine import place, reading_once
from batch_pipeline.inventory.meta.meta_source import MetaSource
from batch_pipeline.inventory.meta.meta_sources import MetaSources, SourceTerms
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta.upstreams import PUBLISHED, known_jobs, resolved
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import SCHEMA, job

PUBLISHED_COLUMNS = MetaColumns(uid="publish_number", item="job_result_item", weight="batch_weight")
_NAMES = {(None, "inventory"), (SCHEMA, "inventory"), (SCHEMA, "published")}


def is_published(name: str) -> bool:
    """Tell whether a name stands for what is published, wherever other meta tables are.

    Raises:
        InvalidValueError: the name is not `table` or `schema.table`.
    """
    schema, table = parse_name(name)
    return (None if schema is None else schema.text.casefold(), table.text.casefold()) in _NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable(ReflectedMetaTable):
    """The rows of one job; while there is no such job, of none."""

    upstream: Upstream
    is_there: bool

    @classmethod
    def of(
        cls, engine: sa.Engine, terms: SourceTerms, upstream: Upstream, *, is_there: bool
    ) -> "PublishedTable":
        """Open the rows of a job and check that the columns are there and may be read.

        Raises:
            UnknownMetaColumnError, MetaColumnUnfitError: a column cannot be what it is said to be.
            MetaPermissionError, MetaUnreachableError: it cannot be read.
        """
        found = find_table(engine, PUBLISHED)
        columns, _ = checked_columns(found, terms.columns, terms.where, engine.dialect.name)
        opened = cls(
            engine=engine,
            table=sa.Table(found.name, sa.MetaData(), *found.columns, schema=found.schema),
            canonical_name=PUBLISHED,
            is_view=True,
            columns=columns,
            where=terms.where,
            on_bad_weight=terms.on_bad_weight,
            notes=(),  # ids are unique in what one job has published
            database=INVENTORY,
            upstream=upstream,
            is_there=is_there,
        )
        opened._probe()
        return opened

    def lowest_id(self) -> int | None:
        """Give the first publish number; None when nothing is published."""
        return None if self.highest_id() is None else 1

    def highest_id(self) -> int | None:
        """Read the last publish number of the job; None when nothing is published.

        Raises:
            MetaTableChangedError: the job has come since the table was opened.
        """
        query = sa.select(job.c.publish_count).where(job.c.name == self.upstream.job)
        if self.upstream.meta_table is not None:
            query = query.where(job.c.meta_table == self.upstream.meta_table)
        with reading_once(self.engine) as connection:
            count = connection.execute(query.limit(1)).scalar_one_or_none()
        if count is not None and not self.is_there:
            raise MetaTableChangedError(place(self.engine), f"job {self.upstream} is new")
        return count or None

    def next_cut(self, after_id: int | None, ceiling: int, limits: Limits) -> Cut | None:
        """Cut the next batch, as a table does; the first publish number is 1."""
        return super(PublishedTable, self).next_cut(after_id or 0, ceiling, limits)

    def _filter(self) -> list[sa.ColumnElement[bool]]:
        columns = self.table.c
        ours = [columns.job == self.upstream.job]
        if self.upstream.meta_table is not None:
            ours.append(columns.meta_table == self.upstream.meta_table)
        return [*ours, *super(PublishedTable, self)._filter()]


@dataclass(slots=True, kw_only=True)
class ChainedSource(MetaSource):
    """Cuts batches of what a job has published."""

    table: PublishedTable

    def check_not_restarted(self, job: str, planned_up_to: int) -> None:
        """Check that publish numbers still go on above what is planned.

        Raises:
            MetaTableRestartedError: the job that is read was forgotten, and perhaps made again.
        """
        highest = self.table.highest_id() or 0
        if highest < planned_up_to:
            name = f"{PUBLISHED} of job {self.table.upstream}"
            raise MetaTableRestartedError(job, name, planned_up_to, highest + 1)


class PublishedSources(MetaSources):
    """Opens what jobs have published, on the inventory's own server."""

    def table(self, terms: SourceTerms) -> PublishedTable:
        """Open the rows of the job that the filter names.

        Raises:
            UpstreamUnclearError, UpstreamAmbiguousError: it names none, or several.
            ChainCycleError: the job that reads would read its own rows.
            CeilingUnavailableError: another ceiling than `registrar` is asked for.
            InvalidValueError, UnknownMetaColumnError, MetaColumnUnfitError: as of any table.
        """
        _check(terms)
        reader = terms.reader or ""
        asked = upstream_of(reader, terms.where)
        with transaction(self._inventory) as connection:
            found = resolved(connection, reader, asked)
            if found is None:
                known = ", ".join(known_jobs(connection)) or "none"
                self._warn(f"{reader}: there is no job {asked} yet to read from (jobs: {known})")
        here = found is not None
        return PublishedTable.of(self._engine, terms, found or asked, is_there=here)

    def canonical_name(self, name: str) -> str:
        """Give the one name that all names of what is published stand for."""
        return PUBLISHED

    def _forget(self, terms: SourceTerms) -> None:
        with self._opening:  # a job has come; the table is as it was, and others are reading it
            self._opened.pop(terms.key, None)

    def _open(self, terms: SourceTerms) -> MetaSource:
        table = self.table(terms)
        choice = Choice(
            ceiling=HighestIdCeiling(table=table, strategy=Strategy.REGISTRAR),
            strategy=Strategy.REGISTRAR,
            reason="publish numbers are given in commit order",
        )
        return ChainedSource(table=table, choice=choice)


def _check(terms: SourceTerms) -> None:
    if terms.ceiling not in {None, Strategy.REGISTRAR} or terms.settle_by is not None:
        problem = "publish numbers are given in commit order, so 'registrar' is exact"
        asked = (terms.ceiling or Strategy.SETTLE).value
        raise CeilingUnavailableError(PUBLISHED, asked, problem, "Leave the ceiling out.")
    uid = PUBLISHED_COLUMNS.uid
    if terms.columns.uid != uid:
        expected = f"{uid!r}: other ids are not given in the order in which batches are published"
        raise InvalidValueError("meta_table_cols['uid']", terms.columns.uid, expected)
