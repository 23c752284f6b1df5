"""One column of a table while it is mapped: its cells, and what they are in JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as at

from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.spark import json_values
from batch_pipeline.spark.chunks import Table
from batch_pipeline.spark.map.json_text import UNREADABLE, decoded, json_of, unreadable

_NESTED = (at.is_struct, at.is_list, at.is_large_list, at.is_fixed_size_list, at.is_map)
_AS_THEY_ARE = (at.is_null, at.is_boolean, at.is_integer, at.is_string, at.is_large_string)


class CellKind(Enum):
    """Text whose type is not known yet, JSON text, or values of the array's type."""

    TEXT = "text"
    JSON = "json"
    TYPED = "typed"


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a column."""

    array: pa.Array
    kind: CellKind

    @property
    def may_nest(self) -> bool:
        """Tell whether there can be objects and arrays in it."""
        return self.kind is CellKind.JSON or any(test(self.array.type) for test in _NESTED)

    def filtered(self, mask: pa.BooleanArray) -> "Cells":
        """Keep the cells where the mask is true."""
        return Cells(self.array.filter(mask), self.kind)

    def values(self, on_nonfinite: OnNonfinite, failed: dict[int, str]) -> list[Any]:
        """Give the cells as an expression sees them: what their JSON text decodes to.

        Positions of cells that JSON cannot say are added to `failed`, with the reason.
        """
        cells: list[Any] = self.array.to_pylist()
        if self.kind is CellKind.TEXT:
            return cells
        if self.kind is CellKind.JSON:
            return [_decoded(cell, at, failed) for at, cell in enumerate(cells)]
        if any(test(self.array.type) for test in _AS_THEY_ARE):
            return cells
        try:
            values: list[Any] = decoded(json_values.json_text(cells, on_nonfinite))
        except ValueError:
            return [_spelled(cell, at, on_nonfinite, failed) for at, cell in enumerate(cells)]
        return values

    def json_texts(self, on_nonfinite: OnNonfinite, failed: dict[int, str]) -> list[bytes | None]:
        """Give the cells as JSON text, None for null, adding to `failed` as `values` does."""
        cells = self.array.to_pylist()
        if self.kind is CellKind.JSON:
            return [None if cell is None or cell == "null" else cell.encode() for cell in cells]
        texts: list[bytes | None] = [None] * len(cells)
        for position, cell in enumerate(cells):
            if cell is not None:
                try:
                    texts[position] = json_values.json_text(cell, on_nonfinite)
                except (ValueError, RecursionError) as error:
                    failed.setdefault(position, str(error))
        return texts


def _decoded(cell: str | None, position: int, failed: dict[int, str]) -> Any:
    if cell is None:
        return None
    try:
        return decoded(cell.encode())
    except UNREADABLE as error:
        failed.setdefault(position, unreadable(error))
        return None


def _spelled(cell: Any, position: int, rule: OnNonfinite, failed: dict[int, str]) -> Any:
    try:
        return decoded(json_values.json_text(cell, rule))
    except ValueError as error:
        failed.setdefault(position, str(error))
        return None


Columns = dict[str, Cells]


def columns_of_table(table: Table) -> Columns:
    """Give the columns of a table by name, in order."""
    columns: Columns = {}
    for name, array in zip(table.batch.schema.names, table.batch.columns, strict=True):
        kind = CellKind.JSON if name in table.json else CellKind.TYPED
        columns[name] = Cells(array, CellKind.TEXT if name in table.text else kind)
    return columns


def json_cells(texts: Sequence[bytes | None]) -> Cells:
    """Make a column of JSON texts."""
    cells = [None if text is None or text == b"null" else text.decode() for text in texts]
    return Cells(pa.array(cells, pa.string()), CellKind.JSON)


def cells_of(texts: Sequence[bytes | None]) -> Cells:
    """Make a column of JSON texts with the type that all its values have, if there is one.

    That is text, booleans, integers of 64 bits, or numbers that doubles hold exactly.
    """
    if any(text is not None and text.startswith((b"{", b"[")) for text in texts):
        return json_cells(texts)
    try:
        values = decoded(b"[" + b",".join(text or b"null" for text in texts) + b"]")
    except UNREADABLE:  # nobody asked for these values, so they stay as they are
        return json_cells(texts)
    array = _typed(values)
    return json_cells(texts) if array is None else Cells(array, CellKind.TYPED)


def _typed(values: list[Any]) -> pa.Array | None:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {str}:
        return pa.array(values, pa.string())
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {int} and all(value is None or _is_int64(value) for value in values):
        return pa.array(values, pa.int64())
    if Decimal in kinds and kinds <= {int, Decimal}:
        doubles = [None if value is None else float(Decimal(value)) for value in values]
        pairs = zip(doubles, values, strict=True)
        if all(double is None or Decimal(repr(double)) == value for double, value in pairs):
            return pa.array(doubles, pa.float64())
    return None


def _is_int64(value: int) -> bool:
    return -(2**63) <= value < 2**63


def record_text(columns: Mapping[str, Cells], position: int) -> bytes:
    """Write the record at a position as JSON; NaN and infinities become text."""
    record: dict[str, msgspec.Raw] = {}
    for name, cells in columns.items():
        cell = Cells(cells.array.slice(position, 1), cells.kind)
        text = cell.json_texts(OnNonfinite.STRING, {})[0]
        record[name] = msgspec.Raw(b"null" if text is None else text)
    return json_of(record)
