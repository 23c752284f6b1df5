"""Part files of Arrow IPC: a magic word, record batches, and a list of the batches at the end."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.model.encoding import FASTEST_LEVEL, Compression, Encoding
from batch_pipeline.storage.part_formats import TableCodec


class _Writer:
    def __init__(self, file: Any, first: pa.Table, encoding: Encoding) -> None:
        codec = None
        if encoding.compression is Compression.ZSTD:
            codec = pa.Codec("zstd", encoding.level or FASTEST_LEVEL)
        self._writer = pa.ipc.new_file(
            file, first.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
        )

    def write(self, table: pa.Table) -> None:
        columns = [normalize_nulls(column.chunk(0)) for column in table.columns]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=table.schema), table.num_rows)

    def close(self) -> None:
        self._writer.close()


def _read_batches(
    path: Path, columns: Collection[str] | None, max_rows: int
) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        names = [name for name in reader.schema.names if columns is None or name in columns]
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index).select(names)
            for start in range(0, batch.num_rows, max_rows):
                yield batch.slice(start, max_rows)


def normalize_nulls(column: pa.Array) -> pa.Array:
    """Return an array of the same values whose bytes depend only on these values.

    Arrow writes buffers unchanged: memory contents under nulls, and before or after a slice, would
    be in the file, so the same records would not always produce the same bytes.
    """
    if at.is_boolean(column.type):
        buffers = [_packed_bits(pc.fill_null(column, False))]  # noqa: FBT003 - Arrow's argument
    elif at.is_string(column.type) or at.is_binary(column.type):
        buffers = _text_buffers(column)
    else:
        buffers = [_fixed_width_buffer(column)]
    validity = _packed_bits(column.is_valid()) if column.null_count else None
    return pa.Array.from_buffers(
        column.type, len(column), [validity, *buffers], null_count=column.null_count
    )


def _text_buffers(column: pa.StringArray) -> list[pa.Buffer]:
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(b"", pa.binary()).cast(column.type))
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1]
    octets = column.buffers()[2] or pa.py_buffer(b"")
    start, stop = int(offsets[0]), int(offsets[-1])
    return [pa.py_buffer(offsets - offsets[0]), octets.slice(start, stop - start)]


def _fixed_width_buffer(column: pa.Array) -> pa.Buffer:
    width = column.type.bit_width // 8
    octets = column.buffers()[1].slice(column.offset * width, len(column) * width)
    if not column.null_count:
        return octets
    rows = np.frombuffer(octets, np.uint8)
    values: npt.NDArray[np.uint8] = rows.reshape(len(column), width).copy()
    values[_mask(column.is_null())] = 0
    return pa.py_buffer(values)


def _packed_bits(column: pa.BooleanArray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(_mask(column), bitorder="little"))


def _mask(column: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return mask


CODEC = TableCodec(
    open_writer=_Writer,
    read_batches=_read_batches,
    # Readers that know Arrow's JSON extension, among them the Singer SDK, decode such text.
    json_metadata={"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""},
)
