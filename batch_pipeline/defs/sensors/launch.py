"""Which runs a tick asks for: bounded, in order, and the same again when the tick is lost."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from batch_pipeline.defs.names import LAUNCH_TAG, MAX_RETRIES_TAG, PRIORITY_TAG, run_tags
from batch_pipeline.defs.partitioned import Partitioned
from batch_pipeline.defs.sensors.remembered import Remembered
from batch_pipeline.defs.sensors.run_keys import unfinished_runs
from batch_pipeline.domain.batch import BatchStatus
from batch_pipeline.domain.stream import Stream
from batch_pipeline.steps.plan import MAX_ATTEMPTS, due

_MOST_AHEAD = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Remembered):
    """What a sensor remembers from tick to tick.

    `runs` counts what it has asked for, so that no run key comes twice; `tries` counts launches of
    keys that are still due; `looked_at` is when it last looked for cancelled runs, in seconds since
    1970; `open_jobs` are the backfills that were not finished then.
    """

    runs: int = 0
    tries: Mapping[str, int] = field(default_factory=dict)
    looked_at: float = 0
    open_jobs: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """The runs to ask for, and what to remember of them."""

    requests: Sequence[dg.RunRequest]
    runs: int
    tries: Mapping[str, int]


def launches(
    instance: dg.DagsterInstance,
    stream: Stream,
    asset: Partitioned,
    statuses: Iterable[BatchStatus],
    order: Sequence[str],
    memory: Memory,
) -> Launches:
    """Choose what is due and no queued or running run has, each key at most three times.

    `order` are the keys of the asset as Dagster has them, new ones at the end. At most
    `runs_at_once` runs that sensors launched wait or run, and no more statuses are read than it
    takes to fill them. A run has batches of one job only.
    """
    under_way = unfinished_runs(instance, asset)
    most = max(stream.dagster.runs_at_once - under_way.by_sensors, 0)
    if not most:
        return Launches(requests=[], runs=memory.runs, tries=memory.tries)
    taken = under_way.keys(order)
    chosen = Groups(order=order, most=most, size=stream.dagster.partitions_per_run)
    looked_at: dict[str, int] = {}
    is_all = True
    for status in statuses:
        key = asset.key_of(status.batch)
        if key in taken or not due((status,), retry_failed=False):
            continue
        tries = memory.tries.get(key, 0)
        if tries < MAX_ATTEMPTS and not chosen.takes(key, status.batch.job):
            is_all = False
            break
        looked_at[key] = tries
    launched = {key for group in chosen.groups for key in group}
    after = {key: tries + (key in launched) for key, tries in looked_at.items()}
    if not is_all:
        after |= _later(memory.tries, looked_at, order)
    return Launches(
        requests=[
            _request(stream, asset, group, memory.runs + number, under_way.by_sensors + number - 1)
            for number, group in enumerate(chosen.groups, start=1)
        ],
        runs=memory.runs + len(chosen.groups),
        tries={key: count for key, count in after.items() if count},
    )


@dataclass(slots=True, kw_only=True)
class Groups:
    """At most `most` groups of at most `size` neighbours, as `steps.plan.neighbours` makes them."""

    order: Sequence[str]
    most: int
    size: int
    groups: list[list[str]] = field(default_factory=list)
    _job: str | None = None

    def takes(self, key: str, job: str) -> bool:
        """Take a key, the next one of those that wait; False when that takes one more run."""
        if key not in self.order:
            return True  # its partition is added at a later tick
        last = self.groups[-1] if self.groups else []
        if last and job == self._job and len(last) < self.size and self._follows(last[-1], key):
            last.append(key)
        elif len(self.groups) == self.most:
            return False
        else:
            self.groups.append([key])
        self._job = job
        return True

    def _follows(self, before: str, key: str) -> bool:
        return self.order.index(key) == self.order.index(before) + 1


def _later(
    tries: Mapping[str, int], looked_at: Mapping[str, int], order: Sequence[str]
) -> dict[str, int]:
    """Give the tries of keys behind those that were looked at, which may still be due."""
    last = max((order.index(key) for key in looked_at if key in order), default=-1)
    return {key: count for key, count in tries.items() if key in order and order.index(key) > last}


def _request(
    stream: Stream, asset: Partitioned, group: Sequence[str], number: int, ahead: int
) -> dg.RunRequest:
    first, last = group[0], group[-1]
    own = asset.tags_of(first)
    # The more runs of its own a run has ahead of it, the later it comes: in a queue, streams take
    # turns. What a person launches has priority 0, between new files and backfills.
    priority = int(own.get(PRIORITY_TAG, _MOST_AHEAD + 1)) - min(ahead, _MOST_AHEAD)
    return dg.RunRequest(
        run_key=f"{asset.set_name}:{first}:{last}:{number}",
        job_name=asset.job,
        tags={
            LAUNCH_TAG: "new",
            MAX_RETRIES_TAG: "0",  # what a run that died leaves is launched from here
            **own,
            **run_tags(stream, first, last),
            PRIORITY_TAG: str(priority),
        },
    )
