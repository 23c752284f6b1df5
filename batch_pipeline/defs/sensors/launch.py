"""Which runs a tick asks for: bounded, in order, and the same again when the tick is lost."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby

import dagster as dg

from batch_pipeline.defs.names import LAUNCH_TAG, run_tags
from batch_pipeline.defs.partitioned import Partitioned
from batch_pipeline.defs.sensors.run_keys import covered
from batch_pipeline.domain.batch import BatchStatus
from batch_pipeline.domain.stream import Stream
from batch_pipeline.steps.plan import MAX_ATTEMPTS, due, neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a sensor remembers from tick to tick.

    `runs` counts what it has asked for, so that no run key comes twice; `tries` counts launches of
    keys that are still due; `looked_at` is when it last looked for cancelled runs, in seconds since
    1970; `open_jobs` are the backfills that were not finished then.
    """

    runs: int = 0
    tries: Mapping[str, int] = field(default_factory=dict)
    looked_at: float = 0
    open_jobs: Sequence[str] = ()

    @classmethod
    def of_cursor(cls, cursor: str | None) -> "Memory":
        """Read a cursor; one of another release is as good as none."""
        told = json.loads(cursor) if cursor else {}
        return cls(**told) if told.keys() <= {*cls.__slots__} else cls()

    def cursor(self) -> str:
        """Write the cursor."""
        return json.dumps(asdict(self))


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
    `runs_at_once` runs that sensors launched wait or run. A run has batches of one job only.
    """
    busy, taken = covered(instance, asset, order)
    waiting = {
        asset.key_of(status.batch): status.batch.job for status in due(statuses, retry_failed=False)
    }
    waiting = {key: job for key, job in waiting.items() if key not in taken}
    chosen = [key for key in waiting if memory.tries.get(key, 0) < MAX_ATTEMPTS]
    groups = [
        group
        for _, keys in groupby(chosen, key=lambda key: waiting[key])
        for group in neighbours(keys, order, most=stream.dagster.partitions_per_run)
    ][: max(stream.dagster.runs_at_once - busy, 0)]
    launched = {key for group in groups for key in group}
    tries = {key: memory.tries.get(key, 0) + (key in launched) for key in waiting}
    return Launches(
        requests=[
            _request(stream, asset, group, memory.runs + number)
            for number, group in enumerate(groups, start=1)
        ],
        runs=memory.runs + len(groups),
        tries={key: count for key, count in tries.items() if count},
    )


def _request(
    stream: Stream, asset: Partitioned, group: Sequence[str], number: int
) -> dg.RunRequest:
    first, last = group[0], group[-1]
    return dg.RunRequest(
        run_key=f"{asset.set_name}:{first}:{last}:{number}",
        job_name=asset.job,
        tags={LAUNCH_TAG: "new", **asset.tags_of(first), **run_tags(stream, first, last)},
    )
