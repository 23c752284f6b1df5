"""Writers of landed files: JSON lines byte for byte, or a parquet table as in the SCHEMA.

A writer writes to an open file and never closes it.
"""

import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Any, ClassVar, assert_never

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from singer_sdk.singerlib.json import serialize_json

from batch_pipeline.encode.arrow_types import arrow_type_of
from batch_pipeline.model.encoding import Compression
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.schema import Column, ColumnType, schema_of
from batch_pipeline.singer.target.errors import RowMismatchError

_GZIP_CONTAINER = 31  # zlib's window bits: 15, plus 16 for a gzip header without time or name
_ZLIB: Any = import_module("isal.isal_zlib") if find_spec("isal") is not None else zlib
_KINDS = {
    ColumnType.BOOLEAN: bool,
    ColumnType.INTEGER: int,
    ColumnType.STRING: str,
    ColumnType.BINARY: str,
}


class RecordWriter:
    """A writer of records, which are buffered, to an open file."""

    _buffer_bytes: ClassVar[int]

    def __init__(self) -> None:
        self.records = self.size_bytes = 0  # before compression
        self._rows: list[Any] = []
        self._flush_at = self._buffer_bytes

    def write(self, text: bytes, record: dict[str, Any]) -> None:
        """Write a record; `text` is its JSON text, `record` its value.

        Raises:
            RowMismatchError: the record does not fit the columns of a table.
        """
        self._append(text, record)
        self.records += 1
        if self.size_bytes >= self._flush_at:
            self._flush()
            self._flush_at = self.size_bytes + self._buffer_bytes

    def finish(self) -> None:
        """Write buffered data, so that the file is complete."""
        self._flush()
        self._close()

    def abandon(self) -> None:
        """Drop buffered data; the file is about to be removed."""
        self._rows = []

    def _append(self, text: bytes, record: dict[str, Any]) -> None:
        raise NotImplementedError

    def _flush(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class JsonLines(RecordWriter):
    """Records as written, one per line; compressed with ISA-L where it is installed."""

    _buffer_bytes = 512 * 1024

    def __init__(self, file: IO[bytes], compression: Compression) -> None:
        super().__init__()
        self._file, self._compressor = file, _compressor(compression)

    def _append(self, text: bytes, record: dict[str, Any]) -> None:
        # A carriage return between its tokens, valid in JSON, ends no line.
        self._rows.append(text)
        self.size_bytes += len(text) + 1

    def _flush(self) -> None:
        if self._rows:
            data = b"\n".join([*self._rows, b""])
            self._rows = []
            self._file.write(data if self._compressor is None else self._compressor.compress(data))

    def _close(self) -> None:
        if self._compressor is not None:
            self._file.write(self._compressor.flush())


def _compressor(compression: Compression) -> Any:
    match compression:
        case Compression.NONE:
            return None
        case Compression.GZIP:
            return _ZLIB.compressobj(1, wbits=_GZIP_CONTAINER)
        case Compression.ZSTD:
            return zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj()
        case Compression.SNAPPY:
            raise ValueError("no file of JSON lines is compressed by snappy")
        case _:
            assert_never(compression)


class ParquetRows(RecordWriter):
    """A parquet table, written in row groups of at most 16 MiB of JSON text."""

    _buffer_bytes = 16 * 2**20

    def __init__(
        self, file: IO[bytes], compression: Compression, schema: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._columns = {column.name: column for column in _columns(schema)}
        types = [(column.name, _arrow_type(column)) for column in self._columns.values()]
        self._schema = pa.schema(types)
        self._writer = pq.ParquetWriter(file, self._schema, compression=compression.value)

    def abandon(self) -> None:
        """Drop buffered rows; the file is about to be removed."""
        super().abandon()
        self._close()

    def _append(self, text: bytes, record: dict[str, Any]) -> None:
        row = {}
        for name, value in record.items():
            column = self._columns.get(name)
            if column is None:
                raise RowMismatchError(f"property {name} is not in the SCHEMA, so it has no column")
            row[name] = None if value is None else _cell(column, value)
        self._rows.append(row)
        self.size_bytes += len(text)

    def _flush(self) -> None:
        if self._rows:
            try:
                table = pa.Table.from_pylist(self._rows, self._schema)
            except (pa.ArrowException, OverflowError) as error:
                raise RowMismatchError(str(error)) from error
            self._writer.write_table(table)
        self._rows = []

    def _close(self) -> None:
        self._writer.close()


def _columns(schema: Mapping[str, Any]) -> list[Column]:
    """Return the columns of a SCHEMA; a property that is not a valid column has type ANY."""
    columns = []
    for name, shape in schema["properties"].items():
        try:
            (column,) = schema_of({"properties": {name: shape}}).columns
        except InvalidValueError:
            column = Column(name=name, type=ColumnType.ANY)
        columns.append(column)
    return columns


def _arrow_type(column: Column) -> pa.DataType:
    # Binary values stay base64 text, as the tap wrote them.
    return pa.string() if column.type is ColumnType.BINARY else arrow_type_of(column)


def _cell(column: Column, value: Any) -> Any:
    convert, kind = _CONVERSIONS.get(column.type), _KINDS.get(column.type)
    if convert is not None:
        try:
            return convert(value)
        except (ValueError, TypeError, ArithmeticError) as error:
            problem = f"property {column.name} is not of type {column.type} ({error})"
            raise RowMismatchError(problem) from error
    if kind is None:
        return serialize_json(value)
    if kind is int and isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    if type(value) is not kind:
        problem = f"property {column.name} is {value!r:.80}, which is not of type {column.type}"
        raise RowMismatchError(problem)
    return value


def _number(value: Any, kind: type[float | Decimal]) -> float | Decimal:
    if isinstance(value, bool | str | list | dict):
        raise TypeError(f"{value!r:.80}")
    return kind(value)


def _instant(value: str) -> datetime:
    at = datetime.fromisoformat(value)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def _day(value: str) -> date:
    at = datetime.fromisoformat(value)
    if at.time() != time.min:
        raise ValueError(f"{value!r:.80} has a time of day")
    return at.date()


_CONVERSIONS: dict[ColumnType, Callable[[Any], Any]] = {
    ColumnType.NUMBER: partial(_number, kind=float),
    ColumnType.DECIMAL: partial(_number, kind=Decimal),
    ColumnType.DATE: _day,
    ColumnType.TIME: time.fromisoformat,
    ColumnType.TIMESTAMP: _instant,
    ColumnType.LOCAL_TIMESTAMP: datetime.fromisoformat,
}
