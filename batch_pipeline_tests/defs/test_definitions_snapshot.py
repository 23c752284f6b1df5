"""A snapshot of all definitions of one stream, so that changes are reviewed.

`UPDATE_SNAPSHOTS=1 uv run pytest batch_pipeline_tests/defs/test_definitions_snapshot.py` updates
the file.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path

import dagster as dg

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.model.stream import DagsterRules
from batch_pipeline_tests.factories import stream

SNAPSHOT = Path(__file__).with_name("definitions.txt")
UPDATE = "UPDATE_SNAPSHOTS"


def test_definitions_match_the_snapshot() -> None:
    rules = DagsterRules(group="sales", owners=("team:sales",), tags={"tier": "gold"})
    definitions = build_definitions([stream(dagster=rules)])
    text = "\n".join(_lines(definitions)) + "\n"
    if os.environ.get(UPDATE):
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert SNAPSHOT.read_text(encoding="utf-8") == text, (
        f"The definitions differ from {SNAPSHOT.name}. If the change is intended, run this test "
        f"once with {UPDATE}=1 in the environment and review the diff of the file."
    )


def _lines(definitions: dg.Definitions) -> Iterator[str]:
    repository = definitions.get_repository_def()
    graph = definitions.resolve_asset_graph()
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        yield f"asset {key.to_user_string()}"
        yield f"  group {node.group_name}; owners {_joined(node.owners)}; tags {_tags(node.tags)}"
        yield f"  kinds {_joined(node.kinds)}; {node.description}"
        yield f"  from {_joined(parent.to_user_string() for parent in node.parent_keys)}"
        partitions = node.partitions_def
        if isinstance(partitions, dg.DynamicPartitionsDefinition):
            policy = node.backfill_policy
            limit = None if policy is None else policy.max_partitions_per_run
            yield f"  partitions {partitions.name}, {limit} per run"
        for check in sorted(node.check_keys, key=attrgetter("name")):
            blocking = " (blocking)" if graph.get(check).blocking else ""
            yield f"  check {check.name}{blocking}"
    for job in sorted(repository.get_all_jobs(), key=attrgetter("name")):
        if not job.name.startswith("__"):
            yield f"job {job.name}: {job.description}"
            yield f"  steps {_joined(node.name for node in job.graph.nodes)}"
    for sensor in sorted(repository.sensor_defs, key=attrgetter("name")):
        every = sensor.minimum_interval_seconds
        yield f"sensor {sensor.name}: every {every} s, {sensor.default_status.value.lower()}"
    for schedule in sorted(repository.schedule_defs, key=attrgetter("name")):
        when = f"{schedule.cron_schedule}, {schedule.default_status.value.lower()}"
        yield f"schedule {schedule.name}: {when}"


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _tags(tags: Mapping[str, str]) -> str:
    own = {name: value for name, value in tags.items() if not name.startswith("dagster/")}
    return _joined(f"{name}={value}" for name, value in own.items())
