"""Why a job cannot be imported as it is, in words; nothing is read here."""

from collections.abc import Iterator, Sequence

from batch_pipeline.domain.imported import ForeignAttempt, Running
from batch_pipeline.domain.words import agreeing, count_of
from batch_pipeline.inventory.imported import doubts
from batch_pipeline.inventory.imported.standing import Standing


def contradictions(
    attempts: Sequence[ForeignAttempt], standing: Standing, running: Running | None
) -> Iterator[str]:
    """Say what in rows of a job contradicts how it stands here, or is for a person to decide."""
    yield from _of_known(attempts, standing)
    new = [one for one in attempts if one.id not in standing.known]
    if new:
        yield from _of_new(new, standing, running)


def _of_known(attempts: Sequence[ForeignAttempt], standing: Standing) -> Iterator[str]:
    others = [
        one
        for one in attempts
        if one.id in standing.known and standing.known[one.id].ids != one.ids
    ]
    if others:
        count = len(others)
        have = agreeing(count, "has other ids than that", "have other ids than those")
        were, rows = agreeing(count, "was", "were"), agreeing(count, "a row", "rows")
        their = agreeing(count, "its job another name, in this", "their job another name, in these")
        yield (
            f"{count_of(count, 'row')} {have} of the same number that {were} imported "
            f"({doubts.named(others)}), as {rows} of another inventory. Give {their} "
            f"{agreeing(count, 'row', 'rows')}."
        )


def _of_new(
    new: Sequence[ForeignAttempt], standing: Standing, running: Running | None
) -> Iterator[str]:
    if standing.problem is not None:
        yield f"{standing.problem}. Give the other job another name, in its rows, or leave it out."
    elif standing.own:
        since = " since it was imported" if standing.known else ", and none that were imported"
        yield (
            f"it has {count_of(standing.own, 'batch')} of its own here{since}, so the "
            f"{count_of(len(new), 'new range')} there may be the same items. Let only one of both "
            f"acquire."
        )
    elif standing.bookmark is not None:
        below = [one for one in new if one.ids.first_id <= standing.bookmark]
        if below:
            count = len(below)
            begin = agreeing(count, "begins", "begin")
            them = agreeing(count, "it another job, in its row", "them another job, in their rows")
            yield (
                f"{count_of(count, 'new range')} {begin} below id {standing.bookmark}, up to which "
                f"it was imported ({doubts.named(below)}). Give {them}."
            )
    open_ones = [one for one in new if one.recorded == "running"]
    if open_ones and running is None:
        count = len(open_ones)
        were, are = agreeing(count, "was", "were"), agreeing(count, "is", "are")
        they = agreeing(count, "it", "they")
        workers = agreeing(count, "its worker", "their workers")
        yield (
            f"{count_of(count, 'range')} {were} never released ({doubts.since(open_ones)}). Let "
            f"{workers} end, then say by --running fail that {they} failed, and {are} handed out "
            f"again, or by --running succeed that {they} succeeded."
        )
