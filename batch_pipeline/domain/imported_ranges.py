"""How ranges that nothing kept apart become batches: each id in one, and none passed over.

Pure functions over the rows of a job of pybatchintory, and over what its meta table holds now.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from batch_pipeline.domain.audit import Noted
from batch_pipeline.domain.id_range import MIN_ID, IdRange
from batch_pipeline.domain.imported import NO_ITEMS, ForeignAttempt
from batch_pipeline.domain.seen import Seen

NOTHING = Seen.of((), weight=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Ids that no other part has, and the tries at them in their order."""

    ids: IdRange
    attempts: tuple[ForeignAttempt, ...]

    @property
    def is_published(self) -> bool:
        """Whether one of the tries succeeded."""
        return any(one.succeeded for one in self.attempts)

    @property
    def whole(self) -> ForeignAttempt | None:
        """The last try at exactly these ids, which counted them; None when they were cut."""
        mine = [one for one in self.attempts if one.ids == self.ids]
        return max(mine, key=lambda one: (one.succeeded, one.id), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A part, what its meta table holds of it now, and the rows between it and the part before."""

    part: Part
    there: Seen = NOTHING
    before: Noted = NO_ITEMS


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedBatch:
    """A batch as it is made here; `seen` is what a later audit compares with."""

    ids: IdRange
    attempts: tuple[ForeignAttempt, ...]
    is_published: bool
    count: int
    weight: int
    seen: Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """The batches of a job in id order.

    Items that are `late` lie in the range of a published batch that did not see them, or below the
    first one: an audit plans them. Items that are `left` lie in no range.
    """

    batches: tuple[ImportedBatch, ...]
    late: Noted = NO_ITEMS
    left: Noted = NO_ITEMS

    def runs(self, after_id: int | None) -> list[IdRange]:
        """Give the ids that are planned by them, as few runs as possible.

        The first run has no start, unless something is planned up to `after_id`.
        """
        runs: list[IdRange] = []
        for one in self.batches:
            first_id = one.ids.first_id
            if runs and runs[-1].last_id + 1 == first_id:
                first_id = runs.pop().first_id
            elif not runs and after_id is None:
                first_id = MIN_ID
            runs.append(IdRange(first_id=first_id, last_id=one.ids.last_id))
        return runs


def parts_of(attempts: Sequence[ForeignAttempt]) -> list[Part]:
    """Give each id that was ever tried to one part, in id order.

    An id belongs to a try that succeeded if there is one. A try of which nothing is left is a
    further try at the part that has its first id.
    """
    ranges: list[IdRange] = []
    tries: dict[IdRange, list[ForeignAttempt]] = {}
    again: list[ForeignAttempt] = []
    for succeeded in (True, False):
        taken, reach = list(ranges), MIN_ID - 1
        mine = (one for one in attempts if one.succeeded is succeeded)
        for one in sorted(mine, key=lambda one: (one.ids.first_id, -one.ids.last_id, one.id)):
            first_id = max(one.ids.first_id, reach + 1)
            free = list(_free(first_id, one.ids.last_id, taken))
            tries |= {ids: [one] for ids in free}
            again += [] if free else [one]
            reach = max(reach, one.ids.last_id)
        ranges = sorted(tries)
    firsts = [ids.first_id for ids in ranges]
    for one in again:
        tries[ranges[bisect_right(firsts, one.ids.first_id) - 1]].append(one)
    return [
        Part(ids=ids, attempts=tuple(sorted(tries[ids], key=lambda one: one.id))) for ids in ranges
    ]


def _free(first_id: int, last_id: int, taken: Sequence[IdRange]) -> Iterator[IdRange]:
    """Give what ranges that rise and do not overlap leave of some ids."""
    at = bisect_left(taken, first_id, key=lambda ids: ids.last_id)
    for ids in taken[at : bisect_right(taken, last_id, key=lambda ids: ids.first_id)]:
        if first_id < ids.first_id:
            yield IdRange(first_id=first_id, last_id=ids.first_id - 1)
        first_id = ids.last_id + 1
    if first_id <= last_id:
        yield IdRange(first_id=first_id, last_id=last_id)


def compare(parts: Sequence[Part], rows: Iterable[tuple[int, int]]) -> list[Compared]:
    """Compare parts with the `(id, weight)` of a meta table, which rise and end with the last part.

    Memory is the runs of ids that parts hold, and all ids of one part.
    """
    firsts = [part.ids.first_id for part in parts]
    there: dict[int, Seen] = {}
    before: dict[int, Noted] = {}

    def place(row: tuple[int, int]) -> tuple[int, bool]:
        at = bisect_right(firsts, row[0]) - 1
        is_inside = at >= 0 and row[0] in parts[at].ids
        return (at, True) if is_inside else (at + 1, False)

    for (at, is_inside), group in groupby(rows, place):
        if is_inside:
            found = list(group)
            weight = sum(weight for _, weight in found)
            there[at] = Seen.of((item_id for item_id, _ in found), weight=weight)
        else:
            before[at] = Noted().and_also(item_id for item_id, _ in group)
    return [
        Compared(part=part, there=there.get(at, NOTHING), before=before.get(at, NO_ITEMS))
        for at, part in enumerate(parts)
    ]


def tiled(compared: Sequence[Compared], after_id: int | None) -> Tiling:
    """Let ranges reach over the ids between them: a published one over what nobody handed out.

    What lies between two that failed is left, unless no row is there: trying again shall not take
    more than failed. With `after_id`, up to which all is planned, the first range may begin there.
    """
    firsts = [one.part.ids.first_id for one in compared]
    lasts = [one.part.ids.last_id for one in compared]
    late = left = NO_ITEMS
    for at, one in enumerate(compared):
        previous = lasts[at - 1] if at else after_id
        if at and compared[at - 1].part.is_published:
            lasts[at - 1] = firsts[at] - 1
        elif previous is not None and (one.part.is_published or not one.before.count):
            firsts[at] = previous + 1
        elif previous is not None:
            left = left.plus(one.before)
            continue
        late = late.plus(one.before)
    batches = [
        _batch(one, IdRange(first_id=first_id, last_id=last_id))
        for one, first_id, last_id in zip(compared, firsts, lasts, strict=True)
    ]
    return Tiling(batches=tuple(batches), late=late, left=left)


def _batch(one: Compared, ids: IdRange) -> ImportedBatch:
    whole = one.part.whole
    return ImportedBatch(
        ids=ids,
        attempts=one.part.attempts,
        is_published=one.part.is_published,
        count=one.there.count if whole is None else whole.count,
        weight=one.there.weight if whole is None else whole.weight,
        seen=one.there,
    )
