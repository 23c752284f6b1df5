"""What every way to find a ceiling has in common: its reading, its memory, its Protocol.

No database is known here.
"""

from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from batch_pipeline.domain.ceiling import Strategy

__all__ = [
    "MAX_CANDIDATES",
    "Candidate",
    "CandidateStore",
    "Candidates",
    "CandidatesInMemory",
    "Ceiling",
    "CeilingReading",
    "Holder",
    "Strategy",
    "describe",
    "recalled",
]

MAX_CANDIDATES = 64
_LONGEST_NAME = 80


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


def describe(reading: CeilingReading) -> str:
    """Say in one line what the ceiling is and what holds it back.

    Names of applications and of prepared transactions are other people's text: what cannot be
    printed is left out of them, and of a long one the end.
    """
    height = "no ceiling yet" if reading.value is None else f"ceiling {reading.value}"
    return f"{height} ({reading.strategy}); {_cause(reading)}"


def _cause(reading: CeilingReading) -> str:
    if reading.held_by:
        oldest, others = _named(reading.held_by[0]), len(reading.held_by) - 1
        return f"held back by {oldest}" + (f", and {others} more" if others else "")
    match reading.strategy:
        case Strategy.LOCKS | Strategy.SQLITE | Strategy.REGISTRAR:
            return "nothing holds it back"
        case Strategy.LOCKING_READ:
            return "the database does not name who may hold it back"
        case Strategy.SETTLE:
            return "rows younger than its delay are left alone"
        case _:
            assert_never(reading.strategy)


def _named(holder: Holder) -> str:
    # A prepared transaction has no process: its application says what it is.
    printable = "".join(one for one in holder.application if one.isprintable()).strip()
    name = printable if len(printable) <= _LONGEST_NAME else f"{printable[:_LONGEST_NAME]}…"
    if holder.pid is not None:
        name = f"pid {holder.pid} ({name})" if name else f"pid {holder.pid}"
    return name if holder.age_seconds is None else f"{name} for {max(holder.age_seconds, 0):.0f} s"


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
