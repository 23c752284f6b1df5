"""Batches that are published with files on a disk, and what checks say of them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from batch_pipeline.model.batch import Batch
from batch_pipeline.model.encode_request import Encoded
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.manifest import Manifest, PartFile
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.defs.defs_fixture import DefsScene
from batch_pipeline_tests.factories import encode_result, item_report, record_schema
from batch_pipeline_tests.seeds import claimed


def publish_all(scene: DefsScene, **how: Any) -> list[Manifest]:
    """Publish the four batches of three items, in order."""
    statuses = scene.database.batches.statuses("orders")
    return [publish(scene, status.batch, **how) for status in statuses]


def publish(
    scene: DefsScene, one: Batch, *, quarantined: int = 0, schema_version: int = 1, unseen: int = 0
) -> Manifest:
    """Publish a batch of which each item has five records, in a part file of 100 bytes.

    The first item has as many more as are quarantined; the last ones may not have been seen.
    """
    ids = range(one.id_range.first_id, one.id_range.last_id + 1 - unseen)
    items = [item_report(item_id) for item_id in ids]
    items[0] = item_report(ids[0], read=5 + quarantined, quarantined=quarantined)
    with claimed(scene.database, one) as attempt:
        part = _written(scene, f"{attempt.stem}-0.jsonl", records=5 * len(items))
        result = encode_result(part_files=(part,), items=tuple(items))
        what = Encoded(result=result, schema=record_schema(), schema_version=schema_version)
        manifest = scene.database.attempts.publish(attempt, what, scene.stream)
    pointer = PartFileStorage(scene.stream.storage).point_to(manifest)
    scene.database.attempts.record_pointer(manifest, pointer)
    return manifest


def path_of(manifest: Manifest) -> Path:
    """Give the place of a manifest's only part file."""
    [part] = manifest.part_files
    return Path(to_path(part.uri))


def answers(
    scene: DefsScene, job: str = "batch_pipeline_check_streams", **how: Any
) -> dict[str, dg.AssetCheckEvaluation]:
    """Run a Dagster job and give what its checks say, by `asset.check`; a red one fails the run."""
    found = scene.definitions.resolve_job_def(job)
    result = found.execute_in_process(instance=scene.instance, raise_on_error=False, **how)
    return said_in(scene, result.run_id)


def said_in(scene: DefsScene, run_id: str) -> dict[str, dg.AssetCheckEvaluation]:
    """Give what the checks of a run say, by `asset.check`."""
    said = {}
    for entry in scene.instance.all_logs(
        run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ):
        assert entry.dagster_event is not None
        one = entry.dagster_event.asset_check_evaluation_data
        said[f"{one.asset_key.path[-1]}.{one.check_name}"] = one
    return said


def numbers(one: dg.AssetCheckEvaluation, *names: str) -> list[Any]:
    """Read numbers of a check's metadata."""
    return [one.metadata[name].value for name in names]


def failed(evaluations: dict[str, dg.AssetCheckEvaluation]) -> Sequence[str]:
    """Name the checks that failed."""
    return sorted(name for name, one in evaluations.items() if not one.passed)


def _written(scene: DefsScene, name: str, *, records: int) -> PartFile:
    path = Path(to_path(scene.stream.storage.root)) / name
    path.parent.mkdir(exist_ok=True)
    data = name.encode().ljust(100 - records, b".") + b"\n" * records
    path.write_bytes(data)
    return PartFile(
        uri=to_uri(path),
        records=records,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
