"""Reads the values of flat JSON lines as Arrow columns, those of one type in one go.

Takes only blocks of which every value is proven to fit its column; all else is for the decoder.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.spark.arrow_types import JSON_TYPES, arrow_type_of
from batch_pipeline.spark.check.flat_lines import FlatLines, flat_lines
from batch_pipeline.spark.check.number_text import DOUBLE_EXACT
from batch_pipeline.spark.check.text_forms import TEXT_FORMS, read_texts
from batch_pipeline.spark.text_lines import TextLines

_QUOTED = TEXT_FORMS | {ColumnType.STRING}
_MOST_BYTES = 2**31 - 1  # of one Arrow array of texts
_MINUS_ZERO = np.iinfo(np.int64).min  # the bits of the double


class FlatColumns:
    """Reads blocks of lines as columns, in their order.

    `optional` columns may be in no line, and are null then. Only the `wide` ones among the integer
    columns have values that no double holds.
    """

    def __init__(
        self, columns: Sequence[Column], optional: frozenset[str], wide: frozenset[str]
    ) -> None:
        self._columns = columns
        self._optional = optional
        self._alike: dict[tuple[Column, bool], list[str]] = defaultdict(list)
        for column in columns:
            self._alike[replace(column, name=""), column.name in wide].append(column.name)
        self._are_flat = JSON_TYPES.isdisjoint(column.type for column in columns)

    def read(self, lines: TextLines) -> list[pa.Array] | None:
        """Give an array per column.

        None where a line may lack a column, have another one, or a value that its column may not
        hold, and where that was not proven.
        """
        if not self._are_flat or lines.size_bytes > _MOST_BYTES:
            return None
        flat = flat_lines(lines)
        if flat is None or not _is_utf8(lines):
            return None
        places = {str(key, "utf-8"): at for at, key in enumerate(flat.keys)}
        names = {column.name for column in self._columns}
        if len(places) != len(flat.keys) or not names - self._optional <= places.keys() <= names:
            return None
        arrays: dict[str, pa.Array] = {}
        for (column, is_wide), alike in self._alike.items():
            present = sorted(places.keys() & alike, key=places.__getitem__)
            if not present:
                continue
            values = _values(lines, flat, [places[name] for name in present], column)
            if values is None or not (is_wide or _holds_double(values)):
                return None
            for at, name in enumerate(present):
                arrays[name] = values.slice(at * len(lines), len(lines))
        for column in self._columns:
            if column.name not in places:
                arrays[column.name] = pa.nulls(len(lines), arrow_type_of(column))
        return [arrays[column.name] for column in self._columns]


def _is_utf8(lines: TextLines) -> bool:
    if lines.text.isascii():
        return True
    try:
        str(memoryview(lines.text)[: lines.size_bytes], "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _holds_double(values: pa.Array) -> bool:
    """Tell whether no integer is longer than a double holds."""
    if values.type != pa.int64():
        return True
    bounds = pc.min_max(values)
    least, most = bounds["min"].as_py() or 0, bounds["max"].as_py() or 0
    return bool(least >= -DOUBLE_EXACT and most <= DOUBLE_EXACT)


def _values(lines: TextLines, flat: FlatLines, at: list[int], column: Column) -> pa.Array | None:
    """Give the values of some columns of one type, one column behind the other."""
    texts = _texts(lines, flat, at, is_quoted=column.type in _QUOTED)
    if texts is None or column.type is ColumnType.STRING:
        return texts
    values, unfit = read_texts(texts, column)
    if unfit:
        return None
    if values.type == pa.float64() and _has_minus_zero(values):
        return None  # the decoder gives an integer `-0` no sign
    return values


def _has_minus_zero(values: pa.DoubleArray) -> bool:
    return bool((values.to_numpy(zero_copy_only=False).view(np.int64) == _MINUS_ZERO).any())


def _texts(
    lines: TextLines, flat: FlatLines, at: list[int], *, is_quoted: bool
) -> pa.StringArray | None:
    """Give the texts of some columns, all of them strings or none, null where they say so.

    The columns are in the order of the lines: Arrow wants the last text behind the first one.
    """
    starts, stops, quoted = (
        part[:, at].T.ravel() for part in (flat.starts, flat.stops, flat.quoted)
    )
    # A text for each value and one for what is between it and the next one.
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, stops
    buffers = pa.py_buffer(bounds), pa.py_buffer(lines.text)
    between = pa.StringArray.from_buffers(len(bounds) - 1, *buffers)
    texts = between.take(pa.array(np.arange(0, len(bounds), 2)))
    if is_quoted:
        bare = ~quoted
    elif quoted.any():
        return None
    else:
        bare = np.frombuffer(lines.text, np.uint8)[starts] == ord("n")
    if not bare.any():
        return texts
    mask = pa.array(bare)
    if not pc.all(pc.equal(texts.filter(mask), "null")).as_py():
        return None
    return pc.if_else(mask, None, texts)
