"""Reads where published batches come from, as their pointer files keep it. Reads only."""

from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.origin import Origin, OriginItem, OriginJob
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.table_identity import portable
from batch_pipeline.inventory.tables import SCHEMA, attempt, attempt_item, batch, item, job

_OWN_TABLE = f"{SCHEMA}.{item.name}"
_MOST_ITEMS = 200_000  # some 40 MB of JSON; more than one reads back
_COUNTERS = ("items", "read", "written", "filtered", "quarantined", "rescued", "given_to_transform")
_parent = job.alias("parent")
_FACTS = (
    sa.select(
        job.c.stream,
        job.c.kind,
        job.c.meta_table,
        job.c.config,
        job.c.max_attempts,
        job.c.bisect,
        _parent.c.name.label("parent"),
        batch.c.config.label("planned_with"),
        attempt.c.publish_number,
        attempt.c.run_id,
        attempt.c.started_at,
        attempt.c.finished_at,
        attempt.c.facts,
        attempt.c.seen,
    )
    .select_from(attempt)
    .join(batch, batch.c.id == attempt.c.batch_id)
    .join(job, job.c.id == batch.c.job_id)
    .outerjoin(_parent, _parent.c.id == job.c.parent_id)
)
_ITEMS = sa.select(
    attempt_item, item.c.location, item.c.size_bytes, item.c.modified_at, item.c.etag
).order_by(attempt_item.c.item_id)


def origin_of(connection: sa.Connection, attempt_id: int, schema: RecordSchema) -> Origin | None:
    """Read the origin of a published attempt.

    None for jobs that are of no stream, and for batches of more than 200,000 items.
    """
    row = connection.execute(_FACTS.where(attempt.c.id == attempt_id)).one()
    if row.stream is None or row.facts is None or row.facts["items"] > _MOST_ITEMS:
        return None
    is_listed = sa.and_(
        item.c.stream == row.stream,
        item.c.id == attempt_item.c.item_id,
        sa.literal(row.meta_table) == _OWN_TABLE,  # ids of a user's table mean other rows
    )
    query = _ITEMS.select_from(attempt_item.outerjoin(item, is_listed))
    items = connection.execute(query.where(attempt_item.c.attempt_id == attempt_id))
    return Origin(
        job=OriginJob(
            stream=row.stream,
            kind=JobKind(row.kind),
            meta_table=row.meta_table,
            config=portable(row.config),
            max_attempts=row.max_attempts,
            bisect=row.bisect,
            parent=row.parent,
        ),
        publish_number=row.publish_number,
        run_id=row.run_id,
        started_at=row.started_at,
        published_at=row.finished_at,
        planned_with=row.planned_with,
        facts={name: row.facts[name] for name in _COUNTERS if name in row.facts},
        weight_read=0 if row.seen is None else row.seen["weight"],
        schema=schema,
        items=tuple(_item(one) for one in items),
    )


def _item(row: sa.Row[Any]) -> OriginItem:
    return OriginItem(
        id=row.item_id,
        read=row.read,
        written=row.written,
        filtered=row.filtered,
        quarantined=row.quarantined,
        location=row.location,
        size_bytes=row.size_bytes,
        modified_at=row.modified_at,
        etag=row.etag,
        bad_file=row.bad_file,
        read_etag=row.read_etag,
        read_version=row.read_version,
    )
