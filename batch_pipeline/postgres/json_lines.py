"""JSON lines of part files as Arrow batches with the types of the schema.

Arrow's own reader takes what it can, msgspec's what holds objects and arrays, and a careful one
finds out what is wrong with the rest; all give the same: see the tests. Files are opened elsewhere.
"""

import re
from contextlib import suppress
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at
from pyarrow import json

from batch_pipeline.domain.schema import MAX_PRECISION, Column, ColumnType, RecordSchema
from batch_pipeline.postgres.cells import JSON_TYPES, UnfitCellError, arrow_type_of
from batch_pipeline.postgres.json_values import (
    KEPT_AS_TEXT,
    SAID_IN_TEXT,
    UNREADABLE,
    Raws,
    of_raws,
    of_values,
    python_type,
    said,
)

_NO_NAME = re.compile(r'[\\"\x00-\x1f]')  # what a field of msgspec cannot be called
_NOTHING = msgspec.Raw(b"null")


class LineReader:
    """Reads lines of one schema."""

    def __init__(self, schema: RecordSchema) -> None:
        self._columns = schema.columns
        self._names = [column.name for column in schema.columns]
        kinds = [
            (one.name, pa.string() if one.type in SAID_IN_TEXT else arrow_type_of(one))
            for one in schema.columns
        ]
        self._options = json.ParseOptions(
            explicit_schema=pa.schema(kinds), unexpected_field_behavior="error"
        )
        self._records = _record_decoder(schema)
        self._fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
        # Arrow does not keep the text of objects and arrays.
        has_json = any(column.type in JSON_TYPES for column in schema.columns)
        self._ways = [self.read_records] if has_json else [self.read_columns, self.read_records]
        scales = [one.scale for one in schema.columns if one.type is ColumnType.DECIMAL]
        self._overflowing = _overflowing(max(scales)) if scales else None

    def read(self, lines: bytes) -> pa.RecordBatch:
        """Give the records of whole lines, a key that is absent as null.

        Raises:
            UnfitCellError: a record has another key, or a value that does not fit its column.
        """
        for read in self._ways:
            with suppress(*UNREADABLE):
                return read(lines)
        return self.read_carefully(lines)  # which finds the record

    def read_columns(self, lines: bytes) -> pa.RecordBatch:
        """Read by Arrow, where no column holds objects or arrays.

        Raises:
            ValueError: it cannot be read like that, which may be no fault of the lines.
        """
        if self._overflowing is not None and self._overflowing.search(lines):
            raise ValueError("a number may have more digits than a decimal")
        whole = json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        table = json.read_json(pa.BufferReader(lines), whole, self._options)
        arrays = [_one(table.column(place)) for place in range(len(self._columns))]
        if any(at.is_floating(one.type) and pc.any(pc.is_inf(one)).as_py() for one in arrays):
            raise ValueError("a number has too many digits for a double")
        return self._batch(
            said(array, column) if column.type in SAID_IN_TEXT else array
            for array, column in zip(arrays, self._columns, strict=True)
        )

    def read_records(self, lines: bytes) -> pa.RecordBatch:
        """Read by msgspec, which also keeps the text of values.

        Raises:
            ValueError: it cannot be read like that, or one of the other errors in `UNREADABLE`.
        """
        if self._records is None:
            raise ValueError("msgspec does not take the name of a column")
        lines.decode()
        records = self._records.decode_lines(lines)
        return self._batch(
            (of_raws if column.type in KEPT_AS_TEXT else of_values)(
                list(map(attrgetter(f"f{place}"), records)), column
            )
            for place, column in enumerate(self._columns)
        )

    def read_carefully(self, lines: bytes) -> pa.RecordBatch:
        """Read record by record.

        Raises:
            UnfitCellError: a record cannot be read.
        """
        records = [self._record(row, line) for row, line in enumerate(lines.split(b"\n")) if line]
        return self._batch(
            _located([record.get(column.name) for record in records], column)
            for column in self._columns
        )

    def _batch(self, arrays: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(arrays), self._names)

    def _record(self, row: int, line: bytes) -> dict[str, msgspec.Raw]:
        try:
            record = self._fields.decode(line)
            line.decode()
        except UNREADABLE as error:
            raise UnfitCellError(row, "", f"is no JSON object ({error})") from error
        for name in record.keys() - set(self._names):
            raise UnfitCellError(row, name, "is no column of the schema")
        return record


def _overflowing(scale: int) -> re.Pattern[bytes]:
    """Find numbers that may have more digits than a decimal with this many behind the point.

    Arrow lets some of them overflow, in silence, into any number.
    """
    return re.compile(rb"[0-9](?:[0-9]{%d}|[eE]\+?[0-9])" % (MAX_PRECISION - scale))


def _record_decoder(schema: RecordSchema) -> "msgspec.json.Decoder[Any] | None":
    """Make a reader of records whose fields `f0`, `f1`, … are the columns."""
    if any(_NO_NAME.search(name) for name in schema.names):
        return None
    fields = [
        (f"f{place}", msgspec.Raw, _NOTHING)
        if column.type in KEPT_AS_TEXT
        else (f"f{place}", python_type(column), None)
        for place, column in enumerate(schema.columns)
    ]
    names = {f"f{place}": name for place, name in enumerate(schema.names)}
    kind = msgspec.defstruct("Record", fields, rename=names, forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(kind)


def _one(chunked: pa.ChunkedArray) -> pa.Array:
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


def _located(raws: Raws, column: Column) -> pa.Array:
    """Read the values of a column; of one that cannot be read, tell which."""
    try:
        return of_raws(raws, column)
    except UNREADABLE:
        low, high = 0, len(raws)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            of_raws(raws[low:middle], column)
            low = middle
        except UNREADABLE:
            high = middle
    shown = bytes(raws[low] or b"null").decode("utf-8", "backslashreplace")
    raise UnfitCellError(low, column.name, f"{shown:.200} is no {column.type_text}")
