"""What a task says of an item: where its records went, or why its file cannot be used.

Values and sums only; who reads and who writes is not known here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from batch_pipeline.domain.errors import BadFileError
from batch_pipeline.domain.item import Item
from batch_pipeline.domain.manifest import ItemReport
from batch_pipeline.domain.record_rules import BadFileKind


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """Why a file cannot be used."""

    kind: BadFileKind
    reason: str

    @classmethod
    def of(cls, error: BadFileError) -> "BadFile":
        """Take over what an error tells."""
        reason = error.reason if error.line is None else f"line {error.line}: {error.reason}"
        return cls(kind=BadFileKind(error.kind), reason=reason)


def counted(
    item: Item, *, good: int = 0, bad: int = 0, filtered: int = 0, rescued: int = 0
) -> ItemReport:
    """Report an item, or a part of one, that was read."""
    return ItemReport(
        item_id=item.id,
        location=item.file.location,
        read=good + bad + filtered,
        written=good,
        quarantined=bad,
        filtered=filtered,
        rescued=rescued,
    )


def unread(item: Item, bad: BadFile) -> ItemReport:
    """Report an item whose file cannot be used."""
    return replace(counted(item), bad_file=bad.reason, bad_kind=bad.kind)


def without_files(item: ItemReport) -> ItemReport:
    """Give what is left of a report when the part files are gone: nothing counts as written."""
    return replace(item, read=item.quarantined + item.filtered, written=0, rescued=0)


def added_up(reports: Iterable[ItemReport]) -> tuple[ItemReport, ...]:
    """Make one report of each item out of those of its parts, in order of first appearance."""
    sums: dict[int, ItemReport] = {}
    for one in reports:
        known = sums.get(one.item_id)
        if known is None:
            sums[one.item_id] = one
            continue
        sums[one.item_id] = replace(
            known if known.bad_file is not None else one,
            read=known.read + one.read,
            written=known.written + one.written,
            quarantined=known.quarantined + one.quarantined,
            filtered=known.filtered + one.filtered,
            rescued=known.rescued + one.rescued,
        )
    return tuple(sums.values())
