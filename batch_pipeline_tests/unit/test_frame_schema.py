"""Columns as Spark types and back; whose column is JSON is in its metadata."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    FloatType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from batch_pipeline.domain.record_rules import ReadLimits
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.spark.frame_schema import FrameColumnError, frame_columns, frame_schema

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
    """Give the columns of a frame as name and type."""
    found = frame_columns(StructType(list(fields)), ReadLimits())
    return [(column.name, column.type_text) for column in found]


def test_frame_schema_of_every_type_comes_back_as_it_was() -> None:
    """A frame that nothing was done to has the columns that it was made of."""
    assert columns_of(*frame_schema(RecordSchema.from_json(ALL)).fields) == ALL


def test_frame_columns_whose_mark_was_lost_are_text() -> None:
    """Spark drops the metadata of what it computes, and then it is any string."""
    fields = frame_schema(RecordSchema.from_json([("o", "object")])).fields

    assert columns_of(StructField("o", fields[0].dataType)) == [("o", "string")]


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (ShortType(), "integer"),
        (FloatType(), "number"),
        (StructType([StructField("x", LongType())]), "object"),
        (ArrayType(LongType()), "array"),
        (MapType(StringType(), LongType()), "object"),
        (MapType(LongType(), LongType()), "array"),
        (DayTimeIntervalType(), "string"),
    ],
)
def test_frame_columns_of_other_types_take_the_narrowest_that_holds_them(
    kind: DataType, column: str
) -> None:
    """Nested values become JSON."""
    assert columns_of(StructField("c", kind)) == [("c", column)]


def test_frame_columns_that_cannot_be_told_or_are_there_twice_are_refused() -> None:
    """The sentence names the column."""
    with pytest.raises(FrameColumnError, match=r"'v' has the type array<variant>; cast it"):
        columns_of(StructField("v", ArrayType(VariantType())))
    with pytest.raises(FrameColumnError, match=r"column 'c' is there twice"):
        columns_of(StructField("c", LongType()), StructField("c", StringType()))
