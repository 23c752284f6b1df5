"""What a run says of batches that failed: the first reasons, and how many more there are.

A run page shows a message whole, so thousands of reasons would hide the first. Nothing is judged.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Self, cast

import dagster as dg

from batch_pipeline.defs.metadata import generation_of
from batch_pipeline.defs.names import DATA_VERSION_TAG, DRAIN_TAG, LAUNCH_TAG, RETRY_TAG
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.errors import BatchDataError, PipelineError, RetryableError
from batch_pipeline.model.manifest import Manifest

MOST = 20


@dataclass(eq=False)
class WaitsError(BatchDataError):
    """A batch was not tried, since one that must come before it failed."""

    batch: str

    def sentence(self) -> str:
        return (
            f"{self.batch}: not tried, because an earlier batch has to be loaded first. Mend that "
            f"one; this one is loaded after it."
        )


def summarize_errors(errors: Iterable[PipelineError]) -> str:
    """Return the first reasons; counts the rest, and the batches that only wait."""
    every = list(errors)
    blamed = [str(error) for error in every if not isinstance(error, WaitsError)]
    waiting = len(every) - len(blamed)
    counted = [
        *([f"and {len(blamed) - MOST} more"] if len(blamed) > MOST else []),
        *([f"batches that wait for others: {waiting}"] if waiting else []),
    ]
    return "; ".join([*blamed[:MOST], *counted])


def errors_by_batch(failures: Mapping[str, PipelineError]) -> dict[str, str]:
    """Return the first reasons by batch, without those that only wait."""
    blamed = (
        (key, str(error)) for key, error in failures.items() if not isinstance(error, WaitsError)
    )
    return dict(islice(blamed, MOST))


NOTHING = cast("dg.DagsterType", dg.Nothing)  # annotated by Dagster as a class


@dataclass(slots=True)
class Materializations:
    """The materializations of one step; a context manager around everything that may fail.

    `is_awaited` is whether the run materializes an asset downstream of this one. Leaving the block
    with an error logs what is held, unless the step is going to be retried: then the retry reports
    it.
    """

    context: dg.AssetExecutionContext
    is_awaited: bool = field(init=False)
    _held: list[dg.AssetMaterialization] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Look for assets of the run that wait for the step."""
        layer = self.context.job_def.asset_layer
        downstream = layer.get(self.context.asset_key).child_keys
        self.is_awaited = not layer.selected_asset_keys.isdisjoint(downstream)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Log what is held if the step fails."""
        if not isinstance(error, dg.RetryRequested):
            self._log_held()

    def add(self, event: dg.AssetMaterialization, *, is_repeated: bool = False) -> None:
        """Report a published batch; `is_repeated` if an earlier run or try may have reported it."""
        if self.is_awaited:
            self._held.append(event)
        elif not (is_repeated and self._is_shown(event)):
            self.context.log_event(event)

    def check_downstream(self, blocking: Sequence[str]) -> None:
        """Keep assets downstream from being materialized; `blocking` are checks that say no.

        Raises:
            Failure: an asset of the run waits for the step, and a blocking check failed.
        """
        if self.is_awaited and blocking:
            asset = self.context.asset_key.to_user_string()
            raise dg.Failure(
                f"Assets downstream of {asset} were not materialized, because blocking checks of "
                f"it failed: {' '.join(blocking)} The batches of this run are published. Repair "
                "what the checks name, then materialize the assets downstream.",
                allow_retries=False,
            )

    def output(self) -> dg.Output[None] | None:
        """Return the output of the step; None if it must not have one.

        Call it when nothing can fail any more. Of an asset without partitions, all events but one
        are logged.
        """
        own = {event.partition: event for event in self._held}
        expected = self._expected()
        if not own or not own.keys() >= {*expected}:
            self._log_held()
            return None
        self._held = [event for event in self._held if own[event.partition] is not event]
        self._log_held()
        for key, event in own.items():
            self.context.add_asset_metadata(event.metadata, partition_key=key)
        return _output([own[key] for key in expected])

    def _expected(self) -> list[str | None]:
        context = self.context
        is_partitioned = context.has_partition_key or context.has_partition_key_range
        return [*context.partition_keys] if is_partitioned else [None]

    def _log_held(self) -> None:
        while self._held:
            self.context.log_event(self._held.pop(0))

    def _is_shown(self, event: dg.AssetMaterialization) -> bool:
        partitions = None if event.partition is None else [event.partition]
        of_key = dg.AssetRecordsFilter(asset_key=event.asset_key, asset_partitions=partitions)
        found = self.context.instance.fetch_materializations(of_key, limit=1).records
        last = generation_of(found[0].asset_materialization) if found else 0
        return 0 < generation_of(event) <= last


def _output(events: list[dg.AssetMaterialization]) -> dg.Output[None]:
    """Build the output that stands for events.

    All partitions of an output have the same tags, and so one data version. If the events differ
    in theirs, it is a digest, which changes whenever one of them does.
    """
    tags = dict(events[-1].tags or {})
    versions = {event.partition or "": (event.tags or {}).get(DATA_VERSION_TAG) for event in events}
    if len({*versions.values()}) > 1:
        text = "\n".join(f"{key} {version}" for key, version in sorted(versions.items()))
        tags[DATA_VERSION_TAG] = f"mixed-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    version = tags.get(DATA_VERSION_TAG)
    return dg.Output(
        None, data_version=None if version is None else dg.DataVersion(version), tags=tags
    )


_MOST_REPEATS = 3
_PAUSE_SECONDS = 5


def infrastructure_failure(
    context: dg.AssetExecutionContext | dg.OpExecutionContext, *errors: PipelineError
) -> Exception:
    """Return the failure to raise if the rest of a run's batches would fail as well.

    A server or Spark that is gone may come back: the step is tried again, at most three times,
    unless one of several errors is none that goes by itself. What is left then is not lost: sensors
    launch it again, after ever longer pauses.
    """
    said = summarize_errors(errors)
    come_back = all(isinstance(error, RetryableError) for error in errors)
    if come_back and DRAIN_TAG not in context.run.tags and context.retry_number < _MOST_REPEATS:
        context.log.warning(said)
        return dg.RetryRequested(max_retries=_MOST_REPEATS, seconds_to_wait=_PAUSE_SECONDS)
    return dg.Failure(said, allow_retries=False)


def repeated(run: dg.DagsterRun) -> set[str]:
    """Return the ids of a run and of the runs with dead processes that it repeats."""
    ids = {run.run_id}
    if RETRY_TAG in run.tags:
        ids |= {one for one in (run.parent_run_id, run.root_run_id) if one is not None}
    return ids


def already_published_by_run(
    context: dg.AssetExecutionContext, database: Database, batch: Batch
) -> Manifest | None:
    """Return the manifest of a batch that this run need not encode, else None.

    A run for what is new leaves out all that is published; one that is repeated leaves out what it
    has published itself, in an earlier try or as the run whose process died.
    """
    run = context.run
    if run.tags.get(LAUNCH_TAG) == "new":
        return _with_origin(database, database.manifests.of_batch(batch))
    if not context.retry_number and RETRY_TAG not in run.tags:
        return None
    found = database.manifests.of_batch(batch)
    is_made = found is not None and database.manifests.run_of(found) in repeated(run)
    return _with_origin(database, found) if is_made else None


def _with_origin(database: Database, found: Manifest | None) -> Manifest | None:
    return None if found is None else database.manifests.with_origin(found)
