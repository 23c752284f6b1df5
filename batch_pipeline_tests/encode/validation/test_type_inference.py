"""Inference of column types from values."""

import re
from math import isfinite

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.validation.type_inference import infer_text_type
from batch_pipeline.model.schema import Column, ColumnType


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.from_regex(r"-?[0-9]{1,3}(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
        | st.text(alphabet="019.-+eE", max_size=5)
        | st.none(),
        min_size=1,
        max_size=4,
    ).filter(any)
)
@example([None, "0", "-0.0", "10"])
@example(["1.5", ".5"])
@example(["0E000", "9e400"])
def test_infer_text_type_of_any_cells_agrees_with_a_pattern_per_cell(
    texts: list[str | None],
) -> None:
    integer = re.compile(r"-?(0|[1-9][0-9]{0,17})")
    number = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
    present = [cell for cell in texts if cell is not None]
    if all(integer.fullmatch(cell) for cell in present):
        expected = ColumnType.INTEGER
    elif all(number.fullmatch(cell) and isfinite(float(cell)) for cell in present):
        expected = ColumnType.NUMBER
    else:
        expected = ColumnType.STRING
    padded = pa.array(["9", *texts, "9"], pa.string()).slice(1, len(texts))

    assert infer_text_type("a", padded, None).column == Column(name="a", type=expected)
