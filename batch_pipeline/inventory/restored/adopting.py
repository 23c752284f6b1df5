"""Brings an inventory to what manifests say that are newer: jobs, batches, attempts, in order.

Everything is looked at before it is written beside it, and what contradicts the inventory is
collected; the caller's transaction ends with the first contradiction. Files are opened elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from batch_pipeline.domain.errors import InvalidValueError, JobChangedError, StreamMovedError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.filter import parse_filter
from batch_pipeline.domain.id_range import MIN_ID, IdRange
from batch_pipeline.domain.job import JobKind, JobTerms
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.origin import Origin
from batch_pipeline.domain.restored import Adopted
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.schema_change import changes_between
from batch_pipeline.domain.stream import Stream
from batch_pipeline.domain.table_identity import without_identity
from batch_pipeline.inventory.jobs.bookmarks import advance, gaps
from batch_pipeline.inventory.jobs.jobs import of_stream, open_job
from batch_pipeline.inventory.locks import LockClass, lock_in_transaction, lock_planning
from batch_pipeline.inventory.meta.meta_table import OWN_IDENTITY
from batch_pipeline.inventory.restored.adopted_batches import adopt_batch
from batch_pipeline.inventory.restored.adopted_items import adopt_items
from batch_pipeline.inventory.restored.found import Found
from batch_pipeline.inventory.tables import bookmark, job, schema_version
from batch_pipeline.inventory.upkeep.migrate import check_still
from batch_pipeline.inventory.work.attempts import close_dead
from batch_pipeline.inventory.work.origins import OWN_TABLE


def adopt(
    connection: sa.Connection, stream: Stream, meta_table: str, manifests: Sequence[Manifest]
) -> Adopted:
    """Take over what manifests say.

    Raises:
        NotAdoptedError: they contradict the inventory or each other.
    """
    check_still(connection)
    found = Found(connection=connection, stream=stream.name, meta_table=meta_table)
    pairs = _with_origins(manifests, found)
    job_ids = _jobs(found, stream, pairs)
    found.check()
    for job_id in sorted(job_ids.values()):
        lock_planning(connection, job_id)
    lock_in_transaction(connection, LockClass.REGISTER, stream.name)
    close_dead(connection, job.c.stream == stream.name)
    items, again = adopt_items(found, [origin for _, origin in pairs])
    _schemas(found, pairs)
    batches = lost = 0
    for manifest, origin in pairs:
        is_new, lost_attempts = adopt_batch(found, job_ids[manifest.stream], manifest, origin)
        batches, lost = batches + is_new, lost + lost_attempts
    found.check()
    for manifest, origin in pairs:
        if manifest.batch.item_ids is None:
            _plan(found, job_ids[manifest.stream], origin, manifest.batch.id_range)
    numbers_lost = _count(found, job_ids, pairs)
    failpoint("adopt.before_commit")
    return Adopted(
        stream=stream.name,
        manifests=len(pairs),
        records=sum(manifest.records for manifest, _ in pairs),
        items=items,
        items_again=again,
        batches=batches,
        attempts_lost=lost,
        numbers_lost=numbers_lost,
    )


def _with_origins(manifests: Sequence[Manifest], found: Found) -> list[tuple[Manifest, Origin]]:
    """Give the manifests in the order in which they were published, jobs after their parents."""
    pairs = [(one, one.origin) for one in manifests if one.origin is not None]
    for manifest, origin in pairs:
        if (origin.job.stream, origin.job.meta_table) != (found.stream, found.meta_table):
            of = f"{origin.job.stream} on {origin.job.meta_table}"
            found.refuse(manifest, f"it is of {of}, not of {found.stream} on {found.meta_table}")
    is_own = {JobKind.INCREMENTAL: 0, JobKind.BACKFILL: 1, JobKind.LATE: 2}
    return sorted(
        pairs, key=lambda pair: (is_own[pair[1].job.kind], pair[0].stream, pair[1].publish_number)
    )


def _jobs(found: Found, stream: Stream, pairs: Iterable[tuple[Manifest, Origin]]) -> dict[str, int]:
    """Find the jobs of manifests by name, or make them as they were."""
    where = None if stream.user_table is None else stream.user_table.where
    terms = JobTerms(
        name=stream.name,
        meta_table=found.meta_table,
        stream=stream.name,
        where=where,
        # A table of the user's is not opened here: its job stores what it is at its next use.
        identity=OWN_IDENTITY if stream.user_table is None else None,
    )
    try:
        own = open_job(found.connection, terms)
    except (JobChangedError, StreamMovedError) as error:
        found.refuse(None, str(error).rstrip("."))
        found.check()
        raise
    ids = {own.name: own.id}
    for manifest, origin in pairs:
        if manifest.stream in ids:
            continue
        job_id = _job(found, manifest, origin)
        if job_id is not None:
            ids[manifest.stream] = job_id
    return ids


def _job(found: Found, manifest: Manifest, origin: Origin) -> int | None:
    """Find or make the job of a backfill or of late arrivals."""
    terms, name = origin.job, manifest.stream
    if terms.kind is JobKind.INCREMENTAL or not name.startswith(f"{found.stream}."):
        found.refuse(manifest, f"{name!r} is no name of a job of {found.stream}")
        return None
    query = sa.select(job).where(job.c.name == name, job.c.meta_table == found.meta_table)
    row = found.connection.execute(query).one_or_none()
    if row is not None:
        mine = (row.kind, row.stream, without_identity(row.config))
        if mine != (terms.kind, terms.stream, without_identity(terms.config)):
            found.refuse(manifest, f"the job {name!r} is another one here")
        known: int = row.id
        return known
    parent = sa.select(job.c.id).where(
        job.c.name == terms.parent, job.c.meta_table == found.meta_table
    )
    try:
        if "where" in terms.config:
            parse_filter(terms.config["where"])
    except InvalidValueError as error:
        found.refuse(manifest, str(error).rstrip("."))
        return None
    values = {
        "name": name,
        "meta_table": found.meta_table,
        "kind": terms.kind.value,
        "stream": found.stream,
        "parent_id": found.connection.execute(parent).scalar_one_or_none(),
        "config": dict(terms.config),
        "max_attempts": terms.max_attempts,
        "bisect": terms.bisect,
    }
    insert = sa.insert(job).values(values).returning(job.c.id)
    made: int = found.connection.execute(insert).scalar_one()
    return made


def _schemas(found: Found, pairs: Iterable[tuple[Manifest, Origin]]) -> None:
    """Add the schema versions that the inventory lacks, each with what changed in it."""
    own = sa.select(job.c.id).where(of_stream(found.stream)).with_for_update(key_share=True)
    job_id = found.connection.execute(own).scalar_one()
    query = sa.select(schema_version.c.version, schema_version.c.columns)
    rows = found.connection.execute(query.where(schema_version.c.job_id == job_id)).all()
    known = {row.version: RecordSchema.from_json(row.columns) for row in rows}
    for manifest, _ in sorted(pairs, key=lambda pair: pair[0].schema_version):
        version, schema = manifest.schema_version, manifest.schema
        if known.get(version, schema) != schema:
            found.refuse(manifest, f"schema version {version} is another one here")
        if version in known:
            continue
        before = max((one for one in known if one < version), default=None)
        changes = changes_between(RecordSchema() if before is None else known[before], schema)
        known[version] = schema
        values = {
            "job_id": job_id,
            "version": version,
            "columns": schema.to_json(),
            "changes": [change.to_json() for change in changes],
        }
        found.connection.execute(sa.insert(schema_version).values(values))


def _plan(found: Found, job_id: int, origin: Origin, ids: IdRange) -> None:
    """Let the bookmarks of a job cover a batch."""
    is_first = origin.job.kind is JobKind.INCREMENTAL and ids.first_id == 1
    if is_first and found.meta_table == OWN_TABLE:  # its ids count from 1: none comes before
        has_none = sa.select(~sa.exists().where(bookmark.c.job_id == job_id))
        first_id = MIN_ID if found.connection.execute(has_none).scalar_one() else ids.first_id
        ids = IdRange(first_id=first_id, last_id=ids.last_id)
    for gap in list(gaps(found.connection, job_id, ids)):
        advance(found.connection, job_id, gap, gap.ids.last_id)


def _count(
    found: Found, job_ids: Mapping[str, int], pairs: Sequence[tuple[Manifest, Origin]]
) -> int:
    """Let publish numbers go on above those of manifests; gives how many nobody has."""
    lost = 0
    for name, job_id in job_ids.items():
        numbers = {origin.publish_number for one, origin in pairs if one.stream == name}
        if not numbers:
            continue
        count = sa.select(job.c.publish_count).where(job.c.id == job_id)
        locked = count.with_for_update(key_share=True)
        before = found.connection.execute(locked).scalar_one()
        highest = max(before, *numbers)
        lost += highest - before - sum(number > before for number in numbers)
        update = sa.update(job).where(job.c.id == job_id).values(publish_count=highest)
        found.connection.execute(update)
    return lost
