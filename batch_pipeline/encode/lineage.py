"""Add lineage columns, which state where a record comes from, to checked records."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from batch_pipeline.encode.arrow_types import arrow_type_of
from batch_pipeline.encode.chunks import Chunk, JsonRecords, Table
from batch_pipeline.model.item import Item
from batch_pipeline.model.record_rules import LineageColumn, LineageContext

_BLANKS = b" \t\r\n"


class Lineage:
    """The lineage columns of one item's records, in the order of the stream file."""

    def __init__(
        self, columns: tuple[LineageColumn, ...], item: Item, context: LineageContext
    ) -> None:
        self.columns = columns
        self._values = _values(item, context) if columns else {}

    def conflicts(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names that are both columns of the source and lineage columns."""
        return tuple(sorted({column.value for column in self.columns} & set(names)))

    def added(self, chunk: Chunk) -> Chunk:
        """Return the chunk with the lineage columns after its own columns; names must not conflict.

        JSON records contain them in their text, tables as typed columns.
        """
        if not self.columns:
            return chunk
        if isinstance(chunk, Table):
            return self.added_to_table(chunk)
        return self._added_to_json(chunk)

    def added_to_table(self, table: Table) -> Table:
        """Return the table with the lineage columns; there must be at least one."""
        arrays, names = table.batch.columns, table.batch.schema.names
        for column in self.columns:
            names.append(column.value)
            arrays.append(self._array(column, table))
        # Arrow takes the row count from the first column, which exists now even if the table had
        # no columns before.
        return replace(table, batch=pa.RecordBatch.from_arrays(arrays, names))

    def _array(self, column: LineageColumn, table: Table) -> pa.Array:
        kind = arrow_type_of(column.column)
        if column is LineageColumn.RECORD_NUMBER:
            return pa.array(table.record_numbers, kind)
        value = self._values[column]
        if value is None:
            return pa.nulls(table.good, kind)
        return pa.repeat(pa.scalar(value, kind), table.good)

    def _added_to_json(self, records: JsonRecords) -> JsonRecords:
        before, after = self._text_around_number()
        if LineageColumn.RECORD_NUMBER in self.columns:
            ends = [b"%s%d%s" % (before, number, after) for number in records.record_numbers]
        else:
            ends = [before] * records.good
        lines = [_extended(line, end) for line, end in zip(records.lines, ends, strict=True)]
        return replace(records, lines=lines)

    def _text_around_number(self) -> tuple[bytes, bytes]:
        """Return the text of all columns before and after the record number."""
        text, before = b"", None
        for column in self.columns:
            text += b',"%s":' % column.value.encode()
            if column is LineageColumn.RECORD_NUMBER:
                text, before = b"", text
            else:
                text += msgspec.json.encode(_in_json(self._values[column]))
        text += b"}"
        return (text, b"") if before is None else (before, text)


def joined_lineage(table: Table, lineages: Sequence[Lineage], counts: Sequence[int]) -> Table:
    """Return the table with the lineage columns of each item.

    The table holds the records of the items in order; `counts` has the number of records of each
    item, which are numbered from 1.
    """
    if not lineages[0].columns:
        return table
    batches, start = [], 0
    for lineage, count in zip(lineages, counts, strict=True):
        batch, numbers = table.batch.slice(start, count), range(1, count + 1)
        own = lineage.added_to_table(replace(table, batch=batch, record_numbers=numbers))
        batches.append(own.batch)
        start += count
    return replace(table, batch=pa.concat_batches(batches))


def _extended(line: bytes, end: bytes) -> bytes:
    """Insert columns, each preceded by a comma, at the end of an object."""
    opened = line.rstrip(_BLANKS)[:-1]
    if opened.strip(_BLANKS) == b"{":
        return b"{" + end[1:]
    return opened + end


def _values(item: Item, context: LineageContext) -> dict[LineageColumn, Any]:
    started_ms = int(context.started_at.timestamp()) * 1000
    started_ms += context.started_at.microsecond // 1000
    return {
        LineageColumn.ITEM_ID: item.id,
        LineageColumn.SOURCE_FILE: item.file.uri,
        LineageColumn.RECORD_NUMBER: None,  # each record has its own
        LineageColumn.BATCH_ID: context.batch_key,
        LineageColumn.ATTEMPT: context.attempt,
        LineageColumn.EXTRACTED_AT: item.file.modified_at,
        LineageColumn.RECEIVED_AT: context.started_at,
        LineageColumn.BATCHED_AT: context.started_at,
        LineageColumn.DELETED_AT: None,
        LineageColumn.SEQUENCE: started_ms,
        LineageColumn.TABLE_VERSION: None,
        LineageColumn.SYNC_STARTED_AT: started_ms,
    }


def _in_json(value: Any) -> Any:
    """Return a value as written to JSON lines: times in UTC with six fractional digits."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    return value
