"""Materializations of the batches of a step, and the output that steps downstream wait for.

A run has several partitions, and some may fail. Dagster skips what is downstream of a step without
an output, and an output materializes every partition of the run, the failed ones too. So:

- If no asset of the run waits for the step, each batch is reported by an event as soon as it is
  published, and there is no output.
- Otherwise the events are held until the step ends. If each partition of the run is published, they
  become the metadata of one output, which Dagster turns into one event for each partition. If not,
  they are logged, and there is no output.

Events that a killed process held are reported by the stream's sensors, which compare the inventory
with Dagster.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, cast

import dagster as dg

from batch_pipeline.defs.metadata import generation_of
from batch_pipeline.defs.names import DATA_VERSION_TAG

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
