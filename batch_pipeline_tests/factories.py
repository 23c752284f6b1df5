"""Values for tests: readable defaults, and overrides for what a test needs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from batch_pipeline.model.batch import Batch, BatchState, BatchStatus, IdRange
from batch_pipeline.model.encode_request import Encoded, EncodeResult
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.manifest import ItemReport, Manifest, PartFile
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.record_rules import LineageContext
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.model.stream import Source, Storage, Stream

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CONTEXT = LineageContext(batch_key="00000001-00000002", attempt=1, started_at=NOON)


def found_file(number: int = 1, **overrides: Any) -> LandedFile:
    """Return a landed file of 10 bytes, with its number in its name and modification time."""
    fields: dict[str, Any] = {
        "location": f"file:///landing/orders-{number:04d}.csv",
        "size_bytes": 10,
        "modified_at": NOON + timedelta(seconds=number),
    }
    return LandedFile(**(fields | overrides))


def item(number: int = 1, **overrides: Any) -> Item:
    """Return the item of `found_file`."""
    return Item(id=number, file=found_file(number, **overrides))


def limits(**overrides: Any) -> Limits:
    """Return limits of 100 bytes or 10 items per batch."""
    fields: dict[str, Any] = {"max_weight": 100, "max_count": 10}
    return Limits(**(fields | overrides))


def stream(**overrides: Any) -> Stream:
    """Return a stream `orders` of csv files, encoded as jsonl with gzip."""
    fields: dict[str, Any] = {
        "name": "orders",
        "source": Source(uri="file:///landing"),
        "limits": limits(),
        "encoding": Encoding(format=Format.JSONL, compression=Compression.GZIP),
        "storage": Storage(root="file:///batches"),
        "key_properties": ("order_id",),
    }
    return Stream(**(fields | overrides))


def batch(first_id: int = 1, last_id: int = 3, **overrides: Any) -> Batch:
    """Return a planned batch of three items of 10 bytes."""
    fields: dict[str, Any] = {
        "id": first_id,
        "job": "orders",
        "id_range": IdRange(first_id=first_id, last_id=last_id),
        "weight": 30,
        "count": 3,
    }
    return Batch(**(fields | overrides))


def batch_status(first_id: int, state: BatchState, attempts: int = 0) -> BatchStatus:
    """Return the status of a batch of ten ids."""
    planned = batch(first_id, first_id + 9)
    return BatchStatus(batch=planned, key=planned.label, state=state, attempts=attempts)


def record_schema(*names: str) -> RecordSchema:
    """Return a schema of integer columns, by default of `order_id`."""
    columns = (Column(name=name, type=ColumnType.INTEGER) for name in names or ("order_id",))
    return RecordSchema(tuple(columns))


def part_file(name: str = "orders-0.jsonl.gz", **overrides: Any) -> PartFile:
    """Return a part file of five records in 100 bytes."""
    fields: dict[str, Any] = {
        "uri": f"file:///batches/{name}",
        "records": 5,
        "size_bytes": 100,
        "sha256": "ab" * 32,
    }
    return PartFile(**(fields | overrides))


def item_report(number: int = 1, **overrides: Any) -> ItemReport:
    """Return the report of an item whose five records were all written."""
    fields: dict[str, Any] = {
        "item_id": number,
        "location": f"file:///landing/orders-{number:04d}.csv",
        "read": 5,
        "written": 5,
        "quarantined": 0,
    }
    return ItemReport(**(fields | overrides))


def encode_result(name: str = "orders", **overrides: Any) -> EncodeResult:
    """Return the result of one item of five records in one part file, named after `name`."""
    fields: dict[str, Any] = {
        "part_files": (part_file(f"{name}-0.jsonl.gz"),),
        "quarantine_files": (),
        "items": (item_report(),),
        "misfits": (),
        "bad_records": (),
        "text_source": True,
    }
    return EncodeResult(**(fields | overrides))


def encoded(name: str = "orders", **overrides: Any) -> Encoded:
    """Return the finished encode of one item with schema version 1."""
    result = encode_result(name, **overrides)
    return Encoded(result=result, schema=record_schema(), schema_version=1)


def manifest(**overrides: Any) -> Manifest:
    """Return the first generation of batch 1..3: one part file of five records."""
    fields: dict[str, Any] = {
        "job": "orders",
        "batch": batch(),
        "attempt": 1,
        "token": UUID("12345678-1234-4234-8234-123456789012"),
        "generation": 1,
        "encoding": Encoding(format=Format.JSONL, compression=Compression.GZIP),
        "schema": record_schema(),
        "schema_version": 1,
        "key_properties": ("order_id",),
        "part_files": (part_file(),),
        "quarantine_files": (),
        "items": 1,
        "records_read": 5,
        "records_filtered": 0,
        "records_quarantined": 0,
    }
    return Manifest(**(fields | overrides))


def environment_of(folder: Path, inventory: str) -> dict[str, str]:
    """Return the variables of a home and streams in a folder, and of an inventory."""
    return {
        "BATCH_PIPELINE_HOME": str(folder / "home"),
        "BATCH_PIPELINE_STREAMS": str(folder / "streams"),
        "BATCH_PIPELINE_INVENTORY_CONN": inventory,
    }
