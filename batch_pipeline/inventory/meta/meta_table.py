"""The product's own meta table: gives landed files their ids, in commit order.

Ids of a stream count from 1 without gaps. They are given under a lock of the stream, so an id
becomes visible only after all smaller ones and the ceiling is simply the largest id.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import sqlalchemy as sa

from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.file_range import MARK
from batch_pipeline.domain.filter import Condition, Operator
from batch_pipeline.domain.item import FoundFile, Item, Registered
from batch_pipeline.domain.planning import Cut, Limits, cut
from batch_pipeline.domain.table_identity import INVENTORY, TableIdentity
from batch_pipeline.inventory.jobs.late_items import late_items
from batch_pipeline.inventory.meta.ceilings.ceiling import CeilingReading, Strategy
from batch_pipeline.inventory.meta.column_roles import MetaColumns
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta.registration import Registration, item_of
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import SCHEMA, item
from batch_pipeline.ports import Cutter

_CHUNK = 5_000
_STREAM_ROWS = 10_000
_COLUMNS = MetaColumns(uid="id", item="location", weight="size_bytes")
OWN_IDENTITY = TableIdentity(
    uid=_COLUMNS.uid, item=_COLUMNS.item, weight=_COLUMNS.weight, database=INVENTORY
)
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMetaTable:
    """The items of one stream in the inventory's own `item` table."""

    engine: sa.Engine
    stream: str

    def register(
        self,
        files: Iterable[FoundFile],
        *,
        accept_changed: bool,
        cutter: Cutter | None = None,
        all_or_none: bool = False,
    ) -> Registered:
        """Give ids to unknown files, in the order given, one transaction for every 5,000 files.

        Without a cutter each new file is one item. With `all_or_none` it is one transaction for all
        files, which does nothing where one of them has changed.
        """
        found = new_items = accepted = 0
        changed: list[str] = []
        registration = Registration(engine=self.engine, stream=self.stream, cutter=cutter)
        for chunk in _chunks(files, None if all_or_none else _CHUNK):
            found += len(chunk)
            news = registration.register(
                chunk, accept_changed=accept_changed, all_or_none=all_or_none
            )
            new_items, accepted = new_items + news[0], accepted + news[1]
            changed += news[2]
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

    @property
    def identity(self) -> TableIdentity:
        """The database and the columns of the items."""
        return OWN_IDENTITY

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
            columns=_COLUMNS,
            where=Condition("stream", Operator.EQUAL, self.stream),
            on_bad_weight=None,
            notes=(),
            database=INVENTORY,
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
            return [item_of(row) for row in connection.execute(query)]

    def find(self, what: str) -> list[Item]:
        """Find items by id, by whole location, or by the last part of it; at most 20."""
        file = sa.func.split_part(item.c.location, MARK, 1)
        name = sa.or_(
            item.c.location == what,
            file == what,
            file.endswith(f"/{what}", autoescape=True),
            item.c.location.endswith(f"/{what}", autoescape=True),
        )
        if what.isascii() and what.isdigit() and len(what) < 19:
            name = sa.or_(name, item.c.id == int(what))
        query = (
            sa.select(item).where(item.c.stream == self.stream, name).order_by(item.c.id).limit(20)
        )
        with transaction(self.engine) as connection:
            return [item_of(row) for row in connection.execute(query)]

    def _weights(self, after_id: int, ceiling: int) -> Iterator[tuple[int, int]]:
        query = (
            sa.select(item.c.id, item.c.size_bytes)
            .where(*self._above(after_id), item.c.id <= ceiling)
            .order_by(item.c.id)
            .execution_options(yield_per=_STREAM_ROWS)
        )
        with transaction(self.engine) as connection, connection.execute(query) as found:
            for row in found:
                yield row.id, row.size_bytes

    def _above(self, after_id: int | None) -> list[sa.ColumnElement[bool]]:
        return [item.c.stream == self.stream, item.c.id > (after_id or 0)]


def _belongs_to(one: Batch) -> sa.ColumnElement[bool]:
    if one.item_ids is not None:
        return item.c.id == sa.any_(sa.cast(list(one.item_ids), sa.ARRAY(sa.BigInteger)))
    return item.c.id.not_in(late_items(one))


def _chunks(rows: Iterable[_Row], size: int | None) -> Iterator[list[_Row]]:
    """Give rows in lists of a size, all in one where it is None.

    Where the rows end in an error those before it are given first, unless all are wanted in one.
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
