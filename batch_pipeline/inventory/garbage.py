"""Find the attempts that files in storages belong to, and mark those whose files are removed.

The model decides which files are garbage. Rows of attempts are kept.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.inventory.connection import LOADER_IS_THERE, fetch_rows, transaction
from batch_pipeline.inventory.manifests import ARE_REMOVED, IS_REPLACED
from batch_pipeline.inventory.meta_tables.chained_table import PUBLISHED
from batch_pipeline.inventory.migrate import ensure_revision_unchanged
from batch_pipeline.inventory.tables import (
    HAS_LOAD,
    attempt,
    attempts_of_jobs,
    batch,
    batch_state,
    batches_of_jobs,
    is_any_of,
    job,
    load,
    part_file,
)
from batch_pipeline.model.batch import AttemptStatus, BatchState, IdRange
from batch_pipeline.model.filter import parse_filter, upstream_of
from batch_pipeline.model.garbage import FILES_REMOVED_AT, QUARANTINE_REMOVED_AT, KnownAttempt
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.load import LoadStatus

BatchGeneration: TypeAlias = tuple[str, IdRange, int]  # job, range of a batch, generation
_READ_STATES = (BatchState.PUBLISHED.value, BatchState.SUPERSEDED.value)  # others may be retried
_IS_QUARANTINE_REMOVED = attempt.c.facts.has_key(QUARANTINE_REMOVED_AT)

_parent = job.alias("parent")
_is_being_loaded = sa.exists().where(
    load.c.attempt_id == attempt.c.id, load.c.status == LoadStatus.RUNNING, LOADER_IS_THERE
)
_is_paused = sa.exists(
    sa.select(1)
    .select_from(batches_of_jobs.outerjoin(_parent, _parent.c.id == job.c.parent_id))
    .where(
        batch.c.id == attempt.c.batch_id,
        sa.or_(job.c.paused_at.is_not(None), _parent.c.paused_at.is_not(None)),
    )
    .correlate(attempt)
)
_IS_HELD = sa.or_(_is_being_loaded, _is_paused)
_newer = attempt.alias("newer")
_replaced = (
    sa.select(sa.func.min(_newer.c.finished_at).label("replaced_at"))
    .where(_newer.c.batch_id == attempt.c.batch_id, _newer.c.generation > attempt.c.generation)
    .lateral("replaced")
)


@dataclass(frozen=True, slots=True)
class StoredAttempts:
    """The attempts of all streams, found by tokens and generations in file names."""

    engine: sa.Engine

    def now(self) -> datetime:
        """Return the time of the database's clock."""
        [row] = fetch_rows(self.engine, sa.select(sa.func.clock_timestamp()))
        return cast("datetime", row[0])

    def job_names(self, streams: Collection[str]) -> dict[str, set[str]]:
        """Read the names of the jobs of streams, by stream."""
        query = sa.select(job.c.stream, job.c.name).where(job.c.stream.in_(streams))
        names: dict[str, set[str]] = {}
        for row in fetch_rows(self.engine, query):
            names.setdefault(row.stream, set()).add(row.name)
        return names

    def attempts(self, tokens: Collection[str]) -> Sequence[KnownAttempt]:
        """Find the attempts of all streams whose tokens start with the given 8 hex digits."""
        if not tokens:
            return ()
        ranges = _unnest(
            lowest=(pg.UUID, [UUID(hex=token + "0" * 24) for token in tokens]),
            highest=(pg.UUID, [UUID(hex=token + "f" * 24) for token in tokens]),
        )
        # Ordered and limited, so that each token is looked up in the index. Among 100,000 attempts
        # about two share a prefix.
        matching = (
            sa.select(attempt.c.id)
            .where(attempt.c.token.between(ranges.c.lowest, ranges.c.highest))
            .order_by(attempt.c.token)
            .limit(8)
            .lateral("found")
        )
        ids = sa.select(matching.c.id).select_from(ranges).join(matching, sa.true())
        return _known_attempts(self.engine, ids, with_files=True)

    def generations(
        self, stream: str, wanted: Collection[BatchGeneration]
    ) -> Sequence[KnownAttempt]:
        """Find published attempts of a stream by job, range of ids and generation."""
        if not wanted:
            return ()
        ids = _attempts_of(stream, wanted).with_only_columns(attempt.c.id)
        return _known_attempts(self.engine, ids, with_files=False)

    def unknown_generations(
        self, stream: str, wanted: Collection[BatchGeneration]
    ) -> set[BatchGeneration]:
        """Return the generations that no attempt of the stream's jobs has published.

        Pass a few thousand at a time.
        """
        rows = fetch_rows(self.engine, _attempts_of(stream, wanted))
        known = {
            (row.name, IdRange(first_id=row.first_id, last_id=row.last_id), row.generation)
            for row in rows
        }
        return {*wanted} - known

    def mark_superseded(self, attempt_ids: Collection[int]) -> set[int]:
        """Mark the files of replaced generations as removed; return the marked ids."""
        return self._mark_removed(attempt_ids, IS_REPLACED)

    def mark_loaded(self, attempt_ids: Collection[int], targets: Collection[str]) -> set[int]:
        """Mark the files of generations that all targets have loaded; return the marked ids.

        Leaves out those with a running or voided load, and those of paused jobs.
        """
        target_set = set(targets)
        loaded_targets = (
            sa.select(sa.func.count())
            .where(load.c.attempt_id == attempt.c.id, load.c.target.in_(target_set), HAS_LOAD)
            .scalar_subquery()
        )
        is_in_all = sa.and_(loaded_targets == len(target_set), sa.literal(bool(target_set)))
        return self._mark_removed(attempt_ids, sa.and_(is_in_all, ~_IS_HELD))

    def mark_quarantine(self, attempt_ids: Collection[int]) -> set[int]:
        """Mark only the quarantine files of generations as removed; return the marked ids."""
        return self._mark_removed(attempt_ids, sa.true(), QUARANTINE_REMOVED_AT)

    def _mark_removed(
        self,
        attempt_ids: Collection[int],
        condition: sa.ColumnElement[bool],
        removed_at: str = FILES_REMOVED_AT,
    ) -> set[int]:
        ids = is_any_of(attempt.c.id, sorted(attempt_ids))
        mark = sa.func.jsonb_build_object(removed_at, sa.func.clock_timestamp())
        is_marked = attempt.c.facts.has_key(removed_at)
        update = (
            sa.update(attempt)
            .where(ids, attempt.c.status == AttemptStatus.SUCCEEDED, ~is_marked, condition)
            .values(facts=attempt.c.facts.op("||")(mark))
        )
        attempts = sa.select(attempt.c.id).where(ids)
        with transaction(self.engine) as connection:
            ensure_revision_unchanged(connection)
            # A load references the attempt's row, so its insert either waits for this lock or is
            # visible to the next statement. The same holds for voiding a load.
            connection.execute(attempts.order_by(attempt.c.id).with_for_update())
            connection.execute(update)
            return set(connection.execute(attempts.where(is_marked)).scalars())


def _unnest(**columns: tuple[type[sa.types.TypeEngine[Any]], list[Any]]) -> sa.TableValuedAlias:
    """Build a table from columns, each with its type and its values."""
    arrays = (sa.cast(values, pg.ARRAY(kind)) for kind, values in columns.values())
    typed = (sa.column(name, kind) for name, (kind, _) in columns.items())
    return sa.func.unnest(*arrays).table_valued(*typed).render_derived(name="wanted")


def _attempts_of(stream: str, wanted: Collection[BatchGeneration]) -> sa.Select[Any]:
    """Select the generations that attempts of a stream's jobs have published."""
    requested = _unnest(
        name=(sa.Text, [name for name, _, _ in wanted]),
        first_id=(sa.BigInteger, [ids.first_id for _, ids, _ in wanted]),
        last_id=(sa.BigInteger, [ids.last_id for _, ids, _ in wanted]),
        generation=(sa.BigInteger, [generation for _, _, generation in wanted]),
    )
    is_requested = (batch.c.job_id == job.c.id, batch.c.first_id == requested.c.first_id)
    return (
        sa.select(job.c.name, batch.c.first_id, batch.c.last_id, attempt.c.generation)
        .select_from(requested)
        .join(job, job.c.name == requested.c.name)
        .join(batch, sa.and_(*is_requested))
        .join(attempt, attempt.c.batch_id == batch.c.id)
        .where(
            job.c.stream == stream,
            batch.c.last_id == requested.c.last_id,
            attempt.c.generation == requested.c.generation,
        )
    )


def _query(attempt_ids: Sequence[int]) -> sa.Select[Any]:
    return (
        sa.select(
            attempt.c.id,
            attempt.c.number,
            attempt.c.token,
            attempt.c.status,
            attempt.c.finished_at,
            (attempt.c.lease_until - attempt.c.renewed_at).label("lease"),
            attempt.c.generation,
            attempt.c.publish_number,
            batch.c.first_id,
            batch.c.last_id,
            job.c.name,
            job.c.stream,
            _replaced.c.replaced_at,
            _IS_HELD.label("held"),
            sa.func.coalesce(ARE_REMOVED, sa.false()).label("marked"),
            sa.func.coalesce(_IS_QUARANTINE_REMOVED, sa.false()).label("quarantine_marked"),
        )
        .select_from(attempts_of_jobs)
        .join(_replaced, sa.true())
        .where(is_any_of(attempt.c.id, attempt_ids))
    )


def _known_attempts(
    engine: sa.Engine, attempts: sa.Select[Any], *, with_files: bool
) -> list[KnownAttempt]:
    with transaction(engine) as connection:
        rows = connection.execute(_query(list(connection.execute(attempts).scalars()))).all()
        published = [row for row in rows if row.generation is not None]
        published_ids = [row.id for row in published]
        names = _file_names(connection, published_ids) if with_files else {}
        loaded = _loaded_times(connection, published_ids)
        removable = [row for row in published if row.replaced_at is not None or row.id in loaded]
        unread = _unread_by_chained_jobs(connection, removable)
    return [
        KnownAttempt(
            id=row.id,
            job=row.name,
            stream=row.stream,
            ids=IdRange(first_id=row.first_id, last_id=row.last_id),
            number=row.number,
            token=row.token,
            status=AttemptStatus(row.status),
            lease=row.lease,
            ended_at=row.finished_at,
            generation=row.generation,
            replaced_at=row.replaced_at,
            unread=row.id in unread,
            acknowledged=loaded.get(row.id, {}),
            held=row.held,
            marked=row.marked,
            quarantine_marked=row.quarantine_marked,
            file_names=frozenset(names.get(row.id, ())),
        )
        for row in rows
    ]


def _file_names(connection: sa.Connection, attempt_ids: Sequence[int]) -> dict[int, set[str]]:
    """Read the file names, without folders, that manifests list."""
    query = sa.select(part_file.c.attempt_id, part_file.c.uri).where(
        is_any_of(part_file.c.attempt_id, attempt_ids)
    )
    names: dict[int, set[str]] = {}
    for row in connection.execute(query):
        names.setdefault(row.attempt_id, set()).add(row.uri.rpartition("/")[2])
    return names


def _loaded_times(
    connection: sa.Connection, attempt_ids: Sequence[int]
) -> dict[int, dict[str, datetime]]:
    """Read when targets loaded the generations that they still have."""
    query = sa.select(load.c.attempt_id, load.c.target, load.c.finished_at).where(
        is_any_of(load.c.attempt_id, attempt_ids), HAS_LOAD
    )
    loaded_at: dict[int, dict[str, datetime]] = {}
    for row in connection.execute(query):
        loaded_at.setdefault(row.attempt_id, {})[row.target] = row.finished_at
    return loaded_at


def _unread_by_chained_jobs(
    connection: sa.Connection, rows_to_remove: Sequence[sa.Row[Any]]
) -> set[int]:
    """Return the attempts that a chained job has not read yet.

    An incremental job has read the attempts that its published batches contain. Backfills and late
    arrivals read only what is planned: they need what their unpublished batches contain.
    """
    readers: dict[str, list[tuple[int, str]]] = {}
    chained = sa.select(job.c.id, job.c.name, job.c.kind, job.c.config)
    chained = chained.where(job.c.meta_table == PUBLISHED)
    for row in connection.execute(chained) if rows_to_remove else ():
        upstream = upstream_of(row.name, parse_filter(row.config["where"]))
        readers.setdefault(upstream.job, []).append((row.id, row.kind))
    unread: set[int] = set()
    for upstream_job, readers_of_job in readers.items():
        numbers = {row.id: row.publish_number for row in rows_to_remove if row.name == upstream_job}
        for reader_id, kind in readers_of_job:
            if kind == JobKind.INCREMENTAL:
                is_published = batch_state.c.state == BatchState.PUBLISHED
                unread |= numbers.keys() - _in_batches(connection, reader_id, numbers, is_published)
            else:
                is_unread = batch_state.c.state.not_in(_READ_STATES)
                unread |= _in_batches(connection, reader_id, numbers, is_unread)
    return unread


def _in_batches(
    connection: sa.Connection,
    job_id: int,
    numbers: Mapping[int, int],
    condition: sa.ColumnElement[bool],
) -> set[int]:
    """Return the attempts whose publish numbers are in some batches of a job."""
    numbers_table = _unnest(
        id=(sa.BigInteger, list(numbers.keys())), number=(sa.BigInteger, list(numbers.values()))
    )
    query = (
        sa.select(numbers_table.c.id)
        .select_from(numbers_table)
        .join(batch, numbers_table.c.number.between(batch.c.first_id, batch.c.last_id))
        .join(batch_state, batch_state.c.batch_id == batch.c.id)
        .where(batch.c.job_id == job_id, condition)
    )
    return set(connection.execute(query).scalars())
