"""What a person should look at in an imported job, in words. Nothing is read or decided here."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from batch_pipeline.domain.audit import Noted
from batch_pipeline.domain.imported import ForeignAttempt, ForeignJob, KnownRow
from batch_pipeline.domain.imported_ranges import Compared
from batch_pipeline.domain.words import agreeing, count_of

_STAY = (
    "it stays as it is here: cancel it if it is done by now",
    "they stay as they are here: cancel those that are done by now",
)


def of_job(one: ForeignJob) -> Iterator[str]:
    """Tell of tries that were never released, and of a meta table with two names."""
    running = [each for each in one.attempts if each.recorded == "running"]
    if running:
        outcome = "succeeded" if running[0].succeeded else "failed"
        ranges, count = count_of(len(running), "range"), agreeing(len(running), "counts", "count")
        yield f"{ranges} never released {count} as {outcome} ({named(running)})"
    if len(one.written) > 1:
        yield (
            f"its meta table was called {' and '.join(one.written)}, with a bookmark for each: "
            f"what was done by either name is done"
        )


def of_changes(attempts: Iterable[ForeignAttempt], known: Mapping[int, KnownRow]) -> Iterator[str]:
    """Tell of tries whose status has changed since they were imported."""
    changed = [one for one in attempts if one.id in known and known[one.id].status != one.recorded]
    if changed:
        count = len(changed)
        have = agreeing(count, "has", "have")
        were, stay = agreeing(count, "it was", "they were"), agreeing(count, *_STAY)
        yield (
            f"{count_of(count, 'range')} {have} another status there than when {were} imported "
            f"({named(changed)}); {stay}"
        )


def of_ranges(compared: Sequence[Compared], tries: int) -> Iterator[str]:
    """Tell of ranges that shared ids, and of those that hold other items than were counted."""
    parts = [one.part for one in compared]
    shared = tries - sum(len(part.attempts) == 1 and part.whole is not None for part in parts)
    if shared:
        yield (
            f"{count_of(shared, 'range')} shared ids with others: each id is in a batch that "
            f"succeeded, if there was one"
        )
    more, fewer = Noted(), Noted()
    for one in compared:
        whole, ids = one.part.whole, [str(one.part.ids)]
        if whole is None or not one.part.is_published:
            continue
        more = more.and_also(ids if one.there.count > whole.count else [])
        fewer = fewer.and_also(ids if one.there.count < whole.count else [])
    if more.count:
        batches, hold = count_of(more.count, "batch"), agreeing(more.count, "holds", "hold")
        yield (
            f"{batches} that succeeded {hold} more items than were counted ({more}): whether these "
            f"were handed out is not known, and they are not handed out again"
        )
    if fewer.count:
        batches, hold = count_of(fewer.count, "batch"), agreeing(fewer.count, "holds", "hold")
        yield f"{batches} {hold} fewer items than were counted ({fewer})"


def of_end(highest: int | None, bookmark: int) -> Iterator[str]:
    """Tell that ids of the meta table end below the bookmark."""
    if highest is None or highest < bookmark:
        end = "it has no items" if highest is None else f"its ids end at {highest}"
        yield f"rows of the meta table are gone, {end}: new ones begin at id {bookmark + 1}"


def named(attempts: Iterable[ForeignAttempt]) -> str:
    """Name the first twenty ranges."""
    return str(Noted().and_also(str(one.ids) for one in attempts))


def since(attempts: Iterable[ForeignAttempt]) -> str:
    """Name the first twenty ranges, each with the time when it was acquired."""
    times = (f"{one.ids} since {one.started_at:%Y-%m-%d %H:%M} UTC" for one in attempts)
    return str(Noted().and_also(times))
