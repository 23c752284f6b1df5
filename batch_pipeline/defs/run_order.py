"""In which order runs wait for their turn: what Dagster's tag of a run's priority says.

How many runs go at a time is said in `dagster.yaml`, not here.
"""

import dagster as dg

from batch_pipeline.defs.names import PRIORITY_TAG

_TURN_SECONDS = 30
_NEW_FILES = 2**32  # above 0, which is what a person launches; backfills are below


def priority(now: float, *, ahead: int = 0, is_backfill: bool = False) -> int:
    """Give the priority of a run that is launched now, with so many of its own ahead of it.

    Who comes first goes first; but it is as if each run ahead made it come half a minute later, so
    that streams take turns. A run that waits is passed by ever fewer others: none waits for ever.
    What a person launches has priority 0, between new files and backfills.
    """
    came = round(now) + _TURN_SECONDS * ahead
    return -came - 1 if is_backfill else _NEW_FILES - came


def tags_at(context: dg.ScheduleEvaluationContext) -> dict[str, str]:
    """Give the tags of a run that a schedule asks for: it came at its time."""
    return {PRIORITY_TAG: str(priority(context.scheduled_execution_time.timestamp()))}
