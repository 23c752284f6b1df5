"""Metadata and tags of events in Dagster."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.names import DATA_VERSION_TAG, backfill_asset_key, files_key, loaded_key
from batch_pipeline.defs.partitions import PartitionedAsset
from batch_pipeline.model.backfill import Estimate, Progress, backfill_name
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.item import Registered
from batch_pipeline.model.job import OWN_KINDS
from batch_pipeline.model.load import LoadedGeneration
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.schema import SchemaChange
from batch_pipeline.model.status import RecentBatch, StreamStatus, sparkline
from batch_pipeline.model.stream import Stream
from batch_pipeline.storage.filesystem import filesystem_of

# Dagster calls a partition stale when the data version of its source has changed. New files do not
# affect planned batches, so this version is constant.
FILES_VERSION = "append-only"
ENCODE_VERSION = "1"
LANDING_ERROR = "landing_error"
_GENERATION = "generation"
_ROW_COUNT = "dagster/partition_row_count"
_TARGETS = "targets"
_MAX_ROWS = 100  # in a table


def batch_metadata(
    manifest: Manifest,
    pointer_uri: str,
    seconds: float | None,
    schema_changes: Sequence[SchemaChange] = (),
) -> dict[str, Any]:
    """Describe a published batch: values that vary between batches as numbers, others as text.

    Dagster plots numbers. `seconds` is the duration of the attempt, None if it is unknown.
    `schema_changes` are the differences from the previous schema.
    """
    metadata: dict[str, Any] = {
        "dagster/uri": pointer_uri,
        _ROW_COUNT: manifest.records,
        "dagster/column_schema": dg.TableSchema(
            [dg.TableColumn(name=one.name, type=one.type_text) for one in manifest.schema.columns]
        ),
        "items": manifest.items,
        "weight_bytes": manifest.batch.weight,
        "size_bytes": manifest.size_bytes,
        "records_read": manifest.records_read,
        "records_quarantined": manifest.records_quarantined,
        "job": manifest.job,
        "attempt": str(manifest.attempt),
        _GENERATION: str(manifest.generation),
        "schema": _schema_text(manifest, schema_changes),
        "part_files": _part_files(manifest),
    }
    if seconds:
        metadata["seconds"] = round(seconds, 3)
        metadata["records_per_second"] = round(manifest.records / seconds)
    if manifest.origin is not None:
        metadata["source_files"] = _source_files(manifest.origin)
    return metadata


def _schema_text(manifest: Manifest, changes: Sequence[SchemaChange]) -> str:
    version = f"version {manifest.schema_version}"
    if manifest.schema_version == 1:  # only the first batch introduces it
        return f"{version}, the initial schema" if changes else version
    listed = "; ".join(change.sentence for change in changes)
    return f"{version}: {listed}" if listed else version


def batch_materialization(
    asset: PartitionedAsset,
    manifest: Manifest,
    pointer_uri: str,
    seconds: float | None = None,
    schema_changes: Sequence[SchemaChange] = (),
) -> dg.AssetMaterialization:
    """Build the materialization of a batch's partition.

    Its data version is the generation: the only part of an event that Dagster can look up for many
    partitions at once.
    """
    source = files_key(asset.stream).to_user_string()
    return dg.AssetMaterialization(
        asset_key=asset.asset_key,
        partition=asset.key_of(manifest.batch),
        metadata=batch_metadata(manifest, pointer_uri, seconds, schema_changes),
        tags={
            **_data_version(str(manifest.generation)),
            "dagster/code_version": ENCODE_VERSION,
            f"dagster/input_data_version/{source}": FILES_VERSION,
            f"dagster/input_event_pointer/{source}": "NULL",
        },
    )


def loaded_materialization(stream: Stream, loaded: LoadedGeneration) -> dg.AssetMaterialization:
    """Build the materialization of a batch that all targets have acknowledged."""
    columns = {"target": "string", "records": "int", "messages": "string", "run": "string"}
    rows = [(load.target, load.records or 0, load.mode or "", load.run_id) for load in loaded.loads]
    return dg.AssetMaterialization(
        asset_key=loaded_key(stream),
        partition=loaded.label,
        metadata={
            _GENERATION: str(loaded.generation),
            _ROW_COUNT: loaded.loads[0].records or 0,
            "seconds": round(loaded.seconds, 3),
            _TARGETS: _table(columns, rows),
        },
        tags=_data_version(str(loaded.generation)),
    )


def loading_runs(event: dg.AssetMaterialization | None) -> set[str]:
    """Return the runs whose loads an event of `loaded_materialization` includes."""
    targets = event.metadata.get(_TARGETS) if event is not None else None
    if not isinstance(targets, dg.TableMetadataValue):
        return set()
    return {str(row.data["run"]) for row in targets.records}


def generation_of(event: dg.AssetMaterialization | None) -> int:
    """Return the generation in an event of a batch; 0 if there is none.

    Events of releases before 0.2 have it as a number.
    """
    value = event.metadata.get(_GENERATION) if event is not None else None
    text = str(value.value) if value is not None else ""
    return int(text) if text.isdecimal() else 0


def latest_generation(instance: dg.DagsterInstance, asset_key: dg.AssetKey, key: str) -> int:
    """Return the generation in the latest event of a partition, or 0 without an event."""
    of_key = dg.AssetRecordsFilter(asset_key=asset_key, asset_partitions=[key])
    records = instance.fetch_materializations(of_key, limit=1).records
    return generation_of(records[0].asset_materialization) if records else 0


def backfill_observation(stream: Stream, progress: Progress) -> dg.AssetObservation:
    """Build the observation of a backfill's progress."""
    counts = {f"batches_{state.value}": count for state, count in progress.states.items()}
    left = progress.remaining
    return dg.AssetObservation(
        asset_key=backfill_asset_key(stream),
        metadata={
            "backfill": backfill_name(stream.name, progress.job),
            "finished": progress.is_finished,
            "batches": progress.batches,
            **counts,
            "items": progress.items,
            "items_done": progress.items_done,
            "weight_bytes": progress.weight,
            "weight_bytes_done": progress.weight_done,
            **({} if left is None else {"seconds_left": round(left.total_seconds(), 1)}),
        },
    )


def estimate_metadata(estimate: Estimate) -> dict[str, Any]:
    """Describe the estimated result of planning a backfill."""
    metadata: dict[str, Any] = {
        "batches": estimate.batches,
        "items": estimate.items,
        "weight_bytes": estimate.weight,
        "batches_above_max_weight": estimate.oversized,
    }
    if estimate.pace is not None and estimate.seconds is not None:
        metadata["estimated_seconds"] = round(estimate.seconds, 1)
        metadata["estimated_by"] = f"attempts of {estimate.pace.job}: {estimate.pace.attempts}"
    return metadata


def discovery_materialization(
    stream: Stream, metadata: Mapping[str, Any]
) -> dg.AssetMaterialization:
    """Build the materialization for new files that a sensor registered."""
    return dg.AssetMaterialization(
        asset_key=files_key(stream), metadata=metadata, tags=_data_version(FILES_VERSION)
    )


def discovery_metadata(
    registered: Registered, planned: int, errors: Sequence[PipelineError] = ()
) -> Mapping[str, Any]:
    """Describe the result of registering and planning."""
    return {
        **({LANDING_ERROR: str(errors[0])} if errors else {}),
        "files_found": registered.found,
        "items_registered": registered.new_items,
        "files_changed": len(registered.changed),
        "batches_planned": planned,
    }


def stream_observation(pipeline: Pipeline, stream: Stream) -> dg.AssetObservation:
    """Read the status of a stream.

    Raises:
        PipelineError: the user's table cannot be read.
    """
    database = pipeline.database
    status = database.stream_statuses.status(stream.name, pipeline.meta_table(stream))
    recent = database.published.recent(stream.name, OWN_KINDS)
    total, waiting, oldest = status.total, status.waiting, status.oldest
    metadata: dict[str, Any] = {
        "items": total.items,
        "weight_bytes": total.size_bytes,
        "items_waiting": status.items_not_planned,
        "bytes_waiting": status.bytes_not_planned,
        "items_unpublished": waiting.items,
        "bytes_unpublished": waiting.size_bytes,
        "oldest_unpublished_seconds": 0.0 if oldest is None else round(oldest.total_seconds(), 1),
    }
    for state in status.SHOWN:  # other states would be plots of zeros
        if count := status.batches(state):
            metadata[f"batches_{state}"] = count
    if oldest is not None:
        since = datetime.now(UTC) - oldest
        metadata["oldest_unpublished_since"] = dg.MetadataValue.timestamp(since)
    ids = {"bookmark": status.bookmark, "ceiling": status.ceiling}
    metadata |= {name: value for name, value in ids.items() if value is not None}
    if recent:
        metadata["pace"] = dg.MetadataValue.md(_pace(recent))
    return dg.AssetObservation(asset_key=files_key(stream), metadata=metadata)


def _pace(recent: Sequence[RecentBatch]) -> str:
    """Draw records per second and quarantined share of the last batches with block characters.

    Dagster's pages show no images.
    """
    paces = [batch.records_per_second for batch in recent]
    shares = [batch.quarantined_ratio for batch in recent]
    lines = [
        f"last batches: {len(recent)}, newest on the right",
        "",
        "| | | newest |",
        "|---|---|---:|",
        f"| records/s | `{sparkline(paces)}` | {paces[-1]:,.0f} |",
        f"| quarantined | `{sparkline(shares)}` | {shares[-1]:.2%} |",
    ]
    return "\n".join(lines)


def _data_version(version: str) -> dict[str, str]:
    return {DATA_VERSION_TAG: version, f"{DATA_VERSION_TAG}_is_user_provided": "true"}


def _source_files(origin: Mapping[str, Any]) -> dg.TableMetadataValue:
    """List the first source files of a batch; for a user's meta table, only ids and counters."""
    meta_table = origin["job"]["meta_table"]
    rows = [
        (
            item["id"],
            item.get("location", f"row {item['id']} of {meta_table}"),
            item.get("size_bytes"),
            item["read"],
            item["quarantined"],
        )
        for item in origin["items"][:_MAX_ROWS]
    ]
    columns = {
        "item": "int",
        "source_file": "string",
        "bytes": "int",
        "records_read": "int",
        "records_quarantined": "int",
    }
    return _table(columns, rows)


def _part_files(manifest: Manifest) -> dg.TableMetadataValue:
    """List the first part files of a batch; local ones by name, objects by URI."""
    is_local = all(filesystem_of(part.uri).is_local for part in manifest.part_files[:1])
    columns = {"part_file": "string", "records": "int", "bytes": "int", "sha256": "string"}
    rows = []
    for part in manifest.part_files[:_MAX_ROWS]:
        name = part.uri.rsplit("/", 1)[-1] if is_local else part.uri
        rows.append((name, part.records, part.size_bytes, part.sha256))
    return _table(columns, rows)


def _table(columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> dg.TableMetadataValue:
    """Build a table from the types of its columns, by name, and their values in each row."""
    return dg.MetadataValue.table(
        records=[dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows],
        schema=dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()]),
    )


def changed_observation(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance
) -> list[dg.AssetObservation]:
    """Read the status of a stream if batches have changed their state since the last observation.

    Raises:
        PipelineError: the user's table cannot be read.
    """
    states = pipeline.database.stream_statuses.states(stream.name)
    records = instance.fetch_observations(files_key(stream), limit=1).records
    observation = records[0].asset_observation if records else None
    shown: Mapping[str, Any] = {} if observation is None else observation.metadata
    for state in StreamStatus.SHOWN:
        last = shown.get(f"batches_{state}")  # left out if 0
        if states.get(state, 0) != (0 if last is None else last.value):
            return [stream_observation(pipeline, stream)]
    return []
