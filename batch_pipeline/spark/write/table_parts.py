"""Part files of tables, parquet and Arrow IPC files, in row groups of bounded size.

Rows come in the types of the output; nothing is converted here.
"""

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.stream import PartLimits
from batch_pipeline.spark.write.compression import FASTEST
from batch_pipeline.spark.write.fill import Fill
from batch_pipeline.spark.write.open_parts import OpenPart
from batch_pipeline.spark.write.part_files import PartNames
from batch_pipeline.spark.write.part_writer import PartWriter
from batch_pipeline.spark.write.settled import settled
from batch_pipeline.spark.write.table_rows import TableRows

_GROUP_BYTES = 32 * 2**20
_SAMPLE_RECORDS = 1024
_REPEATS_IN_SAMPLE = 1 / 50  # some 26,000 different values: more would outgrow a dictionary page


class _TableWriter(Protocol):
    def write_table(self, table: pa.Table, max_size: int, /) -> None: ...

    def close(self) -> None: ...


def table_writer(names: PartNames, limits: PartLimits, encoding: Encoding) -> PartWriter[TableRows]:
    """Make a writer of parquet or Arrow files; what the values take counts as their size."""
    opening = _open_arrow if encoding.format is Format.ARROW else _open_parquet

    def open_file(file: OpenPart, first: pa.Table) -> _TableWriter:
        return opening(file, first, encoding)

    return PartWriter(names, limits, lambda file: TableBody(file, open_file))


class TableBody:
    """Rows of one part file, held back until a row group of 32 MiB is full.

    The file is opened with the first row group, from which its form may be chosen.
    """

    def __init__(
        self, file: OpenPart, open_file: Callable[[OpenPart, pa.Table], _TableWriter]
    ) -> None:
        self._file = file
        self._open_file = open_file
        self._writer: _TableWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._fill = _empty_group()

    def add(self, rows: TableRows) -> None:
        """Write rows in order, now or later."""
        first = 0
        while first < len(rows.ends):
            stop = self._fill.take(rows.ends, first)
            if stop > first:
                self._held.append(rows.between(first, stop).batch)
                first = stop
            if first < len(rows.ends):
                self._write_group()

    def finish(self) -> None:
        """Write all that is held back."""
        self._write_group()
        if self._writer is not None:
            self._writer.close()

    def drop(self) -> None:
        """Close the writer, whose file drops what it still writes."""
        if self._writer is not None:
            self._writer.close()

    def _write_group(self) -> None:
        if not self._held:
            return
        # In one piece: where pages end must not depend on how the rows arrived.
        group = pa.Table.from_batches(self._held).combine_chunks()
        self._held, self._fill = [], _empty_group()
        if self._writer is None:
            self._writer = self._open_file(self._file, group)
        self._writer.write_table(group, group.num_rows)


def _empty_group() -> Fill:
    return Fill(max_records=2**62, max_bytes=_GROUP_BYTES)


def _open_parquet(file: OpenPart, first: pa.Table, encoding: Encoding) -> pq.ParquetWriter:
    level = encoding.level
    if level is None and encoding.compression in (Compression.ZSTD, Compression.GZIP):
        level = FASTEST
    return pq.ParquetWriter(
        file,
        first.schema,
        compression=encoding.compression.value,
        compression_level=level,
        use_dictionary=[name for name in first.schema.names if _repeats(first.column(name))],
        write_page_checksum=True,
    )


def _repeats(column: pa.ChunkedArray) -> bool:
    """Tell whether values come so often again that a dictionary of them saves room and time."""
    sample = column.slice(0, _SAMPLE_RECORDS)
    known = len(sample) - sample.null_count
    different = len(sample.unique()) - (sample.null_count > 0)
    return bool(known - different >= known * _REPEATS_IN_SAMPLE)


class _ArrowFile:
    """An Arrow IPC file, which starts with a magic word and ends with a list of its batches."""

    def __init__(self, file: OpenPart, schema: pa.Schema, encoding: Encoding) -> None:
        codec = None
        if encoding.compression is Compression.ZSTD:
            codec = pa.Codec("zstd", encoding.level or FASTEST)
        options = pa.ipc.IpcWriteOptions(compression=codec)
        self._writer = pa.ipc.new_file(file, schema, options=options)

    def write_table(self, table: pa.Table, max_size: int, /) -> None:
        columns = [settled(column.chunk(0)) for column in table.columns]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=table.schema), max_size)

    def close(self) -> None:
        self._writer.close()


def _open_arrow(file: OpenPart, first: pa.Table, encoding: Encoding) -> _ArrowFile:
    return _ArrowFile(file, first.schema, encoding)
