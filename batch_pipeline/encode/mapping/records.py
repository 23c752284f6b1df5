"""Map the records of a chunk: select, apply the rules of a stream map, flatten.

JSON records and rows of tables go through the same steps. Values that no step reads are not
decoded: those of JSON records keep their text, digit by digit, and a column of a table is passed on
unchanged, with its type.
"""

import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.types as at

from batch_pipeline.encode import json_values
from batch_pipeline.encode.chunks import JsonRecords, Table, remaining
from batch_pipeline.encode.validation.json_records import (
    KEY_LIKE_ESCAPE,
    BadRecordError,
    check_duplicate_keys,
    count_key_quotes,
    explain_malformed,
    has_same_keys,
    replace_nonfinite,
)
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import name_fault

if TYPE_CHECKING:
    from batch_pipeline.encode.mapping.mapper import Mapper, Selection
    from batch_pipeline.encode.mapping.singer_map import Flattening, SingerMap

_PLAIN = frozenset({str, int, bool, type(None)})
_encode = msgspec.json.Encoder(decimal_format="number").encode

decode: Callable[[bytes | msgspec.Raw], Any] = msgspec.json.Decoder(float_hook=Decimal).decode
"""Decode JSON text; numbers with a fraction or an exponent become decimals, digit by digit."""

decode_fields: Callable[[bytes | msgspec.Raw], dict[str, msgspec.Raw]] = msgspec.json.Decoder(
    dict[str, msgspec.Raw]
).decode
"""Decode an object's keys, in order; their values stay JSON text."""


encode_fields: Callable[[dict[str, msgspec.Raw]], bytes] = msgspec.json.Encoder().encode
"""Encode an object whose values are JSON text, without blanks between them."""


DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError)
"""Errors of decoding: not JSON, not Unicode, nested too deeply, or a number that is too long."""


def json_text(value: Any) -> bytes:
    """Return the value of an expression as compact JSON.

    Dates and times become ISO 8601 text, NaN and infinities null.

    Raises:
        TypeError: The value is a set, a function or the like.
        ValueError: A text or bytes are not Unicode, or an integer is too long.
    """
    if type(value) not in _PLAIN:
        value = _to_jsonable(value)
    return _encode(value)


def decode_error_reason(error: Exception) -> str:
    """Return why JSON text cannot be read, without values; `error` is one of `DECODE_ERRORS`."""
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return f"is not valid JSON ({error})"
    return f"holds a value that cannot be read ({type(error).__name__})"


def _to_jsonable(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {_key(key): _to_jsonable(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_to_jsonable(item) for item in value]
    if kind is float or kind is Decimal:
        return value if math.isfinite(value) else None
    return value if kind in _PLAIN else _text(value)


def _text(value: Any) -> str:
    kind = type(value)
    if kind is bytes:
        return str(value, "utf-8")
    if kind is datetime.datetime:
        return str(value.isoformat())
    if kind in {datetime.date, datetime.time, datetime.timedelta, datetime.timezone}:
        return str(value)
    raise _no_json_form(value)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode("utf-8")
    if isinstance(key, bool | None):
        return {True: "true", False: "false", None: "null"}[key]
    if isinstance(key, int | float | Decimal):
        return str(key)
    raise _no_json_form(key)


def _no_json_form(value: object) -> TypeError:
    return TypeError(f"returns a {type(value).__name__}, which has no JSON form")


Record = dict[str, Any]
"""Values by property: JSON text (`msgspec.Raw`) or Python values. A column stands for its cell."""


def map_json_records(mapper: "Mapper", chunk: JsonRecords) -> JsonRecords:
    """Map JSON records; bad records keep their text."""
    lines = list(chunk.lines)
    mapped: dict[int, bytes | None] = {}  # by position, None if the record is filtered out
    bad: dict[int, str] = {}
    keys = 0
    for index in range(len(lines)):
        try:
            mapped[index], count = _map_line(mapper, lines, index)
        except BadRecordError as error:
            bad[index] = str(error)
        else:
            keys += count
    # Decoding drops all but the last value of a duplicate key. No key is duplicated if the text has
    # no other keys than those counted, except inside of selected values, which validation checks.
    read = {index: lines[index] for index in mapped}
    text = b"\n".join(read.values())
    good = [line for line in mapped.values() if line is not None]
    keys += count_key_quotes(b"\n".join(good)) if mapper.only_selects else 0
    # Encoding writes such escapes as a quote that is counted and hides a lost key.
    is_uncertain = mapper.only_selects and KEY_LIKE_ESCAPE.search(text) is not None
    if is_uncertain or count_key_quotes(text) != keys:
        duplicates = _find_duplicate_keys(read, text, hides_values=mapper.hides_values)
        bad |= duplicates
        mapped = {index: line for index, line in mapped.items() if index not in duplicates}
        good = [line for line in mapped.values() if line is not None]
    rows = [index for index, line in mapped.items() if line is not None]
    malformed = {at: (reason, chunk.lines[at]) for at, reason in bad.items()}
    counts = remaining(chunk, rows, malformed, filtered=len(mapped) - len(rows))
    return replace(chunk, lines=good, **counts)


def _find_duplicate_keys(
    lines: Mapping[int, bytes], text: bytes, *, hides_values: bool
) -> dict[int, str]:
    """Return why lines are malformed, for those that have a duplicate key; `text` is all lines."""
    with suppress(*DECODE_ERRORS):
        written = b"\n".join(map(msgspec.json.encode, map(msgspec.json.decode, lines.values())))
        compact = (msgspec.json.format(line, indent=-1) for line in lines.values())
        if has_same_keys(written, text) or has_same_keys(written, b"\n".join(compact)):
            return {}
    reasons: dict[int, str] = {}
    for index, line in lines.items():
        try:
            check_duplicate_keys(line)
        except BadRecordError as error:
            # Names of properties inside of objects can be values, too.
            reasons[index] = "has a key twice" if hides_values else str(error)
        except RecursionError as error:
            reasons[index] = decode_error_reason(error)
    return reasons


def _map_line(mapper: "Mapper", lines: list[bytes], index: int) -> tuple[bytes | None, int]:
    """Map one record, after replacing NaN and infinities in its line.

    Return its text, None if it is filtered out, and the number of its properties; if the mapping
    only selects properties, that of the removed ones.

    Raises:
        BadRecordError: The line is not an object, or cannot be mapped.
    """
    try:
        record: Record = decode_fields(lines[index])
        count = len(record)
        if mapper.selection is not None:
            mapper.selection.select(record)
    except msgspec.ValidationError as error:
        raise BadRecordError("is not a JSON object") from error
    except msgspec.DecodeError as error:
        finite = replace_nonfinite(lines[index], mapper.on_nonfinite)
        if finite == lines[index]:
            raise BadRecordError(explain_malformed(finite, error)) from error
        lines[index] = finite
        return _map_line(mapper, lines, index)
    except DECODE_ERRORS as error:
        raise BadRecordError(decode_error_reason(error)) from error
    if mapper.only_selects:
        return encode_fields(record), count - len(record)
    return _map_record(mapper, lines[index], record), count


def _map_record(mapper: "Mapper", line: bytes, record: Record) -> bytes | None:
    """Return the text of a mapped record, None if it is filtered out."""
    rules, flattening = mapper.rules, mapper.flattening
    mapped: Record | None = record
    if rules is not None:
        try:
            values = {n: decode(text) if rules.reads(n) else text for n, text in record.items()}
        except DECODE_ERRORS as error:
            raise BadRecordError(decode_error_reason(error)) from error
        mapped = _apply_rules(rules, record, values)
    if mapped is None:
        return None
    if rules is not None and rules.only_filters and mapper.selection is None and flattening is None:
        return line
    if flattening is not None:
        mapped = flattening.flattened(mapped, _names_left_whole(rules, record))
    return encode_fields({name: _as_raw(rules, name, value) for name, value in mapped.items()})


def _apply_rules(rules: "SingerMap", record: Record, values: Record) -> Record | None:
    """Apply the rules; return None if the record is filtered out.

    `values` are those of the record, decoded if an expression reads them. Unchanged values are
    replaced by the original ones of the record.
    """
    mapped = rules.mapped(values)
    if mapped is None:
        return None
    for name, value in mapped.items():
        source = rules.source(name)
        if source in record and values[source] is value and rules.is_unchanged(value):
            mapped[name] = record[source]
        elif isinstance(value, dict | list):
            mapped[name] = msgspec.Raw(rules.json_text(name, value))
    return mapped


def _names_left_whole(rules: "SingerMap | None", record: Record) -> frozenset[str]:
    """Return the mapped properties that flattening leaves whole because of the original ones."""
    if rules is None:
        return frozenset()
    typed_by = rules.typed_by.intersection(record)
    return rules.texts(frozenset((name, _may_be_object(record[name])) for name in typed_by))


def is_null(value: Any) -> bool:
    """Return whether a value is null, decoded or not."""
    return value is None or (isinstance(value, msgspec.Raw) and bytes(value) == b"null")


def _may_be_object(value: Any) -> bool:
    return isinstance(value, msgspec.Raw) and bytes(value).startswith((b"{", b"n"))


def _as_raw(rules: "SingerMap | None", name: str, value: Any) -> msgspec.Raw:
    if isinstance(value, msgspec.Raw):
        return value
    return msgspec.Raw(json_text(value) if rules is None else rules.json_text(name, value))


_SAME_IN_JSON = (at.is_null, at.is_boolean, at.is_integer, at.is_string, at.is_large_string)

_Removed = dict[int, str | None]  # why a row is malformed, by its position; None: it is filtered
_Texts = list[bytes | None]  # JSON text by row, None for null


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
        return self.kind is CellKind.JSON

    def row(self, row: int) -> "ColumnCells":
        """Return a column with only the cell of one row."""
        return ColumnCells(self.array.slice(row, 1), self.kind)

    def values(self, on_nonfinite: OnNonfinite, removed: _Removed) -> list[Any]:
        """Return the cells as an expression reads them: decoded from their JSON text.

        Rows with a cell that has no JSON form are removed.
        """
        is_same = any(test(self.array.type) for test in _SAME_IN_JSON)
        if self.kind is CellKind.TEXT or (is_same and self.kind is CellKind.TYPED):
            values: list[Any] = self.array.to_pylist()
            return values
        values = list(self.json_texts(on_nonfinite, removed))
        for position, text in enumerate(values):
            if text is not None:
                try:
                    values[position] = decode(text)
                except DECODE_ERRORS as error:
                    removed.setdefault(position, decode_error_reason(error))
        return values

    def json_texts(self, on_nonfinite: OnNonfinite, removed: _Removed) -> _Texts:
        """Return the cells as JSON text, None in removed rows; remove rows as `values` does."""
        texts: _Texts = [None] * len(self.array)
        for position, cell in enumerate(self.array.to_pylist()):
            if cell is None or position in removed:
                continue
            if self.kind is CellKind.JSON:
                texts[position] = None if cell == "null" else cell.encode()
                continue
            try:
                texts[position] = json_values.json_text(cell, on_nonfinite)
            except (ValueError, RecursionError) as error:
                removed[position] = str(error)
        return texts


Columns = dict[str, ColumnCells]


def _columns_of(table: Table) -> Columns:
    columns: Columns = {}
    for name, array in zip(table.batch.schema.names, table.batch.columns, strict=True):
        kind = CellKind.JSON if name in table.json else CellKind.TYPED
        columns[name] = ColumnCells(array, CellKind.TEXT if name in table.text else kind)
    return columns


def _json_column(texts: Sequence[bytes | None]) -> ColumnCells:
    cells = [None if text is None or text == b"null" else text.decode() for text in texts]
    return ColumnCells(pa.array(cells, pa.string()), CellKind.JSON)


def _infer_column(texts: Sequence[bytes | None]) -> ColumnCells:
    """Return a column with the common type of the values, or of JSON texts if there is none.

    Types are text, booleans, integers of 64 bits, or numbers that doubles hold exactly.
    """
    if any(text is not None and text.startswith((b"{", b"[")) for text in texts):
        return _json_column(texts)
    try:
        values = decode(b"[" + b",".join(text or b"null" for text in texts) + b"]")
    except DECODE_ERRORS:  # no expression reads these values, so they are not malformed
        return _json_column(texts)
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return ColumnCells(pa.array(values, pa.int64()), CellKind.TYPED)
    if kinds in ({str}, {bool}):
        return ColumnCells(pa.array(values), CellKind.TYPED)
    if Decimal in kinds and kinds <= {int, Decimal}:
        doubles = [None if value is None else float(Decimal(value)) for value in values]
        pairs = zip(doubles, values, strict=True)
        if all(double is None or Decimal(repr(double)) == value for double, value in pairs):
            return ColumnCells(pa.array(doubles, pa.float64()), CellKind.TYPED)
    return _json_column(texts)


def map_table(mapper: "Mapper", table: Table) -> Table:
    """Map the records of a table; columns of one type stay or become typed, others become JSON.

    The text of a bad record is its cells as JSON.
    """
    mapping = _TableMapping(mapper, table)
    if mapper.selection is not None:
        mapping.select(mapper.selection)
    if mapper.rules is not None or mapper.flattening is not None:
        mapping.map_rows()
    return mapping.result()


class _TableMapping:
    """The mapping of one table, step by step; removed rows stay in the columns until the result."""

    def __init__(self, mapper: "Mapper", table: Table) -> None:
        self._table = table
        self._count = table.good
        self._on_nonfinite = mapper.on_nonfinite
        self._rules = mapper.rules
        self._flattening = mapper.flattening
        self._columns = _columns_of(table)
        self._removed: _Removed = {}
        # By row, the properties that flattening leaves whole, once static rules are applied.
        self._whole: list[frozenset[str]] = []
        # Columns that are omitted if they are null: objects whose properties are columns.
        self._objects = set[str]() if self._flattening is None else set(self._flattening.objects)

    def select(self, selection: "Selection") -> None:
        selected: Columns = {}
        for name, cells in self._columns.items():
            choice = selection.choice((name,))
            if choice.has_exceptions and cells.may_be_nested:
                texts = cells.json_texts(self._on_nonfinite, self._removed)
                for row, text in enumerate(texts):
                    pruned = None if text is None else selection.pruned((name,), msgspec.Raw(text))
                    texts[row] = None if pruned is None else bytes(pruned)
                selected[name] = _json_column(texts)
            elif choice.is_selected:
                selected[name] = cells
        self._columns = selected

    def map_rows(self) -> None:
        """Apply the rules and flatten; rows for which that fails are removed."""
        rules = self._rules
        if self._flattening is None or (rules is not None and not rules.is_static):
            self._columns = self._mapped(self._columns)
            return
        if rules is not None:  # they rename and remove columns, and read no value
            typed_by = {n: cells for n, cells in self._columns.items() if n in rules.typed_by}
            records = self._records(typed_by)
            self._whole = [_names_left_whole(rules, record) for record, _ in records]
            self._columns = self._map_row(range(self._count), self._columns, self._columns, None)
            self._rules = None
        flat = self._flattened_by_column(self._flattening.separator)
        self._columns = self._mapped(self._columns) if flat is None else flat

    def _flattened_by_column(self, separator: str) -> Columns | None:
        """Flatten each column separately; return None if two columns may get the same name.

        If 1 of 150 columns is nested, this takes 0.1 of the time.
        """
        nested = (name for name, cells in self._columns.items() if cells.may_be_nested)
        prefixes = tuple(name + separator for name in nested)
        if any(name.startswith(prefixes) for name in self._columns):
            return None
        flat: Columns = {}
        for name, cells in self._columns.items():
            flattened = self._mapped({name: cells})
            if not flat.keys().isdisjoint(flattened):
                return None
            flat |= flattened
        return flat

    def _mapped(self, columns: Columns) -> Columns:
        rules, flattens = self._rules, self._flattening is not None
        is_opened = flattens and any(cells.may_be_nested for cells in columns.values())
        if not is_opened and (rules is None or rules.is_static):
            # No step reads a value, so mapping one row maps all of them.
            return self._map_row(range(self._count), columns, columns, self._flattening)
        rows = [
            {} if row in self._removed else self._map_row((row,), record, values, self._flattening)
            for row, (record, values) in enumerate(self._records(columns))
        ]
        names = dict.fromkeys(name for one in rows for name in one)
        result: Columns = {}
        for name in names:
            source = name if rules is None else rules.source(name)
            cells = None if source is None else columns.get(source)
            result[name] = self._column(name, [one.get(name) for one in rows], cells)
        return result

    def _records(self, columns: Columns) -> Iterator[tuple[Record, Record]]:
        """Yield each row, and the same row with the values that expressions read."""
        records: list[list[Any]] = []
        values: list[list[Any]] = []
        for name, cells in columns.items():
            is_read = self._rules is not None and self._rules.reads(name)
            own: list[Any] = [cells] * self._count
            values.append(cells.values(self._on_nonfinite, self._removed) if is_read else own)
            if self._flattening is not None and cells.may_be_nested:
                texts = cells.json_texts(self._on_nonfinite, self._removed)
                own = [msgspec.Raw(b"null" if text is None else text) for text in texts]
            elif self._flattening is not None and cells.array.null_count:
                own = [cells if valid else None for valid in cells.array.is_valid().to_pylist()]
            records.append(own)
        for row in range(self._count):  # also for a table without columns
            yield (
                {name: own[row] for name, own in zip(columns, records, strict=True)},
                {name: own[row] for name, own in zip(columns, values, strict=True)},
            )

    def _map_row(
        self,
        rows: Sequence[int],
        record: Record,
        values: Record,
        flattening: "Flattening | None",
    ) -> Record:
        """Map a row that represents `rows`; return no properties if these are removed."""
        rules, reason = self._rules, None
        try:
            mapped = record if rules is None else _apply_rules(rules, record, values)
            if mapped is not None and flattening is not None:
                self._objects |= {
                    flattening.name_of((name,))
                    for name, value in mapped.items()
                    if isinstance(value, msgspec.Raw) and bytes(value).startswith(b"{")
                }
                mapped = self._flatten_row(flattening, rows, record, mapped)
        except BadRecordError as error:
            mapped, reason = None, str(error)
        if mapped is None:
            for row in rows:
                self._removed.setdefault(row, reason)
        return mapped or {}

    def _flatten_row(
        self, flattening: "Flattening", rows: Sequence[int], record: Record, mapped: Record
    ) -> Record:
        is_renamed = bool(self._whole and rows)
        texts = self._whole[rows[0]] if is_renamed else _names_left_whole(self._rules, record)
        try:
            flat = flattening.flattened(mapped, texts)
        except BadRecordError:
            # Two properties get the same name, but a null cell is not a value that would be lost.
            mapped = {name: value for name, value in mapped.items() if not is_null(value)}
            flat = flattening.flattened(mapped, texts)
        for name in flat:
            if fault := name_fault(name):
                raise BadRecordError(f"flattening produces {name!r}: {fault}")
        return flat

    def _column(self, name: str, values: list[Any], source: ColumnCells | None) -> ColumnCells:
        """Return the column of the values of all rows, which are None in removed rows.

        If all are null, return the `source`, so that its type is not lost.
        """
        column = next((value for value in values if isinstance(value, ColumnCells)), source)
        if column is not None:
            others = [row for row, value in enumerate(values) if value is not column]
            others = [row for row in others if row not in self._removed]
            nulls = column.array.take(pa.array(others, pa.int64())).null_count
            if nulls == len(others) and all(values[row] is None for row in others):
                return column
        texts: _Texts = [None] * self._count
        for row, value in enumerate(values):
            if isinstance(value, ColumnCells):
                failed: _Removed = {}
                texts[row] = value.row(row).json_texts(self._on_nonfinite, failed)[0]
                for reason in failed.values():
                    self._removed[row] = reason
            elif value is not None:
                try:
                    texts[row] = bytes(_as_raw(self._rules, name, value))
                except BadRecordError as error:
                    self._removed.setdefault(row, str(error))
        return _infer_column(texts)

    def result(self) -> Table:
        """Return the table of the remaining rows, without flattened objects that have no value."""
        table, columns = self._table, self._columns
        rows: Sequence[int] = range(self._count)
        if self._removed:
            rows = [row for row in rows if row not in self._removed]
            kept = pa.array(rows, pa.int64())
            columns = {n: ColumnCells(one.array.take(kept), one.kind) for n, one in columns.items()}
        columns = {
            name: cells
            for name, cells in columns.items()
            if name not in self._objects or cells.array.null_count < len(rows)
        }
        batch = table.batch.select([]).slice(0, len(rows))
        if columns:
            arrays = [cells.array for cells in columns.values()]
            batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
        bad = self._malformed()
        return replace(
            table,
            batch=batch,
            text=_names_of(columns, CellKind.TEXT),
            json=_names_of(columns, CellKind.JSON),
            **remaining(table, rows, bad, filtered=len(self._removed) - len(bad)),
        )

    def _malformed(self) -> dict[int, tuple[str, bytes]]:
        bad = {}
        for row, reason in self._removed.items():
            if reason is not None:
                record: dict[str, msgspec.Raw] = {}
                for name, cells in _columns_of(self._table).items():
                    text = cells.row(row).json_texts(OnNonfinite.STRING, {})[0]
                    record[name] = msgspec.Raw(b"null" if text is None else text)
                bad[row] = reason, encode_fields(record)
        return bad


def _names_of(columns: Columns, kind: CellKind) -> frozenset[str]:
    return frozenset(name for name, cells in columns.items() if cells.kind is kind)
