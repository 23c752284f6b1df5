"""What happened to items and batches: their attempts, and where the records went."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, Batch
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import attempt, attempt_item


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt on a batch, with the counters of one or all of its items once it is published.

    `read_etag` and `read_version` tell which version of the item's object was read.
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
class History:
    """The past of items and batches."""

    engine: sa.Engine

    def of_item(self, batch: Batch, item_id: int) -> Sequence[AttemptRecord]:
        """Read the attempts on an item's batch, oldest first."""
        is_its = sa.and_(
            attempt_item.c.attempt_id == attempt.c.id, attempt_item.c.item_id == item_id
        )
        query = sa.select(
            *_FACTS,
            attempt_item.c.read,
            attempt_item.c.written,
            attempt_item.c.quarantined,
            attempt_item.c.bad_file,
            attempt_item.c.read_etag,
            attempt_item.c.read_version,
        ).outerjoin(attempt_item, is_its)
        return self._read(batch, query)

    def of_batch(self, batch: Batch) -> Sequence[AttemptRecord]:
        """Read the attempts on a batch, oldest first, with the counters of all of its items."""
        counters = [
            attempt.c.facts[name].as_integer().label(name)
            for name in ("read", "written", "quarantined")
        ]
        of_items = [sa.null().label(name) for name in ("bad_file", "read_etag", "read_version")]
        return self._read(batch, sa.select(*_FACTS, *counters, *of_items))

    def _read(self, batch: Batch, query: sa.Select[Any]) -> Sequence[AttemptRecord]:
        query = query.where(attempt.c.batch_id == batch.id).order_by(attempt.c.number)
        with transaction(self.engine) as connection:
            rows = connection.execute(query).mappings()
            return [
                AttemptRecord(**{**row, "status": AttemptStatus(row["status"])}) for row in rows
            ]


_FACTS = (
    attempt.c.number,
    attempt.c.status,
    attempt.c.run_id,
    attempt.c.started_at,
    attempt.c.finished_at,
    attempt.c.error,
    attempt.c.generation,
    attempt.c.pointer_uri,
)
