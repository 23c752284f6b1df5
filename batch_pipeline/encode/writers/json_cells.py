"""Conversion of Arrow columns to JSON text, one text per cell."""

import binascii
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.encode.writers.part_writer import Ends
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import Column, ColumnType


def text_offsets(column: pa.StringArray) -> Ends:
    """Return the start of each text in the array's bytes, and at last the end of the last one."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)


# Validated text cells of these columns are JSON already.
_UNQUOTED_TYPES = frozenset(
    {ColumnType.BOOLEAN, ColumnType.INTEGER, ColumnType.DECIMAL, ColumnType.NUMBER}
)
_ESCAPES = {chr(code): f"\\u{code:04x}" for code in range(32)} | {
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    '"': '\\"',
}
_UNESCAPED_BYTES = bytes(set(range(256)) - {ord(char) for char in _ESCAPES} - {ord("\\")})
_TIME_SUFFIX_BYTES = 16  # of " 12:30:00.000001"


@dataclass(frozen=True, slots=True)
class JsonCells:
    """Values as JSON text, null where the value is null; each has the same prefix and suffix.

    They are kept apart because the writer of lines adds them to the text between two columns.
    """

    text: pa.StringArray
    prefix: str = ""
    suffix: str = ""

    def joined(self) -> pa.StringArray:
        """Return the values with prefix and suffix."""
        if not self.prefix and not self.suffix:
            return self.text
        prefix, suffix = pa.scalar(self.prefix), pa.scalar(self.suffix)
        return pc.binary_join_element_wise(prefix, self.text, suffix, pa.scalar(""))


def encode_text_cells(array: pa.StringArray, column: Column) -> JsonCells:
    """Encode text cells: unquoted where the column's type is so in JSON, else as strings."""
    if column.type in _UNQUOTED_TYPES:
        return JsonCells(array)
    return JsonCells(_escape(array), '"', '"')


def encode_json_cells(array: pa.StringArray) -> JsonCells:
    """Return JSON text as it is, with line ends, which JSON allows between values, as blanks."""
    octets = _text_bytes(array)
    for end in "\n\r":
        if (octets == ord(end)).any():
            array = pc.replace_substring(array, end, " ")
    return JsonCells(array)


def encode_values(array: pa.Array, on_nonfinite: OnNonfinite) -> JsonCells:
    """Encode typed values.

    Doubles have the fewest digits that parse to the same value, with a fraction or an exponent;
    decimals have all their digits. Times have six digits of fraction,
    instants end with `Z`; binary is base64.
    """
    kind = array.type
    if at.is_floating(kind):
        return JsonCells(_encode_floats(array, on_nonfinite))
    if at.is_binary(kind):
        return JsonCells(_encode_base64(array), '"', '"')
    if at.is_timestamp(kind):
        return JsonCells(_encode_timestamps(array), '"', '"' if kind.tz is None else 'Z"')
    if at.is_boolean(kind) or at.is_integer(kind) or at.is_decimal(kind):
        return JsonCells(array.cast(pa.string()))
    if at.is_date(kind) or at.is_time(kind):
        return JsonCells(array.cast(pa.string()), '"', '"')
    return JsonCells(_escape(array), '"', '"')


def values_as_text(array: pa.Array, on_nonfinite: OnNonfinite) -> pa.StringArray:
    """Encode typed values as text without quotes, for a column of strings."""
    if at.is_string(array.type):
        return array
    cells = encode_values(array, on_nonfinite)
    return JsonCells(cells.text, suffix=cells.suffix.removesuffix('"')).joined()


def _text_bytes(array: pa.StringArray) -> npt.NDArray[np.uint8]:
    octets = array.buffers()[2]
    if octets is None or not len(array):
        return np.empty(0, np.uint8)
    bounds = text_offsets(array)
    return np.frombuffer(octets, np.uint8)[bounds[0] : bounds[-1]]


def _escape(array: pa.StringArray) -> pa.StringArray:
    """Escape the characters that JSON does not allow in a string."""
    octets = _text_bytes(array)
    if not len(octets):
        return array
    if (octets == ord("\\")).any():
        array = pc.replace_substring(array, "\\", "\\\\")
    if (octets == ord('"')).any() or octets.min() < ord(" "):
        present = set(octets.tobytes().translate(None, _UNESCAPED_BYTES))
        for char, escape in _ESCAPES.items():
            if ord(char) in present:
                array = pc.replace_substring(array, char, escape)
    return array


def _encode_floats(array: pa.DoubleArray, on_nonfinite: OnNonfinite) -> pa.StringArray:
    text = array.cast(pa.string())
    numbers = array.to_numpy(zero_copy_only=False)  # null is NaN
    finite = np.isfinite(numbers)
    whole = finite & (numbers == np.floor(numbers))
    if whole.any():
        needs_fraction = pc.and_not(pa.array(whole), pc.match_substring(text, "e"))
        with_fraction = pc.binary_join_element_wise(text, pa.scalar(".0"), pa.scalar(""))
        text = pc.if_else(needs_fraction, with_fraction, text)
    if int(finite.sum()) == len(array) - array.null_count:
        return text
    match on_nonfinite:
        case OnNonfinite.STRING:
            names = pc.if_else(pc.is_nan(array), '"NaN"', '"Infinity"')
            names = pc.if_else(pc.less(array, 0), '"-Infinity"', names)
            return pc.if_else(pc.is_finite(array), text, names)
        case OnNonfinite.NULL | OnNonfinite.QUARANTINE:
            return pc.if_else(pc.is_finite(array), text, None)
        case _:
            assert_never(on_nonfinite)


def _encode_base64(array: pa.BinaryArray) -> pa.StringArray:
    encode = binascii.b2a_base64
    values = [
        None if value is None else encode(value, newline=False) for value in array.to_pylist()
    ]
    return pa.array(values, pa.binary()).cast(pa.string())


def _encode_timestamps(array: pa.TimestampArray) -> pa.StringArray:
    text = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.timestamp("us")).cast(pa.string())
    validity, offsets, octets = text.buffers()
    bounds = text_offsets(text)
    ends = bounds[1:][np.diff(bounds) > 0]
    # Arrow writes a blank between date and time.
    changed = np.frombuffer(octets or b"", np.uint8).copy()
    changed[ends - _TIME_SUFFIX_BYTES] = ord("T")
    buffers = [validity, offsets, pa.py_buffer(changed)]
    return pa.Array.from_buffers(pa.string(), len(text), buffers, text.null_count, text.offset)
