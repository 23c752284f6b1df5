"""Which asset a run is for, and which of its partitions it has: read from the run alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from batch_pipeline.defs.names import (
    DRAIN_TAG,
    LAUNCH_TAG,
    PARTITION_TAG,
    RANGE_END_TAG,
    RANGE_START_TAG,
    STREAM_TAG,
    WILL_RETRY_TAG,
)
from batch_pipeline.defs.partitioned import Partitioned

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_REPEATED_WITHIN = timedelta(minutes=5)


def is_for(
    instance: dg.DagsterInstance, run: dg.DagsterRun, job: str, asset_key: dg.AssetKey
) -> bool:
    """Return whether a run materializes an asset.

    Runs of a selection name their assets. A run of a whole Dagster job does not; unless the job is
    one of ours, which have the stream as a tag, the events of the run's creation name them.
    """
    if run.job_name == job or asset_key in (run.asset_selection or ()):
        return True
    if run.asset_selection is not None or STREAM_TAG in run.tags:
        return False
    planned = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    found = (one.dagster_event for one in instance.all_logs(run.run_id, of_type=planned))
    return any(event is not None and event.asset_key == asset_key for event in found)


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
    return Runs([run for run in found if is_for(instance, run, asset.job, asset.asset_key)])


def reporting_runs(instance: dg.DagsterInstance, asset: Partitioned) -> Runs:
    """Find the runs of an asset that will report themselves what they published.

    Besides those under way, these are runs whose process died and that Dagster is about to repeat:
    what they published is reported by the repetition.
    """
    found = runs_about_to_be_repeated(instance)
    repeated = [run for run in found if is_for(instance, run, asset.job, asset.asset_key)]
    return Runs([*unfinished_runs(instance, asset).runs, *repeated])


def runs_about_to_be_repeated(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """Find the runs that failed and that Dagster repeats within seconds.

    After some minutes without a repetition there will be none: the daemon was not running. It
    never repeats runs within our own commands, although Dagster gives these the tag, too: they
    belong to no code location.
    """
    since = datetime.now(UTC) - _REPEATED_WITHIN
    died = dg.RunsFilter(
        statuses=[dg.DagsterRunStatus.FAILURE], tags={WILL_RETRY_TAG: "true"}, updated_after=since
    )
    return [
        run
        for run in instance.get_runs(died)
        if run.is_complete_and_waiting_to_retry and DRAIN_TAG not in run.tags
    ]
