"""Writers of landed files: JSON lines byte for byte, or a parquet table as in the SCHEMA.

A writer writes to an open file and never closes it.
"""

import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Any, Protocol, assert_never

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from singer_sdk.singerlib.json import serialize_json

from batch_pipeline.model.encoding import Compression
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.schema import Column, ColumnType, schema_of
from batch_pipeline.singer.target.errors import RowMismatchError

_GZIP_CONTAINER = 31  # zlib's window bits: 15, plus 16 for a gzip header without time or name
_CHUNK = 512 * 1024
_GROUP_BYTES = 16 * 2**20
_ZLIB: Any = import_module("isal.isal_zlib") if find_spec("isal") is not None else zlib
_TYPES = {
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.INTEGER: pa.int64(),
    ColumnType.NUMBER: pa.float64(),
    ColumnType.DATE: pa.date32(),
    ColumnType.TIME: pa.time64("us"),
    ColumnType.TIMESTAMP: pa.timestamp("us", "UTC"),
    ColumnType.LOCAL_TIMESTAMP: pa.timestamp("us"),
}
_KINDS = {
    ColumnType.BOOLEAN: bool,
    ColumnType.INTEGER: int,
    ColumnType.STRING: str,
    ColumnType.BINARY: str,
}


class RecordWriter(Protocol):
    """A writer of records to an open file."""

    records: int
    size_bytes: int  # before compression

    def write(self, text: bytes, record: dict[str, Any]) -> None:
        """Write a record; `text` is its JSON text, `record` its value."""
        ...

    def finish(self) -> None:
        """Write buffered data, so that the file is complete."""
        ...

    def abandon(self) -> None:
        """Drop buffered data; the file is about to be removed."""
        ...


class JsonLines:
    """Records as written, one per line; compressed with ISA-L where it is installed."""

    def __init__(self, file: IO[bytes], compression: Compression) -> None:
        self.records = self.size_bytes = 0
        self._file, self._buffer, self._buffered_bytes = file, list[bytes](), 0
        self._compressor = _compressor(compression)

    def write(self, text: bytes, record: dict[str, Any]) -> None:
        """Write a record. A carriage return between its tokens, valid in JSON, ends no line."""
        self._buffer.append(text)
        self.records += 1
        self.size_bytes += len(text) + 1
        self._buffered_bytes += len(text) + 1
        if self._buffered_bytes >= _CHUNK:
            self._flush()

    def finish(self) -> None:
        """Write buffered data and the end of the compressed stream."""
        self._flush()
        if self._compressor is not None:
            self._file.write(self._compressor.flush())

    def abandon(self) -> None:
        """Drop buffered data; the file is about to be removed."""
        self._buffer = []

    def _flush(self) -> None:
        if not self._buffer:
            return
        self._buffer.append(b"")
        data = b"\n".join(self._buffer)
        self._buffer, self._buffered_bytes = [], 0
        self._file.write(data if self._compressor is None else self._compressor.compress(data))


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


class ParquetRows:
    """A parquet table, written in row groups of at most 16 MiB of JSON text."""

    def __init__(
        self, file: IO[bytes], compression: Compression, schema: Mapping[str, Any]
    ) -> None:
        self.records = self.size_bytes = 0
        self._columns = {column.name: column for column in _columns(schema)}
        types = [(column.name, _arrow_type(column)) for column in self._columns.values()]
        self._schema = pa.schema(types)
        self._writer = pq.ParquetWriter(file, self._schema, compression=compression.value)
        self._rows: list[dict[str, Any]] = []
        self._buffered_bytes = 0

    def write(self, text: bytes, record: dict[str, Any]) -> None:
        """Write a record.

        Raises:
            RowMismatchError: a property has no column, or its value does not fit the column.
        """
        row = {}
        for name, value in record.items():
            column = self._columns.get(name)
            if column is None:
                raise RowMismatchError(f"property {name} is not in the SCHEMA, so it has no column")
            row[name] = None if value is None else _cell(column, value)
        self._rows.append(row)
        self.records += 1
        self.size_bytes += len(text)
        self._buffered_bytes += len(text)
        if self._buffered_bytes >= _GROUP_BYTES:
            self._flush()

    def finish(self) -> None:
        """Write buffered rows and the footer of the file."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Drop buffered rows; the file is about to be removed."""
        self._rows = []
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            try:
                table = pa.Table.from_pylist(self._rows, self._schema)
            except (pa.ArrowException, OverflowError) as error:
                raise RowMismatchError(str(error)) from error
            self._writer.write_table(table)
        self._rows, self._buffered_bytes = [], 0


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
    if column.type is ColumnType.DECIMAL:
        return pa.decimal128(column.precision, column.scale)
    return _TYPES.get(column.type, pa.string())


def _cell(column: Column, value: Any) -> Any:
    kind = _KINDS.get(column.type)
    convert = _CONVERSIONS.get(column.type)
    if kind is None and convert is None:
        return serialize_json(value)
    is_whole = column.type is ColumnType.INTEGER and isinstance(value, Decimal)
    if is_whole and value == value.to_integral_value():
        return int(value)
    try:
        if convert is not None:
            return convert(value)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise RowMismatchError(f"property {column.name} is no {column.type} ({error})") from error
    if type(value) is not kind:
        raise RowMismatchError(
            f"property {column.name} is {value!r:.80}, which is no {column.type}"
        )
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool | str | list | dict):
        raise TypeError(f"{value!r:.80}")
    return float(value)


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool | str | list | dict):
        raise TypeError(f"{value!r:.80}")
    return Decimal(value)


def _instant(value: str) -> datetime:
    at = datetime.fromisoformat(value)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def _day(value: str) -> date:
    at = datetime.fromisoformat(value)
    if at.time() != time.min:
        raise ValueError(f"{value!r:.80} has a time of day")
    return at.date()


_CONVERSIONS: dict[ColumnType, Callable[[Any], Any]] = {
    ColumnType.NUMBER: _number,
    ColumnType.DECIMAL: _decimal,
    ColumnType.DATE: _day,
    ColumnType.TIME: time.fromisoformat,
    ColumnType.TIMESTAMP: _instant,
    ColumnType.LOCAL_TIMESTAMP: datetime.fromisoformat,
}
