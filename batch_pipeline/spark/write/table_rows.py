"""Rows of a table with the size of each: what its values take, whichever way they arrived."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as at

from batch_pipeline.spark.write.fill import Ends, start_of

_OFFSET_BYTES = 4  # of a text or binary value, besides its own bytes


@dataclass(frozen=True, slots=True)
class TableRows:
    """A batch of the output's schema, and where each row ends in the bytes of all."""

    batch: pa.RecordBatch
    ends: Ends

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "TableRows":
        """Measure the rows."""
        ends: Ends = np.zeros(batch.num_rows, np.int64)
        width = 0
        for column in batch.columns:
            if at.is_string(column.type) or at.is_binary(column.type):
                width += _OFFSET_BYTES
                bounds = bounds_of(column)
                ends += bounds[1:] - bounds[0]
            else:
                width += max(column.type.bit_width // 8, 1)
        ends += np.arange(1, batch.num_rows + 1) * width
        return cls(batch, ends)

    def between(self, first: int, stop: int) -> "TableRows":
        """Give the rows from `first` to before `stop`."""
        if first == 0 and stop == len(self.ends):
            return self
        start = start_of(self.ends, first)
        return TableRows(self.batch.slice(first, stop - first), self.ends[first:stop] - start)


def bounds_of(column: pa.StringArray) -> Ends:
    """Give where each text starts in the array's octets, and at last where the last one ends."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
