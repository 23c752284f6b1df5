"""Published batches made once more, through Dagster runs in this process: the next generation."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.heard import Heard
from batch_pipeline.defs.in_process import quiet_dagster, run_in_process
from batch_pipeline.defs.instance.left_runs import close_left_runs, drain_tags
from batch_pipeline.defs.names import batches_job, run_tags
from batch_pipeline.defs.partitioned import batches_of, group_neighbours
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import check_times
from batch_pipeline.model.batch import BatchStatus
from batch_pipeline.model.errors import InvalidValueError, UnknownBatchError, UnknownJobError
from batch_pipeline.model.progress import start_step
from batch_pipeline.model.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Remade:
    """A published batch that was tried once more, as it was `before` and is `after`."""

    before: BatchStatus
    after: BatchStatus

    @property
    def is_new(self) -> bool:
        """Whether there is a newer generation of it."""
        return (self.after.generation or 0) > (self.before.generation or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Partition keys with the published batch of each, and all keys of the asset in order.

    All of these batches were published before `moment`, by the clock of the database; what is made
    of them anew is not.
    """

    partitions: Mapping[str, BatchStatus]
    order: Sequence[str]
    moment: datetime | None

    @property
    def batches(self) -> list[BatchStatus]:
        """The batches, in the order of their partitions."""
        return [*self.partitions.values()]


def choose(
    pipeline: Pipeline,
    stream: Stream,
    instance: dg.DagsterInstance,
    *,
    keys: Collection[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> Chosen:
    """Choose partitions of a stream that have published batches.

    `keys` may be partition keys, ranges and numbers; without any, all partitions are chosen. Of
    these, the ones whose newest generation was published at `since` or later and before `until`:
    the same call with `until` continues where it was interrupted. Changes nothing.

    Raises:
        InvalidValueError: a key is no partition with published batches, or the times are no range.
    """
    check_times(since, until)
    database = pipeline.database
    known = Heard(in_ticks=False).look(pipeline, stream, batches_of(stream), instance)
    every = {one.batch.key: one for one in database.batches.statuses(stream.name)}
    names = {_key_of(database, stream, known.order, name): name for name in keys}
    found = {
        key: every[key]
        for key in known.order
        if (not names or key in names) and key in every and every[key].generation is not None
    }
    for key, name in names.items():
        if key not in found:
            expected = "a partition with published batches, as Dagster's page of the asset has them"
            raise InvalidValueError(f"{stream.name}: the batch", name, expected)
    published_at = database.change_feed.published_at(stream.name)
    found = {
        key: one
        for key, one in found.items()
        if (since is None or published_at[one.batch.id] >= since)
        and (until is None or published_at[one.batch.id] < until)
    }
    last = max((published_at[one.batch.id] for one in found.values()), default=None)
    moment = None if last is None else last + timedelta(microseconds=1)
    return Chosen(partitions=found, order=known.order, moment=moment)


def _key_of(database: Database, stream: Stream, order: Collection[str], name: str) -> str:
    """Return the partition key of a batch that is named by key, range or number."""
    if name in order:
        return name
    with suppress(UnknownJobError, UnknownBatchError):
        return database.jobs.batch(stream.name, name).key
    return name


def reprocess(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, chosen: Chosen
) -> list[Remade]:
    """Encode and publish the batches of partitions once more.

    A batch that fails keeps the generation that it had, and its neighbours go on. The caller holds
    the home's lock.

    Raises:
        JobPausedError: the stream's job is paused; what was made until then stays.
        PipelineError: the surroundings failed; the same.
    """
    database = pipeline.database
    with quiet_dagster():
        close_left_runs(pipeline, instance)
        instance.add_dynamic_partitions(batches_of(stream).set_name, [*chosen.partitions])
        job = build_definitions([stream]).resolve_job_def(batches_job(stream))
        start_step(stream.name, "encoding", total=len(chosen.batches))
        most = stream.dagster.partitions_per_run
        for group in group_neighbours(chosen.partitions, chosen.order, most=most):
            database.jobs.check_not_paused(stream.name)
            tags = drain_tags(pipeline) | run_tags(stream, group[0], group[-1])
            run_in_process(job, instance, tags=tags)
    after = {one.batch.id: one for one in database.batches.statuses(stream.name)}
    return [Remade(before=one, after=after[one.batch.id]) for one in chosen.batches]
