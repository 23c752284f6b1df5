"""The ceiling of an InnoDB table: a read that asks for share locks meets every open insert.

READ COMMITTED, so that only rows are locked and no writer waits at a gap; NOWAIT, so that we do not
wait either. An id that was given but whose row is not in the index yet (microseconds of a
statement) is not met: the late-arrival audit is for that.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.inventory.meta.ceilings.ceiling import (
    Candidate,
    CandidateStore,
    CeilingReading,
    Strategy,
    recalled,
)
from batch_pipeline.inventory.meta.meta_engine import NOT_YET, error_code, reading
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable

_PAGE_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LockingReadCeiling:
    """The ceiling of an InnoDB table with an AUTO_INCREMENT id. Reads every row once."""

    table: ReflectedMetaTable
    store: CandidateStore

    def read(self) -> CeilingReading:
        """Read on from the last ceiling to each candidate until an open insert is met."""
        name = self.table.canonical_name
        # Before looking: what somebody saves meanwhile may lie above what is seen here.
        state = recalled(self.store, name, Strategy.LOCKING_READ, "")
        highest = self.table.highest_id()
        state = state.limited_to(highest)
        if highest is not None:
            state = state.with_candidate(Candidate(highest))
        for candidate in state.waiting:
            reached = self._settled_up_to(state.released, candidate.id)
            if reached is not None:
                state = state.released_up_to(reached)
            if reached != candidate.id:
                break
        self.store.save(name, state)
        return CeilingReading(value=state.released, strategy=Strategy.LOCKING_READ)

    def _settled_up_to(self, after_id: int | None, last_id: int) -> int | None:
        """Lock and let go page by page; give the last id before the first open insert's page."""
        while after_id is None or after_id < last_id:
            page_end = self._page_end(after_id, last_id)
            if not self._is_settled(after_id, page_end):
                break
            after_id = page_end
        return after_id

    def _page_end(self, after_id: int | None, last_id: int) -> int:
        page = sa.select(self.table.uid.label("uid")).where(*self._between(after_id, last_id))
        rows = page.order_by(self.table.uid).limit(_PAGE_ROWS).subquery()
        query = sa.select(sa.func.count(), sa.func.max(rows.c.uid)).select_from(rows)
        with reading(self.table.engine, "READ COMMITTED") as connection:
            count, highest = connection.execute(query).one()
        return int(highest) if count == _PAGE_ROWS else last_id

    def _is_settled(self, after_id: int | None, last_id: int) -> bool:
        # Downwards: upwards, the row after the last one would be locked to see that it is beyond.
        query = sa.select(self.table.uid).where(*self._between(after_id, last_id))
        query = query.order_by(self.table.uid.desc()).with_for_update(read=True, nowait=True)
        with reading(self.table.engine, "READ COMMITTED") as connection:
            try:
                connection.execute(query).all()
            except exc.DBAPIError as error:
                if error_code(error) in NOT_YET:
                    return False
                raise
        return True

    def _between(self, after_id: int | None, last_id: int) -> list[sa.ColumnElement[bool]]:
        uid = self.table.uid
        above = [] if after_id is None else [uid > sa.literal(after_id, sa.BigInteger)]
        return [*above, uid <= sa.literal(last_id, sa.BigInteger)]
