"""The memory of ceilings in the inventory, so that all planners go on from each other's looks.

How a ceiling is found is not known here; nothing here reads a meta table.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.domain.id_range import MAX_ID, MIN_ID
from batch_pipeline.inventory.meta.ceilings.ceiling import Candidate, Candidates, Strategy
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import ceiling_candidate


@dataclass(frozen=True, slots=True)
class StoredCandidates:
    """What the ceilings of one database's meta tables remember, one row a table.

    `scope` names that database, since a table's canonical name is its own in one database only.
    Each call is one statement that commits by itself and locks no more than the table's own row.

    Raises:
        DatabaseUnreachableError: the inventory does not answer.
        LockTimeoutError: another save of the same table lasted longer than 5 s.
    """

    engine: sa.Engine
    scope: str

    def load(self, table: str) -> Candidates | None:
        """Give what was saved last; None when it is nothing, or nothing that can be understood."""
        query = sa.select(ceiling_candidate.c.state).where(*self._key(table))
        with transaction(self._autocommit()) as connection:
            state = connection.execute(query).scalar_one_or_none()
        return _parsed(state)

    def save(self, table: str, candidates: Candidates) -> None:
        """Keep a state in place of the last one; the one that is there already is not written."""
        state = sa.literal(_formed(candidates), pg.JSONB)
        same = sa.exists().where(*self._key(table), ceiling_candidate.c.state == state)
        row = sa.select(sa.literal(self.scope), sa.literal(table), state).where(~same)
        insert = pg.insert(ceiling_candidate).from_select(["scope", "meta_table", "state"], row)
        upsert = insert.on_conflict_do_update(
            constraint=ceiling_candidate.primary_key,
            set_={"state": insert.excluded.state, "saved_at": sa.func.clock_timestamp()},
        )
        with transaction(self._autocommit()) as connection:
            connection.execute(upsert)

    def _key(self, table: str) -> tuple[sa.ColumnElement[bool], ...]:
        columns = ceiling_candidate.c
        return columns.scope == self.scope, columns.meta_table == table

    def _autocommit(self) -> sa.Engine:
        # One round trip a call: BEGIN and COMMIT would be two more.
        return self.engine.execution_options(isolation_level="AUTOCOMMIT")


def _formed(candidates: Candidates) -> dict[str, Any]:
    return {
        "strategy": candidates.strategy.value,
        "epoch": candidates.epoch,
        "released": candidates.released,
        "waiting": [[one.id, sorted(one.holders)] for one in candidates.waiting],
    }


def _parsed(state: Any) -> Candidates | None:
    """Read what `_formed` gave; what it could not have given, of another release say, is none."""
    try:
        candidates = Candidates(
            strategy=Strategy(state["strategy"]),
            epoch=state["epoch"],
            released=state["released"],
            waiting=tuple(Candidate(uid, frozenset(names)) for uid, names in state["waiting"]),
        )
        is_whole = _formed(candidates) == state
    except (KeyError, TypeError, ValueError):
        return None
    return candidates if is_whole and _is_sound(candidates) else None


def _is_sound(candidates: Candidates) -> bool:
    released = [] if candidates.released is None else [candidates.released]
    ids = [*released, *(one.id for one in candidates.waiting)]
    names = [candidates.epoch, *(name for one in candidates.waiting for name in one.holders)]
    return (
        all(type(uid) is int and MIN_ID <= uid <= MAX_ID for uid in ids)
        and all(below < above for below, above in pairwise(ids))
        and all(isinstance(name, str) for name in names)
    )
