"""Published batches as a Spark DataFrame that Spark's Python workers read.

Part files are read through Arrow, not through Spark's data sources: types are those of the
manifest, and `s3://` needs no Hadoop jars. Works with classic and Spark Connect sessions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.spark.packed_archive import TaskFunction, with_archive
from batch_pipeline.spark.transform import frame_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ReadBatches = Callable[[Manifest, RecordSchema], Iterator[pa.RecordBatch]]


def batch_frame(
    session: "SparkSession",
    manifests: Sequence[Manifest],
    schema: RecordSchema,
    read_batches: ReadBatches,
) -> "DataFrame":
    """Return a lazy DataFrame of the manifests' records, with a task for each part file.

    The workers import `read_batches`, so batch-pipeline must be installed there.
    """
    parts = [
        replace(manifest, part_files=(part,), quarantine_files=(), origin=None)
        for manifest in manifests
        for part in manifest.part_files
    ]
    spark_schema = frame_schema(schema)
    if not parts:
        return session.createDataFrame([], spark_schema)
    function = with_archive(session, _reader(parts, schema, read_batches))
    return session.range(0, len(parts), 1, len(parts)).mapInArrow(function, spark_schema)


def _reader(
    parts: Sequence[Manifest], schema: RecordSchema, read_batches: ReadBatches
) -> TaskFunction:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from read_batches(parts[number], schema)

    return read
