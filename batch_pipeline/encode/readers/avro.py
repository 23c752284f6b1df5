"""Read avro files: the schema as a tree of types, and the records as tables.

fastavro decodes records by the schema without its logical types. Those are applied here, column by
column, so that one value that does not fit spoils its record alone: fastavro would raise, and the
rest of the block would be lost. `avro_file` reads the container.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.types as at
from fastavro.schema import SchemaParseException

from batch_pipeline.encode.arrow_types import JSON_TYPES, column_of, is_uuid
from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.errors import BadFileFactory, os_error_reason
from batch_pipeline.encode.json_values import NonfiniteError, json_text
from batch_pipeline.encode.readers.arrow_values import (
    ConversionError,
    ConvertedArray,
    RowError,
    build_table,
    convert_array,
)
from batch_pipeline.encode.readers.avro_file import (
    AvroBlock,
    AvroFile,
    ByteStream,
    InvalidAvroError,
)
from batch_pipeline.model.record_rules import OnNonfinite, ReadLimits
from batch_pipeline.model.schema import Column, ColumnType

_MAX_TYPES = 100_000
_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_DECIMAL_DIGITS = 76  # of the longest decimal of Arrow
_ITEMS = {"array": "items", "map": "values"}
_MIN_BYTES = {"null": 0, "float": 4, "double": 8}  # of a value; 1 of other types


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroType:
    """A type of a schema; `arrow` is None for nested types and unions of several types.

    `children` are the fields of a record, the items of an array or a map, the types of a union.
    `plain` is the schema without logical types, by which values are decoded. `min_bytes` is the
    least number of bytes of a value: a block that claims more records than fit is damaged.
    """

    kind: str
    plain: Any
    min_bytes: int
    arrow: Any = None
    children: tuple[tuple[str, "AvroType"], ...] = ()

    @property
    def is_decimal(self) -> bool:
        """Return whether the bytes of a value are the digits of a decimal."""
        return self.arrow is not None and pa.types.is_decimal(self.arrow)


def read_schema(schema: Any) -> AvroType:
    """Return the type of the records of a file.

    Raises:
        InvalidAvroError: it is not a schema of records, or one that is not supported: of recursive
            types, of arrays of null.
    """
    try:
        named: dict[str, Any] = {}
        parsed = fastavro.parse_schema(schema, named, _force=True)
        tree = _Builder(named).type_of(parsed, ())
    except InvalidAvroError:
        raise
    except (SchemaParseException, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise InvalidAvroError(f"has no valid avro schema ({error})") from error
    if tree.kind != "record":
        raise InvalidAvroError(f"holds no records but values of the type {tree.kind}")
    return tree


class _Builder:
    """Builds the tree of types; named types are those that fastavro has parsed."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._count = 0

    def type_of(self, schema: Any, path: tuple[str, ...]) -> AvroType:
        self._count += 1
        if self._count > _MAX_TYPES:
            raise InvalidAvroError("has a schema of too many types")
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            return self.type_of(self._named[schema], path)
        definition = schema if isinstance(schema, dict) else {"type": schema}
        kind = definition["type"]
        if kind not in {"record", *_ITEMS, *_PRIMITIVES}:
            return self.type_of(kind, path)
        if kind == "record":
            return self._record(definition, path)
        return self._items(definition, path) if kind in _ITEMS else self._leaf(kind, definition)

    def _items(self, definition: dict[str, Any], path: tuple[str, ...]) -> AvroType:
        kind = definition["type"]
        items = self.type_of(definition[_ITEMS[kind]], path)
        if kind == "array" and not items.min_bytes:
            raise InvalidAvroError("has a schema of arrays of nothing, which is not supported")
        plain = {"type": kind, _ITEMS[kind]: items.plain}
        return AvroType(kind=kind, plain=plain, min_bytes=1, children=(("", items),))

    def _leaf(self, kind: str, definition: dict[str, Any]) -> AvroType:
        plain: Any = kind
        min_bytes = _MIN_BYTES.get(kind, 1)
        if kind == "enum":
            plain = {"type": kind, "name": self._name(), "symbols": list(definition["symbols"])}
        elif kind == "fixed":
            min_bytes = int(definition["size"])
            if min_bytes < 0:
                raise InvalidAvroError(f"has a schema with values of {min_bytes} bytes")
            plain = {"type": kind, "name": self._name(), "size": min_bytes}
        return AvroType(kind=kind, plain=plain, min_bytes=min_bytes, arrow=_arrow(kind, definition))

    def _record(self, definition: dict[str, Any], path: tuple[str, ...]) -> AvroType:
        name = definition["name"]
        if name in path:
            reason = f"has a schema of values that hold themselves ({name}), which is not supported"
            raise InvalidAvroError(reason)
        children = tuple(
            (_text(child["name"]), self.type_of(child["type"], (*path, name)))
            for child in definition["fields"]
        )
        names = [child for child, _ in children]
        if len(set(names)) < len(names):
            raise InvalidAvroError(f"has a schema with a field of {name} that is there twice")
        fields = [{"name": child, "type": field.plain} for child, field in children]
        plain = {"type": "record", "name": self._name(), "fields": fields}
        min_bytes = sum(field.min_bytes for _, field in children)
        return AvroType(kind="record", plain=plain, min_bytes=min_bytes, children=children)

    def _union(self, schema: list[Any], path: tuple[str, ...]) -> AvroType:
        children = tuple(("", self.type_of(branch, path)) for branch in schema)
        if any(branch.kind == "union" for _, branch in children):
            raise InvalidAvroError("has no valid avro schema (a union in a union)")
        plain = [branch.plain for _, branch in children]
        return AvroType(kind="union", plain=plain, min_bytes=1, children=children)

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidAvroError(f"has a schema with a field whose name is not text ({name!r:.80})")
    return name


def _arrow(kind: str, definition: dict[str, Any]) -> pa.DataType:
    logical = definition.get("logicalType", "")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = definition.get("precision"), definition.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision:
            if not 0 < precision <= _DECIMAL_DIGITS:
                raise InvalidAvroError(f"has a schema with decimals of {precision} digits")
            return pa.decimal256(precision, scale)
    if logical == "uuid" and kind == "fixed" and definition["size"] == 16:
        return pa.uuid()
    return _LOGICAL.get((kind, logical), _PRIMITIVES[kind])


Convert = Callable[[Any], Any]
_NESTED = {"record": ColumnType.OBJECT, "map": ColumnType.OBJECT, "array": ColumnType.ARRAY}
_PYTHON = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "fixed": bytes,
    "string": str,
    "enum": str,
    "record": dict,
    "map": dict,
    "array": list,
}
_NOT_EXACT = "is not in whole microseconds or not in the years 1 to 9999"
_DAY_US = 86_400 * 10**6
_MICROSECONDS = {"s": 10**6, "ms": 1000, "us": 1}


class AvroField:
    """One field of the records, as a column."""

    def __init__(self, name: str, kind: AvroType, on_nonfinite: OnNonfinite) -> None:
        kind = _without_null(kind)
        self.column = _column(name, kind)
        self._arrow = kind.arrow
        self._is_decimal = kind.is_decimal
        self._on_nonfinite = on_nonfinite
        self.to_json = _converter(name, kind)

    def convert(self, values: list[Any]) -> ConvertedArray:
        """Return decoded values as an array, null where they do not fit."""
        if self.column.type in JSON_TYPES:
            return self._convert_to_json(values)
        if self._is_decimal or is_uuid(self._arrow) or at.is_string(self._arrow):
            return self._convert_each(values)
        if at.is_temporal(self._arrow):
            raw = pa.int32() if self._arrow.bit_width == 32 else pa.int64()
            try:
                counts = pa.array(values, raw)
            except pa.ArrowInvalid as error:
                raise InvalidAvroError("is damaged: an int has more than 32 bits") from error
            return convert_array(counts.view(self._arrow), self.column)
        return ConvertedArray(pa.array(values, self._arrow))

    def _convert_each(self, values: list[Any]) -> ConvertedArray:
        convert = self.to_json
        target = pa.string() if self.column.type is ColumnType.STRING else None
        if target is None:
            target = pa.decimal128(self.column.precision, self.column.scale)
        errors: dict[int, ConversionError] = {}
        try:
            return ConvertedArray(
                pa.array(values if convert is None else map(convert, values), target)
            )
        except (ConversionError, UnicodeEncodeError):
            results = list(values)
        for index, value in enumerate(values):
            try:
                results[index] = value if convert is None else convert(value)
                if isinstance(results[index], str):
                    results[index].encode()
            except ConversionError as error:
                errors[index], results[index] = error, None
            except UnicodeEncodeError:
                errors[index] = ConversionError(
                    "is not UTF-8", value.encode(errors="replace").decode()
                )
                results[index] = None
        return ConvertedArray(pa.array(results, target), errors)

    def _convert_to_json(self, values: list[Any]) -> ConvertedArray:
        convert = self.to_json
        texts: list[bytes | None] = []
        errors: dict[int, ConversionError] = {}
        for index, value in enumerate(values):
            text = None
            try:
                if value is not None:
                    converted = value if convert is None else convert(value)
                    text = json_text(converted, self._on_nonfinite)
            except ConversionError as error:
                errors[index] = error
            except NonfiniteError as error:
                errors[index] = ConversionError(str(error), str(value))
            except UnicodeEncodeError:
                errors[index] = ConversionError("holds text that is not UTF-8", ascii(value))
            texts.append(text)
        return ConvertedArray(pa.array(texts, pa.binary()).cast(pa.string()), errors)


def _without_null(kind: AvroType) -> AvroType:
    """Return the other type of a union of null and one type, else the type itself."""
    if kind.kind != "union":
        return kind
    others = [child for _, child in kind.children if child.kind != "null"]
    return others[0] if len(others) == 1 else kind


def _column(name: str, kind: AvroType) -> Column:
    if kind.arrow is None:
        return Column(name=name, type=_NESTED.get(kind.kind, ColumnType.ANY))
    return column_of(name, kind.arrow)


def _converter(name: str, kind: AvroType) -> Convert | None:
    """Return a function that makes a decoded value ready for JSON; None if nothing changes."""
    if kind.arrow is not None:
        return _leaf_converter(kind)
    children = [(child, _converter(name, field)) for child, field in kind.children]
    if all(convert is None for _, convert in children):
        return None
    if kind.kind == "union":
        return _union_converter(name, kind)
    if kind.kind == "record":
        changed = [(child, convert) for child, convert in children if convert is not None]

        def convert_record(value: Any) -> Any:
            return value | {child: _apply(convert, value[child]) for child, convert in changed}

        return convert_record
    convert = children[0][1]
    if kind.kind == "array":
        return lambda value: [_apply(convert, item) for item in value]
    return lambda value: {key: _apply(convert, item) for key, item in value.items()}


def _apply(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _union_converter(name: str, kind: AvroType) -> Convert:
    by_type: dict[type, Convert | None] = {}
    for _, child in kind.children:
        if child.kind == "null":
            continue
        python_type = _PYTHON[child.kind]
        convert = _converter(name, child)
        if python_type in by_type and (convert is not None or by_type[python_type] is not None):
            raise InvalidAvroError(
                f"column {name!r} may hold several types that cannot be told apart, "
                "which is not supported"
            )
        by_type[python_type] = convert
    return lambda value: _apply(by_type[type(value)], value)


def _leaf_converter(kind: AvroType) -> Convert | None:
    arrow = kind.arrow
    if kind.is_decimal:
        return _decimals(arrow.precision, arrow.scale)
    if is_uuid(arrow):
        return lambda value: None if value is None else str(UUID(bytes=value))
    if at.is_date(arrow):
        return _date
    if at.is_time(arrow):
        step = _MICROSECONDS[arrow.unit]
        return lambda value: _time(value * step)
    return _timestamps(arrow) if at.is_timestamp(arrow) else None


def _decimals(precision: int, scale: int) -> Convert:
    limit = 10**precision

    def decimal(value: bytes | None) -> Decimal | None:
        if value is None:
            return None
        unscaled = int.from_bytes(value, "big", signed=True)
        if not -limit < unscaled < limit:
            raise ConversionError("has more digits than its type", str(unscaled))
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -scale))

    return decimal


def _date(value: int) -> date:
    try:
        return date.fromordinal(719_163 + value)
    except (ValueError, OverflowError) as error:
        raise ConversionError(_NOT_EXACT, f"{value} days since 1970") from error


def _time(value: int) -> time:
    if not 0 <= value < _DAY_US:
        raise ConversionError("is not a time of day", f"{value} us since midnight")
    seconds, microseconds = divmod(value, 10**6)
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60, microseconds)


def _timestamps(arrow: pa.DataType) -> Convert:
    epoch = datetime(1970, 1, 1, tzinfo=UTC if arrow.tz else None)
    if arrow.unit == "ns":
        return lambda value: _timestamp(_microseconds(value), 1, epoch)
    step = _MICROSECONDS[arrow.unit]
    return lambda value: _timestamp(value, step, epoch)


def _timestamp(value: int, step: int, epoch: datetime) -> datetime:
    try:
        return epoch + timedelta(microseconds=value * step)
    except OverflowError as error:
        raise ConversionError(_NOT_EXACT, f"{value * step} us since {epoch.year}") from error


def _microseconds(value: int) -> int:
    whole, rest = divmod(value, 1000)
    if rest:
        raise ConversionError(_NOT_EXACT, f"{value} ns since 1970")
    return whole


_WRONG_COUNT = "is damaged: a block has other records than it says"
_CHUNK_BYTES = 2 * 2**20
_MAX_EMPTY = 10**6  # of no bytes: a file of a few bytes could claim any number of them
Record = dict[str, Any]


class AvroReader:
    """The records of one avro file, read from the position of `file`."""

    def __init__(
        self,
        file: ByteStream,
        limits: ReadLimits,
        on_nonfinite: OnNonfinite,
        bad_file: BadFileFactory,
    ) -> None:
        self._file = file
        self._limits = limits
        self._on_nonfinite = on_nonfinite
        self._bad_file = bad_file
        self._next_number = 1

    def chunks(self) -> Iterator[Table]:
        """Yield the records in order, a few MiB at a time; a file without any has its columns.

        Raises:
            BadFileError: the file is damaged, or has values that are not supported.
        """
        try:
            yield from self._tables()
        except InvalidAvroError as error:
            raise self._bad_file(str(error)) from error
        except OSError as error:
            raise self._bad_file(os_error_reason(error)) from error

    def _tables(self) -> Iterator[Table]:
        file = AvroFile(self._file, max_expansion=self._limits.max_expansion)
        kind = read_schema(file.schema)
        fields = self._fields(kind)
        decoder = _Decoder(kind)
        records: list[Record] = []
        size = 0
        for block in file.blocks():
            for decoded, size_bytes in decoder.decode(block):
                records += decoded
                size += size_bytes
                if size >= _CHUNK_BYTES:
                    yield self._table(records, fields)
                    records, size = [], 0
        if records or self._next_number == 1:
            yield self._table(records, fields)

    def _fields(self, kind: AvroType) -> list[AvroField]:
        count = len(kind.children)
        if count > self._limits.max_columns:
            limit = f"`read_limits.max_columns` allows ({self._limits.max_columns})"
            raise InvalidAvroError(f"has {count} columns, more than {limit}")
        if not count:
            raise InvalidAvroError("has no columns")
        return [AvroField(name, child, self._on_nonfinite) for name, child in kind.children]

    def _table(self, records: list[Record], fields: Sequence[AvroField]) -> Table:
        first = self._next_number
        self._next_number += len(records)
        arrays = [
            field.convert([record[field.column.name] for record in records]) for field in fields
        ]

        def raw(row: int, _: RowError) -> bytes:
            return _raw(records[row])

        return build_table([field.column for field in fields], arrays, first, raw, {})


class _Decoder:
    """Decodes the records of a block.

    All at once, as if they were one avro array, which is faster than a call for each record. A
    large block is decoded record by record: values of one byte would fill the memory with objects.
    """

    def __init__(self, kind: AvroType) -> None:
        self._item = fastavro.parse_schema(kind.plain)
        self._items = fastavro.parse_schema({"type": "array", "items": kind.plain})
        self._min_bytes = kind.min_bytes
        self._empty = 0

    def decode(self, block: AvroBlock) -> Iterator[tuple[list[Record], int]]:
        """Yield the records, and the bytes that they had, a few MiB at a time."""
        size = len(block.records)
        if block.count * self._min_bytes > size:
            raise InvalidAvroError("is damaged: a block has not all of its records")
        if size and not self._min_bytes:  # as the end of an array, they would be a further count
            raise InvalidAvroError(_WRONG_COUNT)
        self._empty += 0 if self._min_bytes else block.count
        if self._empty > _MAX_EMPTY:
            raise InvalidAvroError(f"has more than {_MAX_EMPTY} records without a byte")
        if size <= 2 * _CHUNK_BYTES:
            yield self._decode_all(block), size
            return
        data, left, start = io.BytesIO(block.records), block.count, 0
        while left:
            records: list[Record] = []
            while left and data.tell() - start < _CHUNK_BYTES:
                records.append(self._read(data, self._item))
                left -= 1
            yield records, data.tell() - start
            start = data.tell()
        if start < size:
            raise InvalidAvroError(_WRONG_COUNT)

    def _decode_all(self, block: AvroBlock) -> list[Record]:
        data = io.BytesIO(_zigzag(block.count) + block.records + (b"\0" if block.count else b""))
        records = self._read(data, self._items)
        if len(records) != block.count or data.read(1):
            raise InvalidAvroError(_WRONG_COUNT)
        return list(records)

    def _read(self, data: io.BytesIO, schema: Any) -> Any:
        try:
            return fastavro.schemaless_reader(
                data, schema, None, handle_unicode_errors="surrogateescape"
            )
        except (
            ArithmeticError,
            EOFError,
            LookupError,
            MemoryError,
            TypeError,
            ValueError,
        ) as error:
            raise InvalidAvroError("is damaged: a block has records that cannot be read") from error


def _zigzag(count: int) -> bytes:
    """Return a count as avro encodes a long."""
    value = count << 1
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def _raw(record: Record) -> bytes:
    """Return a record that was set aside as JSON, its dates and decimals as avro encodes them."""
    try:
        return json_text(record, OnNonfinite.STRING)
    except UnicodeEncodeError:
        return ascii(record).encode()
