"""The product's own meta table: register landed files as items, and read the items.

A file is one item, or several items that are ranges of its bytes; either all rows exist or none.
Ids are assigned under a lock of the stream, in the order of the files.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from batch_pipeline.inventory.connection import (
    LockClass,
    copy_rows,
    fetch_rows,
    fetch_value,
    lock_in_transaction,
    transaction,
)
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.connection import read_one_statement
from batch_pipeline.inventory.meta_tables.reflected_table import MetaItem, ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource, StreamTable
from batch_pipeline.inventory.meta_tables.watermarks import WatermarkChoice
from batch_pipeline.inventory.tables import FILE_OF_RANGE, IS_RANGE, is_any_of, item
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.item import Item, LandedFile, Registered
from batch_pipeline.model.job import INVENTORY
from batch_pipeline.model.location import MARK, split_location
from batch_pipeline.model.progress import track

if TYPE_CHECKING:  # it imports pyarrow
    from batch_pipeline.encode.readers.decoded_file import ItemCutter

_CHUNK = 5_000
_COPIED = ("stream", "id", "location", "size_bytes", "modified_at", "etag")
_FACTS: tuple[sa.Column[Any], ...] = (
    item.c.location,
    item.c.size_bytes,
    item.c.modified_at,
    item.c.etag,
)
_COLUMNS = MetaColumns(uid="id", item="location", weight="size_bytes")
_FilesByLocation = Mapping[str, Sequence[LandedFile]]
_Row = TypeVar("_Row")


def _file_from_row(row: sa.Row[Any]) -> LandedFile:
    """Return the file of a row. The file of a range has the size of the whole file."""
    _, byte_range = split_location(row.location)
    return LandedFile(
        location=row.location,
        size_bytes=row.size_bytes if byte_range is None else byte_range.file_bytes,
        modified_at=row.modified_at,
        etag=row.etag,
    )


def _has_changed(file: LandedFile, registered_files: Sequence[LandedFile]) -> bool:
    """Return whether a file differs from its rows, which all have the same facts.

    An object that was uploaded again with the same bytes has the same ETag but another time.
    """
    registered = registered_files[0] if registered_files else file
    if registered.etag is not None and file.etag is not None:
        return (registered.size_bytes, registered.etag) != (file.size_bytes, file.etag)
    facts = (file.size_bytes, file.modified_at, file.etag)
    return (registered.size_bytes, registered.modified_at, registered.etag) != facts


@dataclass(frozen=True, kw_only=True)
class OwnMetaTable(StreamTable):
    """The items of one stream in the inventory's `item` table."""

    def register(
        self,
        files: Iterable[LandedFile],
        *,
        accept_changed: bool = False,
        cutter: "ItemCutter | None" = None,
        all_or_none: bool = False,
    ) -> Registered:
        """Assign ids to unknown files in the given order, in transactions of 5,000 files.

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
        with transaction(self.inventory) as connection:
            registered = self._registered_files(connection, files)
        return all(
            file.location in registered and not _has_changed(file, registered[file.location])
            for file in files
        )

    def _register(
        self,
        files: Sequence[LandedFile],
        cutter: "ItemCutter | None",
        *,
        accept_changed: bool,
        all_or_none: bool,
    ) -> Registered:
        """Register files in one transaction; with `all_or_none`, none if one has changed."""
        cuts: _FilesByLocation = {}
        large = [] if cutter is None else [file for file in files if cutter.is_large(file)]
        if cutter is not None and large:  # cut before a lock is taken
            with transaction(self.inventory) as connection:
                registered = self._registered_files(connection, large)
            cuts = {
                file.location: cutter.ranges(file)
                for file in large
                if file.location not in registered
                or (accept_changed and _has_changed(file, registered[file.location]))
            }
        new_items = 0
        with transaction(self.inventory) as connection:
            if all_or_none:  # another process may be registering a file with other facts
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
            found=len(files),
            new_items=new_items,
            changed=tuple(refused),
            accepted=accepted,
            postponed=tuple(location for location in unknown if cuts.get(location) == ()),
        )

    def _registered_files(
        self, connection: sa.Connection, files: Sequence[LandedFile]
    ) -> _FilesByLocation:
        """Return the registered files by location.

        The index on ranges holds the text before the first `#`, which may be part of an object's
        key.
        """
        locations = [file.location for file in files]
        own = sa.select(*_FACTS).where(item.c.stream == self.stream)
        whole = own.where(is_any_of(item.c.location, locations))
        registered: dict[str, list[LandedFile]] = defaultdict(list)
        for row in connection.execute(whole):
            registered[row.location].append(_file_from_row(row))
        ranges = own.where(sa.text(IS_RANGE))
        if not connection.execute(sa.select(ranges.exists())).scalar_one():
            return registered  # as for most streams; looking for ranges takes a third of the time
        file = sa.literal_column(FILE_OF_RANGE, sa.Text)
        starts = list({location.partition("#")[0] for location in locations})
        is_part = sa.func.strpos(item.c.location, MARK) > 0
        ranges = ranges.where(is_any_of(file, starts), is_part)
        for row in connection.execute(ranges.order_by(item.c.id)):
            part = _file_from_row(row)
            if part.range is not None:
                registered[part.uri].append(part)
        return registered

    def _add(
        self, connection: sa.Connection, files: Sequence[LandedFile], cuts: _FilesByLocation
    ) -> int:
        lock_in_transaction(connection, LockClass.REGISTER, self.stream)
        failpoint("register.locked")
        # Another process may have registered some of the files.
        registered = self._registered_files(connection, files)
        new = [file for file in files if file.location not in registered]
        highest = sa.select(sa.func.coalesce(sa.func.max(item.c.id), 0)).where(
            item.c.stream == self.stream
        )
        next_id = connection.execute(highest).scalar_one() + 1
        parts = (part for file in new for part in cuts.get(file.location, (file,)))
        rows = [
            (self.stream, item_id, part.location, part.range_bytes, part.modified_at, part.etag)
            for item_id, part in enumerate(parts, start=next_id)
        ]
        copy_rows(connection, item, _COPIED, rows)
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

    @cached_property
    def source(self) -> MetaSource:
        """The items as a table that is read like users' tables."""
        table = _StreamItems(
            engine=self.inventory,
            table=item,
            canonical_name=item.fullname,
            is_view=False,
            columns=_COLUMNS,
            where=None,
            on_bad_weight=None,
            notes=(),
            database=INVENTORY,
            stream=self.stream,
        )
        choice = WatermarkChoice.registrar(table, "ids are assigned in commit order")
        return MetaSource(table=table, choice=choice)

    @property
    def time_column(self) -> str:
        """The column of registration times."""
        return item.c.registered_at.name

    def first_registered_at(self) -> datetime | None:
        """Return when the first item was registered; the time changes if the table is emptied."""
        first = sa.select(item.c.registered_at).where(item.c.stream == self.stream)
        return fetch_value(self.inventory, first.order_by(item.c.id).limit(1))

    def check_not_restarted(self, planned_up_to: int) -> None:
        """Do nothing: new ids follow the highest id, and rows are never deleted."""

    def to_items(self, rows: Sequence[MetaItem], *, checks: bool) -> list[Item]:
        """Return the items of rows with the facts of their files from the listing."""
        is_listed = is_any_of(item.c.id, [row.id for row in rows])
        query = sa.select(item).where(item.c.stream == self.stream, is_listed).order_by(item.c.id)
        rows_of_items = fetch_rows(self.inventory, query)
        return [Item(id=row.id, file=_file_from_row(row)) for row in rows_of_items]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreamItems(ReflectedMetaTable):
    """The rows of one stream, whose ids are counted from 1."""

    stream: str

    def lowest_id(self) -> int:
        """Return the first id that a stream assigns."""
        return 1

    def highest_id(self) -> int | None:
        """Return the highest id of the stream; None without items."""
        query = sa.select(sa.func.max(self.uid)).where(*self._filter())
        with read_one_statement(self.engine) as connection:
            highest: int | None = connection.execute(query).scalar_one()
        return highest

    def _filter(self) -> list[sa.ColumnElement[bool]]:
        is_own = self.table.c.stream == self.stream
        return [is_own, *super(_StreamItems, self)._filter()]


def _chunks(rows: Iterable[_Row], size: int | None) -> Iterator[list[_Row]]:
    """Yield lists of `size` rows, or one list of all rows if `size` is None.

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
