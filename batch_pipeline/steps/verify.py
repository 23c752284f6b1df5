"""Looks again at what is published: files and counters, in one pass over the published batches.

Streams: memory is a page of batches. Reads only; what to do about it is the reader's decision.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from batch_pipeline.model.checks import Check, CheckResult
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.progress import track
from batch_pipeline.model.published import PublishedBatch

Look = Callable[[PartFile], str | None]
BatchLook = Callable[[PublishedBatch], str | None]
_NONE: Mapping[Check, BatchLook] = {}
_TRY_AGAIN = "Materialize the partition again: its next generation replaces this one."


@dataclass(slots=True, kw_only=True)
class Tally:
    """One question, asked of batch after batch."""

    check: Check
    batches: int = 0
    files: int = 0
    size_bytes: int = 0
    bad_batches: int = 0
    problems: int = 0
    worst: str | None = None
    worst_count: int = 0
    gone: int = 0

    def add(self, one: PublishedBatch, problems: Sequence[str]) -> None:
        """Count a batch and what is wrong with it."""
        self.batches += 1
        self.files += len(one.files)
        self.size_bytes += sum(part.size_bytes for part in one.files)
        if not problems:
            return
        self.bad_batches += 1
        self.problems += len(problems)
        if len(problems) > self.worst_count:
            self.worst_count = len(problems)
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self.worst = f"batch {one.label}, generation {one.generation}: {problems[0]}{more}"

    def verdict(self) -> CheckResult:
        """Answer the question."""
        numbers: dict[str, int | float] = {
            "batches_checked": self.batches,
            "batches_wrong": self.bad_batches,
            "problems": self.problems,
        }
        looked = f"batches checked: {self.batches:,}"
        if self.check is not Check.CONSERVATION:
            numbers |= {"files_checked": self.files, "size_bytes": self.size_bytes}
            looked += f", files: {self.files:,}"
        removed = ""
        if self.gone:
            numbers["batches_removed"] = self.gone
            removed = f" Files of {self.gone:,} more were removed once they were loaded."
        if not self.batches and not self.gone:
            summary = "There is nothing to judge yet: nothing is published."
            return CheckResult(check=self.check, passed=True, summary=summary, numbers=numbers)
        if not self.bad_batches:
            summary = f"Yes: {looked}.{removed}"
            return CheckResult(check=self.check, passed=True, summary=summary, numbers=numbers)
        summary = (
            f"No: problems: {self.problems:,}, batches with problems: {self.bad_batches:,}, "
            f"{looked}.{removed}"
        )
        if self.check is Check.CONSERVATION:
            step = f"Do not load these batches. {_TRY_AGAIN} Please report it."
        elif self.check is Check.POINTERS:
            step = f"Who reads manifest files misses these batches, or misreads them. {_TRY_AGAIN}"
        else:
            step = f"Do not load these batches. {_TRY_AGAIN}"
        return CheckResult(
            check=self.check,
            passed=False,
            summary=summary,
            worst=self.worst,
            next_step=step,
            numbers=numbers,
        )


def verify(
    batches: Iterable[PublishedBatch],
    looks: Mapping[Check, Look],
    batch_looks: Mapping[Check, BatchLook] = _NONE,
    *,
    total: int | None = None,
) -> dict[Check, CheckResult]:
    """Judge the counters of batches, their files by each look, and themselves, all in one pass.

    A look gives what is wrong with a file, or with a batch; None when it is as it was published.
    Files that were removed on purpose are looked for nowhere. `total` is the number of batches, if
    that is known, for those who wait.
    """
    counters = Tally(check=Check.CONSERVATION)
    tallies = {check: Tally(check=check) for check in (*looks, *batch_looks)}
    for one in track(batches, "looking at batches", total=total):
        counters.add(one, list(one.contradictions()))
        if one.files_removed:
            for tally in tallies.values():
                tally.gone += 1
            continue
        for check, look in looks.items():
            said = [text for part in one.files if (text := look(part)) is not None]
            tallies[check].add(one, said)
        for check, batch_look in batch_looks.items():
            text = batch_look(one)
            tallies[check].add(one, [] if text is None else [text])
    return {tally.check: tally.verdict() for tally in (counters, *tallies.values())}
