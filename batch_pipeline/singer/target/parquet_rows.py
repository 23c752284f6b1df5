"""Records as rows of a parquet table with the columns of their SCHEMA; needs pyarrow.

Times are microseconds in UTC, numbers doubles (with `multipleOf` decimals); objects, arrays and
mixtures are JSON text. A value that its column cannot hold is refused, never changed.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from singer_sdk.singerlib.json import serialize_json

from batch_pipeline.domain.encoding import Compression
from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.json_schema import schema_of
from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.singer.target.refusals import RowMisfitError

_GROUP_BYTES = 16 * 2**20


class ParquetRows:
    """A table that grows by row groups of at most 16 MiB of records as they were written."""

    def __init__(
        self, file: IO[bytes], compression: Compression, schema: Mapping[str, Any]
    ) -> None:
        self.records = self.size_bytes = 0
        self._columns = {column.name: column for column in _columns(schema)}
        types = [(column.name, _arrow_type(column)) for column in self._columns.values()]
        self._schema = pa.schema(types)
        self._writer = pq.ParquetWriter(file, self._schema, compression=compression.value)
        self._rows: list[dict[str, Any]] = []
        self._held_bytes = 0

    def write(self, text: bytes, record: dict[str, Any]) -> None:
        """Add a record.

        Raises:
            RowMisfitError: it has a property without a column, or a value that its column has not.
        """
        row = {}
        for name, value in record.items():
            column = self._columns.get(name)
            if column is None:
                raise RowMisfitError(f"property {name} is not in the SCHEMA, so it has no column")
            row[name] = None if value is None else _cell(column, value)
        self._rows.append(row)
        self.records += 1
        self.size_bytes += len(text)
        self._held_bytes += len(text)
        if self._held_bytes >= _GROUP_BYTES:
            self._pass_on()

    def finish(self) -> None:
        """Write what is still held, and the end of the file."""
        self._pass_on()
        self._writer.close()

    def abandon(self) -> None:
        """Let go of the file, which is about to be removed."""
        self._rows = []
        self._writer.close()

    def _pass_on(self) -> None:
        if self._rows:
            try:
                table = pa.Table.from_pylist(self._rows, self._schema)
            except (pa.ArrowException, OverflowError) as error:
                raise RowMisfitError(str(error)) from error
            self._writer.write_table(table)
        self._rows, self._held_bytes = [], 0


def _columns(schema: Mapping[str, Any]) -> list[Column]:
    """Give the columns of a SCHEMA; a property that is no column by itself is a mixture."""
    columns = []
    for name, shape in schema["properties"].items():
        try:
            (column,) = schema_of({"properties": {name: shape}}).columns
        except InvalidValueError:
            column = Column(name=name, type=ColumnType.ANY)
        columns.append(column)
    return columns


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
        raise RowMisfitError(f"property {column.name} is no {column.type} ({error})") from error
    if type(value) is not kind:
        raise RowMisfitError(f"property {column.name} is {value!r:.80}, which is no {column.type}")
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
