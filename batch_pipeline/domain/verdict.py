"""What a check of a stream comes to: a sentence for people and numbers to plot.

How each is found is `judgement` and `steps.verify`; how it is shown is not known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum


class Check(StrEnum):
    """What is asked of a stream."""

    PART_FILES = "part_files"
    CHECKSUMS = "checksums"
    POINTERS = "pointers"
    CONSERVATION = "conservation"
    QUARANTINE = "quarantine"
    SCHEMA_DRIFT = "schema_drift"
    COVERAGE = "coverage"
    BACKLOG = "backlog"

    @property
    def asked(self) -> str:
        """The question in words."""
        return _ASKED[self]

    @property
    def is_severe(self) -> bool:
        """Tell whether a batch for which the answer is no must not be loaded."""
        return self in _SEVERE


_ASKED = {
    Check.PART_FILES: "Is every file of the published batches there, with the size it was "
    "published with?",
    Check.CHECKSUMS: "Has every file of the published batches the SHA-256 and the records it was "
    "published with?",
    Check.POINTERS: "Has every published batch its pointer file, and does that say what the "
    "inventory says?",
    Check.CONSERVATION: "Was every record that was read written, filtered or quarantined, for each "
    "item of the published batches?",
    Check.QUARANTINE: "Is the share of quarantined records of the last batches within its limit?",
    Check.SCHEMA_DRIFT: "Has the newest published batch the schema of the one before?",
    Check.COVERAGE: "Is every item below the bookmark in exactly one live batch, and was it seen?",
    Check.BACKLOG: "Is the oldest item that waits younger than its limit, and no batch failed for "
    "longer?",
}
_SEVERE = {Check.PART_FILES, Check.CHECKSUMS, Check.CONSERVATION}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to a check.

    `found` is what was found, `worst` the worst offender and `next_step` what a person does about
    it; both are None where all is well. `numbers` have one name for one meaning over all checks.
    What could not be `answered` does not pass, and is no reason to refuse a batch.
    """

    check: Check
    passed: bool
    found: str
    worst: str | None = None
    next_step: str | None = None
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    answered: bool = True

    @property
    def is_severe(self) -> bool:
        """Tell whether a no means that a batch must not be loaded."""
        return self.check.is_severe and self.answered

    @property
    def sentence(self) -> str:
        """What was asked, what was found, the worst offender and the next step."""
        said = [self.check.asked, self.found]
        if self.worst is not None:
            said.append(f"Worst: {self.worst}.")
        if self.next_step is not None:
            said.append(self.next_step)
        return " ".join(said)


def unanswered(check: Check, reason: str) -> Verdict:
    """Give the answer to a check whose surroundings failed."""
    return Verdict(
        check=check,
        passed=False,
        found=f"This could not be found out: {reason}",
        next_step="Nothing was changed. Run the check again once that is in order.",
        answered=False,
    )


def in_words(age: timedelta) -> str:
    """Write an age for people, in one unit."""
    for unit, seconds in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if age.total_seconds() >= 2 * seconds:
            return f"{age.total_seconds() / seconds:.0f} {unit}"
    return f"{age.total_seconds():.0f} seconds"
