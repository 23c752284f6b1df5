"""Why a job cannot be imported as it is, in words; nothing is read here."""

from collections.abc import Iterator, Sequence

from batch_pipeline.domain.imported import ForeignAttempt, Running
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
        yield (
            f"{len(others)} row(s) have other ids than those of the same number that were imported "
            f"({doubts.named(others)}), as rows of another inventory. Give their job another name, "
            f"in these rows."
        )


def _of_new(
    new: Sequence[ForeignAttempt], standing: Standing, running: Running | None
) -> Iterator[str]:
    if standing.problem is not None:
        yield f"{standing.problem}. Give the other job another name, in its rows, or leave it out."
    elif standing.own:
        since = " since it was imported" if standing.known else ", and none that were imported"
        yield (
            f"it has {standing.own} batch(es) of its own here{since}, so the {len(new)} new "
            f"range(s) there may be the same items. Let only one of both acquire."
        )
    elif standing.bookmark is not None:
        below = [one for one in new if one.ids.first_id <= standing.bookmark]
        if below:
            yield (
                f"{len(below)} new range(s) begin below id {standing.bookmark}, up to which it was "
                f"imported ({doubts.named(below)}). Give them another job, in their rows."
            )
    open_ones = [one for one in new if one.recorded == "running"]
    if open_ones and running is None:
        yield (
            f"{len(open_ones)} range(s) were never released ({doubts.since(open_ones)}). Let their "
            f"workers end, then say by --running fail that they failed, and are handed out again, "
            f"or by --running succeed that they succeeded."
        )
