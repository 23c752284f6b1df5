"""The product's own meta table: register landed files as items, and read the items.

A file is one item, or several items that are ranges of its bytes; it has all of its rows or none.
Ids are assigned under a lock of the stream, in the order of the files.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from batch_pipeline.inventory.batch_states import late_items, planned_ids
from batch_pipeline.inventory.connection import (
    LockClass,
    fetch_rows,
    fetch_value,
    lock_in_transaction,
    transaction,
)
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import MetaItem, ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.watermarks import WatermarkReading
from batch_pipeline.inventory.tables import FILE_OF_RANGE, IS_RANGE, SCHEMA, is_any_of, item
from batch_pipeline.model.backfill import Selection
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.errors import missing_column
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.filter import Condition, Operator
from batch_pipeline.model.id_range import IdRange, IdRuns
from batch_pipeline.model.item import Item, LandedFile, Registered
from batch_pipeline.model.job import INVENTORY, TableIdentity
from batch_pipeline.model.location import MARK, split_location
from batch_pipeline.model.planning import Cut, Limits, cut
from batch_pipeline.model.progress import track
from batch_pipeline.model.stream import Strategy

_CHUNK = 5_000
_STREAM_ROWS = 10_000
_ID_CHUNK = 1_000
WeighedIds = Iterator[tuple[int, int]]
_COLUMNS = MetaColumns(uid="id", item="location", weight="size_bytes")
OWN_IDENTITY = TableIdentity(
    uid=_COLUMNS.uid, item=_COLUMNS.item, weight=_COLUMNS.weight, database=INVENTORY
)
_FilesByLocation = Mapping[str, Sequence[LandedFile]]
_Row = TypeVar("_Row")


class Cutter(Protocol):
    """Cuts large files into several items."""

    def is_large(self, file: LandedFile) -> bool:
        """Return whether a file is large enough to become more than one item."""
        ...

    def ranges(self, file: LandedFile) -> Sequence[LandedFile]:
        """Return the ranges of a file in order; each starts and ends at a record.

        Returns the whole file if it cannot be cut, and nothing if it is gone or has changed.
        """
        ...


def item_from_row(row: sa.Row[Any]) -> Item:
    """Return the item of a row. The file of a range has the size of the whole file."""
    _, byte_range = split_location(row.location)
    file = LandedFile(
        location=row.location,
        size_bytes=row.size_bytes if byte_range is None else byte_range.file_bytes,
        modified_at=row.modified_at,
        etag=row.etag,
    )
    return Item(id=row.id, file=file)


def _has_changed(file: LandedFile, registered_files: Sequence[LandedFile]) -> bool:
    """Return whether a file differs from its rows, which all have the same facts.

    An object that was uploaded again with the same bytes has the same ETag and another time.
    """
    registered = registered_files[0] if registered_files else file
    if registered.etag is not None and file.etag is not None:
        return (registered.size_bytes, registered.etag) != (file.size_bytes, file.etag)
    facts = (file.size_bytes, file.modified_at, file.etag)
    return (registered.size_bytes, registered.modified_at, registered.etag) != facts


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMetaTable:
    """The items of one stream in the inventory's `item` table."""

    engine: sa.Engine
    stream: str

    def register(
        self,
        files: Iterable[LandedFile],
        *,
        accept_changed: bool = False,
        cutter: Cutter | None = None,
        all_or_none: bool = False,
    ) -> Registered:
        """Assign ids to unknown files in their order, in transactions of 5,000 files.

        Without a cutter each new file is one item. With `all_or_none`, all files are registered in
        one transaction, or none if one of them has changed.
        """
        total = Registered()
        for chunk in _chunks(track(files, "registering files"), None if all_or_none else _CHUNK):
            total = total.plus(
                self._register(
                    chunk, cutter, accept_changed=accept_changed, all_or_none=all_or_none
                )
            )
            failpoint("register.after_commit")
        return total

    def has(self, files: Sequence[LandedFile]) -> bool:
        """Return whether all files are registered and have not changed since."""
        with transaction(self.engine) as connection:
            registered = self._registered_files(connection, files)
        return all(
            file.location in registered and not _has_changed(file, registered[file.location])
            for file in files
        )

    def _register(
        self,
        files: Sequence[LandedFile],
        cutter: Cutter | None,
        *,
        accept_changed: bool,
        all_or_none: bool,
    ) -> Registered:
        """Register files in one transaction; with `all_or_none`, none if one has changed."""
        cuts: _FilesByLocation = {}
        large = [] if cutter is None else [file for file in files if cutter.is_large(file)]
        if cutter is not None and large:  # cut before a lock is taken
            with transaction(self.engine) as connection:
                registered = self._registered_files(connection, large)
            cuts = {
                file.location: cutter.ranges(file)
                for file in large
                if file.location not in registered
                or (accept_changed and _has_changed(file, registered[file.location]))
            }
        new_items = 0
        with transaction(self.engine) as connection:
            if all_or_none:  # another process may be registering one of them with other facts
                lock_in_transaction(connection, LockClass.REGISTER, self.stream)
            registered = self._registered_files(connection, files)
            unknown = {file.location: file for file in files if file.location not in registered}
            differing = [
                file for file in files if _has_changed(file, registered.get(file.location, ()))
            ]
            if unknown and not (differing and all_or_none):
                new_items = self._add(connection, list(unknown.values()), cuts)
            refused = [
                file.location
                for file in differing
                if all_or_none
                or not accept_changed
                or not self._accept(connection, file, registered, cuts)
            ]
        accepted = len(differing) - len(refused)
        return Registered(
            found=len(files), new_items=new_items, changed=tuple(refused), accepted=accepted
        )

    def _registered_files(
        self, connection: sa.Connection, files: Sequence[LandedFile]
    ) -> _FilesByLocation:
        """Return the registered files by location.

        The index on ranges holds the text before the first `#`, which may be part of an object's
        key.
        """
        locations = [file.location for file in files]
        own = sa.select(item).where(item.c.stream == self.stream)
        whole = own.where(is_any_of(item.c.location, locations))
        file = sa.literal_column(FILE_OF_RANGE, sa.Text)
        starts = list({location.partition("#")[0] for location in locations})
        is_part = sa.func.strpos(item.c.location, MARK) > 0
        ranges = own.where(sa.text(IS_RANGE), is_any_of(file, starts), is_part)
        registered: dict[str, list[LandedFile]] = defaultdict(list)
        for row in connection.execute(whole):
            registered[row.location].append(item_from_row(row).file)
        for row in connection.execute(ranges.order_by(item.c.id)):
            part = item_from_row(row).file
            if part.range is not None:
                registered[part.uri].append(part)
        return registered

    def _add(
        self, connection: sa.Connection, files: Sequence[LandedFile], cuts: _FilesByLocation
    ) -> int:
        lock_in_transaction(connection, LockClass.REGISTER, self.stream)
        failpoint("register.locked")
        # Another process may have added some.
        registered = self._registered_files(connection, files)
        new = [file for file in files if file.location not in registered]
        highest = sa.select(sa.func.coalesce(sa.func.max(item.c.id), 0)).where(
            item.c.stream == self.stream
        )
        next_id = connection.execute(highest).scalar_one() + 1
        parts = (part for file in new for part in cuts.get(file.location, (file,)))
        rows = [
            {
                "stream": self.stream,
                "id": item_id,
                "location": part.location,
                "size_bytes": part.range_bytes,
                "modified_at": part.modified_at,
                "etag": part.etag,
            }
            for item_id, part in enumerate(parts, start=next_id)
        ]
        if rows:
            connection.execute(sa.insert(item), rows)
        failpoint("register.before_commit")
        return len(rows)

    def _accept(
        self,
        connection: sa.Connection,
        file: LandedFile,
        registered: _FilesByLocation,
        cuts: _FilesByLocation,
    ) -> bool:
        """Update the rows of a changed file, unless its ranges are now different."""
        current_locations = [part.location for part in registered[file.location]]
        parts: Iterable[LandedFile] = (file,)
        if current_locations != [file.location]:
            parts = cuts.get(file.location, ())
            if current_locations != [part.location for part in parts]:
                return False
        for part in parts:
            connection.execute(
                sa.update(item)
                .where(item.c.stream == self.stream, item.c.location == part.location)
                .values(size_bytes=part.range_bytes, modified_at=part.modified_at, etag=part.etag)
            )
        return True

    @property
    def name(self) -> str:
        """The table's canonical name."""
        return f"{SCHEMA}.{item.name}"

    @property
    def where(self) -> None:
        """None, since a stream has all its items."""
        return None

    @property
    def identity(self) -> TableIdentity:
        """The database and the columns of the items."""
        return OWN_IDENTITY

    def check_not_restarted(self, planned_up_to: int) -> None:
        """Do nothing: new ids follow the highest one, and rows are never deleted."""

    def high_watermark(self) -> int | None:
        """Return the highest id, since ids become visible in their order."""
        highest = sa.select(sa.func.max(item.c.id)).where(item.c.stream == self.stream)
        return fetch_value(self.engine, highest)

    def first_registered_at(self) -> datetime | None:
        """Return when the first item was registered; it changes if the table is emptied."""
        first = sa.select(item.c.registered_at).where(item.c.stream == self.stream)
        return fetch_value(self.engine, first.order_by(item.c.id).limit(1))

    def read_high_watermark(self) -> WatermarkReading:
        """Return the high watermark with its strategy, as for users' tables."""
        return WatermarkReading(value=self.high_watermark(), strategy=Strategy.REGISTRAR)

    def reflected(self) -> ReflectedMetaTable:
        """Return the items as a table that is read like users' tables."""
        return ReflectedMetaTable(
            engine=self.engine,
            table=item,
            canonical_name=self.name,
            is_view=False,
            columns=_COLUMNS,
            where=Condition("stream", Operator.EQUAL, self.stream),
            on_bad_weight=None,
            notes=(),
            database=INVENTORY,
        )

    def cuts(self, after_id: int | None, high_watermark: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above an id up to the high watermark, in one pass."""
        first = after_id or 0
        yield from cut(
            self._weights(item.c.id > first, item.c.id <= high_watermark),
            after_id=first,
            high_watermark=high_watermark,
            limits=limits,
        )

    def oldest_age(self, after_id: int | None) -> timedelta | None:
        """Return the time since the oldest item above an id was registered."""
        oldest = sa.select(sa.func.min(item.c.registered_at)).where(*self._above(after_id))
        age = sa.func.clock_timestamp() - oldest.scalar_subquery()
        return fetch_value(self.engine, sa.select(age))

    def backlog(self, after_id: int | None) -> tuple[int, int]:
        """Return the number of items above an id and their weight in bytes."""
        weight = sa.func.coalesce(sa.func.sum(item.c.size_bytes), 0)
        query = sa.select(sa.func.count().label("items"), weight.label("weight")).where(
            *self._above(after_id)
        )
        [row] = fetch_rows(self.engine, query)
        return int(row.items), int(row.weight)

    def items(self, batch: Batch) -> Sequence[Item]:
        """Return the items of a batch in id order.

        A batch of late arrivals has a list of ids. A range has all items that no other batch lists
        as late arrivals.
        """
        listed, ids = batch.item_ids, batch.id_range
        is_late = item.c.id.in_(late_items(batch))
        query = (
            sa.select(item)
            .where(
                item.c.stream == self.stream,
                item.c.id.between(ids.first_id, ids.last_id),
                ~is_late if listed is None else is_any_of(item.c.id, listed),
            )
            .order_by(item.c.id)
        )
        return [item_from_row(row) for row in fetch_rows(self.engine, query)]

    def find(self, text: str) -> list[Item]:
        """Return at most 20 items whose id, location or last part of the location is `text`."""
        file = sa.func.split_part(item.c.location, MARK, 1)
        name = sa.or_(
            item.c.location == text,
            file == text,
            file.endswith(f"/{text}", autoescape=True),
            item.c.location.endswith(f"/{text}", autoescape=True),
        )
        if text.isascii() and text.isdigit() and len(text) < 19:
            name = sa.or_(name, item.c.id == int(text))
        matching = sa.select(item).where(item.c.stream == self.stream, name)
        rows = fetch_rows(self.engine, matching.order_by(item.c.id).limit(20))
        return [item_from_row(row) for row in rows]

    def chosen(self, ids: IdRange, selection: Selection) -> WeighedIds:
        """Yield the items of a range that were registered within the selection's times.

        Raises:
            MetaTableError: the selection names another time column.
        """
        time = item.c.registered_at
        if selection.time_column not in {None, time.name}:
            raise missing_column(self.name, selection.time_column or "", "time", (time.name,))
        conditions: list[sa.ColumnElement[bool]] = [item.c.id.between(ids.first_id, ids.last_id)]
        if selection.since is not None:
            conditions.append(time >= selection.since)
        if selection.until is not None:
            conditions.append(time < selection.until)
        yield from self._weights(*conditions)

    def listed(self, ids: Sequence[int]) -> WeighedIds:
        """Yield the existing items of an ascending list of ids."""
        for start in range(0, len(ids), _ID_CHUNK):
            yield from self._weights(is_any_of(item.c.id, ids[start : start + _ID_CHUNK]))

    def _weights(self, *conditions: sa.ColumnElement[bool]) -> WeighedIds:
        query = (
            sa.select(item.c.id, item.c.size_bytes)
            .where(item.c.stream == self.stream, *conditions)
            .order_by(item.c.id)
            .execution_options(yield_per=_STREAM_ROWS)
        )
        with transaction(self.engine) as connection, connection.execute(query) as rows:
            for row in rows:
                yield row.id, row.size_bytes

    def _above(self, after_id: int | None) -> list[sa.ColumnElement[bool]]:
        return [item.c.stream == self.stream, item.c.id > (after_id or 0)]


def _chunks(rows: Iterable[_Row], size: int | None) -> Iterator[list[_Row]]:
    """Yield lists of `size` rows; one list of all rows if it is None.

    If iteration fails, the rows before the error are yielded first, unless `size` is None.
    """
    chunk: list[_Row] = []
    try:
        for row in rows:
            chunk.append(row)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except Exception:
        if size is not None and chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


ItemTable = OwnMetaTable | ReflectedMetaTable


def read_items(engine: sa.Engine, table: ItemTable, planned_batch: Batch) -> list[MetaItem]:
    """Read the items that a batch was planned with and that still exist, in id order.

    Rows that arrived later are found by the next audit.
    """
    with transaction(engine) as connection:
        planned = planned_ids(connection, planned_batch)
    return planned_items(table, planned_batch, planned)


def planned_items(table: ItemTable, planned_batch: Batch, planned: IdRuns | None) -> list[MetaItem]:
    """Return the existing items of a batch that are among its planned ids (None: all)."""
    if isinstance(table, OwnMetaTable):
        return [
            MetaItem(id=item.id, item=item.file.location, weight=item.weight)
            for item in table.items(planned_batch)
        ]
    if planned_batch.item_ids is not None:
        return table.items_of(planned_batch.item_ids)
    return [
        item
        for item in table.items(planned_batch.id_range)
        if planned is None or item.id in planned
    ]
