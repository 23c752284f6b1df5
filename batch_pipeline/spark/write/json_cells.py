"""The JSON text of the values of one column, in Arrow, without a Python step per value.

Values are written exactly; which columns a line has is known elsewhere.
"""

import binascii
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.spark.write.table_rows import bounds_of

# Text cells of these columns are JSON as they stand; their form was checked before.
_BARE_TEXT = frozenset(
    {ColumnType.BOOLEAN, ColumnType.INTEGER, ColumnType.DECIMAL, ColumnType.NUMBER}
)
_ESCAPED = {chr(code): f"\\u{code:04x}" for code in range(32)} | {
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    '"': '\\"',
}
_HARMLESS = bytes(set(range(256)) - {ord(char) for char in _ESCAPED} - {ord("\\")})
_CLOCK_BYTES = 16  # of " 12:30:00.000001"


@dataclass(frozen=True, slots=True)
class Cells:
    """Values as JSON text, null where they are null; each stands between the same two marks."""

    text: pa.StringArray
    before: str = ""
    after: str = ""

    def whole(self) -> pa.StringArray:
        """Give the values with their marks."""
        if not self.before and not self.after:
            return self.text
        marks = pa.scalar(self.before), pa.scalar(self.after)
        return pc.binary_join_element_wise(marks[0], self.text, marks[1], pa.scalar(""))


def cells_of_text(array: pa.StringArray, column: Column) -> Cells:
    """Write text cells: bare where the column's values are in JSON, else as strings."""
    if column.type in _BARE_TEXT:
        return Cells(array)
    return Cells(_escaped(array), '"', '"')


def cells_of_json(array: pa.StringArray) -> Cells:
    """Take over JSON text; line ends, which JSON allows between values, become blanks."""
    octets = _octets(array)
    for end in "\n\r":
        if (octets == ord(end)).any():
            array = pc.replace_substring(array, end, " ")
    return Cells(array)


def cells_of_values(array: pa.Array, on_nonfinite: OnNonfinite) -> Cells:
    """Write typed values.

    Doubles are as short as reads back the same, with a fraction or an exponent; decimals have all
    their digits. Times have six digits of fraction, instants end with `Z`; binary is base64.
    """
    kind = array.type
    if at.is_floating(kind):
        return Cells(_floats(array, on_nonfinite))
    if at.is_binary(kind):
        return Cells(_base64(array), '"', '"')
    if at.is_timestamp(kind):
        return Cells(_times(array), '"', '"' if kind.tz is None else 'Z"')
    if at.is_boolean(kind) or at.is_integer(kind) or at.is_decimal(kind):
        return Cells(array.cast(pa.string()))
    if at.is_date(kind) or at.is_time(kind):
        return Cells(array.cast(pa.string()), '"', '"')
    return Cells(_escaped(array), '"', '"')


def text_of_values(array: pa.Array, on_nonfinite: OnNonfinite) -> pa.StringArray:
    """Write typed values as text without quotes, for a column that also holds other text."""
    if at.is_string(array.type):
        return array
    cells = cells_of_values(array, on_nonfinite)
    return Cells(cells.text, after=cells.after.removesuffix('"')).whole()


def _octets(array: pa.StringArray) -> npt.NDArray[np.uint8]:
    octets = array.buffers()[2]
    if octets is None or not len(array):
        return np.empty(0, np.uint8)
    bounds = bounds_of(array)
    return np.frombuffer(octets, np.uint8)[bounds[0] : bounds[-1]]


def _escaped(array: pa.StringArray) -> pa.StringArray:
    """Escape what JSON does not allow inside of a string."""
    octets = _octets(array)
    if not len(octets):
        return array
    if (octets == ord("\\")).any():
        array = pc.replace_substring(array, "\\", "\\\\")
    if (octets == ord('"')).any() or octets.min() < ord(" "):
        strange = set(octets.tobytes().translate(None, _HARMLESS))
        for char, written in _ESCAPED.items():
            if ord(char) in strange:
                array = pc.replace_substring(array, char, written)
    return array


def _floats(array: pa.DoubleArray, on_nonfinite: OnNonfinite) -> pa.StringArray:
    text = array.cast(pa.string())
    numbers = array.to_numpy(zero_copy_only=False)  # null is NaN
    finite = np.isfinite(numbers)
    whole = finite & (numbers == np.floor(numbers))
    if whole.any():
        lacks_fraction = pc.and_not(pa.array(whole), pc.match_substring(text, "e"))
        dotted = pc.binary_join_element_wise(text, pa.scalar(".0"), pa.scalar(""))
        text = pc.if_else(lacks_fraction, dotted, text)
    if int(finite.sum()) == len(array) - array.null_count:
        return text
    match on_nonfinite:
        case OnNonfinite.STRING:
            named = pc.if_else(pc.is_nan(array), '"NaN"', '"Infinity"')
            named = pc.if_else(pc.less(array, 0), '"-Infinity"', named)
            return pc.if_else(pc.is_finite(array), text, named)
        case OnNonfinite.NULL | OnNonfinite.QUARANTINE:  # none is left of those set aside
            return pc.if_else(pc.is_finite(array), text, None)
        case _:
            assert_never(on_nonfinite)


def _base64(array: pa.BinaryArray) -> pa.StringArray:
    encode = binascii.b2a_base64
    values = [None if one is None else encode(one, newline=False) for one in array.to_pylist()]
    return pa.array(values, pa.binary()).cast(pa.string())


def _times(array: pa.TimestampArray) -> pa.StringArray:
    text = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.timestamp("us")).cast(pa.string())
    validity, offsets, octets = text.buffers()
    bounds = bounds_of(text)
    ends = bounds[1:][np.diff(bounds) > 0]
    # Arrow writes a blank between date and clock.
    changed = np.frombuffer(octets or b"", np.uint8).copy()
    changed[ends - _CLOCK_BYTES] = ord("T")
    buffers = [validity, offsets, pa.py_buffer(changed)]
    return pa.Array.from_buffers(pa.string(), len(text), buffers, text.null_count, text.offset)
