"""Batches published with files on a disk, and the results of asset checks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from batch_pipeline.model.batch import Batch
from batch_pipeline.model.encode_request import Encoded
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import Manifest, PartFile
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.factories import encode_result, item_report, record_schema
from batch_pipeline_tests.published_files import described
from batch_pipeline_tests.seeds import LEASE


def publish_all(harness: DefsHarness, **options: Any) -> list[Manifest]:
    """Publish the four batches of three items, in order."""
    statuses = harness.database.batches.statuses("orders")
    return [publish(harness, status.batch, **options) for status in statuses]


def publish(
    harness: DefsHarness,
    batch: Batch,
    *,
    quarantined: int = 0,
    unseen: int = 0,
    run_id: str = "run-1",
    quarantine_files: tuple[PartFile, ...] = (),
) -> Manifest:
    """Publish a batch with five records per item and a part file of 100 bytes.

    Quarantined records belong to the first item; the last `unseen` items are left out.
    """
    ids = range(batch.id_range.first_id, batch.id_range.last_id + 1 - unseen)
    items = [item_report(item_id) for item_id in ids]
    items[0] = item_report(ids[0], read=5 + quarantined, quarantined=quarantined)
    with harness.database.attempts.claim(batch, run_id=run_id, lease=LEASE) as attempt:
        part = _write_part(harness, f"{attempt.stem}-0.jsonl", records=5 * len(items))
        result = encode_result(
            part_files=(part,), quarantine_files=quarantine_files, items=tuple(items)
        )
        encoded = Encoded(result=result, schema=record_schema(), schema_version=1)
        manifest = harness.database.attempts.publish(attempt, encoded, harness.stream)
    pointer = PartFileStorage(harness.stream.storage).point_to(manifest)
    harness.database.attempts.record_pointer(manifest, pointer)
    return manifest


def path_of(manifest: Manifest) -> Path:
    """Return the path of a manifest's only part file."""
    [part] = manifest.part_files
    return Path(to_path(part.uri))


def run_checks(
    harness: DefsHarness, job: str = "batch_pipeline_check_streams", **options: Any
) -> dict[str, dg.AssetCheckEvaluation]:
    """Run a Dagster job and return its check results by `asset.check`."""
    definition = harness.definitions.resolve_job_def(job)
    result = definition.execute_in_process(
        instance=harness.instance, raise_on_error=False, **options
    )
    return check_results(harness, result.run_id)


def check_results(harness: DefsHarness, run_id: str) -> dict[str, dg.AssetCheckEvaluation]:
    """Return the check results of a run by `asset.check`."""
    kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    events = [
        entry.get_dagster_event() for entry in harness.instance.all_logs(run_id, of_type=kind)
    ]
    results = [event.asset_check_evaluation_data for event in events]
    return {f"{result.asset_key.path[-1]}.{result.check_name}": result for result in results}


def numbers(result: dg.AssetCheckEvaluation, *names: str) -> list[Any]:
    """Return numbers of a check result's metadata."""
    return [result.metadata[name].value for name in names]


def failed(results: dict[str, dg.AssetCheckEvaluation]) -> Sequence[str]:
    """Return the names of the failed checks."""
    return sorted(name for name, result in results.items() if not result.passed)


def _write_part(harness: DefsHarness, name: str, *, records: int) -> PartFile:
    path = Path(to_path(harness.stream.storage.root)) / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(name.encode().ljust(100 - records, b".") + b"\n" * records)
    return described(path, records)
