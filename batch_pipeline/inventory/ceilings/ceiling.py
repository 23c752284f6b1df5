"""What every way to find a ceiling has in common: its reading, its memory, its Protocol.

No database is known here.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

MAX_CANDIDATES = 64


class Strategy(StrEnum):
    """How a ceiling is found."""

    LOCKS = "locks"  # Postgres: who held the table locked when the highest id was read
    LOCKING_READ = "locking_read"  # MySQL, MariaDB: a read that meets open inserts
    SQLITE = "sqlite"  # one writer at a time: the highest id
    REGISTRAR = "registrar"  # ids are given in commit order: the highest id
    SETTLE = "settle"  # rows younger than a delay are left alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A transaction that holds a ceiling back.

    `pid` is None for a prepared transaction; `age_seconds` is None where the role may not see it.
    """

    pid: int | None
    application: str
    age_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingReading:
    """The highest id below which no row can still appear, None when nothing is known yet.

    `held_by` lists who keeps it from rising, oldest first, where the database tells.
    """

    value: int | None
    strategy: Strategy
    held_by: tuple[Holder, ...] = ()


class Ceiling(Protocol):
    """A way to find the ceiling of one meta table."""

    def read(self) -> CeilingReading:
        """Look once, without waiting for anybody and without making a writer wait.

        Raises:
            MetaUnreachableError, MetaPermissionError, MetaBusyError: the table cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """An id that was the highest visible one, and who held the table locked right after that."""

    id: int
    holders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What earlier readings left: the ceiling reached, and ids in rising order that wait.

    `epoch` names what they hold for (on Postgres the server's start, the database, the table and
    its storage); of another one they are worthless.
    """

    strategy: Strategy
    epoch: str
    released: int | None = None
    waiting: tuple[Candidate, ...] = ()

    def limited_to(self, highest: int | None) -> "Candidates":
        """Forget what lies above the highest id: rows were deleted, or ids start again."""
        if highest is None:
            return replace(self, released=None, waiting=())
        released = self.released if self.released is None or self.released <= highest else None
        waiting = tuple(one for one in self.waiting if one.id <= highest)
        return replace(self, released=released, waiting=waiting)

    def with_candidate(self, candidate: Candidate) -> "Candidates":
        """Add an id unless it is known already."""
        known = self.waiting[-1].id if self.waiting else self.released
        if known is not None and candidate.id <= known:
            return self
        return replace(self, waiting=(*self.waiting, candidate))

    def released_up_to(self, value: int) -> "Candidates":
        """Raise the ceiling and drop the candidates that it passed."""
        waiting = tuple(one for one in self.waiting if one.id > value)
        return replace(self, released=value, waiting=waiting)

    def pruned(self) -> "Candidates":
        """Drop candidates that cannot matter, then every second one while there are too many.

        One does not matter when a higher one waits for none but the same transactions.
        """
        kept: list[Candidate] = []
        for one in reversed(self.waiting):
            if not kept or not kept[-1].holders <= one.holders:
                kept.append(one)
        while len(kept) > MAX_CANDIDATES:
            kept = kept[::2]
        return replace(self, waiting=tuple(reversed(kept)))


class CandidateStore(Protocol):
    """The memory of all ceilings, by the canonical name of their meta table.

    Readers may overwrite each other: every state ever saved is true, a lost one only costs time.
    """

    def load(self, table: str) -> Candidates | None:
        """Give what was saved last."""
        ...

    def save(self, table: str, candidates: Candidates) -> None:
        """Keep a state in place of the last one."""
        ...


class CandidatesInMemory:
    """A memory that lasts as long as the process."""

    def __init__(self) -> None:
        self._states: dict[str, Candidates] = {}

    def load(self, table: str) -> Candidates | None:
        """Give what was saved last."""
        return self._states.get(table)

    def save(self, table: str, candidates: Candidates) -> None:
        """Keep a state in place of the last one."""
        self._states[table] = candidates


def recalled(store: CandidateStore, table: str, strategy: Strategy, epoch: str) -> Candidates:
    """Load a table's state; one of another strategy or epoch counts as none."""
    state = store.load(table)
    if state is None or (state.strategy, state.epoch) != (strategy, epoch):
        return Candidates(strategy=strategy, epoch=epoch)
    return state
