"""Part files of ORC, in stripes of bounded size.

ORC has no time-of-day type: such columns are text, as in JSON lines, and are converted back to
times when they are read here. Arrow reads ORC timestamps as 64-bit nanoseconds, so a record with a
timestamp outside of that range is not written.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at
from pyarrow import orc

from batch_pipeline.model.encoding import Compression, Encoding
from batch_pipeline.storage.part_formats import TableCodec

_TIME = pa.time64("us")
_TIME_METADATA = {b"batch_pipeline.type": b"time"}
_MAX_STRIPE_ROWS = 65_536
# A stripe ends once this many bytes of it are encoded, that is, after each group of rows. With a
# larger limit, reading stripes of highly compressible values would take unbounded memory.
_STRIPE_BYTES = 1
_MIN_MICROSECONDS = -(2**63) // 1000 + 1
_MAX_MICROSECONDS = (2**63 - 1) // 1000
_COMPRESSIONS = {
    Compression.ZSTD: "zstd",
    Compression.SNAPPY: "snappy",
    Compression.NONE: "uncompressed",
}


class _File:
    """A file object that keeps the exception of a failed write.

    The C++ library raises an `OSError` with the text of the traceback instead.
    """

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self.error: Exception | None = None

    def write(self, data: bytes) -> int:
        try:
            return int(self._file.write(data))
        except Exception as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Leave the file open."""


class _Writer:
    def __init__(self, file: Any, first: pa.Table, encoding: Encoding) -> None:
        self._schema = pa.schema([_stored_field(field) for field in first.schema])
        self._file = _File(file)
        self._writer = orc.ORCWriter(
            self._file,
            # The writer allocates this many values per column.
            batch_size=min(first.num_rows, _MAX_STRIPE_ROWS),
            stripe_size=_STRIPE_BYTES,
            compression=_COMPRESSIONS[encoding.compression],
        )

    def write(self, table: pa.Table) -> None:
        with self._original_error():
            self._writer.write(table.cast(self._schema))

    def close(self) -> None:
        with self._original_error():
            self._writer.close()

    @contextmanager
    def _original_error(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            if self._file.error is not None:
                raise self._file.error from None
            raise


def _stored_field(field: pa.Field) -> pa.Field:
    """Return the field in the file for a field of the schema."""
    if field.type == _TIME:
        return field.with_type(pa.string()).with_metadata(_TIME_METADATA)
    return field


def _original(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column of a file in its original type."""
    if at.is_timestamp(field.type):
        return column.cast(pa.timestamp("us", field.type.tz))
    if field.metadata is not None and _TIME_METADATA.items() <= field.metadata.items():
        # Arrow parses a time of day only as part of a timestamp.
        moments = pc.binary_join_element_wise("1970-01-01", column, " ")
        return moments.cast(pa.timestamp("us")).cast(_TIME)
    return column


def _read_batches(
    path: Path, columns: Collection[str] | None, max_rows: int
) -> Iterator[pa.RecordBatch]:
    with path.open("rb") as file:
        reader = orc.ORCFile(file)
        fields = [field for field in reader.schema if columns is None or field.name in columns]
        names = [field.name for field in fields]
        for index in range(reader.nstripes):
            # Select afterwards: ORC interprets names as paths, whose parts are separated by dots.
            stripe = reader.read_stripe(index).select(names)
            for start in range(0, stripe.num_rows, max_rows):
                batch = stripe.slice(start, max_rows)
                arrays = list(map(_original, batch.columns, fields))
                yield pa.RecordBatch.from_arrays(arrays, names) if arrays else batch


def _unsupported_rows(batch: pa.RecordBatch, schema: pa.Schema) -> Mapping[int, str]:
    reasons: dict[int, str] = {}
    present = set(batch.schema.names)
    for field in schema:
        if not at.is_timestamp(field.type) or field.name not in present:
            continue
        microseconds = batch.column(field.name).cast(field.type).cast(pa.int64())
        fits = pc.and_(
            pc.greater_equal(microseconds, _MIN_MICROSECONDS),
            pc.less_equal(microseconds, _MAX_MICROSECONDS),
        )
        fits = pc.fill_null(fits, fill_value=True).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(~fits).tolist():
            text = _shown(microseconds[row].as_py())
            problem = f"column {field.name!r} holds {text}, which part files of ORC cannot hold"
            reasons.setdefault(row, f"{problem}: they hold 1677-09-22 to 2262-04-11")
    return reasons


def _shown(microseconds: int) -> str:
    return str(pa.scalar(microseconds, pa.timestamp("us")).cast(pa.string()).as_py())


CODEC = TableCodec(
    open_writer=_Writer,
    read_batches=_read_batches,
    unsupported_rows=_unsupported_rows,
)
