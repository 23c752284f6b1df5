"""Writes text cells as JSON lines, column by column in Arrow, without a Python step per record."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.domain.schema import ColumnType, RecordSchema

_NAMES_PER_SLICE_BYTES = 32 * 2**20  # repeated names make JSON of short cells many times longer
_ESCAPED = {chr(code): f"\\u{code:04x}" for code in range(32)} | {
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    '"': '\\"',
}
_HARMLESS = bytes(set(range(256)) - {ord(char) for char in _ESCAPED} - {ord("\\")})


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines: their text, each with its line feed, and where each one ends in it."""

    text: bytes | memoryview
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, records: list[bytes]) -> "Lines":
        """Join records, which have no line feed."""
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        return cls(b"\n".join([*records, b""]), np.cumsum(sizes + 1))


def json_lines(cells: pa.RecordBatch, schema: RecordSchema) -> Iterator[Lines]:
    """Write each record as one JSON object with all columns of the schema, in its order.

    Cells of integer and number columns are written as they stand; their form was checked before.
    A column that the cells lack is null.
    """
    names_bytes = sum(len(name) + 8 for name in schema.names)
    step = max(1, _NAMES_PER_SLICE_BYTES // (names_bytes + 1))
    for start in range(0, cells.num_rows, step):
        yield _lines(cells.slice(start, step), schema)


def quoted(column: pa.StringArray) -> pa.StringArray:
    """Write each cell as a JSON string; nulls stay null."""
    mark = pa.scalar('"')
    return pc.binary_join_element_wise(mark, escaped(column), mark, pa.scalar(""))


def escaped(column: pa.StringArray) -> pa.StringArray:
    """Escape what JSON does not allow inside of a string."""
    octets = column.buffers()[2]
    strange = set((octets.to_pybytes() if octets else b"").translate(None, _HARMLESS))
    if ord("\\") in strange:
        column = pc.replace_substring(column, "\\", "\\\\")
    for char, written in _ESCAPED.items():
        if ord(char) in strange:
            column = pc.replace_substring(column, char, written)
    return column


def _lines(cells: pa.RecordBatch, schema: RecordSchema) -> Lines:
    present = set(cells.schema.names)
    parts: list[pa.Scalar | pa.StringArray] = []
    literal = "{"
    for number, column in enumerate(schema.columns):
        literal += f"{',' * (number > 0)}{json.dumps(column.name, ensure_ascii=False)}:"
        values = cells.column(column.name) if column.name in present else None
        if values is None or values.null_count == len(values):
            literal += "null"
        elif column.type in (ColumnType.INTEGER, ColumnType.NUMBER):
            parts += [pa.scalar(literal), values]
            literal = ""
        elif values.null_count:
            parts += [pa.scalar(literal), quoted(values)]
            literal = ""
        else:
            parts += [pa.scalar(literal + '"'), escaped(values)]
            literal = '"'
    literal += "}\n"
    if not parts:
        return Lines.of([literal.rstrip("\n").encode()] * cells.num_rows)
    joined = pc.binary_join_element_wise(
        *parts, pa.scalar(literal), "", null_handling="replace", null_replacement="null"
    )
    return _lines_of(joined)


def _lines_of(joined: pa.StringArray) -> Lines:
    _, offsets, octets = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)[joined.offset + 1 : joined.offset + 1 + len(joined)]
    return Lines(memoryview(octets)[: int(ends[-1])], ends.astype(np.int64))
