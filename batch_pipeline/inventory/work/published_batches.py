"""Published batches of a stream as they are verified: files, counters and pace. Reads only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.domain.published import Counted, PublishedBatch, Recent
from batch_pipeline.domain.schema_change import SchemaChange
from batch_pipeline.domain.standing import SchemaStep
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import (
    attempt,
    attempt_item,
    batch,
    job,
    schema_version,
)
from batch_pipeline.inventory.work.batch_rows import label_of
from batch_pipeline.inventory.work.file_rows import files_of_attempts
from batch_pipeline.inventory.work.generations import IS_REPLACED
from batch_pipeline.inventory.work.removals import quarantine_removal_of, removal_of

_PAGE = 200
_SHOWN = 5
_accounted = attempt_item.c.written + attempt_item.c.filtered + attempt_item.c.quarantined


@dataclass(frozen=True, slots=True)
class PublishedBatches:
    """The newest generations of all batches of streams' jobs, newest first."""

    engine: sa.Engine

    def of_stream(
        self, stream: str, kinds: Sequence[JobKind], *, newest: int | None
    ) -> Iterator[PublishedBatch]:
        """Read the published batches of a stream's jobs, at most so many (None: all of them).

        Memory is a page of 200.
        """
        before, left = None, newest
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
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
            left = None if left is None else left - len(rows)

    def recent(self, stream: str, kinds: Sequence[JobKind], *, newest: int = 20) -> list[Recent]:
        """Read pace and losses of the last batches, oldest first."""
        seconds = sa.extract("epoch", attempt.c.finished_at - attempt.c.started_at)
        query = _newest(stream, kinds).add_columns(sa.cast(seconds, sa.Double).label("seconds"))
        with transaction(self.engine) as connection:
            rows = connection.execute(query.limit(newest)).all()
        return [
            Recent(
                label=label_of(row),
                read=row.facts["read"],
                written=row.facts["written"],
                quarantined=row.facts["quarantined"],
                seconds=row.seconds,
            )
            for row in reversed(rows)
        ]

    def schema_step(self, stream: str, *, newest: int = 1) -> SchemaStep | None:
        """Read the schema versions of the newest published batch and of the one before so many.

        Of fewer batches the oldest is the one before. None without any.
        """
        query = _newest(stream, [JobKind.INCREMENTAL]).limit(newest + 1)
        with transaction(self.engine) as connection:
            rows = connection.execute(query).all()
            if not rows:
                return None
            last, before = rows[0], rows[-1]
            if last is before:
                return SchemaStep(newest=label_of(last), version=last.schema_version)
            changes = _changes(connection, last.job_id, before.schema_version, last.schema_version)
        return SchemaStep(
            newest=label_of(last),
            version=last.schema_version,
            before=label_of(before),
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
            attempt.c.encoding.is_not(None),  # a worker of the library has no files
            ~IS_REPLACED,
        )
        .order_by(attempt.c.id.desc())
    )


def _items(connection: sa.Connection, ids: Sequence[int]) -> dict[int, sa.Row[Any]]:
    def total(column: sa.Column[Any]) -> sa.Label[Any]:
        return sa.cast(sa.func.sum(column), sa.BigInteger).label(column.name)

    wrong = sa.func.array_agg(attempt_item.c.item_id).filter(attempt_item.c.read != _accounted)
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
        label=label_of(row),
        generation=row.generation,
        part_files=tuple(_part(file) for file in files if not file.quarantine),
        quarantine_files=tuple(_part(file) for file in files if file.quarantine),
        quarantine_removed=quarantine_removal_of(facts) is not None,
        batch=Counted(
            read=facts["read"],
            written=facts["written"],
            filtered=facts["filtered"],
            quarantined=facts["quarantined"],
        ),
        items=Counted()
        if items is None
        else Counted(
            read=items.read,
            written=items.written,
            filtered=items.filtered,
            quarantined=items.quarantined,
        ),
        unbalanced=() if items is None else tuple(sorted(items.unbalanced or ())[:_SHOWN]),
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
    """Read what the versions after one did, up to another; going back, what the later ones did."""
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
