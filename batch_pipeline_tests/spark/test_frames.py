"""Conversion of columns to Spark types and back; metadata marks JSON columns."""

import re

import pytest
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    GeometryType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from batch_pipeline.encode.arrow_types import ArrowTypeUnknownError
from batch_pipeline.model.record_rules import ReadLimits
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.spark.frames import frame_columns, frame_schema

ALL = [
    ("u", "unknown"),
    ("b", "boolean"),
    ("i", "integer"),
    ("d", "decimal(38,10)"),
    ("n", "number"),
    ("s", "string"),
    ("y", "binary"),
    ("day", "date"),
    ("t", "time"),
    ("ts", "timestamp"),
    ("local", "local_timestamp"),
    ("o", "object"),
    ("a", "array"),
    ("any", "any"),
    ("a.b", "object"),
    ("A", "string"),
]


def columns_of(*fields: StructField) -> list[tuple[str, str]]:
    """Return the columns of a frame as name and type."""
    columns = frame_columns(StructType(list(fields)), ReadLimits())
    return [(column.name, column.type_text) for column in columns]


def test_frame_schema_of_every_type_round_trips() -> None:
    assert columns_of(*frame_schema(RecordSchema.from_json(ALL)).fields) == ALL


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (ShortType(), "integer"),
        (StructType([StructField("variant", LongType())]), "object"),
        (ArrayType(LongType()), "array"),
        (MapType(StringType(), LongType()), "object"),
        (MapType(LongType(), LongType()), "array"),
        (DayTimeIntervalType(), "string"),
        (frame_schema(RecordSchema.from_json([("o", "object")])).fields[0].dataType, "string"),
    ],
)
def test_frame_columns_of_other_types_have_narrowest_column_type(
    kind: DataType, column: str
) -> None:
    """Nested values become JSON; a JSON column without its metadata is a string."""
    assert columns_of(StructField("c", kind)) == [("c", column)]


def test_frame_columns_of_unsupported_type_or_duplicate_name_raise() -> None:
    for kind in (
        ArrayType(VariantType()),
        MapType(StringType(), StructType([StructField("x", NullType())])),
        CalendarIntervalType(),
        GeometryType(4326),
    ):
        text = re.escape(f"'v' has the type {kind.simpleString()}; cast it")
        with pytest.raises(ArrowTypeUnknownError, match=text):
            columns_of(StructField("v", kind))
    with pytest.raises(ArrowTypeUnknownError, match=r"column 'c' is duplicated"):
        columns_of(StructField("c", LongType()), StructField("c", StringType()))
