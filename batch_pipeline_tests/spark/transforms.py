"""Valid and invalid user transforms."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, functions

NUMBER = 7


def keep_even(frame: DataFrame) -> DataFrame:
    """Keep the even records and add a column."""
    return frame.filter("id % 2 = 0").withColumn("twice", functions.col("id") * 2)


def unchanged(frame: DataFrame) -> DataFrame:
    """Return the frame unchanged."""
    return frame


def shuffled(frame: DataFrame) -> DataFrame:
    """Shuffle the records, which requires reading all of them first."""
    return frame.repartition(4)


def summed(frame: DataFrame) -> DataFrame:
    """Aggregate by customer, after an action on the frame."""
    if frame.count() == 0:
        return frame
    return frame.groupBy("customer").agg(functions.sum("amount").alias("total")).orderBy("customer")


def computed(frame: DataFrame) -> DataFrame:
    """Compute values of Spark's own types, and rename and read a JSON column."""
    return frame.select(
        "id",
        functions.struct(
            functions.col("id").alias("n"), functions.lit(None).cast("string").alias("nothing")
        ).alias("s"),
        functions.array(functions.col("id"), functions.lit(None)).alias("a"),
        functions.create_map(functions.lit("k"), functions.col("id")).alias("m"),
        functions.lit("2026-01-31").cast("date").alias("day"),
        functions.col("`a.b`").alias("renamed"),
        functions.upper(functions.lit("x")).alias("text"),
        functions.upper(functions.col("`a.b`")).alias("upper"),
    )


def in_pandas(frame: DataFrame) -> DataFrame:
    """Call Python on the workers."""

    def add(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            yield part.assign(id=part["id"] + 1)

    return frame.mapInPandas(add, frame.schema)


def blocked(frame: DataFrame) -> DataFrame:
    """Create the file that a record names, and block on the workers until it is deleted."""

    def hold(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            mark = Path(part["mark"].iloc[0])
            mark.touch()
            while mark.exists():
                time.sleep(0.1)
            yield part

    return frame.mapInPandas(hold, frame.schema)


def wrong_attribute(frame: DataFrame) -> DataFrame:
    """Call a method that does not exist."""
    untyped: Any = frame
    given: DataFrame = untyped.nope()
    return given


def wrong_column(frame: DataFrame) -> DataFrame:
    """Select a column that does not exist."""
    return frame.select(functions.col("nope"))


def raises(frame: DataFrame) -> DataFrame:
    """Raise on the driver."""
    raise ValueError(f"no {NUMBER} columns in {len(frame.columns)}")


def raises_on_workers(frame: DataFrame) -> DataFrame:
    """Raise in Python on the workers."""
    half = functions.udf(lambda number: number // (number - number), "long")
    return frame.withColumn("half", half("id"))


def bad_cast(frame: DataFrame) -> DataFrame:
    """Fail in Spark's own code."""
    return frame.select(
        functions.concat(functions.lit("x"), functions.col("id")).cast("int").alias("n")
    )


def duplicate_names(frame: DataFrame) -> DataFrame:
    """Return two columns of the same name."""
    return frame.select("id", "id")


def not_a_number(frame: DataFrame) -> DataFrame:
    """Return a number that JSON does not have."""
    return frame.select(functions.lit(float("nan")).alias("n"))


def nothing(frame: DataFrame) -> None:
    """Return nothing."""
