"""Audits: what published batches saw, compared with what their meta table holds now."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """How many there are of something, and the first 20 of them by name."""

    count: int = 0
    first: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.first) else ""
        return f"{', '.join(map(str, self.first))}{more}"

    @property
    def ids(self) -> str:
        """Give the names as those of ids: `ids: 17, 18`."""
        return f"ids: {self}"

    def and_also(self, names: Iterable[int | str]) -> "Noted":
        """Count some more; memory is constant."""
        first, count = list(self.first), self.count
        for name in names:
            count += 1
            if len(first) < _SHOWN:
                first.append(name)
        return Noted(count=count, first=tuple(first))

    def plus(self, other: "Noted") -> "Noted":
        """Count what somebody else has noted, too."""
        first = (*self.first, *other.first)[:_SHOWN]
        return Noted(count=self.count + other.count, first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the audit of a job found.

    `batches` were compared; `left_out` were not, since their items were not read through this
    product or are being read again. Ids of items that are `late` are planned now, as `late_batches`
    batches of the job `late_job`; `known` ones earlier audits had planned. A late item that is
    `refused` has a weight that cannot be counted and is planned once that is corrected. `missing`
    items were published and are no longer there; `changed` are batches whose items weigh something
    else than when they were published. Where `other_table` says that the job's table or its columns
    are not those of its batches, nothing was compared or planned: the ids mean other rows.
    """

    job: str
    late_job: str
    batches: int = 0
    left_out: int = 0
    late: Noted = Noted()
    late_batches: int = 0
    known: int = 0
    refused: Noted = Noted()
    missing: Noted = Noted()
    changed: Noted = Noted()
    other_table: tuple[str, ...] = ()

    def with_late(self, ids: Iterable[int], *, batches: int, known: int) -> "Audit":
        """Add late items that were planned, and count the ones that had been before."""
        return replace(
            self,
            late=self.late.and_also(ids),
            late_batches=self.late_batches + batches,
            known=self.known + known,
        )

    @property
    def is_clean(self) -> bool:
        """Tell whether everything compared is as it was published."""
        found = (self.late, self.refused, self.missing, self.changed)
        return not self.known and not self.other_table and not any(one.count for one in found)

    def sentences(self) -> list[str]:
        """Say for people what was found, and what becomes of it."""
        if self.other_table:
            return [
                f"Nothing was compared or planned: {problem}. Take a new name for the job, or "
                f'correct what it reads ("Moving a meta table" in docs/library.md).'
                for problem in self.other_table
            ]
        said = [f"Published batches compared with the meta table: {self.batches}."]
        if count := self.late.count:
            said.append(
                f"Items that arrived late: {count} ({self.late.ids}). Batches of job "
                f"{self.late_job!r} planned for them: {self.late_batches}."
            )
        if count := self.known:
            said.append(f"Late items planned by earlier audits: {count}.")
        if count := self.refused.count:
            said.append(
                f"Late items with a weight that cannot be counted: {count} ({self.refused.ids}). "
                f"Correct it, and the next audit plans them."
            )
        said += self._gone_or_changed()
        if self.is_clean:
            said.append("Nothing is late, gone or changed.")
        if count := self.left_out:
            said.append(
                f"Published batches left out: {count}. What they saw was not kept, or they run "
                f"again just now."
            )
        return said

    def _gone_or_changed(self) -> Iterator[str]:
        if count := self.missing.count:
            yield (
                f"Items gone since they were published: {count} ({self.missing.ids}). What was "
                f"published of them stays."
            )
        if count := self.changed.count:
            yield (
                f"Batches that weigh something else than when they were published: {count} "
                f"({self.changed}). What was published of them stays."
            )

    def sentence(self) -> str:
        """Say all of it in one line."""
        return f"{self.job}: {' '.join(self.sentences())}"


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Compares ids that a batch saw with the rows that are there; both rise, both are streamed."""

    seen: Iterable[int]
    rows: Iterable[tuple[int, int | None]]
    missing: Noted = Noted()
    weight: int = 0

    def surplus(self) -> Iterator[tuple[int, int | None]]:
        """Give the rows that the batch did not see.

        Afterwards `missing` has the ids that are gone, and `weight` is what the rows that are still
        there weigh. A row that a view gives twice counts once.
        """
        expected = iter(self.seen)
        wanted, last_id = next(expected, None), None
        for item_id, weight in self.rows:
            gone = []
            while wanted is not None and wanted < item_id:
                gone.append(wanted)
                wanted = next(expected, None)
            if gone:
                self.missing = self.missing.and_also(gone)
            if wanted == item_id:
                self.weight += weight or 0
                wanted = next(expected, None)
            elif item_id != last_id:
                yield item_id, weight
            last_id = item_id
        if wanted is not None:
            self.missing = self.missing.and_also([wanted]).and_also(expected)
