"""A stream in a real inventory and a Dagster instance, for tests of definitions."""

import atexit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.names import RANGE_END_TAG, RANGE_START_TAG
from batch_pipeline.defs.partitions import PartitionedAsset, backfills_of, batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import IdRange, late_key
from batch_pipeline.model.stream import Automation, Stream
from batch_pipeline_tests.cli import commands
from batch_pipeline_tests.factories import environment_of, limits
from batch_pipeline_tests.seeds import ORDER_ID, execute, plan, planned_backfill, query, register

_LATE = (
    """
    INSERT INTO batch_pipeline.job (name, meta_table, kind, stream, parent_id)
    SELECT 'orders.late', meta_table, 'late', stream, id FROM batch_pipeline.job
    WHERE name = 'orders' AND :item > 0 ON CONFLICT DO NOTHING
    """,
    """
    WITH added AS (
        INSERT INTO batch_pipeline.batch
            (job_id, first_id, last_id, weight, item_count, config, item_ids)
        SELECT id, :item, :item, 10, 1, '{}', ARRAY[:item] FROM batch_pipeline.job
        WHERE name = 'orders.late' RETURNING id, job_id
    )
    INSERT INTO batch_pipeline.batch_state (batch_id, job_id, state)
    SELECT id, job_id, 'planned' FROM added
    """,
)
KEYS = [f"{first:08}-{first + 2:08}" for first in (1, 4, 7, 10)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefsHarness:
    """The stream `orders` with twelve items in four batches, two partitions per run."""

    database: Database
    pipeline: Pipeline
    stream: Stream
    instance: dg.DagsterInstance
    definitions: dg.Definitions

    @property
    def folder(self) -> Path:
        """The folder of the test."""
        return self.pipeline.home.path.parent

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
        selected = IdRange(first_id=ids[0], last_id=ids[1])
        planned_backfill(self.database, name, max_count=max_count, ids=selected)

    def tick(self, name: str, cursor: str | None = None) -> dg.SensorResult:
        """Evaluate a sensor and add the partitions that it requests."""
        result = self.evaluate(name, cursor)
        assert isinstance(result, dg.SensorResult), result
        for add in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(add.partitions_def_name, add.partition_keys)
        return result

    def skipped(self, name: str) -> str:
        """Evaluate a sensor that returns nothing but a message."""
        result = self.evaluate(name)
        assert isinstance(result, dg.SkipReason), result
        return str(result.skip_message)

    def evaluate(
        self,
        name: str,
        cursor: str | None = None,
        prepare: Callable[[dg.SensorEvaluationContext], object] = lambda _: None,
    ) -> dg.SensorResult | dg.SkipReason:
        """Evaluate a sensor with a context that `prepare` may change."""
        sensor = self.definitions.resolve_sensor_def(name)
        resources = {"batch_pipeline": PipelineResource()}
        with dg.build_sensor_context(
            instance=self.instance, cursor=cursor, resources=resources
        ) as context:
            prepare(context)
            result = sensor(context)
        assert isinstance(result, dg.SensorResult | dg.SkipReason)
        return result

    def tick_run_ends(self) -> str:
        """Evaluate the sensor `batch_pipeline_run_ends` and return its message."""
        return self.skipped("batch_pipeline_run_ends")

    def plan_late(self, *item_ids: int) -> list[str]:
        """Plan a late batch for each item and return the partition keys."""
        for statement in _LATE:
            for item_id in item_ids:
                execute(self.database, statement, item=item_id)
        self.tick("orders_new_files")
        statuses = self.database.batches.late_statuses("orders")
        return [late_key(status.batch.id) for status in statuses]

    def start_run(self, request: dg.RunRequest) -> dg.DagsterRun:
        """Create a started run for a request, without executing it."""
        assert request.job_name is not None
        job = self.definitions.resolve_job_def(request.job_name)
        return start_run(self.instance, job, request.tags)

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
    environment = set_environment(monkeypatch, folder, url)
    register(database, 12)
    plan(database, limits(max_count=3))
    database.schemas.widen("orders", [ORDER_ID], text_source=True)
    pipeline = Pipeline.from_environment(environment)
    stream = pipeline.stream("orders")
    yield DefsHarness(
        database=database,
        pipeline=pipeline,
        stream=stream,
        instance=empty_instance(),
        definitions=dg.Definitions.merge(
            dg.Definitions(executor=dg.in_process_executor),
            build_definitions([stream], automation=Automation.RUNNING),
        ),
    )
    pipeline.close()


def empty_instance() -> dg.DagsterInstance:
    """Return the Dagster instance of this process, without what earlier tests stored in it."""
    instance = _instance()
    instance.wipe()
    return instance


@cache
def _instance() -> dg.DagsterInstance:
    # Emptying an instance takes a tenth of the time that creating one takes.
    instance = dg.DagsterInstance.ephemeral()
    atexit.register(instance.dispose)
    return instance


def start_run(
    instance: dg.DagsterInstance, job: dg.JobDefinition, tags: Mapping[str, str], **options: Any
) -> dg.DagsterRun:
    """Create a started run without executing it."""
    status = dg.DagsterRunStatus.STARTED
    return instance.create_run_for_job(job_def=job, tags=dict(tags), status=status, **options)


def set_environment(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str) -> dict[str, str]:
    """Set the variables of a home, a streams folder and an inventory, and return them."""
    environment = environment_of(folder, url)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    return environment


def write_stream(
    folder: Path, name: str, *, uri: str = "", targets: Mapping[str, Any] | None = None
) -> Path:
    """Write a stream file and return its path; create an empty landing unless `uri` is given."""
    landing = folder / "landing" / name
    if not uri:
        landing.mkdir(parents=True)
    return commands.write_stream(
        folder,
        name,
        {"uri": uri or str(landing), "format": "csv"},
        batch={"max_weight": "1KiB", "max_count": 3},
        encoding={"format": "jsonl", "compression": "gzip"},
        storage={"root": str(folder / "batches")},
        dagster={"partitions_per_run": 2, "runs_at_once": 3, "backfills": True},
        targets=dict(targets or {}),
    )


def ranges(requests: Sequence[dg.RunRequest] | None) -> list[tuple[str, str]]:
    """Return the first and the last partition key of each requested run."""
    return [
        (request.tags[RANGE_START_TAG], request.tags[RANGE_END_TAG]) for request in requests or ()
    ]
