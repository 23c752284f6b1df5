"""Which asset a run is for, and which of its partitions it has: read from the run alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from batch_pipeline.defs.names import LAUNCH_TAG, PARTITION_TAG, RANGE_END_TAG, RANGE_START_TAG
from batch_pipeline.defs.partitioned import Partitioned

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def is_for(run: dg.DagsterRun, job: str, asset_key: dg.AssetKey) -> bool:
    """Tell whether a run is for an asset: one of its Dagster job, or of a person's selection."""
    return run.job_name == job or asset_key in (run.asset_selection or ())


def keys_of(run: dg.DagsterRun, order: Sequence[str]) -> list[str]:
    """Give the partition keys of a run; `order` are those of its asset as they were added.

    A key that is not there any more makes the run one without keys.
    """
    if PARTITION_TAG in run.tags:
        return [run.tags[PARTITION_TAG]]
    first, last = run.tags.get(RANGE_START_TAG), run.tags.get(RANGE_END_TAG)
    if first not in order or last not in order:
        return []
    return list(order[order.index(first) : order.index(last) + 1])


@dataclass(frozen=True, slots=True)
class Runs:
    """The queued and running runs of an asset."""

    runs: Sequence[dg.DagsterRun]

    @property
    def by_sensors(self) -> int:
        """How many of them sensors launched."""
        return sum(LAUNCH_TAG in run.tags for run in self.runs)

    @property
    def is_one_waiting(self) -> bool:
        """Whether one that a sensor launched has not left the queue yet."""
        queued = dg.DagsterRunStatus.QUEUED
        return any(run.status is queued and LAUNCH_TAG in run.tags for run in self.runs)

    def keys(self, order: Sequence[str]) -> set[str]:
        """Give the keys of all of them, also of those that a person launched; without a run, the
        keys in `order` are not looked at.
        """
        return {key for run in self.runs for key in keys_of(run, order)}


def unfinished_runs(instance: dg.DagsterInstance, asset: Partitioned) -> Runs:
    """Find the queued and running runs of an asset."""
    found = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
    return Runs([run for run in found if is_for(run, asset.job, asset.asset_key)])
