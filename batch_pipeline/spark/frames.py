"""DataFrames of records: their Spark schema, and published batches as a DataFrame.

Part files are read through Arrow by Spark's Python workers, not through Spark's data sources: types
are those of the manifest, and `s3://` needs no Hadoop jars. Works with classic and Spark Connect
sessions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    GeographyType,
    GeometryType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from batch_pipeline.encode.arrow_types import JSON_TYPES, ArrowTypeUnknownError, arrow_schema_of
from batch_pipeline.encode.readers.arrow_values import columns_from_schema
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.record_rules import ReadLimits
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.spark.executor_archive import with_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ReadBatches = Callable[[Manifest, RecordSchema], Iterator[pa.RecordBatch]]

# A column of JSON text is a string to Spark, and its type is in the column's metadata. Spark keeps
# the metadata of a column that is only selected or renamed, and drops it for a computed column,
# which is then plain text.
TYPE_KEY = "batch_pipeline.type"
_TYPES_IN_METADATA = JSON_TYPES | {ColumnType.UNKNOWN}
_UNSUPPORTED = (VariantType, GeometryType, GeographyType, CalendarIntervalType, NullType)


def frame_schema(schema: RecordSchema) -> StructType:
    """Return the DataFrame schema; objects, arrays and mixed values are strings with metadata."""
    plain = from_arrow_schema(arrow_schema_of(schema.columns), prefer_timestamp_ntz=True)
    fields: list[StructField] = []
    for field, column in zip(plain.fields, schema.columns, strict=True):
        metadata = {TYPE_KEY: column.type.value} if column.type in _TYPES_IN_METADATA else None
        fields.append(StructField(field.name, field.dataType, nullable=True, metadata=metadata))
    return StructType(fields)


def frame_columns(frame: StructType, limits: ReadLimits) -> tuple[Column, ...]:
    """Return the columns of a DataFrame; structs, maps and arrays become JSON text.

    Raises:
        ArrowTypeUnknownError: two columns have the same name, or a type has no JSON form.
    """
    for field in frame.fields:
        if not _is_supported(field.dataType):
            type_name = field.dataType.simpleString()
            raise ArrowTypeUnknownError(f"column {field.name!r} has the type {type_name}; cast it")
    try:
        columns = columns_from_schema(to_arrow_schema(frame, timezone="UTC"), limits)
    except PySparkException as error:
        raise ArrowTypeUnknownError(str(error)) from error
    return tuple(
        _column_of_metadata(field) or column
        for field, column in zip(frame.fields, columns, strict=True)
    )


def _is_supported(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_is_supported(field.dataType) for field in kind.fields)
    if isinstance(kind, MapType):
        return _is_supported(kind.keyType) and _is_supported(kind.valueType)
    if isinstance(kind, ArrayType):
        return _is_supported(kind.elementType)
    return not isinstance(kind, _UNSUPPORTED)


def _column_of_metadata(field: StructField) -> Column | None:
    type_name = field.metadata.get(TYPE_KEY)
    if type_name is None or not isinstance(field.dataType, StringType):
        return None
    return Column(name=field.name, type=ColumnType(type_name))


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

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from read_batches(parts[number], schema)

    function = with_archive(session, read)
    return session.range(0, len(parts), 1, len(parts)).mapInArrow(function, spark_schema)
