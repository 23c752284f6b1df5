"""Gives landed files their rows in the product's own meta table: who is new, who has changed.

A file is known as one item or as several, each a range of its bytes; it has all of its rows or
none. Ids are given under a lock of the stream, in the order of the files.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.file_range import MARK, split_location
from batch_pipeline.domain.item import FoundFile, Item
from batch_pipeline.inventory.locks import LockClass, lock_in_transaction
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import FILE_OF_RANGE, IS_RANGE, item
from batch_pipeline.ports import Cutter

_Known = Mapping[str, Sequence[FoundFile]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Registers files of one stream; `cutter` says which of them become several items."""

    engine: sa.Engine
    stream: str
    cutter: Cutter | None

    def register(
        self, files: Sequence[FoundFile], *, accept_changed: bool, all_or_none: bool = False
    ) -> tuple[int, int, list[str]]:
        """Register some files in one transaction; with `all_or_none` none where one has changed.

        Gives the number of new rows, of changed files that were taken over, and the locations of
        those that were not.
        """
        cuts = self._cuts(files, accept_changed=accept_changed)
        with transaction(self.engine) as connection:
            if all_or_none:  # a rival may be adding one of them, with other facts
                lock_in_transaction(connection, LockClass.REGISTER, self.stream)
            known = self._known(connection, files)
            unknown = {file.location: file for file in files if file.location not in known}
            differing = [file for file in files if _differs(file, known.get(file.location, ()))]
            if differing and all_or_none:
                return 0, 0, [file.location for file in differing]
            new_items = self._add(connection, list(unknown.values()), cuts) if unknown else 0
            refused = differing
            if accept_changed:
                refused = [
                    file for file in differing if not self._accept(connection, file, known, cuts)
                ]
        accepted = len(differing) - len(refused)
        return new_items, accepted, [file.location for file in refused]

    def _cuts(self, files: Sequence[FoundFile], *, accept_changed: bool) -> _Known:
        """Find where the files are cut that may have to be, before any lock is taken."""
        if self.cutter is None:
            return {}
        large = [file for file in files if self.cutter.is_large(file)]
        if not large:
            return {}
        with transaction(self.engine) as connection:
            known = self._known(connection, large)
        return {
            file.location: self.cutter.ranges(file)
            for file in large
            if file.location not in known
            or (accept_changed and _differs(file, known[file.location]))
        }

    def _known(self, connection: sa.Connection, files: Sequence[FoundFile]) -> _Known:
        """Find the rows of files, by the files' locations.

        The index of ranges has what stands before the first `#`, which may be in an object's key.
        """
        locations = [file.location for file in files]
        own = sa.select(item).where(item.c.stream == self.stream)
        whole = own.where(item.c.location == sa.any_(_texts(locations)))
        file = sa.literal_column(FILE_OF_RANGE, sa.Text)
        starts = list({location.partition("#")[0] for location in locations})
        is_part = sa.func.strpos(item.c.location, MARK) > 0
        ranges = own.where(sa.text(IS_RANGE), file == sa.any_(_texts(starts)), is_part)
        found: dict[str, list[FoundFile]] = defaultdict(list)
        for row in connection.execute(whole):
            found[row.location].append(item_of(row).file)
        for row in connection.execute(ranges.order_by(item.c.id)):
            one = item_of(row).file
            if one.range is not None:
                found[one.uri].append(one)
        return found

    def _add(self, connection: sa.Connection, files: Sequence[FoundFile], cuts: _Known) -> int:
        lock_in_transaction(connection, LockClass.REGISTER, self.stream)
        failpoint("register.locked")
        known = self._known(connection, files)  # a rival may have added some meanwhile
        new = [file for file in files if file.location not in known]
        highest = sa.select(sa.func.coalesce(sa.func.max(item.c.id), 0)).where(
            item.c.stream == self.stream
        )
        next_id = connection.execute(highest).scalar_one() + 1
        pieces = (piece for file in new for piece in cuts.get(file.location, (file,)))
        rows = [
            {
                "stream": self.stream,
                "id": item_id,
                "location": piece.location,
                "size_bytes": piece.wanted_bytes,
                "modified_at": piece.modified_at,
                "etag": piece.etag,
            }
            for item_id, piece in enumerate(pieces, start=next_id)
        ]
        if rows:
            connection.execute(sa.insert(item), rows)
        failpoint("register.before_commit")
        return len(rows)

    def _accept(
        self, connection: sa.Connection, file: FoundFile, known: _Known, cuts: _Known
    ) -> bool:
        """Take over what a file is like now, unless it would be cut elsewhere than its rows say."""
        before = [one.location for one in known[file.location]]
        pieces: Iterable[FoundFile] = (file,)
        if before != [file.location]:
            pieces = cuts.get(file.location, ())
            if before != [piece.location for piece in pieces]:
                return False
        for piece in pieces:
            connection.execute(
                sa.update(item)
                .where(item.c.stream == self.stream, item.c.location == piece.location)
                .values(
                    size_bytes=piece.wanted_bytes, modified_at=piece.modified_at, etag=piece.etag
                )
            )
        return True


def item_of(row: sa.Row[Any]) -> Item:
    """Make an item of its row, whose size is that of the range where it is one."""
    _, part = split_location(row.location)
    file = FoundFile(
        location=row.location,
        size_bytes=row.size_bytes if part is None else part.file_bytes,
        modified_at=row.modified_at,
        etag=row.etag,
    )
    return Item(id=row.id, file=file)


def _texts(texts: list[str]) -> sa.ColumnElement[Any]:
    return sa.cast(texts, sa.ARRAY(sa.Text))


def _differs(file: FoundFile, known: Sequence[FoundFile]) -> bool:
    """Tell whether a file is another than its rows say; those of one file are all alike.

    An object that was put again with the same bytes has the same ETag, and only another time.
    """
    noted = known[0] if known else file
    if noted.etag is not None and file.etag is not None:
        return (noted.size_bytes, noted.etag) != (file.size_bytes, file.etag)
    return (noted.size_bytes, noted.modified_at, noted.etag) != (
        file.size_bytes,
        file.modified_at,
        file.etag,
    )
