"""Reading published manifests back from the inventory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, Batch
from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.errors import ConfigurationError
from batch_pipeline.domain.garbage import Removal
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.manifest import Manifest, PartFile
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import attempt, batch, job, schema_version
from batch_pipeline.inventory.work.file_rows import files_of_attempts
from batch_pipeline.inventory.work.generations import IS_REPLACED
from batch_pipeline.inventory.work.origins import origin_of
from batch_pipeline.inventory.work.removals import (
    ARE_REMOVED,
    facts_of,
    quarantine_removal_of,
    removal_of,
)

_PAGE = 200
_FRESH_SECONDS = 3600  # files of what was replaced are kept for a day, at the least


@dataclass(eq=False)
class OtherInventoryError(ConfigurationError):
    """A consumer has read what the inventory has not published, or not in that place."""

    stream: str
    read: str
    published: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: the state says that {self.read}, while this inventory has "
            f"{self.published}: it is another one, or an older copy of the one that the state is "
            f"of. No batch was sent. Restore the inventory as it was, or leave the state out to "
            f"start from the first batch."
        )


@dataclass(frozen=True, slots=True)
class Manifests:
    """The published attempts of all jobs."""

    engine: sa.Engine

    def of_attempt(self, attempt_id: int) -> Manifest:
        """Read the manifest of one published attempt."""
        with transaction(self.engine) as connection:
            row = connection.execute(_query().where(attempt.c.id == attempt_id)).one()
            return _manifest(row, files_of_attempts(connection, [attempt_id]).get(attempt_id, []))

    def with_origin(self, manifest: Manifest) -> Manifest:
        """Add to a published manifest what its pointer file says beside it."""
        query = sa.select(attempt.c.id).where(attempt.c.token == manifest.token)
        with transaction(self.engine) as connection:
            attempt_id = connection.execute(query).scalar_one()
            return replace(manifest, origin=origin_of(connection, attempt_id, manifest.schema))

    def of_batch(self, one: Batch) -> Manifest | None:
        """Read the newest generation of a batch, None when it has none."""
        query = (
            _query()
            .where(attempt.c.batch_id == one.id)
            .order_by(attempt.c.generation.desc())
            .limit(1)
        )
        with transaction(self.engine) as connection:
            row = connection.execute(query).one_or_none()
            if row is None:
                return None
            return _manifest(
                row, files_of_attempts(connection, [row.attempt_id]).get(row.attempt_id, [])
            )

    def run_of(self, manifest: Manifest) -> str | None:
        """Give the id of the run that made a manifest."""
        query = sa.select(attempt.c.run_id).where(attempt.c.token == manifest.token)
        with transaction(self.engine) as connection:
            found: str | None = connection.execute(query).scalar_one_or_none()
        return found

    def removal(self, manifest: Manifest) -> Removal | None:
        """Tell when files of a manifest were given up; None where they are to be there."""
        with transaction(self.engine) as connection:
            return removal_of(facts_of(connection, manifest.token))

    def quarantine_removal(self, manifest: Manifest) -> Removal | None:
        """Tell when quarantine files of a manifest were given up, alone or with the others."""
        with transaction(self.engine) as connection:
            return quarantine_removal_of(facts_of(connection, manifest.token))

    def without_pointer(self, stream: str) -> Iterator[Manifest]:
        """Read the manifests, with origin, whose pointer file a crash left unwritten."""
        query = (
            _query()
            .where(
                job.c.stream == stream,
                attempt.c.pointer_uri.is_(None),
                ~ARE_REMOVED,
            )
            .order_by(job.c.id, attempt.c.publish_number)
        )
        with transaction(self.engine) as connection:
            rows = connection.execute(query).all()
            files = files_of_attempts(connection, [row.attempt_id for row in rows])
        for row in rows:
            yield self.with_origin(_manifest(row, files.get(row.attempt_id, [])))

    def published_after(
        self,
        stream: str,
        numbers: Mapping[str, int],
        *,
        backfills: bool = True,
        last: tuple[str, str, int] | None = None,
    ) -> Iterator[tuple[int, Manifest]]:
        """Read the manifests of a stream's jobs, `(publish number, manifest)`, job by job.

        First come those of the stream's own job, then of its late arrivals, then of its backfills
        in the order in which these were made; each job's in the order in which they were published,
        starting after its number, with 0 for a job that `numbers` does not name. Generations that a
        later one replaced are left out, as are those whose files were given up. `last` is what the
        number of a job stands for: the job, the label of the batch and its generation.

        Raises:
            OtherInventoryError: a job has not been published as often as its number says, or `last`
                is not what has that number.
        """
        kinds = [JobKind.INCREMENTAL, JobKind.LATE, *([JobKind.BACKFILL] if backfills else [])]
        places = {kind.value: place for place, kind in enumerate(kinds)}
        jobs = (
            sa.select(job.c.id, job.c.name, job.c.kind, job.c.publish_count)
            .where(job.c.stream == stream)
            .order_by(sa.case(places, value=job.c.kind), job.c.id)
        )
        with transaction(self.engine) as connection:
            found = connection.execute(jobs).all()
        counts = {one.name: one.publish_count for one in found}
        for name, number in numbers.items():
            if number > counts.get(name, 0):
                read = f"the job {name!r} was read up to publish number {number}"
                raise OtherInventoryError(stream, read, f"published {counts.get(name, 0)}")
        if last is not None:
            self._check_last(stream, numbers.get(last[0], 0), last)
        for one in found:
            if one.kind not in places:
                continue
            yield from self._of_job(one.id, numbers.get(one.name, 0))

    def given_up_after(
        self, stream: str, numbers: Mapping[str, int], *, backfills: bool = True
    ) -> int:
        """Count what `published_after` leaves out because its files were given up."""
        left_out = [] if backfills else [JobKind.BACKFILL]
        read = [
            sa.and_(job.c.name == name, attempt.c.publish_number <= number)
            for name, number in numbers.items()
        ]
        works = attempt.join(batch, attempt.c.batch_id == batch.c.id)
        query = (
            sa.select(sa.func.count())
            .select_from(works.join(job, batch.c.job_id == job.c.id))
            .where(
                job.c.stream == stream,
                job.c.kind.not_in(left_out),
                attempt.c.encoding.is_not(None),
                ARE_REMOVED,
                ~IS_REPLACED,
                ~sa.or_(sa.false(), *read),
            )
        )
        with transaction(self.engine) as connection:
            return int(connection.execute(query).scalar_one())

    def _check_last(self, stream: str, number: int, last: tuple[str, str, int]) -> None:
        name, label, generation = last
        query = _query().where(
            job.c.stream == stream, job.c.name == name, attempt.c.publish_number == number
        )
        with transaction(self.engine) as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return
        found = _manifest(row, [])
        if (found.batch.label, found.generation) != (label, generation):
            read = f"publish number {number} of {name!r} was generation {generation} of {label}"
            there = f"generation {found.generation} of {found.batch.label} there"
            raise OtherInventoryError(stream, read, there)

    def _of_job(self, job_id: int, publish_number: int) -> Iterator[tuple[int, Manifest]]:
        is_live = sa.and_(job.c.id == job_id, ~IS_REPLACED, ~ARE_REMOVED)
        while True:
            query = (
                _query()
                .where(is_live, attempt.c.publish_number > publish_number)
                .order_by(attempt.c.publish_number)
                .limit(_PAGE)
            )
            with transaction(self.engine) as connection:
                rows = connection.execute(query).all()
                files = files_of_attempts(connection, [row.attempt_id for row in rows])
            read_at = monotonic()
            for row in rows:
                publish_number = row.publish_number
                yield publish_number, _manifest(row, files.get(row.attempt_id, []))
                if monotonic() - read_at > _FRESH_SECONDS:
                    break  # what has been replaced meanwhile may soon lose its files
            else:
                if len(rows) < _PAGE:
                    return


def _query() -> sa.Select[Any]:
    return (
        sa.select(
            attempt.c.id.label("attempt_id"),
            attempt.c.number,
            attempt.c.token,
            attempt.c.generation,
            attempt.c.publish_number,
            attempt.c.encoding,
            attempt.c.key_properties,
            attempt.c.facts,
            attempt.c.schema_version,
            schema_version.c.columns,
            batch.c.id.label("batch_id"),
            batch.c.first_id,
            batch.c.last_id,
            batch.c.weight,
            batch.c.item_count,
            batch.c.oversized,
            batch.c.item_ids,
            job.c.name.label("job"),
        )
        .join(batch, attempt.c.batch_id == batch.c.id)
        .join(job, batch.c.job_id == job.c.id)
        .outerjoin(
            schema_version,
            sa.and_(
                schema_version.c.job_id == sa.func.coalesce(job.c.parent_id, job.c.id),
                schema_version.c.version == attempt.c.schema_version,
            ),
        )
        # What a worker of the library published has a result of its own instead of files.
        .where(attempt.c.status == AttemptStatus.SUCCEEDED, attempt.c.encoding.is_not(None))
    )


def _manifest(row: sa.Row[Any], files: list[sa.Row[Any]]) -> Manifest:
    id_range = IdRange(first_id=row.first_id, last_id=row.last_id)
    return Manifest(
        stream=row.job,
        batch=Batch(
            id=row.batch_id,
            job=row.job,
            id_range=id_range,
            weight=row.weight,
            count=row.item_count,
            oversized=row.oversized,
            item_ids=None if row.item_ids is None else tuple(row.item_ids),
        ),
        attempt=row.number,
        token=row.token,
        generation=row.generation,
        encoding=Encoding(
            format=Format(row.encoding["format"]),
            compression=Compression(row.encoding["compression"]),
        ),
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
