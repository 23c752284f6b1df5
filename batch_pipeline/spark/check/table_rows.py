"""Sets aside or rescues single rows of tables; which rows these are is known by the check."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.domain.record_rules import RESCUED, OnNonfinite
from batch_pipeline.spark.chunks import BadText, Table
from batch_pipeline.spark.json_values import json_text, nonfinite_text

Rescued = dict[int, dict[str, bytes]]  # by row: the JSON text of values by their names


def without_nonfinite(table: Table, names: Iterable[str]) -> Table:
    """Set aside the rows with NaN or an infinity in one of the columns of doubles."""
    reasons: dict[int, str] = {}
    for name in names:
        column = table.batch.column(name)
        finite = pc.fill_null(pc.is_finite(column), fill_value=True)
        if pc.all(finite).as_py():
            continue
        for row in np.flatnonzero(~finite.to_numpy(zero_copy_only=False)).tolist():
            found = nonfinite_text(column[row].as_py())
            reasons.setdefault(row, f"column {name!r} holds {found}, which JSON cannot say")
    if not reasons:
        return table
    bad = tuple(
        BadText(line=table.places[row], reason=reasons[row], raw=_raw(table.batch, row))
        for row in sorted(reasons)
    )
    good = [row for row in range(table.good) if row not in reasons]
    return replace(
        table,
        batch=table.batch.take(pa.array(good, pa.int64())),
        places=[table.places[row] for row in good],
        numbers=[table.numbers[row] for row in good],
        bad=(*table.bad, *bad),
    )


def rescue(table: Table, name: str, rows: Iterable[int], into: Rescued) -> None:
    """Keep the values, nulls left out, of some rows of a column as JSON."""
    column = table.batch.column(name)
    for row in rows:
        value = column[row].as_py()
        if value is not None:
            is_json = name in table.json
            text = value.encode() if is_json else json_text(value, OnNonfinite.STRING)
            into.setdefault(row, {})[name] = text


def rescued_column(
    rescued: Mapping[int, Mapping[str, bytes]], before: pa.StringArray | None, rows: int
) -> pa.StringArray:
    """Give the column of rescued values, with those that the records came with."""
    texts = [None] * rows if before is None else before.cast(pa.string()).to_pylist()
    for row, values in rescued.items():
        fields = {name: msgspec.Raw(text) for name, text in values.items()}
        if texts[row] is not None:
            fields[RESCUED] = msgspec.Raw(msgspec.json.encode(texts[row]))
        texts[row] = msgspec.json.encode(fields).decode()
    return pa.array(texts, pa.string())


def nulled(array: pa.Array, rows: Iterable[int]) -> pa.Array:
    """Give the array with nulls in some rows."""
    keep = np.ones(len(array), np.bool_)
    keep[list(rows)] = False
    return pc.if_else(pa.array(keep), array, pa.scalar(None, array.type))


def _raw(batch: pa.RecordBatch, row: int) -> bytes:
    return json_text(batch.slice(row, 1).to_pylist()[0], OnNonfinite.STRING)
