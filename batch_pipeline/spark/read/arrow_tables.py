"""Makes tables out of record batches of any Arrow types, and sets aside the rows that do not fit.

What the batches come from, a file or a stream, is for the readers to know.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from batch_pipeline.domain.record_rules import OnNonfinite, ReadLimits
from batch_pipeline.domain.schema import Column, name_fault
from batch_pipeline.spark.arrow_types import JSON_TYPES, ArrowTypeUnknownError, column_of
from batch_pipeline.spark.chunks import BadText, Table
from batch_pipeline.spark.json_values import json_text
from batch_pipeline.spark.read.arrow_values import Fitted, MisfitError, fitted
from batch_pipeline.spark.read.nested_values import check_nested, json_texts, python_values

Misfits = Mapping[int, tuple[str, MisfitError]]  # by row: the column, and what is wrong


def columns_of(schema: pa.Schema, limits: ReadLimits) -> tuple[Column, ...]:
    """Give the columns that hold the values of a file.

    Raises:
        ArrowTypeUnknownError: a column's values cannot all be told; the text says which and why.
    """
    if len(schema) > limits.max_columns:
        limit = f"`read_limits.max_columns` allows ({limits.max_columns})"
        raise ArrowTypeUnknownError(f"has {len(schema)} columns, more than {limit}")
    if not len(schema):
        raise ArrowTypeUnknownError("has no columns")
    seen: set[str] = set()
    columns: list[Column] = []
    for name, arrow_type in zip(schema.names, schema.types, strict=True):
        if name in seen:
            raise ArrowTypeUnknownError(f"column {name!r} is there twice")
        if fault := name_fault(name):
            raise ArrowTypeUnknownError(f"column {name!r}: {fault}")
        seen.add(name)
        check_nested(name, arrow_type)
        columns.append(column_of(name, arrow_type))
    return tuple(columns)


def table_of(
    batch: pa.RecordBatch,
    columns: Sequence[Column],
    on_nonfinite: OnNonfinite,
    first_number: int,
    known: Misfits,
) -> Table:
    """Bring the values into the types of the columns; the first row has the number given.

    Rows in `known` are set aside for what is known about them already.
    """
    misfits = dict(known)
    arrays: list[pa.Array] = []
    for column, array in zip(columns, batch.columns, strict=True):
        done = _converted(array, column, on_nonfinite)
        arrays.append(done.array)
        for row, misfit in done.misfits.items():
            misfits.setdefault(row, (column.name, misfit))
    names = [column.name for column in columns]
    converted = pa.RecordBatch.from_arrays(arrays, names)
    numbers: Sequence[int] = range(first_number, first_number + batch.num_rows)
    bad: list[BadText] = []
    if misfits:
        for row in sorted(misfits):
            name, misfit = misfits[row]
            raw = _raw(batch, columns, row, misfits[row])
            bad.append(BadText(line=numbers[row], reason=f"column {name!r} {misfit}", raw=raw))
        good = [row for row in range(batch.num_rows) if row not in misfits]
        converted = converted.take(pa.array(good, pa.int64()))
        numbers = [first_number + row for row in good]
    return Table(
        batch=converted,
        places=numbers,
        numbers=numbers,
        json=frozenset(column.name for column in columns if column.type in JSON_TYPES),
        bad=tuple(bad),
    )


def _converted(array: pa.Array, column: Column, on_nonfinite: OnNonfinite) -> Fitted:
    if column.type in JSON_TYPES:
        return json_texts(array, on_nonfinite)
    return fitted(array, column)


def _raw(
    batch: pa.RecordBatch, columns: Sequence[Column], row: int, misfit: tuple[str, MisfitError]
) -> bytes:
    """Write a row that was set aside as JSON, as far as JSON can say what it holds."""
    record: dict[str, Any] = {}
    for column, array in zip(columns, batch.columns, strict=True):
        single = array[row : row + 1]
        value = misfit[1].shown if column.name == misfit[0] else python_values(single)[0]
        try:
            json_text(value, OnNonfinite.STRING)
        except MisfitError as error:
            value = error.shown
        record[column.name] = value
    return json_text(record, OnNonfinite.STRING)
