"""Flattens the columns of a table that hold objects or arrays; all others stay."""

from collections.abc import Mapping

import msgspec

from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.domain.schema import name_fault
from batch_pipeline.spark.map.flattening import FlattenedTwiceError, Flattening, short_name
from batch_pipeline.spark.map.json_text import UNREADABLE, unreadable
from batch_pipeline.spark.map.table_cells import Cells, Columns, cells_of, json_cells

# By column: what `Flattening.flattened` calls `left`, for each of its rows.
Left = Mapping[str, list[bool | None]]


class TableFlattening:
    """Flattens the records of a table; the columns of an object take its place.

    Rows that cannot be flattened are added to `failed`, with the reason.
    """

    def __init__(
        self, flattening: Flattening, on_nonfinite: OnNonfinite, left: Left, failed: dict[int, str]
    ) -> None:
        self._flattening = flattening
        self._on_nonfinite = on_nonfinite
        self._left = left
        self._failed = failed

    def flattened(self, columns: Mapping[str, Cells]) -> Columns:
        """Flatten the columns."""
        flat: Columns = {}
        for name, cells in columns.items():
            for key, found in self._taken_apart(name, cells).items():
                flat[key] = self._merged(key, flat[key], found) if key in flat else found
        for name in self._flattening.objects.intersection(flat):
            if flat[name].array.null_count == len(flat[name].array):
                del flat[name]
        return flat

    def _merged(self, name: str, first: Cells, second: Cells) -> Cells:
        texts = first.json_texts(self._on_nonfinite, self._failed)
        for position, text in enumerate(second.json_texts(self._on_nonfinite, self._failed)):
            if text is not None and texts[position] is not None:
                self._failed.setdefault(position, str(FlattenedTwiceError(name)))
            texts[position] = texts[position] or text
        return cells_of(texts)

    def _taken_apart(self, name: str, cells: Cells) -> Columns:
        short = short_name((name,), self._flattening.separator)
        if not cells.may_nest:
            return {short: cells}
        texts = cells.json_texts(self._on_nonfinite, self._failed)
        found: dict[str, list[bytes | None]] = {}
        left = self._left.get(name, [None] * len(texts))
        for position, (text, is_text) in enumerate(zip(texts, left, strict=True)):
            if text is not None:
                alone = {} if is_text is None else {name: is_text}
                for key, value in self._flat(name, text, alone, position).items():
                    if key not in found and (fault := name_fault(key)):
                        self._failed.setdefault(position, f"flattening gives {key!r}: {fault}")
                        continue
                    found.setdefault(key, [None] * len(texts))[position] = bytes(value)
        if any(text is not None for text in texts):
            return {key: cells_of(column) for key, column in found.items()}
        return {short: json_cells(texts)}

    def _flat(
        self, name: str, text: bytes, left: Mapping[str, bool], position: int
    ) -> dict[str, msgspec.Raw]:
        try:
            return self._flattening.flattened({name: msgspec.Raw(text)}, left=left)
        except FlattenedTwiceError as error:
            self._failed.setdefault(position, str(error))
        except UNREADABLE as error:
            self._failed.setdefault(position, unreadable(error))
        return {}
