"""Which Spark type a column has in a frame, and which column a Spark type becomes.

A column of JSON text is a string to Spark. Its metadata say what it is, and Spark passes these on
as long as a column is only picked or renamed, and drops them where something is computed from it.
"""

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from batch_pipeline.domain.record_rules import ReadLimits
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema
from batch_pipeline.spark.arrow_types import JSON_TYPES, ArrowTypeUnknownError, arrow_schema_of
from batch_pipeline.spark.read.arrow_tables import columns_of

MARK = "batch_pipeline.type"

_MARKED = JSON_TYPES | {ColumnType.UNKNOWN}
_REFUSED = ("variant", "geometry", "geography", "calendarinterval", "void")


class FrameColumnError(Exception):
    """A column of a frame cannot be written; the text says which and why."""


def frame_schema(schema: RecordSchema) -> StructType:
    """Give the columns as Spark types; objects, arrays and mixtures are marked strings."""
    plain = from_arrow_schema(arrow_schema_of(schema.columns), prefer_timestamp_ntz=True)
    fields = [
        StructField(field.name, field.dataType, nullable=True, metadata=_mark(column))
        for field, column in zip(plain.fields, schema.columns, strict=True)
    ]
    return StructType(fields)


def frame_columns(frame: StructType, limits: ReadLimits) -> tuple[Column, ...]:
    """Give the columns that a frame becomes; structs, maps and arrays are JSON text.

    Raises:
        FrameColumnError: a column is there twice, or has values that cannot all be told.
    """
    for field in frame.fields:
        spelled = field.dataType.simpleString()
        if any(refused in spelled for refused in _REFUSED):
            raise FrameColumnError(f"column {field.name!r} has the type {spelled}; cast it")
    try:
        columns = columns_of(to_arrow_schema(frame, timezone="UTC"), limits)
    except (ArrowTypeUnknownError, PySparkException) as error:
        raise FrameColumnError(str(error)) from error
    return tuple(
        marked_column(field) or column for field, column in zip(frame.fields, columns, strict=True)
    )


def marked_column(field: StructField) -> Column | None:
    """Give the column that the mark of a field names, None where it has none."""
    mark = field.metadata.get(MARK)
    if mark is None or not isinstance(field.dataType, StringType):
        return None
    return Column(name=field.name, type=ColumnType(mark))


def _mark(column: Column) -> dict[str, str] | None:
    return {MARK: column.type.value} if column.type in _MARKED else None
