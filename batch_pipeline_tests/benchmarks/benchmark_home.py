"""A home with a stream of many published batches, which are inserted by SQL statements.

Measured operations use the product; only the existing batches are inserted without it.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa
import yaml

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.instance.dagster_home import open_instance
from batch_pipeline.defs.partitions import batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.model.stream import Stream

_PUBLISH = [
    """
    INSERT INTO batch_pipeline.attempt (batch_id, number, token, liveness_key, status, run_id,
        lease_until, finished_at, generation, publish_number, encoding, key_properties, facts,
        pointer_uri)
    SELECT b.id, 1, gen_random_uuid(), 1, 'succeeded', 'past', now(), now(), 1,
        row_number() OVER (PARTITION BY b.job_id ORDER BY b.id),
        '{"format": "jsonl", "compression": "gzip"}', '[]',
        '{"items": 1, "read": 1, "written": 1, "filtered": 0, "quarantined": 0}', 'file:///past'
      FROM batch_pipeline.batch b JOIN batch_pipeline.batch_state s ON s.batch_id = b.id
     WHERE s.state = 'planned'
    """,
    """
    UPDATE batch_pipeline.batch_state SET state = 'published', attempts = 1, generation = 1
     WHERE state = 'planned'
    """,
    """
    UPDATE batch_pipeline.job j SET publish_count = coalesce((
        SELECT max(a.publish_number) FROM batch_pipeline.attempt a
          JOIN batch_pipeline.batch b ON b.id = a.batch_id WHERE b.job_id = j.id), 0)
    """,
]
# The inventory's engine pins the search path, so Dagster's tables need their schema.
_COPY_EVENTS = """
INSERT INTO public.event_logs
       (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
SELECT e.run_id, replace(e.event, :first, p.partition), e.dagster_event_type, e.timestamp,
       e.step_key, e.asset_key, p.partition
  FROM public.event_logs e, public.dynamic_partitions p
 WHERE e.partition = :first AND e.asset_key = :asset
   AND p.partitions_def_name = :name AND p.partition <> :first
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkHome:
    """An open home; its environment variables are set in this process."""

    pipeline: Pipeline
    stream: Stream
    instance: dg.DagsterInstance
    definitions: dg.Definitions
    landing: Path

    def land(self, count: int) -> None:
        """Land files that were modified long ago."""
        for number in range(1, count + 1):
            path = self.landing / f"orders-{number:07d}.csv"
            path.write_bytes(b"id\n1\n")
            os.utime(path, (1_750_000_000, 1_750_000_000))

    def tick(self, name: str, cursor: str | None = None) -> tuple[float, dg.SensorResult]:
        """Evaluate a sensor as the code server does; return the seconds and the result.

        Its requests are executed afterwards, as by the daemon, except for the runs.
        """
        sensor = self.definitions.resolve_sensor_def(name)
        started = time.perf_counter()
        resources = {"batch_pipeline": PipelineResource()}
        with dg.build_sensor_context(
            instance=self.instance, cursor=cursor, resources=resources
        ) as context:
            result = sensor(context)
        seconds = time.perf_counter() - started
        assert isinstance(result, dg.SensorResult), result
        for add in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(add.partitions_def_name, add.partition_keys)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return seconds, result

    def publish_all(self) -> None:
        """Publish every batch as if by an earlier run that was reported to Dagster."""
        engine = self.pipeline.database.engine
        with engine.begin() as connection:
            for statement in _PUBLISH:
                connection.execute(sa.text(statement))
        self._report_materializations(engine)
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(sa.text("VACUUM ANALYZE"))

    def _report_materializations(self, engine: sa.Engine) -> None:
        asset = batches_of(self.stream)
        keys = [asset.key_of(status.batch) for status in asset.statuses(self.pipeline.database)]
        for start in range(0, len(keys), 10_000):
            chunk = keys[start : start + 10_000]
            self.instance.add_dynamic_partitions(asset.set_name, chunk)
        event = dg.AssetMaterialization(asset_key=asset.asset_key, partition=keys[0])
        self.instance.report_runless_asset_event(event)
        values = {"asset": asset.asset_key.to_string(), "name": asset.set_name, "first": keys[0]}
        with engine.begin() as connection:
            connection.execute(sa.text(_COPY_EVENTS), values)

    def number(self, query: str) -> float:
        """Return the number that a query on the shared database yields."""
        with self.pipeline.database.engine.connect() as connection:
            return float(connection.execute(sa.text(query)).scalar_one())


@contextmanager
def benchmark_home(*, max_count: int) -> Iterator[BenchmarkHome]:
    """Open a new home with a stream `orders`, `max_count` items per batch; delete it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bp-"))
    landing = folder / "landing"
    landing.mkdir()
    attributes: dict[str, Any] = {
        "stream": "orders",
        "source": {"uri": str(landing), "format": "csv"},
        "batch": {"max_weight": "1GiB", "max_count": max_count},
        "encoding": {"format": "jsonl", "compression": "gzip"},
        "storage": {"root": str(folder / "batches")},
    }
    path = folder / "streams" / "orders" / "defs.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        yaml.safe_dump({"type": "batch_pipeline.BatchStream", "attributes": attributes})
    )
    os.environ["BATCH_PIPELINE_HOME"] = str(folder / "home")
    os.environ["BATCH_PIPELINE_STREAMS"] = str(folder / "streams")
    pipeline = Pipeline.from_environment()
    stream = pipeline.stream("orders")
    try:
        with open_instance(pipeline.home) as instance:
            yield BenchmarkHome(
                pipeline=pipeline,
                stream=stream,
                instance=instance,
                definitions=build_definitions([stream]),
                landing=landing,
            )
    finally:
        pipeline.close()
        shutil.rmtree(folder)
