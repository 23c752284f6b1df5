"""Which columns a table has for the records of a stream, and which ones are added to them.

Names and values only; the table itself is the business of others.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from batch_pipeline.domain.load import Loading
from batch_pipeline.domain.record_rules import LineageColumn
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema

BATCH = LineageColumn.BATCH_ID.value
ITEM = LineageColumn.ITEM_ID.value
ORDER = "_batch_order"
POSITION = "_load_position"  # of a record in its batch, while it waits to be merged
MAX_NAME_BYTES = 63
_DIGEST = 8
_SINGER = (
    LineageColumn.EXTRACTED_AT,
    LineageColumn.RECEIVED_AT,
    LineageColumn.BATCHED_AT,
    LineageColumn.DELETED_AT,
    LineageColumn.SEQUENCE,
    LineageColumn.TABLE_VERSION,
)
_BATCH_COLUMN = LineageColumn.BATCH_ID.column
_ORDER_COLUMN = Column(name=ORDER, type=ColumnType.INTEGER)


class UnusableNameError(ValueError):
    """A name cannot be one of Postgres; the text says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of a table by their names there: those of records, then those that are added.

    `keys`, by which records are merged, are names of the table. Columns that have held only nulls
    so far are left out.
    """

    records: dict[str, Column]
    added: dict[str, Column]
    keys: tuple[str, ...]

    @property
    def columns(self) -> dict[str, Column]:
        """All columns."""
        return self.records | self.added

    @property
    def knows_items(self) -> bool:
        """Tell that each record says which item it is of."""
        return ITEM in self.records and self.records[ITEM].type is ColumnType.INTEGER


def layout_of(schema: RecordSchema, key_properties: tuple[str, ...]) -> Layout:
    """Give the columns that a table needs for records of a schema.

    Raises:
        UnusableNameError: a column cannot be called what it is called, or a key is no column.
    """
    records: dict[str, Column] = {}
    for column in schema.columns:
        if column.type is ColumnType.UNKNOWN or column.name == BATCH:
            continue  # batches are told by the name that loads know them by
        name = short_name(column.name)
        if name in records or name in {ORDER, POSITION}:
            raise UnusableNameError(f"the column {column.name!r} has the name of another one")
        records[name] = column
    for key in key_properties:
        if short_name(key) not in records:
            raise UnusableNameError(f"the key {key!r} is no column that has held a value")
    wanted = [_BATCH_COLUMN, _ORDER_COLUMN, *(one.column for one in _SINGER)]
    added = {column.name: column for column in wanted if column.name not in records}
    return Layout(records=records, added=added, keys=tuple(map(short_name, key_properties)))


def short_name(name: str) -> str:
    """Give the name that Postgres can hold: a longer one is cut and ends with its digest.

    Raises:
        UnusableNameError: it is empty or holds a NUL character.
    """
    if not name or "\0" in name:
        raise UnusableNameError(f"the name {name!r} is empty or holds a NUL character")
    octets = name.encode()
    if len(octets) <= MAX_NAME_BYTES:
        return name
    digest = hashlib.sha256(octets).hexdigest()[:_DIGEST]
    kept = octets[: MAX_NAME_BYTES - _DIGEST - 1].decode(errors="ignore")
    return f"{kept}_{digest}"


def added_values(
    layout: Layout, loading: Loading, now: datetime
) -> dict[str, str | int | datetime | None]:
    """Give what all rows of a load have in the columns that are added to their own.

    As the Singer SDK's targets do: times are those of the load, the sequence is its milliseconds.
    """
    values: dict[str, str | int | datetime | None] = {
        BATCH: loading.label,
        ORDER: loading.manifest.batch.id_range.first_id,
        LineageColumn.EXTRACTED_AT: now,
        LineageColumn.RECEIVED_AT: now,
        LineageColumn.BATCHED_AT: now,
        LineageColumn.SEQUENCE: int(now.timestamp() * 1000),
    }
    return {name: values.get(name) for name in layout.added}


def missing(layout: Layout, present: Collection[str]) -> dict[str, Column]:
    """Give the columns that a table lacks."""
    return {name: one for name, one in layout.columns.items() if name not in present}
