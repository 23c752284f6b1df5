"""Which targets have loaded published batches, for `explain` and `status`."""

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from batch_pipeline.cli.console import ago, at, fact
from batch_pipeline.model.load import LoadRecord, LoadStatus

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.model.manifest import Manifest
    from batch_pipeline.model.stream import Stream


def loads_of(pipeline: "Pipeline", stream: "Stream", manifest: "Manifest") -> list[dict[str, Any]]:
    """Describe by target whether the newest generation of a batch is loaded, and why not."""
    known = pipeline.database.loads.of_batch(manifest.batch.id)
    newest = [one for one in known if one.generation == manifest.generation]
    names = dict.fromkeys([*(t.name for t in stream.targets), *(one.target for one in newest)])
    return [_told(name, [one for one in newest if one.target == name]) for name in names]


def _told(target: str, tries: list[LoadRecord]) -> dict[str, Any]:
    last = tries[-1] if tries else None
    has = [one for one in tries if one.status is LoadStatus.SUCCEEDED and not one.is_void]
    return {
        "target": target,
        "loaded": bool(has),
        "loaded_at": has[0].finished_at if has else None,
        "records": has[0].records if has else None,
        "messages": has[0].mode if has else None,
        "tries": len(tries),
        "status": None if last is None else last.status.value,
        "run_id": None if last is None else last.run_id,
        "error": None if last is None or has else last.error,
    }


def print_loads(story: dict[str, Any], now: datetime) -> None:
    """Print station 9 of a batch."""
    if not story["targets"]:
        fact("9 load", "by the Singer target that reads its messages; no `targets` are named")
    for one in story["targets"]:
        fact("9 load", _sentence(one, now))
        if one["error"]:
            fact("", one["error"])


def _sentence(one: dict[str, Any], now: datetime) -> str:
    name = one["target"]
    if one["loaded"]:
        return f"{name}: records: {one['records']:,}, loaded {at(one['loaded_at'], now)}"
    if one["status"] is None:
        return f"{name}: due; `batch-pipeline load` loads it"
    if one["status"] == LoadStatus.RUNNING:
        return f"{name}: being loaded by run {one['run_id']}"
    if one["status"] == LoadStatus.SUCCEEDED:
        return f"{name}: to be loaded again"
    return f"{name}: due, {one['status']}, tries: {one['tries']}"


def load_statuses_of(pipeline: "Pipeline", stream: "Stream") -> list[dict[str, Any]]:
    """Count for each target of a stream what it has and what waits."""
    names = [target.name for target in stream.targets]
    return [asdict(one) for one in pipeline.database.loads.target_statuses(stream.name, names)]


def print_load_status(one: dict[str, Any], now: datetime) -> None:
    """Print how far a target is."""
    last = "" if one["loaded_at"] is None else f", last {ago(one['loaded_at'], now)}"
    failed = f", {one['failed']} of them failed" if one["failed"] else ""
    fact("target", f"{one['target']}: {one['loaded']} loaded{last}, {one['due']} due{failed}")
    if one["gone"]:
        lacks = f"{one['gone']} more it never got, and their files were removed since:"
        fact("", f"{lacks} materialize their partitions again to have them loaded")
    if one["running"] is not None:
        fact("", f"run {one['running']} is loading")
    if one["error"]:
        fact("", one["error"])
