"""Checks tables against the schema by whole columns: text cells, JSON text, typed values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import pyarrow as pa

from batch_pipeline.domain.record_rules import RESCUED, Evolution, OnNonfinite
from batch_pipeline.domain.schema import Column, ColumnType, needed
from batch_pipeline.domain.stream import Stream
from batch_pipeline.spark.arrow_types import JSON_TYPES, arrow_type_of, column_of
from batch_pipeline.spark.check.cell_groups import ReadCells, read_cells
from batch_pipeline.spark.check.cell_sights import cells_sight, is_wide
from batch_pipeline.spark.check.profile import Profile
from batch_pipeline.spark.check.sights import Sight
from batch_pipeline.spark.check.table_rows import (
    Rescued,
    nulled,
    rescue,
    rescued_column,
    without_nonfinite,
)
from batch_pipeline.spark.check.text_forms import TEXT_FORMS, read_texts
from batch_pipeline.spark.chunks import Table
from batch_pipeline.spark.json_values import json_text

_OPENINGS = {ord("{"): ColumnType.OBJECT, ord("["): ColumnType.ARRAY}
_UNREAD = frozenset({ColumnType.UNKNOWN, ColumnType.STRING}) | JSON_TYPES  # as cells stand
_TEXT_IN_JSON = TEXT_FORMS | {ColumnType.STRING}


@dataclass(frozen=True, slots=True)
class _Look:
    """A column as the output takes it, null where `unfit`, and what the unfit values need."""

    array: pa.Array
    unfit: Sequence[int] = ()
    sight: Sight | None = None


@dataclass(slots=True)
class _Checked:
    """What becomes of a table: its columns, which of them are text cells, what was rescued."""

    arrays: dict[str, pa.Array] = field(default_factory=dict)
    text: set[str] = field(default_factory=set)
    rescued: Rescued = field(default_factory=dict)


class TableCheck:
    """Checks chunks; what the columns cannot hold goes to the profile, or is rescued.

    With `values`, columns come out with the types of the schema, but for those of any type; else
    they stay what they are.
    """

    def __init__(self, profile: Profile, stream: Stream, *, values: bool) -> None:
        self._profile = profile
        self._values = values
        self._on_nonfinite = stream.on_nonfinite
        self._rescues = stream.schema.evolution is Evolution.RESCUE

    def checked(self, table: Table) -> Table:
        """Check the records of a chunk."""
        if self._on_nonfinite is OnNonfinite.QUARANTINE:
            table = without_nonfinite(table, self._written_as_json(table.batch.schema))
        done = _Checked()
        read = self._read(table)
        for name, array in zip(table.batch.schema.names, table.batch.columns, strict=True):
            if array.null_count == len(array):
                self._see_nothing(name, array, table, done)
            else:
                look = self._look(name, array, table, read)
                self._take(name, look, table, done)
        if done.rescued:
            before = done.arrays.get(RESCUED)
            done.arrays[RESCUED] = rescued_column(done.rescued, before, table.good)
            done.text.discard(RESCUED)
        batch = table.batch
        if done.arrays:
            batch = pa.RecordBatch.from_pydict(done.arrays)
        return replace(
            table,
            batch=batch,
            text=frozenset(done.text),
            json=table.json & done.arrays.keys(),
            rescued=table.rescued + len(done.rescued),
        )

    def _written_as_json(self, schema: pa.Schema) -> list[str]:
        """Name the columns of doubles that are JSON in the output."""
        names = []
        for name, kind in zip(schema.names, schema.types, strict=True):
            known = self._profile.columns.get(name)
            is_json = not self._values or (known is not None and known.type in JSON_TYPES)
            if is_json and pa.types.is_floating(kind):
                names.append(name)
        return names

    def _see_nothing(self, name: str, array: pa.Array, table: Table, done: _Checked) -> None:
        """Take in a column without values: it fits all types, but a typed one tells a new type."""
        known = self._profile.columns.get(name)
        if known is None or known.type is ColumnType.UNKNOWN:
            column = Column(name=name, type=ColumnType.UNKNOWN)
            if name not in table.text and name not in table.json:
                column = column_of(name, array.type)
            if self._rescues and not self._profile.takes(column, text=False):
                return
            self._profile.see_names([name])
            if column.type is not ColumnType.UNKNOWN:
                self._profile.see(column, text=False)
            known = self._profile.columns[name]
        if self._values:
            array = pa.nulls(len(array), arrow_type_of(known))
        elif name in table.text:
            done.text.add(name)
        done.arrays[name] = array

    def _read(self, table: Table) -> dict[str, ReadCells]:
        """Read the text cells of columns whose values are not text, by the names of these."""
        columns = self._profile.columns
        cells = {
            name: array
            for name, array in zip(table.batch.schema.names, table.batch.columns, strict=True)
            if name in table.text
            and array.null_count < len(array)
            and name in columns
            and columns[name].type not in _UNREAD
        }
        return read_cells(cells, columns, values=self._values)

    def _look(
        self, name: str, array: pa.Array, table: Table, read: Mapping[str, ReadCells]
    ) -> _Look:
        known = self._profile.columns.get(name)
        if name in table.json:
            return self._json(name, array, known)
        if name not in table.text:
            return self._typed(name, array, known)
        if known is not None and name in read:
            return self._cells(name, array, known, read[name])
        if known is not None and known.type in (ColumnType.STRING, ColumnType.ANY):
            return _Look(array)
        return _Look(array, _present(array), cells_sight(name, array, known))

    def _take(self, name: str, look: _Look, table: Table, done: _Checked) -> None:
        known = self._profile.columns.get(name)
        is_text = name in table.text
        array = look.array
        if look.sight is not None:
            first = look.unfit[0]
            sight = look.sight
            if self._rescues and not self._profile.takes(
                sight.column, text=is_text, wide=sight.wide
            ):
                rescue(table, name, look.unfit, done.rescued)
                if known is None:
                    return
                array = nulled(array, look.unfit)
                if self._values and array.type != arrow_type_of(known):
                    array = pa.nulls(len(array), arrow_type_of(known))
            else:
                self._see(look.sight, table, first, is_text=is_text)
                if look.unfit and self._profile.columns[name] == known:
                    raise RuntimeError(f"values of {name!r} neither fit {known} nor widen it")
        done.arrays[name] = array
        if is_text and array.type == pa.string() and (not self._values or _stays_text(known)):
            done.text.add(name)

    def _holds(self, sight: Sight, *, is_text: bool) -> bool:
        return self._profile.holds(sight.column, text=is_text, wide=sight.wide)

    def _see(self, sight: Sight, table: Table, row: int, *, is_text: bool) -> None:
        # In which line a row starts is counted only where somebody will ask.
        is_news = self._profile.fits and not self._holds(sight, is_text=is_text)
        is_new_column = self._profile.known(sight.column.name) is None
        line = table.places[row] if is_news and not is_new_column else None
        self._profile.see(sight.column, text=is_text, wide=sight.wide, line=line)

    def _cells(self, name: str, cells: pa.StringArray, known: Column, read: ReadCells) -> _Look:
        if read.wide:
            self._profile.see(known, text=True, wide=True)
        if not read.unfit:
            return _Look(read.array)
        unfit = cells.take(pa.array(read.unfit))
        return _Look(read.array, read.unfit, cells_sight(name, unfit, known))

    def _json(self, name: str, texts: pa.StringArray, known: Column | None) -> _Look:
        openings = _openings(texts)
        kinds = {_OPENINGS.get(octet, ColumnType.ANY) for octet in set(openings.tolist()) - {0}}
        kind = kinds.pop() if len(kinds) == 1 else ColumnType.ANY
        if known is not None and known.type in (ColumnType.ANY, kind):
            return _Look(texts)
        unfit = _present(texts)
        if known is not None and known.type in (ColumnType.OBJECT, ColumnType.ARRAY):
            unfit = [row for row in unfit if _OPENINGS.get(int(openings[row])) is not known.type]
        return _Look(texts, unfit, Sight(Column(name=name, type=kind)))

    def _typed(self, name: str, array: pa.Array, known: Column | None) -> _Look:
        column = column_of(name, array.type)
        if known is not None and known.type in TEXT_FORMS and column.type is ColumnType.STRING:
            values, unfit = read_texts(array.cast(pa.string()), known)
            sight = Sight(column) if unfit else None
            return _Look(values if self._values else array, unfit, sight)
        wide = column.type is ColumnType.INTEGER and is_wide(array)
        sight = Sight(column, wide=wide)
        if known is None or not self._profile_holds(known, sight):
            return _Look(array, _present(array), sight)
        if wide:
            self._profile.see(column, text=False, wide=True)
        return _Look(self._converted(array, column, known))

    def _profile_holds(self, known: Column, sight: Sight) -> bool:
        return self._profile.columns.get(known.name) == needed(known, sight.column, wide=sight.wide)

    def _converted(self, array: pa.Array, column: Column, known: Column) -> pa.Array:
        if not self._values or known.type in JSON_TYPES or column == known:
            return array
        if known.type is ColumnType.STRING and column.type in _TEXT_IN_JSON - {ColumnType.STRING}:
            texts = (json_text(value, OnNonfinite.STRING) for value in array.to_pylist())
            return pa.array([msgspec.json.decode(text) for text in texts], pa.string())
        return array.cast(arrow_type_of(known))


def _stays_text(known: Column | None) -> bool:
    return known is None or known.type in JSON_TYPES


def _present(array: pa.Array) -> list[int]:
    if not array.null_count:
        return list(range(len(array)))
    rows: list[int] = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist()
    return rows


def _openings(texts: pa.StringArray) -> np.ndarray:
    """Give the first byte of each text, 0 for null."""
    _, offsets, octets = texts.buffers()
    starts = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts)]
    found = np.frombuffer(octets, np.uint8)[np.minimum(starts, len(octets) - 1)].copy()
    if texts.null_count:
        found[~texts.is_valid().to_numpy(zero_copy_only=False)] = 0
    return found
