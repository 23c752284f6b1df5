"""Writes parquet part files from the stream's schema."""

from bisect import bisect_right
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batch_pipeline.domain.encoding import Compression
from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.domain.schema import ColumnType, RecordSchema
from batch_pipeline.domain.stream import PartLimits
from batch_pipeline.spark.write.json_lines import quoted
from batch_pipeline.spark.write.part_writer import OpenPart, PartFiles, PartNames

_ROW_GROUP_BYTES = 32 * 2**20
_ARROW_TYPES = {
    ColumnType.UNKNOWN: pa.string(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.INTEGER: pa.int64(),
    ColumnType.NUMBER: pa.float64(),
    ColumnType.STRING: pa.string(),
    ColumnType.OBJECT: pa.string(),
    ColumnType.ARRAY: pa.string(),
    ColumnType.ANY: pa.string(),
}


def arrow_schema(schema: RecordSchema) -> pa.Schema:
    """Give the columns as Arrow types; objects, arrays and mixtures are JSON text."""
    return pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in schema.columns])


def batch_of_cells(cells: pa.RecordBatch, schema: RecordSchema) -> pa.RecordBatch:
    """Turn text cells, whose form was checked before, into a batch of the schema."""
    present = set(cells.schema.names)
    arrays = []
    for column in schema.columns:
        arrow_type = _ARROW_TYPES[column.type]
        values = cells.column(column.name) if column.name in present else None
        if values is None or values.null_count == len(values):
            arrays.append(pa.nulls(cells.num_rows, arrow_type))
        elif column.type is ColumnType.ANY:
            arrays.append(quoted(values))
        else:
            arrays.append(pc.cast(values, arrow_type))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))


def batch_of_rows(rows: list[tuple[Any, ...]], schema: RecordSchema) -> pa.RecordBatch:
    """Turn decoded records, one value per column of the schema, into a batch."""
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(values, _ARROW_TYPES[column.type])
        for column, values in zip(schema.columns, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))


class ParquetPartWriter:
    """Writes record batches to part files, each within the limits unless one record exceeds them.

    Rows are held back until a row group of 32 MiB is full. Bytes are counted as Arrow holds them.
    """

    def __init__(
        self, names: PartNames, compression: Compression, limits: PartLimits, schema: pa.Schema
    ) -> None:
        self._files = PartFiles(names)
        self._compression = compression
        self._limits = limits
        self._schema = schema
        self._part: _ParquetPart | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Write rows in order.

        Raises:
            StorageUnavailableError: they cannot be written.
        """
        while batch.num_rows:
            part = self._part or self._new_part()
            fitting = min(
                self._limits.max_records - part.records,
                _rows_within(batch, self._limits.max_bytes - part.size_bytes),
            )
            if fitting < 1 and not part.records:
                fitting = 1
            if fitting > 0:
                part.write(batch.slice(0, fitting))
                batch = batch.slice(fitting)
            if batch.num_rows:
                self._finish_part()

    def close(self) -> tuple[PartFile, ...]:
        """Finish the last part file and give all of them in order.

        Raises:
            StorageUnavailableError: it cannot be written.
        """
        self._finish_part()
        return self._files.close()

    def abort(self) -> None:
        """Remove all files."""
        self._files.abort()
        if self._part is not None:
            self._part.drop()
            self._part = None

    def _new_part(self) -> "_ParquetPart":
        self._part = _ParquetPart(self._files.start(), self._schema, self._compression)
        return self._part

    def _finish_part(self) -> None:
        if self._part is not None:
            self._part.flush()
            self._files.finish(self._part.records)
            self._part = None


class _ParquetPart:
    def __init__(self, file: OpenPart, schema: pa.Schema, compression: Compression) -> None:
        self.records = 0
        self.size_bytes = 0
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._schema = schema
        level = 1 if compression in (Compression.ZSTD, Compression.GZIP) else None
        self._writer = pq.ParquetWriter(
            file, schema, compression=compression.value, compression_level=level
        )

    def write(self, batch: pa.RecordBatch) -> None:
        self.records += batch.num_rows
        self.size_bytes += batch.nbytes
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _ROW_GROUP_BYTES:
            self._write_row_group()

    def flush(self) -> None:
        self._write_row_group()
        self._writer.close()

    def drop(self) -> None:
        """Close the writer, whose file drops what it still writes."""
        self._writer.close()

    def _write_row_group(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held, self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._held, self._held_bytes = [], 0


def _rows_within(batch: pa.RecordBatch, size_bytes: int) -> int:
    if batch.nbytes <= size_bytes:
        return int(batch.num_rows)
    sizes = range(1, batch.num_rows + 1)
    return bisect_right(sizes, size_bytes, key=lambda rows: batch.slice(0, rows).nbytes)
