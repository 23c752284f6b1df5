"""Writes tables as JSON lines, column by column in Arrow, without a Python step per record."""

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.domain.record_rules import RESCUED, OnNonfinite
from batch_pipeline.domain.schema import Column, RecordSchema
from batch_pipeline.spark.chunks import Table
from batch_pipeline.spark.write.json_cells import (
    Cells,
    cells_of_json,
    cells_of_text,
    cells_of_values,
)
from batch_pipeline.spark.write.line_parts import Lines

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


def cells_of(table: Table, array: pa.Array, column: Column, on_nonfinite: OnNonfinite) -> Cells:
    """Write the values of a table's column as JSON."""
    if column.name in table.text:
        return cells_of_text(array, column)
    if column.name in table.json:
        return cells_of_json(array)
    return cells_of_values(array, on_nonfinite)


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
        cells = cells_of(table, array, column, on_nonfinite)
        if cells.text.null_count:
            parts += [pa.scalar(literal, _TEXT), cells.whole()]
            literal = ""
        else:
            parts += [pa.scalar(literal + cells.before, _TEXT), cells.text]
            literal = cells.after
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
