"""Cells of several columns read at once: each column comes out as if it were read alone."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.spark.check.cell_groups import ReadCells, read_cells
from batch_pipeline.spark.check.text_forms import read_texts

_TYPES = [
    ColumnType.BOOLEAN,
    ColumnType.INTEGER,
    ColumnType.NUMBER,
    ColumnType.DATE,
    ColumnType.TIMESTAMP,
]
_CELLS = st.sampled_from(
    [None, "", "1", "-20", "007", "1.50", "1e5", "true", "2026-01-31", "2026-01-31T10:00:00Z", "x"]
)


def integers(*names: str) -> dict[str, Column]:
    """Describe columns of integers."""
    return {name: Column(name=name, type=ColumnType.INTEGER) for name in names}


@settings(deadline=None)
@given(st.data(), st.booleans())
def test_read_cells_of_any_columns_are_those_of_each_column_alone(
    data: st.DataObject, values: bool
) -> None:
    """Neither values nor what does not fit wander from one column to another."""
    rows = data.draw(st.integers(1, 4))
    texts = st.lists(_CELLS, min_size=rows, max_size=rows).filter(any)
    types = data.draw(st.lists(st.sampled_from(_TYPES), min_size=1, max_size=5))
    columns = {f"c{n}": Column(name=f"c{n}", type=kind) for n, kind in enumerate(types)}
    cells = {name: pa.array(data.draw(texts), pa.string()) for name in columns}

    found = read_cells(cells, columns, values=values)

    for name, column in columns.items():
        alone, unfit = read_texts(cells[name], column)
        assert found[name].array.equals(alone if values else cells[name])
        assert list(found[name].unfit) == unfit


def test_read_cells_beside_long_integers_are_not_wide_themselves() -> None:
    """A column is wide by its own integers only."""
    cells = {"a": pa.array(["1", "2"]), "b": pa.array(["9007199254740993", None])}

    found = read_cells(cells, integers("a", "b"), values=True)

    assert {name: one.wide for name, one in found.items()} == {"a": False, "b": True}
    assert found["b"].array.to_pylist() == [9007199254740993, None]


def test_read_cells_of_no_columns_are_none() -> None:
    """A table without such columns has nothing to read."""
    none: dict[str, ReadCells] = {}

    assert read_cells({}, {}, values=True) == none
