"""Arrays without left-overs: below nulls are zeros, and nothing is there of what was sliced off.

Arrow IPC writes arrays as they lie in memory, where other values may have been before.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.spark.write.table_rows import bounds_of


def settled(column: pa.Array) -> pa.Array:
    """Give an array of the same values whose bytes follow from these alone."""
    if at.is_boolean(column.type):
        buffers = [_bits(pc.fill_null(column, False))]  # noqa: FBT003 - Arrow's argument
    elif at.is_string(column.type) or at.is_binary(column.type):
        buffers = _texts(column)
    else:
        buffers = [_fixed(column)]
    validity = _bits(column.is_valid()) if column.null_count else None
    return pa.Array.from_buffers(
        column.type, len(column), [validity, *buffers], null_count=column.null_count
    )


def _texts(column: pa.StringArray) -> list[pa.Buffer]:
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(b"", pa.binary()).cast(column.type))
    bounds = bounds_of(column)
    offsets = pa.py_buffer((bounds - bounds[0]).astype(np.int32))
    octets = column.buffers()[2] or pa.py_buffer(b"")
    return [offsets, octets.slice(bounds[0], bounds[-1] - bounds[0])]


def _fixed(column: pa.Array) -> pa.Buffer:
    width = column.type.bit_width // 8
    octets = column.buffers()[1].slice(column.offset * width, len(column) * width)
    if not column.null_count:
        return octets
    rows = np.frombuffer(octets, np.uint8)
    values: npt.NDArray[np.uint8] = rows.reshape(len(column), width).copy()
    values[_mask(column.is_null())] = 0
    return pa.py_buffer(values)


def _bits(column: pa.BooleanArray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(_mask(column), bitorder="little"))


def _mask(column: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return mask
