"""Records as lines of JSON text, and the writer of their part files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.encode.chunks import Table, TextLines
from batch_pipeline.encode.writers.json_cells import (
    JsonCells,
    encode_json_cells,
    encode_text_cells,
    encode_values,
)
from batch_pipeline.encode.writers.part_files import OpenPart, PartNames
from batch_pipeline.encode.writers.part_writer import Ends, PartWriter, start_of
from batch_pipeline.model.encoding import Compression
from batch_pipeline.model.record_rules import RESCUED, OnNonfinite
from batch_pipeline.model.schema import Column, RecordSchema
from batch_pipeline.model.stream import PartLimits
from batch_pipeline.storage.part_formats.jsonl import Compressor, new_compressor

_PIECE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Lines:
    """Complete lines: their text with line feeds, and the end of each line in it."""

    text: bytes | memoryview
    ends: Ends

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


def line_writer(
    names: PartNames, limits: PartLimits, compression: Compression, level: int | None = None
) -> PartWriter[Lines]:
    """Return a writer of lines; the limits apply to the size of their text."""

    def body(file: OpenPart) -> LineBody:
        return LineBody(file, new_compressor(compression, level))

    return PartWriter(names, limits, body)


class LineBody:
    """Lines of one part file.

    The compressor receives pieces of one size however lines arrive: its output depends on them.
    """

    def __init__(self, file: OpenPart, compressor: Compressor | None) -> None:
        self._file = file
        self._compressor = compressor
        self._buffer = bytearray()

    def add(self, lines: Lines) -> None:
        """Write lines in order, now or later."""
        text = memoryview(lines.text)
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

    def finish(self) -> None:
        """Write everything that is buffered."""
        self._compress(bytes(self._buffer))
        self._buffer.clear()
        if self._compressor is not None:
            self._file.write(self._compressor.flush())

    def drop(self) -> None:
        """Do nothing: the writer has no state outside of the file."""

    def _compress(self, piece: bytes | memoryview) -> None:
        self._file.write(piece if self._compressor is None else self._compressor.compress(piece))


_TEXT = pa.string()
_SLICE_BYTES = 32 * 2**20  # repeated names make JSON of short cells many times longer


def json_lines(table: Table, schema: RecordSchema, on_nonfinite: OnNonfinite) -> Iterator[Lines]:
    """Write each record as one JSON object with the columns of its table, in the schema's order.

    A value is written by what it is, text cells by the type of their column. A column of the schema
    that the table lacks is left out: one wide file must not make all other records as wide. Only
    the column of rescued values, which no file has, is null then.
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
        return encode_text_cells(array, column)
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
    return _lines_of(joined)


def _lines_of(joined: pa.StringArray) -> Lines:
    _, offsets, octets = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)[joined.offset + 1 : joined.offset + 1 + len(joined)]
    return Lines(memoryview(octets)[: int(ends[-1])], ends.astype(np.int64))
