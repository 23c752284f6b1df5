"""The product's own meta table: gives landed files their ids, in commit order.

Ids of a stream count from 1 without gaps. They are given under a lock of the stream, so an id
becomes visible only after all smaller ones and the ceiling is simply the largest id.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa

from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.filter import Condition, Operator
from batch_pipeline.domain.item import FoundFile, Item, Registered
from batch_pipeline.domain.planning import Cut, Limits, cut
from batch_pipeline.inventory.jobs.late_items import late_items
from batch_pipeline.inventory.locks import LockClass, lock_in_transaction
from batch_pipeline.inventory.meta.ceilings.ceiling import CeilingReading, Strategy
from batch_pipeline.inventory.meta.column_roles import MetaColumns
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import SCHEMA, item

_CHUNK = 5_000
_STREAM_ROWS = 10_000
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMetaTable:
    """The items of one stream in the inventory's own `item` table."""

    engine: sa.Engine
    stream: str

    def register(self, files: Iterable[FoundFile], *, accept_changed: bool) -> Registered:
        """Give ids to unknown files, in the order given, one transaction for every 5,000 files."""
        found = new_items = accepted = 0
        changed: list[str] = []
        for chunk in _chunks(files, _CHUNK):
            found += len(chunk)
            with transaction(self.engine) as connection:
                unknown, differing = self._compare(connection, chunk)
                if unknown:
                    new_items += self._add(connection, unknown)
                if accept_changed:
                    accepted += self._accept(connection, differing)
                else:
                    changed += [file.location for file in differing]
            failpoint("register.after_commit")
        return Registered(
            found=found, new_items=new_items, changed=tuple(changed), accepted=accepted
        )

    @property
    def name(self) -> str:
        """Its canonical name."""
        return f"{SCHEMA}.{item.name}"

    @property
    def where(self) -> None:
        """None: a stream has all its items."""
        return None

    def check_not_restarted(self, planned_up_to: int) -> None:
        """Do nothing: ids are given by the highest one, and rows are never deleted."""

    def ceiling(self) -> int | None:
        """Give the highest id: ids become visible in their order here."""
        highest = sa.select(sa.func.max(item.c.id)).where(item.c.stream == self.stream)
        with transaction(self.engine) as connection:
            found: int | None = connection.execute(highest).scalar_one()
        return found

    def beginning(self) -> datetime | None:
        """Tell when the first item was registered: at another time when rows were forgotten."""
        first = sa.select(item.c.registered_at).where(item.c.stream == self.stream)
        with transaction(self.engine) as connection:
            query = first.order_by(item.c.id).limit(1)
            found: datetime | None = connection.execute(query).scalar_one_or_none()
        return found

    def reading(self) -> CeilingReading:
        """Give the ceiling as those of users' tables are given."""
        return CeilingReading(value=self.ceiling(), strategy=Strategy.REGISTRAR)

    def reflected(self) -> ReflectedMetaTable:
        """Give the items as a table that is read like users' tables are."""
        return ReflectedMetaTable(
            engine=self.engine,
            table=item,
            canonical_name=self.name,
            is_view=False,
            columns=MetaColumns(uid="id", item="location", weight="size_bytes"),
            where=Condition("stream", Operator.EQUAL, self.stream),
            on_bad_weight=None,
            notes=(),
        )

    def cuts(self, after_id: int | None, ceiling: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above an id up to the ceiling, in one pass."""
        first = after_id or 0
        yield from cut(
            self._weights(first, ceiling), after_id=first, ceiling=ceiling, limits=limits
        )

    def waited(self, after_id: int | None) -> timedelta | None:
        """Tell how long the oldest item above an id has been registered."""
        oldest = sa.select(sa.func.min(item.c.registered_at)).where(*self._above(after_id))
        waited = sa.select(sa.func.clock_timestamp() - oldest.scalar_subquery())
        with transaction(self.engine) as connection:
            found: timedelta | None = connection.execute(waited).scalar_one()
        return found

    def backlog(self, after_id: int | None) -> tuple[int, int]:
        """Count the items above an id and their weight in bytes."""
        weight = sa.func.coalesce(sa.func.sum(item.c.size_bytes), 0)
        query = sa.select(sa.func.count(), weight).where(*self._above(after_id))
        with transaction(self.engine) as connection:
            count, total = connection.execute(query).one()
        return int(count), int(total)

    def items(self, batch: Batch) -> Sequence[Item]:
        """Read the items of a batch in id order: those of its list, or those of its range that are
        in no list of late arrivals.
        """
        query = (
            sa.select(item)
            .where(
                item.c.stream == self.stream,
                item.c.id.between(batch.id_range.first_id, batch.id_range.last_id),
                _belongs_to(batch),
            )
            .order_by(item.c.id)
        )
        with transaction(self.engine) as connection:
            return [_item(row) for row in connection.execute(query)]

    def find(self, what: str) -> list[Item]:
        """Find items by id, by whole location, or by the last part of it; at most 20."""
        name = sa.or_(
            item.c.location == what, item.c.location.endswith(f"/{what}", autoescape=True)
        )
        if what.isascii() and what.isdigit() and len(what) < 19:
            name = sa.or_(name, item.c.id == int(what))
        query = (
            sa.select(item).where(item.c.stream == self.stream, name).order_by(item.c.id).limit(20)
        )
        with transaction(self.engine) as connection:
            return [_item(row) for row in connection.execute(query)]

    def _weights(self, after_id: int, ceiling: int) -> Iterator[tuple[int, int]]:
        query = (
            sa.select(item.c.id, item.c.size_bytes)
            .where(*self._above(after_id), item.c.id <= ceiling)
            .order_by(item.c.id)
            .execution_options(yield_per=_STREAM_ROWS)
        )
        with transaction(self.engine) as connection:
            for row in connection.execute(query):
                yield row.id, row.size_bytes

    def _above(self, after_id: int | None) -> list[sa.ColumnElement[bool]]:
        return [item.c.stream == self.stream, item.c.id > (after_id or 0)]

    def _compare(
        self, connection: sa.Connection, files: Sequence[FoundFile]
    ) -> tuple[list[FoundFile], list[FoundFile]]:
        query = sa.select(item).where(
            item.c.stream == self.stream,
            item.c.location == sa.any_(sa.cast([f.location for f in files], sa.ARRAY(sa.Text))),
        )
        known = {row.location: _item(row).file for row in connection.execute(query)}
        unknown = {file.location: file for file in files if file.location not in known}
        differing = [file for file in files if known.get(file.location, file) != file]
        return list(unknown.values()), differing

    def _add(self, connection: sa.Connection, files: Sequence[FoundFile]) -> int:
        lock_in_transaction(connection, LockClass.REGISTER, self.stream)
        failpoint("register.locked")
        unknown, _ = self._compare(connection, files)  # a rival may have added some meanwhile
        highest = sa.select(sa.func.coalesce(sa.func.max(item.c.id), 0)).where(
            item.c.stream == self.stream
        )
        next_id = connection.execute(highest).scalar_one() + 1
        rows = [
            {
                "stream": self.stream,
                "id": item_id,
                "location": file.location,
                "size_bytes": file.size_bytes,
                "modified_at": file.modified_at,
                "etag": file.etag,
            }
            for item_id, file in enumerate(unknown, start=next_id)
        ]
        if rows:
            connection.execute(sa.insert(item), rows)
        failpoint("register.before_commit")
        return len(rows)

    def _accept(self, connection: sa.Connection, files: Sequence[FoundFile]) -> int:
        for file in files:
            connection.execute(
                sa.update(item)
                .where(item.c.stream == self.stream, item.c.location == file.location)
                .values(size_bytes=file.size_bytes, modified_at=file.modified_at, etag=file.etag)
            )
        return len(files)


def _belongs_to(one: Batch) -> sa.ColumnElement[bool]:
    if one.item_ids is not None:
        return item.c.id == sa.any_(sa.cast(list(one.item_ids), sa.ARRAY(sa.BigInteger)))
    return item.c.id.not_in(late_items(one))


def _item(row: sa.Row[Any]) -> Item:
    return Item(
        id=row.id,
        file=FoundFile(
            location=row.location,
            size_bytes=row.size_bytes,
            modified_at=row.modified_at,
            etag=row.etag,
        ),
    )


def _chunks(rows: Iterable[_Row], size: int) -> Iterator[list[_Row]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk
