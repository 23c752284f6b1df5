"""Writing of columnar part files, in row groups of bounded size.

Rows have the types of the output already; `storage.part_formats` writes the bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as at

from batch_pipeline.encode.writers.json_cells import text_offsets
from batch_pipeline.encode.writers.part_files import OpenPart, PartNames
from batch_pipeline.encode.writers.part_writer import Ends, PartWriter, SizeLimit, start_of
from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.stream import PartLimits
from batch_pipeline.storage.part_formats import TableWriter, table_codec

_GROUP_BYTES = 32 * 2**20
_OFFSET_BYTES = 4  # of a text or binary value, besides its own bytes


@dataclass(frozen=True, slots=True)
class TableRows:
    """A batch of the output's schema, and the end of each row in the bytes of all values.

    Sizes depend on the values alone, so that files are cut alike however the rows arrived.
    """

    batch: pa.RecordBatch
    ends: Ends

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "TableRows":
        """Return the rows of a batch with their sizes."""
        ends: Ends = np.zeros(batch.num_rows, np.int64)
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


def table_writer(names: PartNames, limits: PartLimits, encoding: Encoding) -> PartWriter[TableRows]:
    """Return a writer of columnar files; the limits apply to the size of the values in memory."""
    codec = table_codec(encoding.format)

    def open_file(file: OpenPart, first: pa.Table) -> TableWriter:
        return codec.open_writer(file, first, encoding)

    return PartWriter(names, limits, lambda file: TableBody(file, open_file))


class TableBody:
    """Rows of one part file, buffered until a row group of 32 MiB is full.

    The file is opened with the first row group, on which encodings of columns can depend.
    """

    def __init__(
        self, file: OpenPart, open_file: Callable[[OpenPart, pa.Table], TableWriter]
    ) -> None:
        self._file = file
        self._open_file = open_file
        self._writer: TableWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._size = _empty_group()

    def add(self, rows: TableRows) -> None:
        """Write rows in order, now or later."""
        first = 0
        while first < len(rows.ends):
            stop = self._size.admit(rows.ends, first)
            if stop > first:
                self._held.append(rows.between(first, stop).batch)
                first = stop
            if first < len(rows.ends):
                self._write_group()

    def finish(self) -> None:
        """Write everything that is buffered."""
        self._write_group()
        if self._writer is not None:
            self._writer.close()

    def drop(self) -> None:
        """Close the writer; its file was aborted and ignores what is written."""
        if self._writer is not None:
            self._writer.close()

    def _write_group(self) -> None:
        if not self._held:
            return
        # In one piece: where pages end must not depend on how the rows arrived.
        group = pa.Table.from_batches(self._held).combine_chunks()
        self._held, self._size = [], _empty_group()
        if self._writer is None:
            self._writer = self._open_file(self._file, group)
        self._writer.write(group)


def _empty_group() -> SizeLimit:
    return SizeLimit(max_records=2**62, max_bytes=_GROUP_BYTES)
