"""Values for tests: sensible defaults that one can read, and overrides for what a test is about."""

from datetime import UTC, datetime, timedelta
from typing import Any

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.item import FoundFile, Item
from batch_pipeline.domain.planning import Limits
from batch_pipeline.domain.stream import Source, Storage, Stream

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def found_file(number: int = 1, **overrides: Any) -> FoundFile:
    """A landed file of 10 bytes; its number is in its name and in its modification time."""
    facts: dict[str, Any] = {
        "location": f"file:///landing/orders-{number:04d}.csv",
        "size_bytes": 10,
        "modified_at": NOON + timedelta(seconds=number),
    }
    return FoundFile(**(facts | overrides))


def item(number: int = 1, **overrides: Any) -> Item:
    """The item of `found_file`."""
    return Item(id=number, file=found_file(number, **overrides))


def limits(**overrides: Any) -> Limits:
    """100 bytes or 10 items a batch."""
    facts: dict[str, Any] = {"max_weight": 100, "max_count": 10}
    return Limits(**(facts | overrides))


def stream(**overrides: Any) -> Stream:
    """A stream `orders` of csv files, encoded as jsonl with gzip."""
    facts: dict[str, Any] = {
        "name": "orders",
        "source": Source(uri="file:///landing"),
        "limits": limits(),
        "encoding": Encoding(format=Format.JSONL, compression=Compression.GZIP),
        "storage": Storage(root="file:///batches"),
        "key_properties": ("order_id",),
    }
    return Stream(**(facts | overrides))
