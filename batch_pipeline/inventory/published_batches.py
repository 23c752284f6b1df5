"""Published batches for checks, and the history of attempts. Reads only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.batch_states import label_from_row
from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.manifests import files_of_attempts
from batch_pipeline.inventory.removals import IS_REPLACED, quarantine_removal_of, removal_of
from batch_pipeline.inventory.tables import attempt, attempt_item, batch, job, schema_version
from batch_pipeline.model.batch import AttemptStatus, Batch
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.published import PublishedBatch, RecentBatch, RecordCounts
from batch_pipeline.model.schema import SchemaChange
from batch_pipeline.model.status import SchemaStep

_PAGE = 200
_MAX_UNBALANCED = 5
_accounted_records = attempt_item.c.written + attempt_item.c.filtered + attempt_item.c.quarantined


@dataclass(frozen=True, slots=True)
class PublishedBatches:
    """The newest generations of all batches of streams' jobs, newest first."""

    engine: sa.Engine

    def of_stream(
        self, stream: str, kinds: Sequence[JobKind], *, newest: int | None
    ) -> Iterator[PublishedBatch]:
        """Read the newest published batches of a stream's jobs (None: all of them).

        Holds a page of 200 in memory.
        """
        before, remaining = None, newest
        while remaining is None or remaining > 0:
            size = _PAGE if remaining is None else min(_PAGE, remaining)
            query = _newest(stream, kinds).limit(size)
            if before is not None:
                query = query.where(attempt.c.id < before)
            with transaction(self.engine) as connection:
                rows = connection.execute(query).all()
                ids = [row.attempt_id for row in rows]
                files, items = files_of_attempts(connection, ids), _items(connection, ids)
            for row in rows:
                yield _published(row, files.get(row.attempt_id, ()), items.get(row.attempt_id))
            if len(rows) < size:
                return
            before = rows[-1].attempt_id
            remaining = None if remaining is None else remaining - len(rows)

    def recent(
        self, stream: str, kinds: Sequence[JobKind], *, newest: int = 20
    ) -> list[RecentBatch]:
        """Read record counts and durations of the newest batches, oldest first."""
        seconds = sa.extract("epoch", attempt.c.finished_at - attempt.c.started_at)
        query = _newest(stream, kinds).add_columns(sa.cast(seconds, sa.Double).label("seconds"))
        with transaction(self.engine) as connection:
            rows = connection.execute(query.limit(newest)).all()
        return [
            RecentBatch(
                label=label_from_row(row),
                read=row.facts["read"],
                written=row.facts["written"],
                quarantined=row.facts["quarantined"],
                seconds=row.seconds,
            )
            for row in reversed(rows)
        ]

    def schema_step(self, stream: str, *, newest: int = 1) -> SchemaStep | None:
        """Compare the schema versions of the newest published batch and of one `newest` before it.

        With fewer batches, the oldest one is compared. None without published batches.
        """
        query = _newest(stream, [JobKind.INCREMENTAL]).limit(newest + 1)
        with transaction(self.engine) as connection:
            rows = connection.execute(query).all()
            if not rows:
                return None
            last, before = rows[0], rows[-1]
            if last is before:
                return SchemaStep(newest=label_from_row(last), version=last.schema_version)
            changes = _changes(connection, last.job_id, before.schema_version, last.schema_version)
        return SchemaStep(
            newest=label_from_row(last),
            version=last.schema_version,
            before=label_from_row(before),
            version_before=before.schema_version,
            changes=changes,
        )


def _newest(stream: str, kinds: Sequence[JobKind]) -> sa.Select[Any]:
    return (
        sa.select(
            attempt.c.id.label("attempt_id"),
            attempt.c.generation,
            attempt.c.facts,
            attempt.c.schema_version,
            attempt.c.token,
            attempt.c.pointer_uri,
            batch,
            job.c.name,
            job.c.kind,
            job.c.stream,
        )
        .join(batch, attempt.c.batch_id == batch.c.id)
        .join(job, batch.c.job_id == job.c.id)
        .where(
            job.c.stream == stream,
            job.c.kind.in_([kind.value for kind in kinds]),
            attempt.c.status == AttemptStatus.SUCCEEDED,
            attempt.c.encoding.is_not(None),  # workers of the library publish no files
            ~IS_REPLACED,
        )
        .order_by(attempt.c.id.desc())
    )


def _items(connection: sa.Connection, ids: Sequence[int]) -> dict[int, sa.Row[Any]]:
    def total(column: sa.Column[Any]) -> sa.Label[Any]:
        return sa.cast(sa.func.sum(column), sa.BigInteger).label(column.name)

    wrong = sa.func.array_agg(attempt_item.c.item_id).filter(
        attempt_item.c.read != _accounted_records
    )
    query: sa.Select[Any] = (
        sa.select(
            attempt_item.c.attempt_id,
            *(
                total(attempt_item.c[name])
                for name in ("read", "written", "filtered", "quarantined")
            ),
            wrong.label("unbalanced"),
        )
        .where(attempt_item.c.attempt_id.in_(ids))
        .group_by(attempt_item.c.attempt_id)
    )
    return {row.attempt_id: row for row in connection.execute(query)}


def _published(
    row: sa.Row[Any], files: Sequence[sa.Row[Any]], items: sa.Row[Any] | None
) -> PublishedBatch:
    facts = row.facts
    return PublishedBatch(
        label=label_from_row(row),
        generation=row.generation,
        part_files=tuple(_part(file) for file in files if not file.quarantine),
        quarantine_files=tuple(_part(file) for file in files if file.quarantine),
        quarantine_removed=quarantine_removal_of(facts) is not None,
        batch=RecordCounts(
            read=facts["read"],
            written=facts["written"],
            filtered=facts["filtered"],
            quarantined=facts["quarantined"],
        ),
        items=RecordCounts()
        if items is None
        else RecordCounts(
            read=items.read,
            written=items.written,
            filtered=items.filtered,
            quarantined=items.quarantined,
        ),
        unbalanced=() if items is None else tuple(sorted(items.unbalanced or ())[:_MAX_UNBALANCED]),
        given_to_transform=facts.get("given_to_transform"),
        files_removed=removal_of(facts) is not None,
        token=row.token,
        pointer_uri=row.pointer_uri,
    )


def _part(row: sa.Row[Any]) -> PartFile:
    return PartFile(uri=row.uri, records=row.records, size_bytes=row.size_bytes, sha256=row.sha256)


def _changes(
    connection: sa.Connection, job_id: int, before: int, after: int
) -> tuple[SchemaChange, ...]:
    """Read the schema changes between two versions, in either order."""
    low, high = sorted((before, after))
    query = (
        sa.select(schema_version.c.changes)
        .where(
            schema_version.c.job_id == job_id,
            schema_version.c.version > low,
            schema_version.c.version <= high,
        )
        .order_by(schema_version.c.version)
    )
    return tuple(
        SchemaChange(
            name=change["column"],
            before=change["before"],
            after=change["after"],
            item_id=change["item_id"],
            location=change["location"],
            line=change["line"],
        )
        for changes in connection.execute(query).scalars()
        for change in changes or ()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """An attempt on a batch, with the record counts of one or all items if it is published.

    `read_etag` and `read_version` identify the version of the item's object that was read.
    """

    number: int
    status: AttemptStatus
    run_id: str
    started_at: datetime
    finished_at: datetime | None
    error: str | None
    generation: int | None
    pointer_uri: str | None
    read: int | None
    written: int | None
    quarantined: int | None
    bad_file: str | None
    read_etag: str | None
    read_version: str | None


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    """The attempts on items and batches."""

    engine: sa.Engine

    def of_item(self, batch: Batch, item_id: int) -> Sequence[AttemptRecord]:
        """Read the attempts on an item's batch, oldest first."""
        is_its = sa.and_(
            attempt_item.c.attempt_id == attempt.c.id, attempt_item.c.item_id == item_id
        )
        query = sa.select(
            *_ATTEMPT_COLUMNS,
            attempt_item.c.read,
            attempt_item.c.written,
            attempt_item.c.quarantined,
            attempt_item.c.bad_file,
            attempt_item.c.read_etag,
            attempt_item.c.read_version,
        ).outerjoin(attempt_item, is_its)
        return self._read(batch, query)

    def of_batch(self, batch: Batch) -> Sequence[AttemptRecord]:
        """Read the attempts on a batch, oldest first, with the record counts of all items."""
        counters = [
            attempt.c.facts[name].as_integer().label(name)
            for name in ("read", "written", "quarantined")
        ]
        of_items = [sa.null().label(name) for name in ("bad_file", "read_etag", "read_version")]
        return self._read(batch, sa.select(*_ATTEMPT_COLUMNS, *counters, *of_items))

    def _read(self, batch: Batch, query: sa.Select[Any]) -> Sequence[AttemptRecord]:
        query = query.where(attempt.c.batch_id == batch.id).order_by(attempt.c.number)
        with transaction(self.engine) as connection:
            rows = connection.execute(query).mappings()
            return [
                AttemptRecord(**{**row, "status": AttemptStatus(row["status"])}) for row in rows
            ]


_ATTEMPT_COLUMNS = (
    attempt.c.number,
    attempt.c.status,
    attempt.c.run_id,
    attempt.c.started_at,
    attempt.c.finished_at,
    attempt.c.error,
    attempt.c.generation,
    attempt.c.pointer_uri,
)
