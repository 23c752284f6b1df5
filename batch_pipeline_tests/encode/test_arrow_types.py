"""Arrow types and columns."""

import pyarrow as pa
import pytest

from batch_pipeline.encode.arrow_types import ArrowTypeUnknownError, arrow_type_of, column_of
from batch_pipeline.model.schema import Column, ColumnType


@pytest.mark.parametrize(
    ("arrow_type", "expected"),
    [
        (pa.null(), "unknown"),
        (pa.float16(), "number"),
        (pa.decimal128(5, -2), "decimal(7,0)"),
        (pa.decimal256(38, 2), "decimal(38,2)"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.large_binary(), "binary"),
        (pa.uuid(), "string"),
        (pa.time32("s"), "time"),
        (pa.large_list(pa.int8()), "array"),
        (pa.map_(pa.int8(), pa.string()), "array"),
        (pa.json_(), "string"),
    ],
)
def test_column_of_arrow_type_is_the_narrowest_that_holds_it(
    arrow_type: pa.DataType, expected: str
) -> None:
    assert column_of("a", arrow_type).type_text == expected


def test_column_of_unsupported_arrow_type_names_column_and_type() -> None:
    with pytest.raises(ArrowTypeUnknownError) as raised:
        column_of("a", pa.month_day_nano_interval())

    assert str(raised.value) == (
        "column 'a' has the type month_day_nano_interval, which is not supported"
    )


def test_every_column_type_round_trips_through_arrow() -> None:
    text = {ColumnType.UNKNOWN, ColumnType.OBJECT, ColumnType.ARRAY, ColumnType.ANY}
    for kind in ColumnType:
        size = (12, 2) if kind is ColumnType.DECIMAL else (0, 0)
        column = Column(name="a", type=kind, precision=size[0], scale=size[1])
        expected = Column(name="a", type=ColumnType.STRING) if kind in text else column
        assert column_of("a", arrow_type_of(column)) == expected
