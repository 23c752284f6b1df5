"""The points of the walk at which processes die, by the kind of deed that has them."""

from enum import StrEnum


class Deed(StrEnum):
    """What a process does."""

    FILES = "files"  # a sensor's tick: register, plan, launch
    ENCODE = "encode"  # a run of some partitions
    LOAD = "load"  # a run that loads what is due
    GC = "gc"
    BACKFILL = "backfill"
    AUDIT = "audit"
    RETRY = "retry"
    CANCEL = "cancel"
    PAUSE = "pause"
    TARGET = "target"


POINTS: dict[Deed, tuple[str, ...]] = {
    Deed.FILES: (
        "register.locked",
        "register.before_commit",
        "register.after_commit",
        "plan.locked",
        "plan.before_commit",
        "plan.after_commit",
    ),
    Deed.ENCODE: (
        "claim.before_commit",
        "claim.after_commit",
        "encode.after_claim",
        "schema.before_commit",
        "encode.before_publish",
        "publish.before_commit",
        "publish.after_commit",
        "encode.before_pointer",
        "pointer.before_link",
        "fail.before_commit",
        "fail.after_commit",
    ),
    Deed.LOAD: (
        "load.before_claim_commit",
        "warehouse.in_copy",
        "warehouse.before_commit",
        "load.acknowledged",
        "load.before_commit",
        "load.after_commit",
    ),
    Deed.GC: ("collect.listed", "collect.judged", "collect.marked", "collect.before_remove"),
    Deed.BACKFILL: ("backfill.locked", "backfill.before_commit", "backfill.after_commit"),
    Deed.AUDIT: ("audit.found", "audit.locked", "audit.before_commit", "audit.after_commit"),
    Deed.RETRY: ("retry.before_commit", "retry.after_commit"),
    Deed.CANCEL: (
        "cancel.locked",
        "cancel.closed",
        "cancel.before_commit",
        "cancel.after_commit",
    ),
    Deed.PAUSE: ("pause.before_commit",),
    Deed.TARGET: (
        "target.before_rename",
        "target.after_rename",
        "target.after_register",
        "target.after_state",
    ),
}
# Proved one by one where `inventory/test_failpoints.py` says: of the library, of commands
# for one batch, of buckets, retention and restored backups, and of the workers of Spark,
# which know no setting.
ELSEWHERE = (
    "acquire.",
    "bisect.",
    "discard.",
    "encode.before_rename",
    "succeed.",
    "upload.",
)
DEED_OF = {point: deed for deed, points in POINTS.items() for point in points}


def armed(point: str) -> str:
    """Return the setting that kills at a point; some are reached by what fails only."""
    first = "encode.before_publish=raise," if point.startswith("fail.") else ""
    return f"{first}{point}=kill"
