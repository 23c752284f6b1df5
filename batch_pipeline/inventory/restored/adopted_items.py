"""Gives items of manifests their rows, with the ids that they had: the meta table of the product.

Ids of a user's table are its own business: only whether they are there is looked at elsewhere.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.file_range import MARK, FileRange, split_location
from batch_pipeline.domain.origin import Origin, OriginItem
from batch_pipeline.inventory.restored.found import Found
from batch_pipeline.inventory.tables import FILE_OF_RANGE, IS_RANGE, item
from batch_pipeline.inventory.work.origins import OWN_TABLE

_AT_ONCE = 5_000


def adopt_items(found: Found, origins: Sequence[Origin]) -> tuple[int, int]:
    """Add the items that the inventory does not know; gives how many, and how many of them anew.

    Ranges of a file that no manifest has get new ids: otherwise the file would be known, and they
    would never be read.
    """
    if found.meta_table != OWN_TABLE:
        return 0, 0
    wanted = _wanted(found, origins)
    fresh = _unknown(found, wanted)
    found.check()
    _insert(found, fresh)
    again = list(_lost_ranges(found, fresh))
    _insert(found, again)
    return len(fresh) + len(again), len(again)


def _wanted(found: Found, origins: Iterable[Origin]) -> dict[int, OriginItem]:
    """Give the items by id, as the latest manifest has them."""
    wanted: dict[int, OriginItem] = {}
    for origin in sorted(origins, key=lambda one: one.published_at):
        for one in origin.items:
            if one.location is None:
                found.refuse(None, f"item {one.id} has no location")
                continue
            before = wanted.get(one.id)
            if before is not None and before.location != one.location:
                found.refuse(None, f"item {one.id} is {before.location} and {one.location}")
            wanted[one.id] = one
    return wanted


def _unknown(found: Found, wanted: dict[int, OriginItem]) -> list[OriginItem]:
    """Pick the items that are not there; what is there must be the same file."""
    by_location = {one.location: one for one in wanted.values()}
    if len(by_location) != len(wanted):
        found.refuse(None, "one file has several ids in the manifests")
    fresh: list[OriginItem] = []
    ids = sorted(wanted)
    for first in range(0, len(ids), _AT_ONCE):
        some = ids[first : first + _AT_ONCE]
        known = _rows(found, some, [wanted[one].location for one in some])
        for row in known:
            mine = wanted.get(row.id)
            if mine is not None and mine.location != row.location:
                found.refuse(None, f"item {row.id} is {row.location} here, {mine.location} there")
            elif mine is None:
                other = by_location[row.location].id
                found.refuse(None, f"{row.location} is item {row.id} here, {other} there")
        ids_here = {row.id for row in known}
        fresh += [wanted[one] for one in some if one not in ids_here]
    return fresh


def _rows(
    found: Found, ids: Sequence[int], locations: Sequence[str | None]
) -> Sequence[sa.Row[Any]]:
    has_id = item.c.id == sa.any_(sa.cast(list(ids), sa.ARRAY(sa.BigInteger)))
    has_location = item.c.location == sa.any_(sa.cast(list(locations), sa.ARRAY(sa.Text)))
    query: sa.Select[Any] = sa.select(item.c.id, item.c.location)
    query = query.where(item.c.stream == found.stream, sa.or_(has_id, has_location))
    return found.connection.execute(query).all()


def _insert(found: Found, items: Iterable[OriginItem]) -> None:
    rows = [
        {
            "stream": found.stream,
            "id": one.id,
            "location": one.location,
            "size_bytes": one.size_bytes,
            "modified_at": one.modified_at,
            "etag": one.etag,
        }
        for one in items
    ]
    for first in range(0, len(rows), _AT_ONCE):
        found.connection.execute(sa.insert(item), rows[first : first + _AT_ONCE])


def _lost_ranges(found: Found, fresh: Iterable[OriginItem]) -> Iterator[OriginItem]:
    """Give items for the bytes of files that none of their ranges has, with the next ids."""
    files: dict[str, OriginItem] = {}
    for one in fresh:
        if one.location is not None and MARK in one.location:
            files[split_location(one.location)[0]] = one
    highest = sa.select(sa.func.coalesce(sa.func.max(item.c.id), 0)).where(
        item.c.stream == found.stream
    )
    next_id = found.connection.execute(highest).scalar_one() + 1
    for uri, like in files.items():
        for gap in _gaps(_ranges(found, uri)):
            yield _again(next_id, uri, gap, like.modified_at, like.etag)
            next_id += 1


def _again(
    item_id: int, uri: str, gap: FileRange, modified_at: datetime | None, etag: str | None
) -> OriginItem:
    return OriginItem(
        id=item_id,
        read=0,
        written=0,
        filtered=0,
        quarantined=0,
        location=f"{uri}{gap.fragment}",
        size_bytes=gap.size_bytes,
        modified_at=modified_at,
        etag=etag,
    )


def _ranges(found: Found, uri: str) -> list[FileRange]:
    """Read the ranges of a file that are items."""
    file = sa.literal_column(FILE_OF_RANGE, sa.Text)
    query = sa.select(item.c.location).where(
        item.c.stream == found.stream, sa.text(IS_RANGE), file == uri.partition("#")[0]
    )
    parts: dict[str, list[FileRange]] = defaultdict(list)
    for location in found.connection.execute(query).scalars():
        of, part = split_location(location)
        if part is not None:
            parts[of].append(part)
    return sorted(parts[uri], key=lambda one: one.start)


def _gaps(ranges: Sequence[FileRange]) -> Iterator[FileRange]:
    """Give the bytes between ranges of one file, and those before and behind them."""
    size, reached = max((one.file_bytes or one.stop for one in ranges), default=0), 0
    for one in ranges:
        if one.start > reached:
            yield FileRange(reached, one.start, size)
        reached = max(reached, one.stop)
    if reached < size:
        yield FileRange(reached, size, size)
