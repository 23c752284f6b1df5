"""Part files as blocks of records in Arrow.

`read_blocks` verifies the part files of a manifest and yields their records in order. `LineReader`
parses JSON lines. Only numbers of `number` columns in JSON lines are rounded, to doubles. Any other
value that is invalid for its column's type is an error.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at
from pyarrow import json

from batch_pipeline.encode.arrow_types import JSON_TYPES, empty_batch
from batch_pipeline.encode.validation.type_inference import TYPED_TEXT_TYPES, parse_texts
from batch_pipeline.load.types import IncompatibleValueError, arrow_type_of
from batch_pipeline.model.manifest import Manifest, PartFile
from batch_pipeline.model.schema import MAX_PRECISION, Column, ColumnType, RecordSchema
from batch_pipeline.storage.part_formats import table_codec
from batch_pipeline.storage.part_formats.jsonl import DECOMPRESSION_ERRORS, read_lines
from batch_pipeline.storage.verification import UnusablePartError, store_problem, verified_file

_RAW_TYPES = JSON_TYPES | {ColumnType.DECIMAL}  # parsed from the raw JSON, which has all digits
# For published values, Arrow's cast is the same as `parse_texts`, and faster.
_CAST_TYPES = (ColumnType.DATE, ColumnType.TIMESTAMP, ColumnType.LOCAL_TIMESTAMP)
_PARSE_ERRORS = (ValueError, OverflowError, RecursionError)  # base classes of Arrow's and msgspec's
_PYTHON_TYPES: dict[ColumnType, Any] = {
    ColumnType.BOOLEAN: bool | None,
    ColumnType.INTEGER: int | None,
    ColumnType.NUMBER: float | None,
    ColumnType.UNKNOWN: None,
}
_LONG_NUMBER = re.compile("[0-9]{39}")  # overflows in Arrow's cast, without an error
_BLOCK_BYTES = 4 * 2**20
_BLOCK_RECORDS = 4096
_ASSUMED_EXPANSION = 4  # of compressed columnar files, in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive records of a part file; `first` counts from 1, and `read` decodes them."""

    location: str
    first: int
    read: Callable[[], pa.RecordBatch]


def read_blocks(manifest: Manifest) -> Generator[Block, None, None]:
    """Yield the records of all part files in order.

    Raises:
        UnusablePartError: a file is missing or differs from what was published.
        RetryableError: the store of a file cannot be reached.
    """
    for part in manifest.part_files:
        with verified_file(part) as path, _reading_errors(part):
            if manifest.encoding.part_format.is_columnar:
                yield from _table_blocks(path, part, manifest)
            else:
                yield from _line_blocks(path, part, manifest)


@contextmanager
def _reading_errors(part: PartFile) -> Iterator[None]:
    try:
        yield
    except (*DECOMPRESSION_ERRORS, pa.ArrowException) as error:
        raise UnusablePartError(f"{part.uri} cannot be read ({error})") from error
    except OSError as error:
        raise UnusablePartError(store_problem(part.uri, error, "read")) from error


def _line_blocks(path: Path, part: PartFile, manifest: Manifest) -> Iterator[Block]:
    reader = LineReader(manifest.schema)
    first = 1
    with path.open("rb") as file:
        for lines in read_lines(file, manifest.encoding.compression, _BLOCK_BYTES):
            yield Block(location=part.uri, first=first, read=partial(reader.read, lines))
            first += lines.count(b"\n")


def _table_blocks(path: Path, part: PartFile, manifest: Manifest) -> Iterator[Block]:
    record_bytes = max(part.size_bytes * _ASSUMED_EXPANSION // max(part.records, 1), 1)
    block_records = min(max(_BLOCK_BYTES // record_bytes, 1), _BLOCK_RECORDS)
    first = 1
    for batch in table_codec(manifest.encoding.format).read_batches(path, None, block_records):
        read = partial(_with_schema, batch, manifest.schema)
        yield Block(location=part.uri, first=first, read=read)
        first += batch.num_rows


def _with_schema(batch: pa.RecordBatch, schema: RecordSchema) -> pa.RecordBatch:
    """Return a batch with the columns and types of the schema."""
    arrays, present = [], set(batch.schema.names)
    for column in schema.columns:
        kind = arrow_type_of(column)
        if column.name not in present:
            arrays.append(pa.nulls(batch.num_rows, kind))
            continue
        array = batch.column(column.name)
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        if array.type != kind and array.null_count == len(array):
            array = pa.nulls(len(array), kind)
        if array.type != kind:
            problem = f"the file has {array.type}, its schema {column.type_text}"
            raise IncompatibleValueError(0, column.name, problem)
        arrays.append(array)
    return batch_of(arrays, schema.names, batch.num_rows)


def batch_of(arrays: Iterable[pa.Array], names: Sequence[str], rows: int) -> pa.RecordBatch:
    """Return a batch of named columns; without columns it has only a number of rows."""
    if not names:
        return empty_batch(rows)
    return pa.RecordBatch.from_arrays(list(arrays), list(names))


_INVALID_FIELD_NAME = re.compile(r'[\\"\x00-\x1f]')  # msgspec rejects these in field names
_RAW_NULL = msgspec.Raw(b"null")


class LineReader:
    """A parser of JSON lines with one schema."""

    def __init__(self, schema: RecordSchema) -> None:
        self._columns = schema.columns
        self._names = [column.name for column in schema.columns]
        kinds = {
            column.name: pa.string() if column.type in TYPED_TEXT_TYPES else arrow_type_of(column)
            for column in schema.columns
        }
        self._options = json.ParseOptions(
            explicit_schema=pa.schema(kinds), unexpected_field_behavior="error"
        )
        self._records = _record_decoder(schema)
        self._fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
        # Arrow does not preserve the text of objects and arrays.
        has_json = any(column.type in JSON_TYPES for column in schema.columns)
        self._parsers = [self.read_records] if has_json else [self.read_columns, self.read_records]
        scales = [column.scale for column in schema.columns if column.type is ColumnType.DECIMAL]
        self._overflow_pattern = _overflow_pattern(max(scales)) if scales else None

    def read(self, lines: bytes) -> pa.RecordBatch:
        """Return the records of whole lines; absent keys are null.

        Raises:
            IncompatibleValueError: a record has an unknown key or an invalid value.
        """
        for parse in self._parsers:
            with suppress(*_PARSE_ERRORS):
                return parse(lines)
        return self.read_carefully(lines)  # reports which record is invalid

    def read_columns(self, lines: bytes) -> pa.RecordBatch:
        """Parse lines with Arrow, the fastest parser; no column may hold objects or arrays.

        Raises:
            ValueError: Arrow cannot parse the lines, which may be valid nevertheless.
        """
        if self._overflow_pattern is not None and self._overflow_pattern.search(lines):
            raise ValueError("a number may have more digits than a decimal")
        whole = json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        table = json.read_json(pa.BufferReader(lines), whole, self._options)
        [batch] = table.combine_chunks().to_batches()
        arrays = batch.columns
        if any(at.is_floating(array.type) and pc.any(pc.is_inf(array)).as_py() for array in arrays):
            raise ValueError("a number has too many digits for a double")
        parsed = (
            _parsed(array, column) if column.type in TYPED_TEXT_TYPES else array
            for array, column in zip(arrays, self._columns, strict=True)
        )
        return batch_of(parsed, self._names, batch.num_rows)

    def read_records(self, lines: bytes) -> pa.RecordBatch:
        """Parse lines with msgspec, which preserves the text of values.

        Raises:
            ValueError: msgspec cannot parse the lines; also the other `_PARSE_ERRORS`.
        """
        if self._records is None:
            raise ValueError("msgspec does not take the name of a column")
        lines.decode()
        records = self._records.decode_lines(lines)
        arrays = (
            _array_of(list(map(attrgetter(f"f{index}"), records)), column)
            for index, column in enumerate(self._columns)
        )
        return batch_of(arrays, self._names, len(records))

    def read_carefully(self, lines: bytes) -> pa.RecordBatch:
        """Parse lines record by record.

        Raises:
            IncompatibleValueError: a record is invalid.
        """
        records: list[dict[str, msgspec.Raw]] = []
        for row, line in enumerate(filter(None, lines.split(b"\n"))):
            try:
                line.decode()
                records.append(self._fields.decode(line))
            except _PARSE_ERRORS as error:
                raise IncompatibleValueError(row, "", f"is not a JSON object ({error})") from error
            for name in records[-1].keys() - set(self._names):
                raise IncompatibleValueError(row, name, "is not a column of the schema")
        arrays = (
            _read_column([record.get(column.name, _RAW_NULL) for record in records], column)
            for column in self._columns
        )
        return batch_of(arrays, self._names, len(records))


def _overflow_pattern(scale: int) -> re.Pattern[bytes]:
    """Return a pattern for numbers that may have too many digits for a decimal of this scale.

    Arrow lets some of them overflow without an error.
    """
    return re.compile(rb"[0-9](?:[0-9]{%d}|[eE]\+?[0-9])" % (MAX_PRECISION - scale))


def _record_decoder(schema: RecordSchema) -> "msgspec.json.Decoder[Any] | None":
    """Return a decoder of records with fields `f0`, `f1`, … for the columns."""
    if any(_INVALID_FIELD_NAME.search(name) for name in schema.names):
        return None
    fields = [
        (f"f{index}", kind, _RAW_NULL if kind is msgspec.Raw else None)
        for index, kind in enumerate(map(_python_type, schema.columns))
    ]
    names = {f"f{index}": name for index, name in enumerate(schema.names)}
    kind = msgspec.defstruct("Record", fields, rename=names, forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(kind)


def _python_type(column: Column) -> Any:
    """Return the type with which msgspec decodes a column; `Raw` preserves all digits."""
    return msgspec.Raw if column.type in _RAW_TYPES else _PYTHON_TYPES.get(column.type, str | None)


def _read_column(values: Sequence[msgspec.Raw], column: Column) -> pa.Array:
    """Return an array of a column's values, or raise an error that names the invalid row."""
    kind = _python_type(column)

    def parse(raw: Sequence[msgspec.Raw]) -> pa.Array:
        return _array_of([msgspec.json.decode(value, type=kind) for value in raw], column)

    try:
        return parse(values)
    except _PARSE_ERRORS as error:
        for row, value in enumerate(values):
            try:
                parse([value])
            except _PARSE_ERRORS:
                text = f"{bytes(value).decode():.200} is not of type {column.type_text}"
                raise IncompatibleValueError(row, column.name, text) from error
        raise


def _array_of(values: Sequence[Any], column: Column) -> pa.Array:
    """Return an array of values that msgspec has decoded.

    Raises:
        ValueError: a value is invalid for the column; also the other `_PARSE_ERRORS`.
    """
    if column.type in TYPED_TEXT_TYPES:
        return _parsed(pa.array(values, pa.string()), column)
    if column.type not in _RAW_TYPES:
        return pa.array(values, arrow_type_of(column))
    texts = [None if text == b"null" else text.decode() for text in map(bytes, values)]
    if column.type is ColumnType.DECIMAL:
        _check_digits(filter(None, texts), column)
    return pa.array(texts, pa.string()).cast(arrow_type_of(column))


def _check_digits(texts: Iterable[str], column: Column) -> None:
    """Raise an error for a number that would overflow in Arrow's cast, which reports nothing."""
    max_digits = MAX_PRECISION - column.scale  # before the point
    for text in texts:
        if len(text) > max_digits or "e" in text or "E" in text:
            try:
                number = Decimal(text)
            except InvalidOperation:
                raise ValueError("a value is not a number") from None
            if _LONG_NUMBER.search(text) or (number and number.adjusted() >= max_digits):
                raise ValueError("a number has more digits than a decimal")


def _parsed(texts: pa.StringArray, column: Column) -> pa.Array:
    """Return an array of values given as text.

    Raises:
        ValueError: a text is invalid for the column.
    """
    if column.type in _CAST_TYPES:
        with suppress(pa.ArrowInvalid):
            return texts.cast(arrow_type_of(column))
    array, invalid = parse_texts(texts, column)
    if invalid:
        raise ValueError("a text is not a value of the column's type")
    return array
