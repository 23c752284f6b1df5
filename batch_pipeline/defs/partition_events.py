"""Events of the steps that encode or load partitions: materializations, and failures by batch."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Self, cast

import dagster as dg

from batch_pipeline.defs.instance.code_locations import ensure_only_location
from batch_pipeline.defs.instance.private_api import is_awaited, location_of_run
from batch_pipeline.defs.metadata import generation_of, latest_generation
from batch_pipeline.defs.names import (
    ASSET_RESUME_TAG,
    DATA_VERSION_TAG,
    DRAIN_TAG,
    RESUME_TAG,
    RETRY_TAG,
)
from batch_pipeline.defs.runs import is_launched
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.checks import Check
from batch_pipeline.model.errors import (
    BatchDataError,
    ConfigurationError,
    PipelineError,
    RetryableError,
)
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.stream import Stream

Context = dg.AssetExecutionContext | dg.OpExecutionContext
MAX_REASONS = 20  # a run page does not truncate messages


@dataclass(eq=False)
class WaitsError(BatchDataError):
    """Batch was not tried, because a batch that must precede it failed."""

    batch: str

    def sentence(self) -> str:
        return (
            f"{self.batch}: not tried, because an earlier batch must be loaded first. Correct that "
            f"batch; this one is loaded after it."
        )


def summarize_errors(errors: Iterable[PipelineError]) -> str:
    """Return the first reasons, and the numbers of other failures and of batches that wait."""
    listed = list(errors)
    reasons = [str(error) for error in listed if not isinstance(error, WaitsError)]
    waiting = len(listed) - len(reasons)
    counted = [
        *([f"and {len(reasons) - MAX_REASONS} more"] if len(reasons) > MAX_REASONS else []),
        *([f"batches that wait for others: {waiting}"] if waiting else []),
    ]
    return "; ".join([*reasons[:MAX_REASONS], *counted])


NOTHING = cast("dg.DagsterType", dg.Nothing)  # annotated by Dagster as a class


@dataclass(slots=True)
class Materializations:
    """Materializations of a step; a context manager around everything that may fail.

    `is_awaited` is whether the run materializes an asset downstream or evaluates a user's check. If
    the block ends with an error, the events held back are logged, except when the step will be
    retried, which reports them.
    """

    context: dg.AssetExecutionContext
    is_awaited: bool = field(init=False)
    _held: list[dg.AssetMaterialization] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Determine whether an asset or check of the run waits for the step."""
        self.is_awaited = is_awaited(self.context, [check.value for check in Check])

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Log the events held back if the step fails."""
        if not isinstance(error, dg.RetryRequested):
            self._log_held()

    def add(self, event: dg.AssetMaterialization, *, is_repeated: bool = False) -> None:
        """Report a published batch; `is_repeated` if an earlier run or try may have reported it."""
        if self.is_awaited:
            self._held.append(event)
            return
        if is_repeated and event.partition is not None:
            instance, key = self.context.instance, event.partition
            shown = latest_generation(instance, event.asset_key, key)
            if 0 < generation_of(event) <= shown:
                return
        self.context.log_event(event)

    def check_downstream(self, blocking: Sequence[str]) -> None:
        """Fail the step if blocking checks failed and an asset or check of the run waits for it.

        Raises:
            Failure: with the descriptions of the checks, `blocking`.
        """
        if self.is_awaited and blocking:
            asset = self.context.asset_key.to_user_string()
            raise dg.Failure(
                f"Assets downstream of {asset} were not materialized, because blocking checks of "
                f"it failed: {' '.join(blocking)} The batches of this run are published. Correct "
                "what the checks report, then materialize the assets downstream.",
                allow_retries=False,
            )

    def output(self) -> Iterator[dg.Output[None]]:
        """Yield the output of the step, unless a partition was not published.

        Call it last, when nothing can fail any more.
        """
        keys = self.context.partition_keys
        wanted = {*keys}
        # A load may include batches of other partitions, which Dagster refuses in the output.
        by_key = {event.partition: event for event in self._held if event.partition in wanted}
        if not by_key or by_key.keys() != wanted:
            self._log_held()
            return
        self._held = [event for event in self._held if by_key.get(event.partition) is not event]
        self._log_held()
        for key, event in by_key.items():
            self.context.add_asset_metadata(event.metadata, partition_key=key)
        yield _output([by_key[key] for key in keys])

    def _log_held(self) -> None:
        while self._held:
            self.context.log_event(self._held.pop(0))


def _output(events: list[dg.AssetMaterialization]) -> dg.Output[None]:
    """Build the output for events.

    All partitions of an output share its tags, the data version included. If the data versions of
    the events differ, it is a digest of them.
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


_MAX_RETRIES = 3
_PAUSE_SECONDS = 5


def infrastructure_failure(context: Context, *errors: PipelineError) -> Exception:
    """Return the exception to raise if the other batches of a run would fail as well.

    If all errors may go away, such as a lost connection, the step is retried at most three times.
    Sensors launch the remaining batches later, with growing delays.
    """
    reasons = summarize_errors(errors)
    is_transient = all(isinstance(error, RetryableError) for error in errors)
    if is_transient and DRAIN_TAG not in context.run.tags and context.retry_number < _MAX_RETRIES:
        context.log.warning(reasons)
        return dg.RetryRequested(max_retries=_MAX_RETRIES, seconds_to_wait=_PAUSE_SECONDS)
    return dg.Failure(reasons, allow_retries=False)


def ensure_own_location(context: Context, stream: Stream) -> None:
    """Check that no sensor of another code location launches batches of a stream.

    Raises:
        Failure: another location does; the step has done nothing.
    """
    location = location_of_run(context.run)
    try:
        ensure_only_location(context.instance, stream, location, time.time())
    except ConfigurationError as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def repeated_runs(context: Context) -> dict[str, dg.DagsterRun]:
    """Return a run, then the failed runs that it repeats, the first one at the end, by id.

    A person's re-execution of all steps repeats no run.
    """
    run, runs = context.run, {context.run.run_id: context.run}
    while run.parent_run_id is not None:
        parent = context.instance.get_run_by_id(run.parent_run_id)
        if parent is None or not _repeats(run, parent):
            break
        runs[parent.run_id] = run = parent
    return runs


def _repeats(run: dg.DagsterRun, parent: dg.DagsterRun) -> bool:
    # Unlike the other tags, Dagster copies this one to a re-execution of all steps.
    is_asset_resume = ASSET_RESUME_TAG in run.tags and ASSET_RESUME_TAG not in parent.tags
    return is_asset_resume or not {RETRY_TAG, RESUME_TAG}.isdisjoint(run.tags)


def raise_failures(
    failures: Mapping[str, PipelineError], tried: int, *, done: str = "published"
) -> None:
    """Fail the run if some of its batches failed; `done` is the state of the others.

    Raises:
        Failure: with the first reasons by batch.
    """
    if failures:
        failed = {
            key: str(error) for key, error in failures.items() if not isinstance(error, WaitsError)
        }
        others = "those that do not wait are" if len(failed) < len(failures) else "others are"
        raise dg.Failure(
            f"Batches failed: {len(failed)} of {tried}, {others} {done}: "
            f"{summarize_errors(failures.values())}",
            metadata=dict(islice(failed.items(), MAX_REASONS)),
            allow_retries=False,
        )


def already_published_by_run(
    context: dg.AssetExecutionContext, database: Database, batch: Batch
) -> Manifest | None:
    """Return the manifest of a batch that this run skips, or None if it encodes the batch.

    A run that a sensor launched, or that repeats failed steps of one, skips all published batches;
    other repeated runs skip batches that they, or a run that they repeat, have published.
    """
    manifests, runs = database.manifests, repeated_runs(context)
    is_new = is_launched([*runs.values()][-1])
    if not (is_new or context.retry_number or len(runs) > 1):
        return None
    manifest = manifests.of_batch(batch)
    if manifest is None:
        return None
    if not is_new and manifests.run_of(manifest) not in runs:
        return None
    return manifests.with_origin(manifest)
