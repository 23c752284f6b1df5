"""Records as columns of the output schema, and the writer of their part files.

`storage.part_formats` writes the bytes of each format.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.types as at

from batch_pipeline.encode.arrow_types import JSON_TYPES, arrow_type_of, text_offsets
from batch_pipeline.encode.chunks import Offsets, Table
from batch_pipeline.encode.writers.json_lines import encode_column
from batch_pipeline.encode.writers.part_writer import (
    OpenPart,
    PartNames,
    PartWriter,
    SizeLimit,
    start_of,
)
from batch_pipeline.model.encoding import Encoding, Format
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import Column, RecordSchema
from batch_pipeline.model.stream import PartLimits
from batch_pipeline.storage.part_formats import TableWriter, table_codec

_JSON_METADATA = {"content_type": "application/json"}


def output_schema(schema: RecordSchema, file_format: Format) -> pa.Schema:
    """Return the columns as Arrow fields; objects, arrays and mixtures are JSON text.

    Such fields are strings with the metadata `content_type: application/json`, and the metadata
    that the format adds.
    """
    return pa.schema([_field(column, file_format) for column in schema.columns])


def batch_of_table(
    table: Table, schema: RecordSchema, arrow_schema: pa.Schema, on_nonfinite: OnNonfinite
) -> pa.RecordBatch:
    """Convert a validated table to the columns of the schema; missing ones become null.

    Validation has converted the values of all columns but those that hold JSON text.
    """
    present = dict(zip(table.batch.schema.names, table.batch.columns, strict=True))
    arrays = []
    for column in schema.columns:
        array = present.get(column.name)
        if array is None or array.null_count == len(array):
            arrays.append(pa.nulls(table.good, arrow_type_of(column)))
        elif column.type in JSON_TYPES:
            arrays.append(encode_column(table, array, column, on_nonfinite).joined())
        else:
            arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _field(column: Column, file_format: Format) -> pa.Field:
    metadata = None
    if column.type in JSON_TYPES:
        metadata = _JSON_METADATA | table_codec(file_format).json_metadata
    return pa.field(column.name, arrow_type_of(column), metadata=metadata)


_GROUP_BYTES = 32 * 2**20
_OFFSET_BYTES = 4  # of a text or binary value, in addition to its own bytes


@dataclass(frozen=True, slots=True)
class TableRows:
    """A batch of the output's schema, and the end of each row in the bytes of all values.

    Sizes depend only on the values, so that files are cut at the same rows for any batching.
    """

    batch: pa.RecordBatch
    ends: Offsets

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "TableRows":
        """Return the rows of a batch with their sizes."""
        ends: Offsets = np.zeros(batch.num_rows, np.int64)
        width = 0
        for column in batch.columns:
            if at.is_string(column.type) or at.is_binary(column.type):
                width += _OFFSET_BYTES
                bounds = text_offsets(column)
                ends += bounds[1:] - bounds[0]
            else:
                width += max(column.type.bit_width // 8, 1)
        ends += np.arange(1, batch.num_rows + 1) * width
        return cls(batch, ends)

    def between(self, first: int, stop: int) -> "TableRows":
        """Return the rows from `first` up to, not including, `stop`."""
        if first == 0 and stop == len(self.ends):
            return self
        start = start_of(self.ends, first)
        return TableRows(self.batch.slice(first, stop - first), self.ends[first:stop] - start)


class RowGroupWriter(PartWriter[TableRows]):
    """A writer of columnar files; the limits apply to the size of the values in memory.

    Rows are buffered until a group of 32 MiB is full. A file is opened with its first group,
    because column encodings can depend on that group.
    """

    def __init__(self, names: PartNames, limits: PartLimits, encoding: Encoding) -> None:
        super().__init__(names, limits)
        self._encoding = encoding
        self._codec = table_codec(encoding.format)
        self._writer: TableWriter | None = None

    def _start(self, file: OpenPart) -> None:
        self._file = file
        self._writer = None
        self._held: list[pa.RecordBatch] = []
        self._group = _empty_group()

    def _add(self, piece: TableRows) -> None:
        first = 0
        while first < len(piece.ends):
            stop = self._group.admit(piece.ends, first)
            if stop > first:
                self._held.append(piece.between(first, stop).batch)
                first = stop
            if first < len(piece.ends):
                self._write_group()

    def _finish(self) -> None:
        self._write_group()
        self._drop()

    def _drop(self) -> None:
        # An aborted file ignores the bytes that the writer writes when it is closed.
        if self._writer is not None:
            self._writer.close()
        self._writer, self._held = None, []

    def _write_group(self) -> None:
        if not self._held:
            return
        schema = self._held[0].schema
        pieces = [deque(batch.columns) for batch in self._held]
        self._held, self._group = [], _empty_group()
        # Write the group in one piece: page boundaries must not depend on how the rows arrived.
        # Free the pieces of a column before the next column, so that a group is in memory once.
        columns = [pa.concat_arrays([piece.popleft() for piece in pieces]) for _ in schema]
        group = pa.Table.from_arrays(columns, schema=schema)
        if self._writer is None:
            self._writer = self._codec.open_writer(self._file, group, self._encoding)
        self._writer.write(group)


def _empty_group() -> SizeLimit:
    return SizeLimit(max_records=2**62, max_bytes=_GROUP_BYTES)


_MANY_ROWS = 256
_HELD_BYTES = 2**20


class TableBuffer:
    """A buffer of small tables: the cost per column is the same for few rows as for many."""

    def __init__(self) -> None:
        self._held: list[Table] = []
        self._rows = 0
        self._size_bytes = 0

    def add(self, table: Table) -> Iterator[Table]:
        """Add a table and yield the tables to write now; `flush` yields the others.

        Concatenated tables have no line numbers and record numbers.
        """
        size_bytes = table.batch.get_total_buffer_size()
        is_small = table.good < _MANY_ROWS and size_bytes < _HELD_BYTES
        if self._held and not (is_small and _have_same_columns(self._held[0], table)):
            yield from self.flush()
        if not is_small:
            yield table
            return
        self._held.append(table)
        self._rows += table.good
        self._size_bytes += size_bytes
        if self._rows >= _MANY_ROWS or self._size_bytes >= _HELD_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[Table]:
        """Yield the buffered rows as one table, if there are any."""
        held, self._held, self._rows, self._size_bytes = self._held, [], 0, 0
        if len(held) < 2:
            yield from held
            return
        batch = pa.concat_batches([table.batch for table in held])
        yield replace(held[0], batch=batch, line_numbers=(), record_numbers=())


def _have_same_columns(one: Table, other: Table) -> bool:
    same_kinds = one.text == other.text and one.json == other.json
    return same_kinds and one.batch.schema.equals(other.batch.schema)
