"""Partitions in Dagster by the ten thousand: what its tables hold of them, and how long it takes.

Keys go through Dagster; all materializations but the first are copies of one that the product made.
A run also plans each of them, in an event of 850 bytes; what else it says is left out, since fifty
batches share a run.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import sqlalchemy as sa

from batch_pipeline.defs.instance.home import open_instance
from batch_pipeline.defs.metadata import batch_materialization
from batch_pipeline.defs.partitioned import batches_of
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.settings.home import Home
from batch_pipeline_tests.benchmarks.clock import Clock
from batch_pipeline_tests.benchmarks.dagster_events import copy_materialization
from batch_pipeline_tests.factories import stream

TABLES = ("dynamic_partitions", "event_logs")
_CHUNK = 1_000
_REPEATS = 5
_PLANNED = """
INSERT INTO public.event_logs
       (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
SELECT e.run_id, left(repeat(md5(e.partition), 27), 850), 'ASSET_MATERIALIZATION_PLANNED',
       e.timestamp, e.step_key, e.asset_key, e.partition
  FROM public.event_logs e
 WHERE e.dagster_event_type = 'ASSET_MATERIALIZATION' AND NOT EXISTS (
       SELECT FROM public.event_logs p WHERE p.partition = e.partition
          AND p.dagster_event_type = 'ASSET_MATERIALIZATION_PLANNED')
"""


class Partitions:
    """The partitions of one asset, in an instance of Dagster's on the server."""

    def __init__(self, instance: dg.DagsterInstance, engine: sa.Engine, manifest: Manifest) -> None:
        self._instance = instance
        self._engine = engine
        self._manifest = manifest
        self._asset = batches_of(stream())
        self._count = 0

    def grow(self, count: int) -> dict[str, float]:
        """Add partitions until there are so many, all materialized; gives processor seconds."""
        clock = Clock.of(self._engine)
        keys = [f"{n * 10:012}-{n * 10 + 9:012}" for n in range(self._count, count)]
        for start in range(0, len(keys), _CHUNK):
            with clock.timed("add 1,000 keys"):
                chunk = keys[start : start + _CHUNK]
                self._instance.add_dynamic_partitions(self._asset.set_name, chunk)
        self._tell()
        self._count = count
        for _ in range(_REPEATS):
            with clock.timed("read all keys"):
                known = self._instance.get_dynamic_partitions(self._asset.set_name)
            with clock.timed("read all states"):
                done = self._instance.get_materialized_partitions(self._asset.asset_key)
            assert len(known) == len(done) == count, (len(known), len(done))
        return clock.seconds

    def bytes(self) -> dict[str, int]:
        """Give the bytes of Dagster's tables, their indexes included."""
        with self._engine.connect() as connection:
            return {
                table: connection.execute(
                    sa.text("SELECT pg_total_relation_size(CAST(:name AS regclass))"),
                    {"name": f"public.{table}"},
                ).scalar_one()
                for table in TABLES
            }

    def _tell(self) -> None:
        first = f"{0:012}-{9:012}"
        if self._count == 0:
            event = batch_materialization(
                stream(), self._asset, self._manifest, "s3://example-batches/orders/one.json", 4.2
            )
            event = dg.AssetMaterialization(
                asset_key=event.asset_key,
                partition=first,
                metadata=event.metadata,
                tags=event.tags,
            )
            self._instance.report_runless_asset_event(event)
        with self._engine.begin() as connection:
            copy_materialization(connection, self._asset, first, after_id=self._count)
            connection.execute(sa.text(_PLANNED))
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("VACUUM ANALYZE public.event_logs"))
            connection.execute(sa.text("VACUUM ANALYZE public.dynamic_partitions"))


@contextmanager
def partitions(
    folder: Path, url: str, engine: sa.Engine, manifest: Manifest
) -> Iterator[Partitions]:
    """Open an instance of Dagster's on a server; its home is `folder`."""
    os.environ["BATCH_PIPELINE_HOME"] = str(folder)
    os.environ["BATCH_PIPELINE_INVENTORY_CONN"] = url
    with open_instance(Home(path=folder)) as instance:
        yield Partitions(instance, engine, manifest)
