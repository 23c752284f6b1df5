"""Reads the text cells of many columns at once: those of one type stand behind each other then.

A table of many columns and few rows costs as little as one of few columns so. What becomes of the
cells that do not fit is not known here.
"""

from bisect import bisect_left as bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.spark.check.cell_sights import holds_quickly, is_wide
from batch_pipeline.spark.check.text_forms import read_texts


@dataclass(frozen=True, slots=True)
class ReadCells:
    """The cells of a column as they were asked for, and the positions of those that do not fit.

    `wide` tells that there are integers that no double holds.
    """

    array: pa.Array
    unfit: Sequence[int] = ()
    wide: bool = False


def read_cells(
    cells: Mapping[str, pa.StringArray], columns: Mapping[str, Column], *, values: bool
) -> dict[str, ReadCells]:
    """Read cells, of as many rows each, as values of their columns; both are given by name.

    With `values` they come as values, null where they do not fit; else they stay text.
    """
    alike: dict[tuple[ColumnType, int, int], dict[str, pa.StringArray]] = defaultdict(dict)
    for name, array in cells.items():
        column = columns[name]
        alike[column.type, column.precision, column.scale][name] = array
    found: dict[str, ReadCells] = {}
    for group in alike.values():
        found |= _read(group, columns[next(iter(group))], values=values)
    return found


def _read(
    cells: Mapping[str, pa.StringArray], column: Column, *, values: bool
) -> dict[str, ReadCells]:
    texts = pa.concat_arrays(list(cells.values()))
    if not values and holds_quickly(texts, column):
        return {name: ReadCells(array) for name, array in cells.items()}
    read, unfit = read_texts(texts, column)
    some_wide = column.type is ColumnType.INTEGER and is_wide(read)
    found: dict[str, ReadCells] = {}
    start = 0
    for name, array in cells.items():
        stop = start + len(array)
        own = read.slice(start, len(array))
        found[name] = ReadCells(
            own if values else array,
            [position - start for position in unfit[bisect(unfit, start) : bisect(unfit, stop)]],
            some_wide and is_wide(own),
        )
        start = stop
    return found
