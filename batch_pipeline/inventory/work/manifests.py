"""Reading published manifests back from the inventory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, Batch
from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.garbage import Removal
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.manifest import Manifest, PartFile
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import attempt, batch, job, schema_version
from batch_pipeline.inventory.work.file_rows import files_of_attempts
from batch_pipeline.inventory.work.removals import ARE_REMOVED, find_removal

_PAGE = 200
_FRESH_SECONDS = 3600  # files of what was replaced are kept for a day, at the least


@dataclass(frozen=True, slots=True)
class Manifests:
    """The published attempts of all jobs."""

    engine: sa.Engine

    def of_attempt(self, attempt_id: int) -> Manifest:
        """Read the manifest of one published attempt."""
        with transaction(self.engine) as connection:
            row = connection.execute(_query().where(attempt.c.id == attempt_id)).one()
            return _manifest(row, files_of_attempts(connection, [attempt_id]).get(attempt_id, []))

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
            return find_removal(connection, manifest.token)

    def without_pointer(self, stream: str) -> Iterator[Manifest]:
        """Read the manifests whose pointer file a crash left unwritten."""
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
            yield _manifest(row, files.get(row.attempt_id, []))

    def published_after(
        self, stream: str, numbers: Mapping[str, int], *, backfills: bool = True
    ) -> Iterator[tuple[int, Manifest]]:
        """Read the manifests of a stream's jobs, `(publish number, manifest)`, job by job.

        First come those of the stream's own job, then of its late arrivals, then of its backfills
        in the order in which these were made; each job's in the order in which they were published,
        starting after its number, with 0 for a job that `numbers` does not name. Generations that a
        later one replaced are left out, as are those whose files were given up.
        """
        kinds = [JobKind.INCREMENTAL, JobKind.LATE, *([JobKind.BACKFILL] if backfills else [])]
        places = {kind.value: place for place, kind in enumerate(kinds)}
        jobs = (
            sa.select(job.c.id, job.c.name)
            .where(job.c.stream == stream, job.c.kind.in_(places))
            .order_by(sa.case(places, value=job.c.kind), job.c.id)
        )
        with transaction(self.engine) as connection:
            found = connection.execute(jobs).all()
        for one in found:
            yield from self._of_job(one.id, numbers.get(one.name, 0))

    def _of_job(self, job_id: int, publish_number: int) -> Iterator[tuple[int, Manifest]]:
        newer = attempt.alias("newer")
        replaced = sa.exists().where(
            newer.c.batch_id == attempt.c.batch_id, newer.c.generation > attempt.c.generation
        )
        is_live = sa.and_(job.c.id == job_id, ~replaced, ~ARE_REMOVED)
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
