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
    else than when they were published.
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
        return not self.known and not any(one.count for one in found)

    def sentences(self) -> list[str]:
        """Say for people what was found, and what becomes of it."""
        said = [f"{self.batches} published batch(es) compared with the meta table."]
        if self.late.count:
            said.append(
                f"{self.late.count} item(s) arrived late (ids {self.late}): planned as "
                f"{self.late_batches} batch(es) of job {self.late_job!r}."
            )
        if self.known:
            said.append(f"{self.known} late item(s) were planned by earlier audits.")
        if self.refused.count:
            said.append(
                f"{self.refused.count} late item(s) with a weight that cannot be counted (ids "
                f"{self.refused}): correct it, and the next audit plans them."
            )
        if self.missing.count:
            said.append(
                f"{self.missing.count} item(s) are gone since they were published (ids "
                f"{self.missing}); what was published of them stays."
            )
        if self.changed.count:
            said.append(
                f"{self.changed.count} batch(es) weigh something else than when they were "
                f"published ({self.changed}); what was published of them stays."
            )
        if self.is_clean:
            said.append("Nothing is late, gone or changed.")
        if self.left_out:
            said.append(
                f"{self.left_out} published batch(es) left out: what they saw was not kept, or "
                f"they run again just now."
            )
        return said

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
