"""Writes what an encode produced: rows of part files, and of items with their counters."""

from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.encode import Encoded, EncodeResult
from batch_pipeline.domain.manifest import ItemReport
from batch_pipeline.domain.seen import Seen
from batch_pipeline.inventory.tables import attempt_item, part_file
from batch_pipeline.inventory.work.stored_text import storable


def insert_files(connection: sa.Connection, attempt_id: int, made: EncodeResult) -> None:
    """Keep the part files of an attempt in their order, and where each item's records went."""
    files = [
        {
            "attempt_id": attempt_id,
            "quarantine": quarantine,
            "position": position,
            "uri": part.uri,
            "records": part.records,
            "size_bytes": part.size_bytes,
            "sha256": part.sha256,
        }
        for quarantine, parts in ((False, made.part_files), (True, made.quarantine_files))
        for position, part in enumerate(parts)
    ]
    rows = [_item_row(attempt_id, item) for item in made.items]
    if files:
        connection.execute(sa.insert(part_file), files)
    if rows:
        connection.execute(sa.insert(attempt_item), rows)


def _item_row(attempt_id: int, item: ItemReport) -> dict[str, Any]:
    return {
        "attempt_id": attempt_id,
        "item_id": item.item_id,
        "read": item.read,
        "written": item.written,
        "filtered": item.filtered,
        "quarantined": item.quarantined,
        "bad_file": None if item.bad_file is None else storable(item.bad_file),
        "read_etag": item.etag,
        "read_version": item.version,
    }


def seen_of(one: Batch, encoded: Encoded) -> dict[str, Any]:
    """Give what the attempt saw of its batch, for later audits."""
    ids = sorted(item.item_id for item in encoded.result.items)
    weight = one.weight if encoded.weight is None else encoded.weight
    return Seen.of(ids, weight=weight).to_json()
