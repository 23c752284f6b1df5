"""Records as lines of JSON text, and the writer of their part files."""

import binascii
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.encode.arrow_types import text_offsets
from batch_pipeline.encode.chunks import Octets, Offsets, Table, TextLines
from batch_pipeline.encode.writers.part_writer import (
    OpenPart,
    PartNames,
    PartWriter,
    start_of,
)
from batch_pipeline.model.encoding import Compression
from batch_pipeline.model.record_rules import RESCUED, OnNonfinite
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.model.stream import PartLimits
from batch_pipeline.storage.part_formats.jsonl import new_compressor

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

    Prefix and suffix are separate because the line writer adds them to the text between columns.
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


def _strings(text: pa.StringArray) -> JsonCells:
    return JsonCells(text, '"', '"')


def encode_json_cells(array: pa.StringArray) -> JsonCells:
    """Return JSON text with blanks instead of line ends, which JSON allows between values."""
    octets = _text_bytes(array)
    for end in "\n\r":
        if (octets == ord(end)).any():
            array = pc.replace_substring(array, end, " ")
    return JsonCells(array)


def encode_values(array: pa.Array, on_nonfinite: OnNonfinite) -> JsonCells:
    """Encode typed values.

    Doubles have the fewest digits that parse to the same value, with a fraction or an exponent;
    decimals have all their digits. Times have six fractional digits,
    timestamps with a zone end with `Z`; binary is base64.
    """
    kind = array.type
    if at.is_floating(kind):
        return JsonCells(_encode_floats(array, on_nonfinite))
    if at.is_binary(kind):
        return _strings(_encode_base64(array))
    if at.is_timestamp(kind):
        return JsonCells(_encode_timestamps(array), '"', '"' if kind.tz is None else 'Z"')
    if at.is_boolean(kind) or at.is_integer(kind) or at.is_decimal(kind):
        return JsonCells(array.cast(pa.string()))
    if at.is_date(kind) or at.is_time(kind):
        return _strings(array.cast(pa.string()))
    return _strings(_escape(array))


def _text_bytes(array: pa.StringArray) -> Octets:
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


@dataclass(frozen=True, slots=True)
class Lines:
    """Complete lines: their text with line feeds, and the end of each line in it."""

    text: bytes | memoryview
    ends: Offsets

    @classmethod
    def of(cls, records: Sequence[bytes]) -> "Lines":
        """Join records, which have no line feeds."""
        if isinstance(records, TextLines):
            return cls(memoryview(records.text)[: records.size_bytes], records.ends)
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        return cls(b"\n".join([*records, b""]), np.cumsum(sizes + 1))

    def between(self, first: int, stop: int) -> "Lines":
        """Return the lines from `first` up to, not including, `stop`."""
        if first == 0 and stop == len(self.ends):
            return self
        start = start_of(self.ends, first)
        text = memoryview(self.text)[start : int(self.ends[stop - 1])]
        return Lines(text, self.ends[first:stop] - start)


_PIECE_BYTES = 2**20


class LineWriter(PartWriter[Lines]):
    """A writer of lines; the limits apply to the size of their text.

    The compressor receives pieces of a fixed size, because its output depends on the pieces.
    """

    def __init__(
        self,
        names: PartNames,
        limits: PartLimits,
        compression: Compression,
        level: int | None = None,
    ) -> None:
        super().__init__(names, limits)
        self._compression = compression
        self._level = level

    def _start(self, file: OpenPart) -> None:
        self._file = file
        self._compressor = new_compressor(self._compression, self._level)
        self._buffer = bytearray()

    def _add(self, piece: Lines) -> None:
        text = memoryview(piece.text)
        while len(self._buffer) + len(text) >= _PIECE_BYTES:
            taken = _PIECE_BYTES - len(self._buffer)
            if self._buffer:
                self._buffer += text[:taken]
                self._compress(bytes(self._buffer))
                self._buffer.clear()
            else:
                self._compress(text[:taken])
            text = text[taken:]
        self._buffer += text

    def _finish(self) -> None:
        self._compress(bytes(self._buffer))
        self._buffer.clear()
        if self._compressor is not None:
            self._file.write(self._compressor.flush())

    def _compress(self, piece: bytes | memoryview) -> None:
        self._file.write(piece if self._compressor is None else self._compressor.compress(piece))


_TEXT = pa.string()
_SLICE_BYTES = 32 * 2**20  # repeated names make the JSON of short cells many times larger


def json_lines(table: Table, schema: RecordSchema, on_nonfinite: OnNonfinite) -> Iterator[Lines]:
    """Write each record as one JSON object with the columns of its table, in the schema's order.

    A typed value is written according to its own type, a text cell according to the type of its
    column. A column of the schema that the table lacks is omitted: one wide file must not make all
    other records as wide. Only the column of rescued values, which no file has, is written as null.
    """
    if not table.good:
        return
    present = {*table.batch.schema.names, RESCUED}
    columns = [column for column in schema.columns if column.name in present]
    names_bytes = sum(len(column.name) + 8 for column in columns)
    step = max(1, _SLICE_BYTES // (names_bytes + table.batch.nbytes // table.good + 1))
    for start in range(0, table.good, step):
        yield _lines(table, table.batch.slice(start, step), columns, on_nonfinite)


def encode_column(
    table: Table, array: pa.Array, column: Column, on_nonfinite: OnNonfinite
) -> JsonCells:
    """Write the values of a table's column as JSON."""
    if column.name in table.text:
        is_quoted = column.type not in _UNQUOTED_TYPES
        return _strings(_escape(array)) if is_quoted else JsonCells(array)
    if column.name in table.json:
        return encode_json_cells(array)
    return encode_values(array, on_nonfinite)


def _lines(
    table: Table, batch: pa.RecordBatch, columns: Sequence[Column], on_nonfinite: OnNonfinite
) -> Lines:
    present = {name: index for index, name in enumerate(batch.schema.names)}
    parts: list[pa.Scalar | pa.StringArray] = []
    literal = "{"
    for number, column in enumerate(columns):
        literal += f"{',' * (number > 0)}{json.dumps(column.name, ensure_ascii=False)}:"
        index = present.get(column.name)
        array = None if index is None else batch.column(index)
        if array is None or array.null_count == batch.num_rows:
            literal += "null"
            continue
        cells = encode_column(table, array, column, on_nonfinite)
        if cells.text.null_count:
            parts += [pa.scalar(literal, _TEXT), cells.joined()]
            literal = ""
        else:
            parts += [pa.scalar(literal + cells.prefix, _TEXT), cells.text]
            literal = cells.suffix
    literal += "}\n"
    if not parts:
        return Lines.of([literal.rstrip("\n").encode()] * batch.num_rows)
    joined = pc.binary_join_element_wise(
        *parts, pa.scalar(literal, _TEXT), "", null_handling="replace", null_replacement="null"
    )
    ends = text_offsets(joined)[1:].astype(np.int64)
    return Lines(memoryview(joined.buffers()[2])[: int(ends[-1])], ends)
