"""Outputs that write no file: records are only checked, or handed on as Arrow batches."""

from collections.abc import Iterator

import pyarrow as pa

from batch_pipeline.domain.encoding import Format
from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.spark.chunks import Chunk, JsonRecords
from batch_pipeline.spark.write.columns import batch_of_table, output_schema


class NoOutput:
    """Takes checked records and keeps none."""

    def write(self, chunk: Chunk) -> None:
        """Take checked records."""

    def close(self) -> tuple[PartFile, ...]:
        """Give no file."""
        return ()

    def abort(self) -> None:
        """Do nothing: there is no file."""


class BatchOutput(NoOutput):
    """Keeps checked records as batches of the schema, until somebody takes them."""

    def __init__(self, schema: RecordSchema, on_nonfinite: OnNonfinite) -> None:
        self._schema = schema
        self._arrow_schema = output_schema(schema, Format.PARQUET)
        self._on_nonfinite = on_nonfinite
        self._batches: list[pa.RecordBatch] = []

    def write(self, chunk: Chunk) -> None:
        """Keep checked records, which fit the schema."""
        if isinstance(chunk, JsonRecords):
            raise TypeError("an output with columns takes tables, and got JSON text")
        schema, arrow_schema = self._schema, self._arrow_schema
        self._batches.append(batch_of_table(chunk, schema, arrow_schema, self._on_nonfinite))

    def taken(self) -> Iterator[pa.RecordBatch]:
        """Give what was kept, and keep it no longer."""
        batches, self._batches = self._batches, []
        yield from batches
