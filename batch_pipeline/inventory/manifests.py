"""Published attempts: manifests with their files and origin, and their history. Reads only."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from itertools import islice
from time import monotonic
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.batch_states import BATCH_ROW, batch_from_row, label_from_row
from batch_pipeline.inventory.connection import fetch_row, fetch_rows, fetch_value, transaction
from batch_pipeline.inventory.tables import (
    attempt,
    attempt_item,
    attempts_of_jobs,
    batch,
    is_any_of,
    item,
    job,
    part_file,
    schema_version,
)
from batch_pipeline.model.batch import AttemptStatus, Batch
from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.garbage import FILES_REMOVED_AT, QUARANTINE_REMOVED_AT
from batch_pipeline.model.job import OWN_KINDS, JobKind, portable
from batch_pipeline.model.manifest import VERSION, Manifest, PartFile
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.status import PublishedBatch, RecentBatch, RecordCounts

_newer = attempt.alias("newer")
# A later generation of the same batch was published.
IS_REPLACED = sa.exists().where(
    _newer.c.batch_id == attempt.c.batch_id, _newer.c.generation > attempt.c.generation
)
ARE_REMOVED = attempt.c.facts.has_key(FILES_REMOVED_AT)


def removal_of(facts: Mapping[str, Any], removed_at: str = FILES_REMOVED_AT) -> datetime | None:
    """Return when an attempt's files were marked as removed; None if they are kept."""
    if removed_at not in facts:
        return None
    return datetime.fromisoformat(facts[removed_at]).astimezone(UTC)


def quarantine_removal_of(facts: Mapping[str, Any]) -> datetime | None:
    """Return when quarantine files were marked as removed, with the other files or earlier."""
    return removal_of(facts, QUARANTINE_REMOVED_AT) or removal_of(facts)


def files_of_attempts(
    connection: sa.Connection, attempt_ids: Sequence[int]
) -> dict[int, list[sa.Row[Any]]]:
    """Read the files of attempts by attempt id, part files before quarantine files, in order."""
    query = (
        sa.select(part_file)
        .where(is_any_of(part_file.c.attempt_id, attempt_ids))
        .order_by(part_file.c.attempt_id, part_file.c.quarantine, part_file.c.position)
    )
    files: dict[int, list[sa.Row[Any]]] = defaultdict(list)
    for row in connection.execute(query) if attempt_ids else ():
        files[row.attempt_id].append(row)
    return files


_MAX_ORIGIN_ITEMS = 200_000  # about 40 MB of JSON, the limit for reading it back
_COUNTER_NAMES = (
    "items",
    "read",
    "written",
    "filtered",
    "quarantined",
    "rescued",
    "given_to_transform",
)
_parent = job.alias("parent")
_ORIGIN = (
    sa.select(
        job.c.stream,
        job.c.kind,
        job.c.meta_table,
        job.c.config,
        job.c.max_attempts,
        job.c.bisect,
        _parent.c.name.label("parent"),
        batch.c.config.label("planned_with"),
        attempt.c.id.label("attempt_id"),
        attempt.c.publish_number,
        attempt.c.run_id,
        attempt.c.started_at,
        attempt.c.finished_at,
        attempt.c.facts,
        attempt.c.seen,
    )
    .select_from(attempts_of_jobs)
    .outerjoin(_parent, _parent.c.id == job.c.parent_id)
)
# In the order of the keys in manifest files.
_ITEMS = sa.select(
    attempt_item.c.item_id.label("id"),
    *(attempt_item.c[name] for name in ("read", "written", "filtered", "quarantined")),
    *(item.c[name] for name in ("location", "size_bytes", "modified_at", "etag")),
    *(attempt_item.c[name] for name in ("bad_file", "read_etag", "read_version")),
).order_by(attempt_item.c.item_id)


def _origin_of(connection: sa.Connection, manifest: Manifest) -> dict[str, Any] | None:
    """Read the origin of a published manifest, as JSON for its manifest file.

    None for jobs without a stream and for batches of more than 200,000 items. The schema is
    included because a JSON Schema cannot express all column types. Location, size, time and ETag of
    an item are those of its row in the product's own meta table.
    """
    row = connection.execute(_ORIGIN.where(attempt.c.token == manifest.token)).one()
    if row.stream is None or row.facts is None or row.facts["items"] > _MAX_ORIGIN_ITEMS:
        return None
    is_listed = sa.and_(
        item.c.stream == row.stream,
        item.c.id == attempt_item.c.item_id,
        # The ids of a user's table are not those of `item`.
        sa.literal(row.meta_table) == item.fullname,
    )
    query = _ITEMS.select_from(attempt_item.outerjoin(item, is_listed))
    items = connection.execute(query.where(attempt_item.c.attempt_id == row.attempt_id))
    return {
        "version": VERSION,
        "job": {
            "stream": row.stream,
            "kind": row.kind,
            "meta_table": row.meta_table,
            "config": portable(row.config),
            "max_attempts": row.max_attempts,
            "bisect": row.bisect,
            "parent": row.parent,
        },
        "publish_number": row.publish_number,
        "run_id": row.run_id,
        "started_at": row.started_at.isoformat(),
        "published_at": row.finished_at.isoformat(),
        "planned_with": row.planned_with,
        "facts": {name: row.facts[name] for name in _COUNTER_NAMES if name in row.facts},
        "weight_read": 0 if row.seen is None else row.seen["weight"],
        "columns": manifest.schema.to_json(),
        "items": [_origin_item(item_row) for item_row in items.mappings()],
    }


def _origin_item(item_row: sa.RowMapping) -> dict[str, Any]:
    written = {name: value for name, value in item_row.items() if value is not None}
    if "modified_at" in written:
        written["modified_at"] = written["modified_at"].isoformat()
    return written


_PAGE = 200
_PAGE_MAX_AGE_SECONDS = 3600  # files of replaced generations are kept for at least a day


@dataclass(frozen=True, slots=True)
class Manifests:
    """The published attempts of all jobs."""

    engine: sa.Engine

    def of_attempt(self, attempt_id: int) -> Manifest:
        """Read the manifest of one published attempt."""
        [(_, manifest)] = self._read(_query().where(attempt.c.id == attempt_id))
        return manifest

    def with_origin(self, manifest: Manifest) -> Manifest:
        """Return a published manifest with the origin that its manifest file contains."""
        with transaction(self.engine) as connection:
            return replace(manifest, origin=_origin_of(connection, manifest))

    def of_batch(self, published_batch: Batch) -> Manifest | None:
        """Read the newest generation of a batch; None if it is not published."""
        query = (
            _query()
            .where(attempt.c.batch_id == published_batch.id)
            .order_by(attempt.c.generation.desc())
            .limit(1)
        )
        newest = self._read(query)
        return newest[0][1] if newest else None

    def _read(self, query: sa.Select[Any]) -> list[tuple[int, Manifest]]:
        """Read manifests with their publish numbers."""
        with transaction(self.engine) as connection:
            rows = connection.execute(query).all()
            files = files_of_attempts(connection, [row.attempt_id for row in rows])
        return [(row.publish_number, _manifest(row, files[row.attempt_id])) for row in rows]

    def run_of(self, manifest: Manifest) -> str | None:
        """Return the id of the run that published a manifest."""
        query = sa.select(attempt.c.run_id).where(attempt.c.token == manifest.token)
        return fetch_value(self.engine, query)

    def removal(self, manifest: Manifest) -> datetime | None:
        """Return when the files of a manifest were marked as removed; None if they are kept."""
        return removal_of(self._facts(manifest))

    def quarantine_removal(self, manifest: Manifest) -> datetime | None:
        """Return when the quarantine files of a manifest were marked as removed; None if kept."""
        return quarantine_removal_of(self._facts(manifest))

    def _facts(self, manifest: Manifest) -> Mapping[str, Any]:
        query = sa.select(attempt.c.facts).where(attempt.c.token == manifest.token)
        return fetch_value(self.engine, query) or {}

    def without_pointer(self, stream: str) -> Iterator[Manifest]:
        """Read the manifests, with origin, whose manifest file was not written due to a crash."""
        is_missing = (job.c.stream == stream, attempt.c.pointer_uri.is_(None), ~ARE_REMOVED)
        query = _query().where(*is_missing).order_by(job.c.id, attempt.c.publish_number)
        for _, manifest in self._read(query):
            yield self.with_origin(manifest)

    def published_after(
        self,
        stream: str,
        numbers: Mapping[str, int],
        *,
        backfills: bool = True,
        last: tuple[str, str, int] | None = None,
    ) -> Iterator[tuple[int, Manifest]]:
        """Read the manifests of a stream's jobs as `(publish number, manifest)`, job by job.

        The order is the incremental job, late arrivals, then backfills in creation order; within a
        job it is publish order. Each job starts after its number in `numbers` (default 0). Replaced
        generations, and those whose files were removed, are left out. `last` identifies the last
        manifest that was read: job, batch label and generation.

        Raises:
            ConfigurationError: a number exceeds its job's publish count, or `last` does not match
                that number.
        """
        kinds = [*OWN_KINDS, *([JobKind.BACKFILL] if backfills else [])]
        order = {kind.value: position for position, kind in enumerate(kinds)}
        jobs = (
            sa.select(job.c.id, job.c.name, job.c.kind, job.c.publish_count)
            .where(job.c.stream == stream)
            .order_by(sa.case(order, value=job.c.kind), job.c.id)
        )
        job_rows = fetch_rows(self.engine, jobs)
        counts = {job_row.name: job_row.publish_count for job_row in job_rows}
        for name, number in numbers.items():
            if number > counts.get(name, 0):
                expected = f"the job {name!r} was read up to publish number {number}"
                raise _state_mismatch(stream, expected, f"published {counts.get(name, 0)}")
        if last is not None:
            self._check_last(stream, numbers.get(last[0], 0), last)
        for job_row in job_rows:
            if job_row.kind not in order:
                continue
            yield from self._of_job(job_row.id, numbers.get(job_row.name, 0))

    def count_removed_after(
        self, stream: str, numbers: Mapping[str, int], *, backfills: bool = True
    ) -> int:
        """Count the generations that `published_after` leaves out because their files are gone."""
        excluded_kinds = [] if backfills else [JobKind.BACKFILL]
        already_read = [
            sa.and_(job.c.name == name, attempt.c.publish_number <= number)
            for name, number in numbers.items()
        ]
        query = (
            published_attempts()
            .with_only_columns(sa.func.count())
            .where(
                job.c.stream == stream,
                job.c.kind.not_in(excluded_kinds),
                ARE_REMOVED,
                ~IS_REPLACED,
                ~sa.or_(sa.false(), *already_read),
            )
        )
        return fetch_value(self.engine, query) or 0

    def _check_last(self, stream: str, number: int, last: tuple[str, str, int]) -> None:
        name, label, generation = last
        query = published_attempts(*BATCH_ROW, attempt.c.generation).where(
            job.c.stream == stream, job.c.name == name, attempt.c.publish_number == number
        )
        row = fetch_row(self.engine, query)
        stored = None if row is None else batch_from_row(row).label
        if row is not None and (stored, row.generation) != (label, generation):
            expected = f"publish number {number} of {name!r} was generation {generation} of {label}"
            actual = f"generation {row.generation} of {stored} there"
            raise _state_mismatch(stream, expected, actual)

    def _of_job(self, job_id: int, publish_number: int) -> Iterator[tuple[int, Manifest]]:
        is_live = sa.and_(job.c.id == job_id, ~IS_REPLACED, ~ARE_REMOVED)
        while True:
            query = (
                _query()
                .where(is_live, attempt.c.publish_number > publish_number)
                .order_by(attempt.c.publish_number)
                .limit(_PAGE)
            )
            page, page_read_at = self._read(query), monotonic()
            for number, manifest in page:
                publish_number = number
                yield number, manifest
                if monotonic() - page_read_at > _PAGE_MAX_AGE_SECONDS:
                    break  # generations replaced since then may soon lose their files
            else:
                if len(page) < _PAGE:
                    return


def published_attempts(*columns: Any) -> sa.Select[Any]:
    """Select columns of published attempts with files, their batches and jobs.

    A worker of the library publishes a result instead of files.
    """
    return (
        sa.select(attempt.c.id.label("attempt_id"), *columns)
        .select_from(attempts_of_jobs)
        .where(attempt.c.status == AttemptStatus.SUCCEEDED, attempt.c.encoding.is_not(None))
    )


def _query() -> sa.Select[Any]:
    version = sa.and_(
        schema_version.c.job_id == sa.func.coalesce(job.c.parent_id, job.c.id),
        schema_version.c.version == attempt.c.schema_version,
    )
    return published_attempts(
        *BATCH_ROW,
        attempt.c.number,
        attempt.c.token,
        attempt.c.generation,
        attempt.c.publish_number,
        attempt.c.encoding,
        attempt.c.key_properties,
        attempt.c.facts,
        attempt.c.schema_version,
        schema_version.c.columns,
    ).outerjoin(schema_version, version)


def _manifest(row: sa.Row[Any], files: Sequence[sa.Row[Any]]) -> Manifest:
    return Manifest(
        job=row.name,
        batch=batch_from_row(row),
        attempt=row.number,
        token=row.token,
        generation=row.generation,
        encoding=Encoding.from_json(row.encoding),
        schema=RecordSchema.from_json(row.columns or []),
        schema_version=row.schema_version,
        key_properties=tuple(row.key_properties),
        part_files=tuple(_part(file) for file in files if not file.quarantine),
        quarantine_files=tuple(_part(file) for file in files if file.quarantine),
        items=row.facts["items"],
        records_read=row.facts["read"],
        records_filtered=row.facts["filtered"],
        records_quarantined=row.facts["quarantined"],
        records_transformed=row.facts.get("given_to_transform"),
    )


def _part(row: sa.Row[Any]) -> PartFile:
    return PartFile(uri=row.uri, records=row.records, size_bytes=row.size_bytes, sha256=row.sha256)


def _state_mismatch(stream: str, expected: str, actual: str) -> ConfigurationError:
    return ConfigurationError(
        f"{stream}: the state says that {expected}, but this inventory has {actual}. It is "
        f"not the inventory of the state, or an older copy of it. No batch was sent. "
        f"Restore the inventory, or omit the state to start from the first batch."
    )


_MAX_UNBALANCED = 5
_RECENT_BATCHES = 20
_COUNTS = ("read", "written", "filtered", "quarantined")
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
        size = _PAGE if newest is None else min(_PAGE, newest)
        return islice(self._page_by_page(_newest(stream, kinds), size), newest)

    def _page_by_page(self, query: sa.Select[Any], size: int) -> Iterator[PublishedBatch]:
        page = query.limit(size)
        while True:
            with transaction(self.engine) as connection:
                rows = connection.execute(page).all()
                ids = [row.attempt_id for row in rows]
                files, items = files_of_attempts(connection, ids), _items(connection, ids)
            for row in rows:
                yield _published(row, files[row.attempt_id], items.get(row.attempt_id))
            if len(rows) < size:
                return
            page = query.where(attempt.c.id < rows[-1].attempt_id).limit(size)

    def recent(self, stream: str, kinds: Sequence[JobKind]) -> list[RecentBatch]:
        """Read record counts and durations of the 20 newest batches, oldest first."""
        seconds = sa.extract("epoch", attempt.c.finished_at - attempt.c.started_at)
        query = _newest(stream, kinds).add_columns(sa.cast(seconds, sa.Double).label("seconds"))
        rows = fetch_rows(self.engine, query.limit(_RECENT_BATCHES))
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


def newest_generations(stream: str, *columns: Any) -> sa.Select[Any]:
    """Select the newest published generations of a stream's batches, with columns for labels."""
    return published_attempts(*BATCH_ROW, *columns).where(job.c.stream == stream, ~IS_REPLACED)


def _newest(stream: str, kinds: Sequence[JobKind]) -> sa.Select[Any]:
    columns = (
        attempt.c.generation,
        attempt.c.facts,
        attempt.c.token,
        attempt.c.pointer_uri,
    )
    generations = newest_generations(stream, *columns).where(job.c.kind.in_(kinds))
    return generations.order_by(attempt.c.id.desc())


def _items(connection: sa.Connection, ids: Sequence[int]) -> dict[int, sa.Row[Any]]:
    def total(column: sa.Column[Any]) -> sa.Label[Any]:
        return sa.cast(sa.func.sum(column), sa.BigInteger).label(column.name)

    wrong = sa.func.array_agg(attempt_item.c.item_id).filter(
        attempt_item.c.read != _accounted_records
    )
    query: sa.Select[Any] = (
        sa.select(
            attempt_item.c.attempt_id,
            *(total(attempt_item.c[name]) for name in _COUNTS),
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
        batch=RecordCounts(**{name: facts[name] for name in _COUNTS}),
        items=RecordCounts(**{name: getattr(items, name, 0) for name in _COUNTS}),
        unbalanced=() if items is None else tuple(sorted(items.unbalanced or ())[:_MAX_UNBALANCED]),
        given_to_transform=facts.get("given_to_transform"),
        files_removed=removal_of(facts) is not None,
        token=row.token,
        pointer_uri=row.pointer_uri,
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


_OF_ITEM = ("read", "written", "quarantined", "bad_file", "read_etag", "read_version")
_OF_ATTEMPT = [attempt.c[part.name] for part in fields(AttemptRecord) if part.name not in _OF_ITEM]


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    """The attempts on items and batches."""

    engine: sa.Engine

    def of_item(self, batch: Batch, item_id: int) -> Sequence[AttemptRecord]:
        """Read the attempts on an item's batch, oldest first."""
        is_its = sa.and_(
            attempt_item.c.attempt_id == attempt.c.id, attempt_item.c.item_id == item_id
        )
        columns = (attempt_item.c[name] for name in _OF_ITEM)
        query = sa.select(*_OF_ATTEMPT, *columns).outerjoin(attempt_item, is_its)
        return self._read(batch, query)

    def of_batch(self, batch: Batch) -> Sequence[AttemptRecord]:
        """Read the attempts on a batch, oldest first, with the record counts of all items."""
        counters = [
            sa.cast(attempt.c.facts[name].astext, sa.BigInteger).label(name)
            for name in _OF_ITEM[:3]
        ]
        of_items = [sa.null().label(name) for name in _OF_ITEM[3:]]
        return self._read(batch, sa.select(*_OF_ATTEMPT, *counters, *of_items))

    def _read(self, batch: Batch, query: sa.Select[Any]) -> Sequence[AttemptRecord]:
        query = query.where(attempt.c.batch_id == batch.id).order_by(attempt.c.number)
        rows = [row._asdict() for row in fetch_rows(self.engine, query)]
        return [AttemptRecord(**row | {"status": AttemptStatus(row["status"])}) for row in rows]
