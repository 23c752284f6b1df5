"""Imports jobs: all is read and judged first, then written in one transaction or not at all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.errors import ConfigurationError, InvalidValueError
from batch_pipeline.domain.id_range import MIN_ID, IdRange
from batch_pipeline.domain.imported import (
    ForeignAttempt,
    ForeignJob,
    ImportedJob,
    NotImportedError,
    Running,
)
from batch_pipeline.domain.imported_ranges import Tiling, compare, parts_of, tiled
from batch_pipeline.domain.job import JobTerms
from batch_pipeline.inventory.imported import doubts
from batch_pipeline.inventory.imported.contradictions import contradictions
from batch_pipeline.inventory.imported.foreign_inventory import ForeignInventory, ForeignRow
from batch_pipeline.inventory.imported.standing import Standing, standing_of
from batch_pipeline.inventory.imported.writing import move_bookmarks, write_batches
from batch_pipeline.inventory.jobs.jobs import open_job
from batch_pipeline.inventory.locks import lock_planning
from batch_pipeline.inventory.meta.column_roles import MetaColumns
from batch_pipeline.inventory.meta.meta_sources import MetaSources, SourceTerms
from batch_pipeline.inventory.meta.published import is_published
from batch_pipeline.inventory.meta.range_facts import present
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.upkeep.migrate import check_still


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which jobs of a table are imported, none for all, and what tries that still run count as."""

    table: str = "inventory"
    jobs: tuple[str, ...] = ()
    running: Running | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A job with what is to be written of it; without batches nothing is new."""

    terms: JobTerms
    standing: Standing
    columns: MetaColumns
    attempts: int
    tiling: Tiling
    doubts: tuple[str, ...]

    def imported(self) -> ImportedJob:
        """Give what is told of it before anything is written."""
        batches = self.tiling.batches
        return ImportedJob(
            name=self.terms.name,
            meta_table=self.terms.meta_table,
            batches=len(batches),
            items=sum(one.count for one in batches),
            weight=sum(one.weight for one in batches),
            attempts=self.attempts,
            bookmark=batches[-1].ids.last_id if batches else self.standing.bookmark,
            late=self.tiling.late,
            left=self.tiling.left,
            doubts=self.doubts,
        )

    def config(self) -> dict[str, Any]:
        """Give what is kept with each batch, in the words of the library."""
        columns = self.columns
        return {
            "meta_table": {
                "name": self.terms.meta_table,
                "cols": {"uid": columns.uid, "item": columns.item, "weight": columns.weight},
            },
            "job": self.terms.name,
            "batch_id_min": None,
            "batch_id_max": None,
            "where": None,
            "on_bad_weight": None,
        }


@dataclass(frozen=True, slots=True)
class Importing:
    """Imports into an inventory; `sources` are the meta tables as jobs are going to read them."""

    engine: sa.Engine
    sources: MetaSources

    def run(self, foreign: sa.Engine, asked: Asked) -> list[ImportedJob]:
        """Import jobs with their history, in the order of their names; a dry run rolls it back.

        `foreign` is the database of the other inventory. What was imported before is left as it is.
        Holds the planning locks of the jobs while it writes.

        Raises:
            NotImportedError: something contradicts itself or what is here; tells all of it.
            ForeignInventoryError, UnknownMetaTableError: the other inventory cannot be read.
            UnknownJobError: a job was named that is not there.
            MetaUnreachableError, MetaBusyError: a meta table's database does not answer.
        """
        problems: list[str] = []
        inventory = ForeignInventory(foreign, asked.table)
        jobs = self._jobs(inventory.rows(asked.jobs, asked.running), problems)
        prepared = [self._prepared(one, asked.running, problems) for one in jobs]
        if problems:
            raise NotImportedError(inventory.location, tuple(problems))
        with transaction(self.engine) as connection:
            check_still(connection)
            imported = _write(connection, [one for one in prepared if one], inventory.location)
            if asked.dry_run:
                connection.rollback()
        return imported

    def _jobs(self, rows: Iterable[ForeignRow], problems: list[str]) -> list[ForeignJob]:
        """Put the rows of each job together, however its meta table was called."""
        grouped: dict[tuple[str, str], list[ForeignRow]] = {}
        for table, mine in groupby(sorted(rows, key=_by_table), _by_table):
            of_table = list(mine)
            try:
                name = self._canonical_name(table)
            except ConfigurationError as error:
                jobs = ", ".join(sorted({row.job for row in of_table}))
                problems.append(f"{jobs}: {error} Name the other jobs by --job to go on without.")
                continue
            for row in of_table:
                grouped.setdefault((row.job, name), []).append(row)
        return [_job(*key, mine) for key, mine in sorted(grouped.items())]

    def _canonical_name(self, table: str) -> str:
        if is_published(table):
            expected = "a table of yours, since ids of another inventory mean nothing here"
            raise InvalidValueError("the meta table", table, expected)
        return self.sources.canonical_name(table)

    def _prepared(
        self, one: ForeignJob, running: Running | None, problems: list[str]
    ) -> _Prepared | None:
        """Judge a job and say what is to be written of it; None where something contradicts it."""
        name, meta_table = one.name, one.meta_table
        with transaction(self.engine) as connection:
            standing = standing_of(connection, name, meta_table)
        new = [each for each in one.attempts if each.id not in standing.known]
        found = list(doubts.of_changes(one.attempts, standing.known))
        tiling = Tiling(batches=())
        told = list(contradictions(one.attempts, standing, running))
        try:
            terms = JobTerms(
                name=name,
                meta_table=meta_table,
                max_attempts=standing.max_attempts,
                bisect=standing.bisect,
            )
            columns = MetaColumns(**one.columns)
            source = SourceTerms(name=meta_table, columns=columns, on_bad_weight=0)
            if new and not told:
                tiling, of_table = _tiled(self.sources.table(source), new, standing.bookmark)
                found += [*doubts.of_job(replace(one, attempts=tuple(new))), *of_table]
        except ConfigurationError as error:
            told.append(str(error))
        if told:
            problems += [f"{name} on {meta_table}: {problem}" for problem in told]
            return None
        return _Prepared(
            terms=terms,
            standing=standing,
            columns=columns,
            attempts=len(new),
            tiling=tiling,
            doubts=tuple(found),
        )


def _by_table(row: ForeignRow) -> str:
    return row.table


def _job(name: str, meta_table: str, rows: Iterable[ForeignRow]) -> ForeignJob:
    mine = sorted(rows, key=lambda row: row.attempt.id)
    return ForeignJob(
        name=name,
        meta_table=meta_table,
        written=tuple(sorted({row.table for row in mine})),
        columns=mine[-1].columns,
        attempts=tuple(row.attempt for row in mine),
    )


def _tiled(
    table: ReflectedMetaTable, new: Sequence[ForeignAttempt], after_id: int | None
) -> tuple[Tiling, list[str]]:
    """Compare what was tried with the meta table, which is read once up to the last id."""
    parts = parts_of(new)
    last_id = parts[-1].ids.last_id
    first_id = MIN_ID if after_id is None else after_id + 1
    rows = present(table, IdRange(first_id=first_id, last_id=last_id))
    compared = compare(parts, ((item_id, weight or 0) for item_id, weight in rows))
    found = [*doubts.of_ranges(compared, len(new)), *doubts.of_end(table.highest_id(), last_id)]
    return tiled(compared, after_id), found


def _write(
    connection: sa.Connection, prepared: Sequence[_Prepared], location: str
) -> list[ImportedJob]:
    """Write what is new of jobs that still stand as they were judged."""
    ids = {one.terms: open_job(connection, one.terms).id for one in prepared if one.tiling.batches}
    for job_id in sorted(ids.values()):
        lock_planning(connection, job_id)
    imported = []
    for one in prepared:
        done = one.imported()
        if one.terms in ids:
            terms, job_id = one.terms, ids[one.terms]
            if standing_of(connection, terms.name, terms.meta_table) != one.standing:
                problem = f"{terms.name}: somebody acquired from it meanwhile. Run again."
                raise NotImportedError(location, (problem,))
            states = write_batches(connection, job_id, one.tiling.batches, one.config())
            move_bookmarks(connection, job_id, one.tiling.runs(one.standing.bookmark))
            done = replace(done, states=states)
        imported.append(done)
    return imported
