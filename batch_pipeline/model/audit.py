"""Audits: published batches compared with the current rows of their meta table.

`Comparison` compares the ids that a batch read with the rows, both streamed; `Audit` is the result
for a job: late, missing and changed items.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedNames:
    """Number of ids or names, with the first 20 of them."""

    count: int = 0
    first: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.first) else ""
        return f"{', '.join(map(str, self.first))}{more}"

    def extended(self, names: Iterable[int | str]) -> "CountedNames":
        """Return the count with more names added; memory is constant."""
        first, count = list(self.first), self.count
        for name in names:
            count += 1
            if len(first) < _SHOWN:
                first.append(name)
        return CountedNames(count=count, first=tuple(first))

    def plus(self, other: "CountedNames") -> "CountedNames":
        """Return the sum of both counts."""
        first = (*self.first, *other.first)[:_SHOWN]
        return CountedNames(count=self.count + other.count, first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Result of the audit of a job.

    `batches` were compared; `left_out` batches were not, because their items were not recorded or
    they are running again. `late` items were planned by this audit, as `late_batches` batches of
    the job `late_job`; `known` late items by earlier audits. `refused` late items have an invalid
    weight, or a negative id in a stream, and are planned once it is corrected. `missing` items were
    published and no longer exist. `changed` lists batches whose weight has changed since they were
    published. `other_table` lists the differences between the job's table or columns and those of
    its batches; in that case nothing is compared or planned, since the ids refer to other rows.
    """

    job: str
    late_job: str
    batches: int = 0
    left_out: int = 0
    late: CountedNames = CountedNames()
    late_batches: int = 0
    known: int = 0
    refused: CountedNames = CountedNames()
    missing: CountedNames = CountedNames()
    changed: CountedNames = CountedNames()
    other_table: tuple[str, ...] = ()

    def with_late(self, ids: Iterable[int], *, batches: int, known: int) -> "Audit":
        """Return the audit with newly planned late items and the number of known items added."""
        return replace(
            self,
            late=self.late.extended(ids),
            late_batches=self.late_batches + batches,
            known=self.known + known,
        )

    @property
    def is_clean(self) -> bool:
        """Return whether the audit found no differences."""
        counts = (self.late, self.refused, self.missing, self.changed)
        return not self.known and not self.other_table and not any(names.count for names in counts)

    def sentences(self) -> list[str]:
        """Return the findings and their consequences as sentences for people."""
        if self.other_table:
            return [
                f"Nothing was compared or planned: {problem}. Use a new name for the job, or "
                f'correct what it reads ("Moving a meta table" in docs/reference/meta_tables.md).'
                for problem in self.other_table
            ]
        lines = [f"Published batches compared with the meta table: {self.batches}."]
        if count := self.late.count:
            lines.append(
                f"Items that arrived late: {count} (ids: {self.late}). Batches of job "
                f"{self.late_job!r} planned for them: {self.late_batches}."
            )
        if count := self.known:
            lines.append(f"Late items planned by earlier audits: {count}.")
        if count := self.refused.count:
            lines.append(
                f"Late items with a negative id, or a weight that cannot be counted: {count} (ids: "
                f"{self.refused}). Correct it, and the next audit plans them."
            )
        lines += self._gone_or_changed()
        if self.is_clean:
            lines.append("No late, deleted or changed items.")
        if count := self.left_out:
            lines.append(
                f"Published batches not compared: {count}. Their items were not recorded, or "
                f"they are running again."
            )
        return lines

    def _gone_or_changed(self) -> Iterator[str]:
        if count := self.missing.count:
            yield (
                f"Items deleted since they were published: {count} (ids: {self.missing}). Their "
                f"published records stay."
            )
        if count := self.changed.count:
            yield (
                f"Batches whose weight has changed since they were published: {count} "
                f"({self.changed}). Their published records stay."
            )

    def sentence(self) -> str:
        """Return all sentences in one line."""
        return f"{self.job}: {' '.join(self.sentences())}"


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Comparison of the ids that a batch read with the current rows, both streams ascending."""

    seen: Iterable[int]
    rows: Iterable[tuple[int, int | None]]
    missing: CountedNames = CountedNames()
    weight: int = 0

    def surplus(self) -> Iterator[tuple[int, int | None]]:
        """Yield the rows that the batch did not read.

        Afterwards `missing` has the ids that no longer exist, and `weight` the weight of the
        remaining rows. A row that a view returns twice counts once.
        """
        expected = iter(self.seen)
        next_id, last_id = next(expected, None), None
        for item_id, weight in self.rows:
            gone = []
            while next_id is not None and next_id < item_id:
                gone.append(next_id)
                next_id = next(expected, None)
            if gone:
                self.missing = self.missing.extended(gone)
            if next_id == item_id:
                self.weight += weight or 0
                next_id = next(expected, None)
            elif item_id != last_id:
                yield item_id, weight
            last_id = item_id
        if next_id is not None:
            self.missing = self.missing.extended([next_id]).extended(expected)
