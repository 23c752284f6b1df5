"""Convert a record schema to the schema of a DataFrame and back.

A column of JSON text is a string to Spark, and its type is in the column's metadata. Spark keeps
the metadata of a column that is only selected or renamed, and drops them for a computed one, which
is then plain text.
"""

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from batch_pipeline.encode.arrow_types import JSON_TYPES, ArrowTypeUnknownError, arrow_schema_of
from batch_pipeline.encode.readers.arrow_values import columns_from_schema
from batch_pipeline.model.record_rules import ReadLimits
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema

TYPE_KEY = "batch_pipeline.type"  # in the metadata of a column

_TYPES_IN_METADATA = JSON_TYPES | {ColumnType.UNKNOWN}
_UNSUPPORTED = ("variant", "geometry", "geography", "calendarinterval", "void")


def frame_schema(schema: RecordSchema) -> StructType:
    """Return the DataFrame schema; objects, arrays and mixed values are strings with metadata."""
    plain = from_arrow_schema(arrow_schema_of(schema.columns), prefer_timestamp_ntz=True)
    fields = [
        StructField(field.name, field.dataType, nullable=True, metadata=_metadata(column))
        for field, column in zip(plain.fields, schema.columns, strict=True)
    ]
    return StructType(fields)


def frame_columns(frame: StructType, limits: ReadLimits) -> tuple[Column, ...]:
    """Return the columns of a DataFrame; structs, maps and arrays become JSON text.

    Raises:
        ArrowTypeUnknownError: two columns have the same name, or a type has no JSON form.
    """
    for field in frame.fields:
        type_name = field.dataType.simpleString()  # has the names of nested types, too
        if any(unsupported in type_name for unsupported in _UNSUPPORTED):
            raise ArrowTypeUnknownError(f"column {field.name!r} has the type {type_name}; cast it")
    try:
        columns = columns_from_schema(to_arrow_schema(frame, timezone="UTC"), limits)
    except PySparkException as error:
        raise ArrowTypeUnknownError(str(error)) from error
    return tuple(
        _column_of_metadata(field) or column
        for field, column in zip(frame.fields, columns, strict=True)
    )


def _column_of_metadata(field: StructField) -> Column | None:
    type_name = field.metadata.get(TYPE_KEY)
    if type_name is None or not isinstance(field.dataType, StringType):
        return None
    return Column(name=field.name, type=ColumnType(type_name))


def _metadata(column: Column) -> dict[str, str] | None:
    return {TYPE_KEY: column.type.value} if column.type in _TYPES_IN_METADATA else None
