"""Mappings of a stream `orders` for tests, and functions that apply them."""

from typing import Any

import pyarrow as pa

from batch_pipeline.encode.chunks import JsonRecords, Table
from batch_pipeline.encode.mapping.mapper import Mapper
from batch_pipeline.model.record_rules import RecordMapping
from batch_pipeline_tests.factories import stream

WITHHELD = "its text is omitted because the mapping removes values"
FLAT = RecordMapping(flattening_enabled=True, flattening_max_depth=1)
ADA_MAIL = "ada@secret.example"


def mapping(select: tuple[str, ...] = ("*",), **rules: Any) -> RecordMapping:
    return RecordMapping(stream_maps={"orders": rules} if rules else {}, select=select)


def mapper(record_mapping: RecordMapping, **overrides: Any) -> Mapper:
    """Return the mapper of a stream `orders`, by default without keys."""
    made = Mapper.of(stream(**{"mapping": record_mapping, "key_properties": (), **overrides}))
    assert made is not None
    return made


def mapped(record_mapping: RecordMapping, *lines: bytes, **overrides: Any) -> JsonRecords:
    """Map records numbered from 1, whose line numbers start at 11."""
    line_numbers, record_numbers = range(11, 11 + len(lines)), range(1, 1 + len(lines))
    chunk = mapper(record_mapping, **overrides).mapped(
        JsonRecords(lines=list(lines), line_numbers=line_numbers, record_numbers=record_numbers)
    )
    assert isinstance(chunk, JsonRecords)
    return chunk


def table(columns: dict[str, pa.Array], **overrides: Any) -> Table:
    """Return a table of typed columns, whose line numbers start at 11."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    line_numbers, record_numbers = range(11, 11 + batch.num_rows), range(1, 1 + batch.num_rows)
    return Table(batch=batch, line_numbers=line_numbers, record_numbers=record_numbers, **overrides)


def mapped_table(record_mapping: RecordMapping, original: Table, **overrides: Any) -> Table:
    chunk = mapper(record_mapping, **overrides).mapped(original)
    assert isinstance(chunk, Table)
    return chunk
