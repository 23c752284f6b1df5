"""Values of Arrow arrays as fields of Postgres' binary COPY, a whole column at a time.

A field is the length of its value in four bytes, then the value; -1 and nothing for null. Which
column is written as which type is decided elsewhere.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Pieces = list[pa.BinaryArray | pa.BinaryScalar]

NULL = pa.scalar(b"\xff\xff\xff\xff", pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())
_JSONB_VERSION = pa.scalar(b"\x01", pa.binary())
_DAYS_TO_2000 = 10_957
_MICROSECONDS_TO_2000 = 946_684_800_000_000
_DIGIT_VALUES = np.array([1000, 100, 10, 1], np.int16)  # numerics have four digits in two bytes
_NEGATIVE = 0x4000
_SPECIAL = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}


def rows_of(pieces: Sequence[pa.BinaryArray | pa.BinaryScalar]) -> memoryview:
    """Give the bytes of all rows: the pieces of the first row, then those of the second."""
    rows = pc.binary_join_element_wise(*pieces, _NOTHING)
    offsets = np.frombuffer(rows.buffers()[1], np.int32)
    return memoryview(rows.buffers()[2])[: int(offsets[len(rows)])]


def constant(value: bytes | None) -> pa.BinaryScalar:
    """Give the field of a value that all rows have."""
    return NULL if value is None else pa.scalar(len(value).to_bytes(4) + value, pa.binary())


def integers(array: pa.Int64Array) -> Pieces:
    """Write bigint."""
    return _fixed(array, _numbers(array, np.int64).astype(">i8"))


def doubles(array: pa.DoubleArray) -> Pieces:
    """Write double precision."""
    return _fixed(array, _numbers(array, np.float64).astype(">f8"))


def booleans(array: pa.BooleanArray) -> Pieces:
    """Write boolean."""
    return _fixed(array, _numbers(array.cast(pa.uint8()), np.uint8))


def dates(array: pa.Date32Array) -> Pieces:
    """Write date."""
    days = _numbers(array.view(pa.int32()), np.int32) - np.int32(_DAYS_TO_2000)
    return _fixed(array, days.astype(">i4"))


def times(array: pa.Time64Array) -> Pieces:
    """Write time, from microseconds since midnight."""
    return _fixed(array, _numbers(array.view(pa.int64()), np.int64).astype(">i8"))


def timestamps(array: pa.TimestampArray) -> Pieces:
    """Write timestamp or timestamptz, from microseconds."""
    since_1970 = _numbers(array.view(pa.int64()), np.int64)
    return _fixed(array, (since_1970 - _MICROSECONDS_TO_2000).astype(">i8"))


def texts(array: pa.StringArray | pa.BinaryArray) -> Pieces:
    """Write text or bytea."""
    if array.null_count:
        lengths = pc.fill_null(pc.binary_length(array), -1).to_numpy()
        array = pc.fill_null(array, b"" if pa.types.is_binary(array.type) else "")
    else:
        offsets = np.frombuffer(array.buffers()[1], np.int32)
        lengths = np.diff(offsets[array.offset : array.offset + len(array) + 1])
    return [_of_width(lengths.astype(">i4"), 4), array.view(pa.binary())]


def jsonb(array: pa.StringArray) -> Pieces:
    """Write jsonb, from JSON text."""
    lengths = (pc.fill_null(pc.binary_length(array), 0).to_numpy() + 1).astype(">i4")
    pieces: Pieces = [_of_width(lengths, 4), _JSONB_VERSION, array.view(pa.binary())]
    if not array.null_count:
        return pieces
    pieces[2] = pc.fill_null(pieces[2], b"")
    whole = pc.binary_join_element_wise(*pieces, _NOTHING)
    return [pc.if_else(array.is_valid(), whole, NULL)]


def numerics(array: pa.Decimal128Array) -> Pieces:
    """Write numeric: decimal digits in groups of four on either side of the point."""
    precision, scale = array.type.precision, array.type.scale
    behind = -(-scale // 4)
    before = -(-(precision - scale) // 4)
    groups = before + behind
    # The same 16 bytes as integers: their text has neither a point nor an exponent.
    buffers = array.buffers()
    kind = pa.decimal128(38, 0)
    whole = pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset)
    digits = pc.fill_null(whole.cast(pa.string()), "0")
    is_negative = pc.starts_with(digits, "-").to_numpy(zero_copy_only=False)
    digits = pc.utf8_ltrim(digits, "-")
    digits = pc.binary_join_element_wise(digits, "0" * (behind * 4 - scale), "")
    digits = pc.ascii_lpad(digits, groups * 4, "0")
    octets = np.frombuffer(digits.buffers()[2], np.uint8, len(array) * groups * 4)
    values = (octets.reshape(len(array), groups, 4) - ord("0")).astype(np.int16) @ _DIGIT_VALUES
    fields = np.empty((len(array), 4 + groups), np.int16)
    fields[:, 0] = groups
    fields[:, 1] = before - 1
    fields[:, 2] = np.where(is_negative, _NEGATIVE, 0)
    fields[:, 3] = scale
    fields[:, 4:] = values
    return _fixed(array, fields.astype(">i2"))


def numerics_of_doubles(array: pa.DoubleArray) -> Pieces:
    """Write doubles as numeric: the shortest digits that read back the same, NaN and infinities."""
    values = (None if one is None else numeric(Decimal(repr(one))) for one in array.to_pylist())
    return texts(pa.array(values, pa.binary()))


def numeric(value: Decimal) -> bytes:
    """Give the bytes of one numeric."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        special = _SPECIAL[str(value)]
        return b"\0\0\0\0" + special.to_bytes(2) + b"\0\0"
    scale = max(-exponent, 0)
    text = "".join(map(str, digits)) + "0" * max(exponent, 0) + "0" * (-scale % 4)
    text = "0" * (-len(text) % 4) + text
    groups = [int(text[place : place + 4]) for place in range(0, len(text), 4)]
    weight = len(groups) - 1 - -(-scale // 4)
    parts = [len(groups), weight, _NEGATIVE if sign else 0, scale, *groups]
    return b"".join(part.to_bytes(2, signed=part < 0) for part in parts)


def _numbers(array: pa.Array, kind: type[np.generic]) -> npt.NDArray[Any]:
    """Give the values of a primitive array, anything where they are null."""
    width = np.dtype(kind).itemsize
    octets = array.buffers()[1]
    if octets is None:
        return np.zeros(len(array), kind)
    return np.frombuffer(octets, kind, len(array), array.offset * width)


def _fixed(array: pa.Array, values: npt.NDArray[np.generic]) -> Pieces:
    count = len(array)
    octets = values.view(np.uint8).reshape(count, -1)
    width = octets.shape[1]
    fields = np.empty((count, 4 + width), np.uint8)
    fields[:, :4] = np.frombuffer(width.to_bytes(4), np.uint8)
    fields[:, 4:] = octets
    whole = _of_width(fields, 4 + width)
    return [pc.if_else(array.is_valid(), whole, NULL) if array.null_count else whole]


def _of_width(octets: npt.NDArray[np.generic], width: int) -> pa.BinaryArray:
    count = len(octets)
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(octets))]
    )
