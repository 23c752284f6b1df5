"""Columns of a table during mapping: conversion to JSON values, and flattening."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.types as at

from batch_pipeline.encode import json_values
from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.mapping.json_text import (
    DECODE_ERRORS,
    UnmappableRecordError,
    as_raw_json,
    decode,
    decode_error_reason,
    encode_fields,
)
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import name_fault

if TYPE_CHECKING:
    from batch_pipeline.encode.mapping.singer_map import Flattening


_NESTED_TYPES = (at.is_struct, at.is_list, at.is_large_list, at.is_fixed_size_list, at.is_map)
_SAME_IN_JSON = (at.is_null, at.is_boolean, at.is_integer, at.is_string, at.is_large_string)


class CellKind(Enum):
    """Text whose type is not known yet, JSON text, or values of the array's type."""

    TEXT = "text"
    JSON = "json"
    TYPED = "typed"


@dataclass(frozen=True, slots=True)
class ColumnCells:
    """The cells of a column."""

    array: pa.Array
    kind: CellKind

    @property
    def may_be_nested(self) -> bool:
        """Return whether the cells can be objects or arrays."""
        return self.kind is CellKind.JSON or any(test(self.array.type) for test in _NESTED_TYPES)

    def filtered(self, mask: pa.BooleanArray) -> "ColumnCells":
        """Return the cells where the mask is true."""
        return ColumnCells(self.array.filter(mask), self.kind)

    def values(self, on_nonfinite: OnNonfinite, failed: dict[int, str]) -> list[Any]:
        """Return the cells as an expression reads them: decoded from their JSON text.

        Positions of cells without a JSON form are added to `failed`, with the reason.
        """
        cells: list[Any] = self.array.to_pylist()
        if self.kind is CellKind.TEXT:
            return cells
        if self.kind is CellKind.JSON:
            return [_decode_cell(cell, at, failed) for at, cell in enumerate(cells)]
        if any(test(self.array.type) for test in _SAME_IN_JSON):
            return cells
        try:
            values: list[Any] = decode(json_values.json_text(cells, on_nonfinite))
        except ValueError:
            return [_as_json_value(cell, at, on_nonfinite, failed) for at, cell in enumerate(cells)]
        return values

    def json_texts(self, on_nonfinite: OnNonfinite, failed: dict[int, str]) -> list[bytes | None]:
        """Return the cells as JSON text, None for null, adding to `failed` as `values` does."""
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


def _decode_cell(cell: str | None, position: int, failed: dict[int, str]) -> Any:
    if cell is None:
        return None
    try:
        return decode(cell.encode())
    except DECODE_ERRORS as error:
        failed.setdefault(position, decode_error_reason(error))
        return None


def _as_json_value(cell: Any, position: int, rule: OnNonfinite, failed: dict[int, str]) -> Any:
    try:
        return decode(json_values.json_text(cell, rule))
    except ValueError as error:
        failed.setdefault(position, str(error))
        return None


Columns = dict[str, ColumnCells]


def columns_of_table(table: Table) -> Columns:
    """Return the columns of a table by name, in order."""
    columns: Columns = {}
    for name, array in zip(table.batch.schema.names, table.batch.columns, strict=True):
        kind = CellKind.JSON if name in table.json else CellKind.TYPED
        columns[name] = ColumnCells(array, CellKind.TEXT if name in table.text else kind)
    return columns


def json_column(texts: Sequence[bytes | None]) -> ColumnCells:
    """Return a column of JSON texts."""
    cells = [None if text is None or text == b"null" else text.decode() for text in texts]
    return ColumnCells(pa.array(cells, pa.string()), CellKind.JSON)


def infer_column(texts: Sequence[bytes | None]) -> ColumnCells:
    """Return a column with the type of all values, or of JSON texts if they have no common type.

    Types are text, booleans, integers of 64 bits, or numbers that doubles hold exactly.
    """
    if any(text is not None and text.startswith((b"{", b"[")) for text in texts):
        return json_column(texts)
    try:
        values = decode(b"[" + b",".join(text or b"null" for text in texts) + b"]")
    except DECODE_ERRORS:  # no expression reads these values, so they are not malformed
        return json_column(texts)
    array = _typed_array(values)
    return json_column(texts) if array is None else ColumnCells(array, CellKind.TYPED)


def _typed_array(values: list[Any]) -> pa.Array | None:
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


def record_as_json(columns: Mapping[str, ColumnCells], position: int) -> bytes:
    """Return the record at a position as JSON; NaN and infinities become text."""
    record: dict[str, msgspec.Raw] = {}
    for name, cells in columns.items():
        cell = ColumnCells(cells.array.slice(position, 1), cells.kind)
        text = cell.json_texts(OnNonfinite.STRING, {})[0]
        record[name] = msgspec.Raw(b"null" if text is None else text)
    return encode_fields(record)


# Mapped columns that are not flattened, by row: written as JSON text (True), kept as is (False).
FlattenOverrides = Mapping[str, list[bool | None]]


class TableFlattening:
    """The flattening of a table: the columns of an object replace it.

    Rows that cannot be flattened are added to `failed`, with the reason.
    """

    def __init__(
        self,
        flattening: "Flattening",
        on_nonfinite: OnNonfinite,
        left: FlattenOverrides,
        failed: dict[int, str],
    ) -> None:
        self._flattening = flattening
        self._on_nonfinite = on_nonfinite
        self._overrides = left
        self._failed = failed

    def flattened(self, columns: Mapping[str, ColumnCells]) -> Columns:
        """Flatten the columns."""
        flat: Columns = {}
        for name, cells in columns.items():
            for key, found in self._flatten_column(name, cells).items():
                flat[key] = self._merge(key, flat[key], found) if key in flat else found
        return {
            name: cells
            for name, cells in flat.items()
            if name not in self._flattening.objects or cells.array.null_count < len(cells.array)
        }

    def _merge(self, name: str, first: ColumnCells, second: ColumnCells) -> ColumnCells:
        texts = first.json_texts(self._on_nonfinite, self._failed)
        for position, text in enumerate(second.json_texts(self._on_nonfinite, self._failed)):
            if text is not None and texts[position] is not None:
                self._failed.setdefault(position, str(UnmappableRecordError.duplicate(name)))
            texts[position] = texts[position] or text
        return infer_column(texts)

    def _flatten_column(self, name: str, cells: ColumnCells) -> Columns:
        short = self._flattening.name_of((name,))
        if not cells.may_be_nested:
            return {short: cells}
        texts = cells.json_texts(self._on_nonfinite, self._failed)
        found: dict[str, list[bytes | None]] = {}
        left = self._overrides.get(name, [None] * len(texts))
        for position, (text, is_text) in enumerate(zip(texts, left, strict=True)):
            if text is not None:
                flat = {short: msgspec.Raw(text)}
                if is_text is not False:
                    flat = self._flat(name, text, position, is_text=bool(is_text))
                for key, value in flat.items():
                    if key not in found and (fault := name_fault(key)):
                        self._failed.setdefault(position, f"flattening gives {key!r}: {fault}")
                        continue
                    found.setdefault(key, [None] * len(texts))[position] = bytes(value)
        if any(text is not None for text in texts):
            return {key: infer_column(column) for key, column in found.items()}
        return {short: json_column(texts)}

    def _flat(
        self, name: str, text: bytes, position: int, *, is_text: bool
    ) -> dict[str, msgspec.Raw]:
        texts = frozenset({name} if is_text else ())
        try:
            flat = self._flattening.flattened({name: msgspec.Raw(text)}, texts)
        except UnmappableRecordError as error:
            self._failed.setdefault(position, str(error))
            return {}
        return {key: as_raw_json(value) for key, value in flat.items()}
