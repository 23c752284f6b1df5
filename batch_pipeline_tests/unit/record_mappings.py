"""Mappings of a stream `orders` for tests, and what they make of records."""

from typing import Any

import pyarrow as pa

from batch_pipeline.domain.record_rules import RecordMapping
from batch_pipeline.spark.chunks import JsonRecords, Table
from batch_pipeline.spark.map.mapper import Mapper
from batch_pipeline_tests.factories import stream

WITHHELD = "its text is withheld, as the mapping hides values"
ADA_MAIL = "ada@secret.example"


def mapping(select: tuple[str, ...] = ("*",), **rules: Any) -> RecordMapping:
    """A mapping of the stream `orders`."""
    return RecordMapping(stream_maps={"orders": rules} if rules else {}, select=select)


def mapper(how: RecordMapping, **overrides: Any) -> Mapper:
    """The mapper of a stream `orders` without keys."""
    made = Mapper.of(stream(mapping=how, key_properties=(), **overrides))
    assert made is not None
    return made


def mapped(how: RecordMapping, *lines: bytes) -> JsonRecords:
    """Map lines 11, 12, … that hold the records 1, 2, …"""
    places, numbers = range(11, 11 + len(lines)), range(1, 1 + len(lines))
    chunk = mapper(how).mapped(JsonRecords(lines=list(lines), places=places, numbers=numbers))
    assert isinstance(chunk, JsonRecords)
    return chunk


def table(columns: dict[str, pa.Array], **overrides: Any) -> Table:
    """A table of typed columns, its records in lines 11, 12, …"""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    places, numbers = range(11, 11 + batch.num_rows), range(1, 1 + batch.num_rows)
    return Table(batch=batch, places=places, numbers=numbers, **overrides)


def mapped_table(how: RecordMapping, given: Table, **overrides: Any) -> Table:
    """Map a table."""
    chunk = mapper(how, **overrides).mapped(given)
    assert isinstance(chunk, Table)
    return chunk
