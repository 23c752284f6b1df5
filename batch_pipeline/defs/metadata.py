"""What people see of stations in Dagster: metadata in the words of the glossary."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.names import (
    DATA_VERSION_TAG,
    backfill_asset_key,
    loaded_key,
    meta_table_key,
)
from batch_pipeline.defs.partitions import PartitionedAsset
from batch_pipeline.model.backfill import Estimate, Progress, backfill_name
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.item import Registered
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.load import LoadedGeneration
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import Manifest, Origin
from batch_pipeline.model.published import RecentBatch
from batch_pipeline.model.schema import RecordSchema, SchemaChange
from batch_pipeline.model.status import StreamStatus, sparkline
from batch_pipeline.model.stream import Stream
from batch_pipeline.singer.messages import batch_message
from batch_pipeline.storage.filesystem import filesystem_of

# Dagster calls a partition stale when what it was made from has a newer version. New rows of the
# meta table change nothing for batches that are planned, so its version never changes.
META_TABLE_VERSION = "append-only"
ENCODE_VERSION = "1"
_GENERATION = "generation"
_TARGETS = "targets"
LANDING_TROUBLE = "landing_trouble"
_MOST_ROWS = 200


def batch_metadata(
    manifest: Manifest,
    pointer_uri: str,
    seconds: float | None,
    schema_changes: Sequence[SchemaChange] = (),
) -> dict[str, Any]:
    """Describe a published batch; `seconds` is None when its end was only found out later.

    `schema_changes` are what its records changed in the schema.
    """
    metadata: dict[str, Any] = {
        "items": manifest.items,
        "weight_bytes": manifest.batch.weight,
        "records": manifest.records,
        "records_read": manifest.records_read,
        "records_quarantined": manifest.records_quarantined,
        "part_files": len(manifest.part_files),
        "size_bytes": manifest.size_bytes,
        "attempt": manifest.attempt,
        _GENERATION: manifest.generation,
        "schema_version": manifest.schema_version,
    }
    if seconds:
        metadata["seconds"] = round(seconds, 3)
        metadata["records_per_second"] = round(manifest.records / seconds)
    if schema_changes:
        said = "; ".join(change.sentence for change in schema_changes)
        metadata["schema_changes"] = f"schema v{manifest.schema_version}: {said}"
    if manifest.origin is not None:
        metadata["source_files"] = _source_files(manifest.origin)
    message = json.dumps(batch_message(manifest), ensure_ascii=False, indent=2)
    return metadata | {
        "manifest": _place(pointer_uri),
        "part_file_list": _part_file_list(manifest),
        "dagster/column_schema": _columns(manifest.schema),
        "dagster/row_count": manifest.records,
        "batch_message": dg.MetadataValue.md(f"```json\n{message}\n```"),
    }


def batch_materialization(
    stream: Stream,
    asset: PartitionedAsset,
    manifest: Manifest,
    pointer_uri: str,
    seconds: float | None = None,
    schema_changes: Sequence[SchemaChange] = (),
) -> dg.AssetMaterialization:
    """The event that turns a batch's partition of an asset green.

    The generation is its data version as well: of all that an event has, Dagster finds that alone
    for many partitions at once.
    """
    return dg.AssetMaterialization(
        asset_key=asset.asset_key,
        partition=asset.key_of(manifest.batch),
        metadata={
            "job": manifest.job,
            **batch_metadata(manifest, pointer_uri, seconds, schema_changes),
        },
        tags=encoded_tags(stream, str(manifest.generation)),
    )


def encoded_tags(stream: Stream, version: str) -> dict[str, str]:
    """Return the tags of an event of encoded batches: its data version, and what it was made of."""
    source = meta_table_key(stream).to_user_string()
    return {
        **_data_version(version),
        "dagster/code_version": ENCODE_VERSION,
        f"dagster/input_data_version/{source}": META_TABLE_VERSION,
        f"dagster/input_event_pointer/{source}": "NULL",
    }


def loaded_materialization(stream: Stream, one: LoadedGeneration) -> dg.AssetMaterialization:
    """The event that turns the partition of a batch green that all targets have acknowledged."""
    columns = {"target": "string", "records": "int", "messages": "string", "run": "string"}
    rows = [
        dg.TableRecord(
            {
                "target": load.target,
                "records": load.records or 0,
                "messages": load.mode or "",
                "run": load.run_id,
            }
        )
        for load in one.loads
    ]
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.AssetMaterialization(
        asset_key=loaded_key(stream),
        partition=one.label,
        metadata={
            _GENERATION: one.generation,
            "dagster/row_count": one.loads[0].records or 0,
            "seconds": round(one.seconds, 3),
            _TARGETS: dg.MetadataValue.table(records=rows, schema=schema),
        },
    )


def loading_runs(event: dg.AssetMaterialization | None) -> set[str]:
    """Return the runs whose loads an event of `loaded_materialization` includes."""
    targets = event.metadata.get(_TARGETS) if event is not None else None
    if not isinstance(targets, dg.TableMetadataValue):
        return set()
    return {str(row.data["run"]) for row in targets.records}


def generation_of(event: dg.AssetMaterialization | None) -> int:
    """Return the generation in an event of a batch; 0 if there is none."""
    told = event.metadata.get(_GENERATION) if event is not None else None
    return (told.value or 0) if isinstance(told, dg.IntMetadataValue) else 0


def backfill_observation(stream: Stream, one: Progress) -> dg.AssetObservation:
    """The event that tells how far a backfill is."""
    counts = {f"batches_{state.value}": count for state, count in one.states.items()}
    left = one.remaining
    return dg.AssetObservation(
        asset_key=backfill_asset_key(stream),
        metadata={
            "backfill": backfill_name(stream.name, one.job),
            "finished": one.is_finished,
            "batches": one.batches,
            **counts,
            "items": one.items,
            "items_done": one.items_done,
            "weight_bytes": one.weight,
            "weight_bytes_done": one.weight_done,
            **({} if left is None else {"seconds_left": round(left.total_seconds(), 1)}),
        },
    )


def estimate_metadata(found: Estimate) -> dict[str, Any]:
    """Describe what planning a backfill would make."""
    told: dict[str, Any] = {
        "batches": found.batches,
        "items": found.items,
        "weight_bytes": found.weight,
        "batches_above_max_weight": found.oversized,
    }
    if found.pace is not None and found.seconds is not None:
        told["estimated_seconds"] = round(found.seconds, 1)
        told["estimated_by"] = f"attempts of {found.pace.job}: {found.pace.attempts}"
    return told


def discovery_materialization(
    stream: Stream, metadata: Mapping[str, Any]
) -> dg.AssetMaterialization:
    """Build the event for new items that no run registered."""
    return dg.AssetMaterialization(
        asset_key=meta_table_key(stream),
        metadata=metadata,
        tags=_data_version(META_TABLE_VERSION),
    )


def discovery_metadata(
    registered: Registered,
    planned: int,
    observed: dg.AssetObservation,
    troubles: Sequence[PipelineError] = (),
) -> Mapping[str, Any]:
    """Describe one look at the landing, and where the stream stood afterwards."""
    told = {LANDING_TROUBLE: str(troubles[0])} if troubles else {}
    return {
        **told,
        "files_found": registered.found,
        "items_registered": registered.new_items,
        "files_changed": len(registered.changed),
        "batches_planned": planned,
        **observed.metadata,
    }


def status_observation(
    stream: Stream, standing: StreamStatus, recent: Sequence[RecentBatch]
) -> dg.AssetObservation:
    """The event that tells where a stream stands, with numbers that Dagster plots over time."""
    return dg.AssetObservation(
        asset_key=meta_table_key(stream),
        metadata=_standing_metadata(standing, recent),
    )


def _standing_metadata(standing: StreamStatus, recent: Sequence[RecentBatch]) -> dict[str, Any]:
    total, unpublished, oldest = standing.total, standing.waiting, standing.oldest
    facts: dict[str, Any] = {
        "items": total.items,
        "weight_bytes": total.size_bytes,
        "items_waiting": standing.items_not_planned,
        "bytes_waiting": standing.bytes_not_planned,
        "items_unpublished": unpublished.items,
        "bytes_unpublished": unpublished.size_bytes,
        "oldest_unpublished_seconds": 0.0 if oldest is None else round(oldest.total_seconds(), 1),
        **{f"batches_{state}": standing.batches(state) for state in standing.SHOWN},
    }
    if oldest is not None:
        since = datetime.now(UTC) - oldest
        facts["oldest_unpublished_since"] = dg.MetadataValue.timestamp(since)
    ids = {"bookmark": standing.bookmark, "ceiling": standing.ceiling}
    facts |= {name: value for name, value in ids.items() if value is not None}
    if recent:
        facts["last_batches"] = dg.MetadataValue.md(_plot(recent))
    return facts


def _plot(recent: Sequence[RecentBatch]) -> str:
    """Draw pace and losses of the last batches; blocks of text show where images are left out."""
    paces = [one.records_per_second for one in recent]
    shares = [one.quarantined_ratio for one in recent]
    lines = [
        f"last batches: {len(recent)}, the newest right",
        "",
        "| | | newest |",
        "|---|---|---:|",
        f"| records/s | `{sparkline(paces)}` | {paces[-1]:,.0f} |",
        f"| quarantined | `{sparkline(shares)}` | {shares[-1]:.2%} |",
    ]
    return "\n".join(lines)


def _data_version(version: str) -> dict[str, str]:
    return {DATA_VERSION_TAG: version, f"{DATA_VERSION_TAG}_is_user_provided": "true"}


def _place(uri: str) -> dg.MetadataValue[str]:
    """Show where a file is; there is no path to an object, and no page either."""
    if filesystem_of(uri).is_local:
        return dg.MetadataValue.path(to_path(uri))
    return dg.MetadataValue.text(uri)


def _columns(schema: RecordSchema) -> dg.TableSchema:
    columns = [dg.TableColumn(name=one.name, type=one.type_text) for one in schema.columns]
    return dg.TableSchema(columns=columns)


def _source_files(origin: Origin) -> dg.TableMetadataValue:
    """List the files that a batch was made of, the first 200 of them.

    Of a user's meta table only ids and counters are kept.
    """
    types = {
        "item": "int",
        "source_file": "string",
        "bytes": "int",
        "records_read": "int",
        "records_quarantined": "int",
    }
    rows = [
        dg.TableRecord(
            {
                "item": one.id,
                "source_file": one.location or f"row {one.id} of {origin.job.meta_table}",
                "bytes": one.size_bytes,
                "records_read": one.read,
                "records_quarantined": one.quarantined,
            }
        )
        for one in origin.items[:_MOST_ROWS]
    ]
    columns = [dg.TableColumn(name=name, type=kind) for name, kind in types.items()]
    return dg.MetadataValue.table(records=rows, schema=dg.TableSchema(columns=columns))


def _part_file_list(manifest: Manifest) -> dg.TableMetadataValue:
    """List the part files, the first 200 of them; the manifest has all.

    Those in a folder are called by name, objects by their URI.
    """
    types = {"part_file": "string", "records": "int", "bytes": "int", "sha256": "string"}
    is_local = all(filesystem_of(part.uri).is_local for part in manifest.part_files[:1])
    rows = [
        dg.TableRecord(
            {
                "part_file": part.uri.rsplit("/", 1)[-1] if is_local else part.uri,
                "records": part.records,
                "bytes": part.size_bytes,
                "sha256": part.sha256,
            }
        )
        for part in manifest.part_files[:_MOST_ROWS]
    ]
    columns = [dg.TableColumn(name=name, type=kind) for name, kind in types.items()]
    return dg.MetadataValue.table(records=rows, schema=dg.TableSchema(columns=columns))


def stream_observation(pipeline: Pipeline, stream: Stream) -> dg.AssetObservation:
    """Look at where a stream stands.

    Raises:
        PipelineError: the user's table cannot be read.
    """
    database = pipeline.database
    standing = database.stream_statuses.status(stream.name, pipeline.meta_table(stream))
    recent = database.published.recent(stream.name, [JobKind.INCREMENTAL, JobKind.LATE])
    return status_observation(stream, standing, recent)


def changed_observation(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance
) -> list[dg.AssetObservation]:
    """Look at where a stream stands if batches have moved to other states since the last time.

    Raises:
        PipelineError: the user's table cannot be read.
    """
    states = pipeline.database.stream_statuses.states(stream.name)
    if _numbers(states) == _last_told(instance, stream):
        return []
    return [stream_observation(pipeline, stream)]


def _numbers(states: Mapping[BatchState, int]) -> dict[str, Any]:
    return {f"batches_{state}": states.get(state, 0) for state in StreamStatus.SHOWN}


def _last_told(instance: dg.DagsterInstance, stream: Stream) -> dict[str, Any]:
    """Read the counts of batches in the last observation; zeros before the first."""
    records = instance.fetch_observations(meta_table_key(stream), limit=1).records
    told = records[0].asset_observation if records else None
    numbers = _numbers({})
    if told is None:
        return numbers
    return {name: value.value for name, value in told.metadata.items() if name in numbers}
