"""A stream in a real inventory and a Dagster instance, for tests of definitions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.names import RANGE_END_TAG, RANGE_START_TAG
from batch_pipeline.defs.partitions import PartitionedAsset, backfills_of, batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import IdRange
from batch_pipeline.model.stream import Automation, Stream
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.seeds import ORDER_ID, plan, query, register


@dataclass(frozen=True, slots=True, kw_only=True)
class DefsHarness:
    """The stream `orders` with twelve items in four batches, two partitions per run."""

    database: Database
    pipeline: Pipeline
    stream: Stream
    instance: dg.DagsterInstance
    definitions: dg.Definitions

    @property
    def batches(self) -> PartitionedAsset:
        """The asset of the stream's batches."""
        return batches_of(self.stream)

    @property
    def backfills(self) -> PartitionedAsset:
        """The asset of the stream's backfills."""
        return backfills_of(self.stream)

    def plan(
        self, name: str = "2023", *, ids: tuple[int, int] = (1, 12), max_count: int = 3
    ) -> None:
        """Plan a backfill of a range of items."""
        selection = Selection(ids=IdRange(first_id=ids[0], last_id=ids[1]))
        request = Backfill.of_stream("orders", name, selection, limits(max_count=max_count))
        self.database.backfills.plan(request, self.database.meta_table("orders"))

    def tick(self, name: str, cursor: str | None = None) -> dg.SensorResult:
        """Evaluate a sensor and add the partitions that it requests."""
        sensor = self.definitions.resolve_sensor_def(name)
        resources = {"batch_pipeline": PipelineResource()}
        with dg.build_sensor_context(
            instance=self.instance, cursor=cursor, resources=resources
        ) as context:
            result = sensor(context)
        assert isinstance(result, dg.SensorResult), result
        for add in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(add.partitions_def_name, add.partition_keys)
        return result

    def tick_run_ends(self) -> str:
        """Evaluate the sensor `batch_pipeline_run_ends` and return its message."""
        sensor = self.definitions.resolve_sensor_def("batch_pipeline_run_ends")
        resources = {"batch_pipeline": PipelineResource()}
        with dg.build_sensor_context(instance=self.instance, resources=resources) as context:
            result = sensor(context)
        assert isinstance(result, dg.SkipReason), result
        return str(result.skip_message)

    def start_run(self, request: dg.RunRequest) -> dg.DagsterRun:
        """Create a started run for a request, without executing it."""
        assert request.job_name is not None
        job = self.definitions.resolve_job_def(request.job_name)
        tags = dict(request.tags)
        status = dg.DagsterRunStatus.STARTED
        return self.instance.create_run_for_job(job_def=job, tags=tags, status=status)

    def reload_run(self, run: dg.DagsterRun) -> dg.DagsterRun:
        """Read a run from the instance again."""
        reloaded = self.instance.get_run_by_id(run.run_id)
        assert reloaded is not None
        return reloaded

    def cancel_run(self, run: dg.DagsterRun) -> None:
        """Report a run as cancelled by a user."""
        self.instance.report_run_canceling(run)
        self.instance.report_run_canceled(run)

    def states(self, job: str = "orders.2023") -> list[str]:
        """Return the states of a job's batches in id order, without split batches."""
        rows = query(
            self.database,
            "SELECT s.state FROM batch_pipeline.batch_state s "
            "JOIN batch_pipeline.batch b ON b.id = s.batch_id "
            "JOIN batch_pipeline.job j ON j.id = b.job_id "
            "WHERE j.name = :job AND b.superseded_at IS NULL ORDER BY b.first_id",
            job=job,
        )
        return [state for (state,) in rows]


@contextmanager
def open_defs_harness(
    database: Database,
    url: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    targets: Mapping[str, Any] | None = None,
) -> Iterator[DefsHarness]:
    """Register and plan twelve items, and load the definitions of the stream."""
    write_stream(folder, "orders", targets=targets)
    environment = {
        "BATCH_PIPELINE_HOME": str(folder / "home"),
        "BATCH_PIPELINE_STREAMS": str(folder / "streams"),
        "BATCH_PIPELINE_INVENTORY_CONN": url,
    }
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    register(database, 12)
    plan(database, limits(max_count=3))
    database.schemas.widen("orders", [ORDER_ID], text_source=True)
    pipeline = Pipeline.from_environment(environment)
    stream = pipeline.stream("orders")
    with dg.DagsterInstance.ephemeral() as instance:
        yield DefsHarness(
            database=database,
            pipeline=pipeline,
            stream=stream,
            instance=instance,
            definitions=dg.Definitions.merge(
                dg.Definitions(executor=dg.in_process_executor),
                build_definitions([stream], automation=Automation.RUNNING),
            ),
        )
    pipeline.close()


def write_stream(folder: Path, name: str, *, targets: Mapping[str, Any] | None = None) -> None:
    """Write a stream file and create an empty landing."""
    landing = folder / "landing" / name
    landing.mkdir(parents=True)
    attributes: dict[str, Any] = {
        "stream": name,
        "source": {"uri": str(landing), "format": "csv"},
        "batch": {"max_weight": "1KiB", "max_count": 3},
        "encoding": {"format": "jsonl", "compression": "gzip"},
        "storage": {"root": str(folder / "batches")},
        "dagster": {"partitions_per_run": 2, "runs_at_once": 3, "backfills": True},
        "targets": dict(targets or {}),
    }
    path = folder / "streams" / name / "defs.yaml"
    path.parent.mkdir(parents=True)
    document = {"type": "batch_pipeline.BatchStream", "attributes": attributes}
    path.write_text(yaml.safe_dump(document))


def ranges(requests: Sequence[dg.RunRequest] | None) -> list[tuple[str, str]]:
    """Return the first and the last partition key of each requested run."""
    return [
        (request.tags[RANGE_START_TAG], request.tags[RANGE_END_TAG]) for request in requests or ()
    ]
