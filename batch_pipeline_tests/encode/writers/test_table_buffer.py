"""Small tables are put together: all rows, in order, and never tables of different kinds."""

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.writers.columns import TableBuffer


def table(name: str, first: int, rows: int) -> Table:
    """Make a table of consecutive numbers."""
    numbers = range(first, first + rows)
    batch = pa.record_batch({name: pa.array(list(numbers), pa.int64())})
    return Table(batch=batch, line_numbers=numbers, record_numbers=numbers)


def buffered(tables: Sequence[Table]) -> list[Table]:
    """Put all tables through."""
    small = TableBuffer()
    return [*(one for given in tables for one in small.add(given)), *small.flush()]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 300)), max_size=12))
def test_small_tables_of_any_sizes_come_out_row_by_row_as_they_went_in(
    sizes: list[tuple[str, int]],
) -> None:
    """Each row is there once, in its order, under its name."""
    tables = [table(name, 1000 * at, rows) for at, (name, rows) in enumerate(sizes)]

    def rows_of(some: Sequence[Table]) -> list[tuple[str, int]]:
        return [
            (name, value)
            for one in some
            for name, values in one.batch.to_pydict().items()
            for value in values
        ]

    assert rows_of(buffered(tables)) == rows_of(tables)


def test_small_tables_of_one_kind_come_out_as_one() -> None:
    """A hundred files of one record are one table to the writer."""
    assert [one.good for one in buffered([table("a", at, 1) for at in range(100)])] == [100]


def test_small_tables_whose_cells_are_of_another_kind_stay_apart() -> None:
    """The same type of Arrow may be text cells here and typed values there."""
    batch = pa.record_batch({"a": ["1"]})
    typed = Table(batch=batch, line_numbers=[1], record_numbers=[1])
    text = Table(batch=batch, line_numbers=[1], record_numbers=[1], text=frozenset({"a"}))

    assert [one.text for one in buffered([typed, text])] == [typed.text, text.text]
