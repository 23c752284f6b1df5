"""Read avro files: the container, the schema, and the records as tables.

fastavro reads the header, the frame of each block and the records, but does not decompress: its
`block_reader` has no limit for the decompressed size, does not compare the checksums of snappy, and
accepts a truncated deflate stream (decision record 32).

fastavro's own readers of logical types are not used either: they raise for a value that does not
fit, and the rest of the block would be lost. In columns, times are decoded as numbers and converted
by Arrow (5 times as fast as one by one); decimals, and all logical types inside nested values, are
converted by readers that return a `ConversionError` instead of such a value, so that only its
record is set aside.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from operator import attrgetter
from typing import Any
from uuid import UUID

import fastavro
import fastavro.read
import msgspec
import pyarrow as pa
import pyarrow.types as at
from fastavro.schema import SchemaParseException

from batch_pipeline.encode.arrow_types import (
    JSON_TYPES,
    ArrowTypeUnknownError,
    arrow_type_of,
    column_of,
    is_uuid,
)
from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.readers.arrow_values import (
    ConversionError,
    ConvertedArray,
    RowError,
    build_table,
    check_column_names,
    convert_array,
    record_text,
    to_json_array,
)
from batch_pipeline.encode.readers.compression import EXPANSION_CHECKED_FROM_BYTES
from batch_pipeline.encode.readers.decoded_file import DecodedFile
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline.model.stream import Stream


class InvalidAvroError(ValueError):
    """The file is damaged, unsupported, or not an avro file; the message says why."""


_MAGIC = b"Obj\x01"
_SYNC = {"type": "fixed", "name": "sync_mark", "size": 16}


def _parse_record(**fields: Any) -> Any:
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return fastavro.parse_schema({"type": "record", "name": "record", "fields": listed})


_HEADER = _parse_record(meta={"type": "map", "values": "bytes"}, sync=_SYNC)
_BLOCK = _parse_record(count="long", compressed="bytes", sync=_SYNC)
_MAX_HEADER_BYTES = 64 * 2**20
_MAX_BLOCK_BYTES = 128 * 2**20  # a block is in memory as a whole


class AvroFile:
    """The container of an avro file: `schema` from its header, then its blocks.

    Raises:
        InvalidAvroError: the header is damaged, or the compression is not known.
    """

    def __init__(self, file: DecodedFile, *, max_expansion: int) -> None:
        self._file = _ExactReader(file)
        self._max_expansion = max_expansion
        if self._file.read_some(len(_MAGIC)) != _MAGIC:
            raise InvalidAvroError("is not an avro file")
        header = self._read(_HEADER, "its header", limit=_MAX_HEADER_BYTES)
        self._sync = header["sync"]
        codec = header["meta"].get("avro.codec", b"null").decode("ascii", "replace")
        if codec not in _CODECS:
            known = ", ".join(_CODECS)
            raise InvalidAvroError(f"is compressed with {codec!r}; known are {known}")
        self._decompress = _CODECS[codec]
        try:
            self.schema: Any = msgspec.json.decode(header["meta"].get("avro.schema", b""))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidAvroError("is damaged: the schema in its header is not JSON") from error

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of records that each block claims, and its encoded records.

        Raises:
            InvalidAvroError: a block is damaged, the last block is truncated, or they expand too
                much.
        """
        number, compressed_bytes, record_bytes = 1, 0, 0
        while not self._file.is_at_end():
            block = self._read(_BLOCK, f"block {number}")
            compressed = block["compressed"]
            if block["count"] < 0:
                raise InvalidAvroError(f"is damaged: block {number} has a size below 0")
            if block["sync"] != self._sync:
                reason = f"is damaged: the sync marker after block {number} does not match"
                raise InvalidAvroError(reason)
            compressed_bytes += len(compressed)
            allowed = compressed_bytes * self._max_expansion
            allowed = max(allowed, EXPANSION_CHECKED_FROM_BYTES) - record_bytes
            limit = min(allowed, max(_MAX_BLOCK_BYTES, len(compressed)))
            try:
                records = self._decompress(compressed, limit)
            except (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                reason = f"is damaged: block {number} cannot be decompressed"
                raise InvalidAvroError(reason) from error
            if len(records) > limit:
                reason = f"expands to more than {_MAX_BLOCK_BYTES >> 20} MiB, the maximum"
                if limit == allowed:
                    advice = f"`read_limits.max_expansion` allows ({self._max_expansion})"
                    reason = f"expands too much, more than {advice}"
                raise InvalidAvroError(f"block {number} {reason}")
            record_bytes += len(records)
            yield block["count"], records
            number += 1

    def _read(self, schema: Any, part: str, *, limit: int | None = None) -> Any:
        self._file.limit = limit
        try:
            return fastavro.schemaless_reader(self._file, schema, None)  # type: ignore[arg-type] # it only reads
        except EOFError as error:
            raise InvalidAvroError("is truncated: the last block has no end") from error
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, InvalidAvroError):
                raise
            raise InvalidAvroError(f"is damaged: {part} cannot be read") from error


class _ExactReader:
    """A file that reads exactly the requested bytes, or raises; at most `limit` bytes if set."""

    def __init__(self, file: DecodedFile) -> None:
        self._file = file
        self._peeked = b""
        self.limit: int | None = None

    def is_at_end(self) -> bool:
        """Return whether no byte is left."""
        self._peeked = self._peeked or self._file.read(1)
        return not self._peeked

    def read_some(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes`, fewer only at the end."""
        start, self._peeked = self._peeked[:size_bytes], self._peeked[size_bytes:]
        return start + self._file.read(size_bytes - len(start))

    def read(self, size_bytes: int, /) -> bytes:
        """Read exactly `size_bytes`."""
        if size_bytes < 0:
            raise InvalidAvroError("is damaged: a size is below 0")
        if self.limit is not None:
            self.limit -= size_bytes
            if self.limit < 0:
                raise InvalidAvroError("is damaged: its header is too long")
        data = self.read_some(size_bytes)
        if len(data) < size_bytes:
            raise EOFError
        return data


def _decompress_by(new: Callable[[], Any]) -> Callable[[bytes, int], bytes]:
    def decompress(compressed: bytes, limit: int) -> bytes:
        stream = new()
        data: bytes = stream.decompress(compressed, limit + 1)
        if not stream.eof and len(data) <= limit:
            raise EOFError
        return data

    return decompress


def _decompress_zstd(compressed: bytes, limit: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(compressed), "zstd") as stream:
        # Do not use `read`, which leaks memory with every failed call.
        return bytes(stream.read_buffer(limit + 1).to_pybytes())


def _decompress_snappy(compressed: bytes, limit: int) -> bytes:
    body, checksum = compressed[:-4], compressed[-4:]
    size = shift = 0
    for octet in body[:5]:
        size |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            break
    if size > limit:
        return bytes(limit + 1)
    data = bytes(pa.Codec("snappy").decompress(body, decompressed_size=size))
    if zlib.crc32(data) != int.from_bytes(checksum, "big"):
        raise ValueError("checksum")
    return data


_CODECS: dict[str, Callable[[bytes, int], bytes]] = {
    "null": lambda compressed, _limit: compressed,
    "deflate": _decompress_by(lambda: zlib.decompressobj(-zlib.MAX_WBITS)),
    "snappy": _decompress_snappy,
    "zstandard": _decompress_zstd,
    "bzip2": _decompress_by(bz2.BZ2Decompressor),
    "xz": _decompress_by(lzma.LZMADecompressor),
}


_NOT_EXACT = "is not in whole microseconds or not in the years 1 to 9999"
_DECIMAL_DIGITS = 76  # of the longest decimal of Arrow
_EXACT = Context(prec=_DECIMAL_DIGITS)
_DAY_US = 86_400 * 10**6
_EPOCH, _LOCAL_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)  # noqa: DTZ001
# Called by fastavro with a decoded value and its type; returns the value for JSON, or an error.
LogicalReader = Callable[..., Any]


def _read_date(days: int, *_: Any) -> date | ConversionError:
    try:
        return date.fromordinal(719_163 + days)
    except (ValueError, OverflowError):
        return ConversionError(_NOT_EXACT, f"{days} days since 1970")


def _time_reader(unit_us: int) -> LogicalReader:
    def read(value: int, *_: Any) -> time | ConversionError:
        microseconds = value * unit_us
        if not 0 <= microseconds < _DAY_US:
            return ConversionError("is not a time of day", f"{microseconds} us since midnight")
        return (_LOCAL_EPOCH + timedelta(microseconds=microseconds)).time()

    return read


def _timestamp_reader(unit_ns: int, epoch: datetime) -> LogicalReader:
    def read(value: int, *_: Any) -> datetime | ConversionError:
        microseconds, rest = divmod(value * unit_ns, 1000)
        if rest:
            return ConversionError(_NOT_EXACT, f"{value} ns since 1970")
        try:
            return epoch + timedelta(microseconds=microseconds)
        except OverflowError:
            return ConversionError(_NOT_EXACT, f"{microseconds} us since 1970")

    return read


def _read_decimal(digits: bytes, kind: Any, *_: Any) -> Decimal | ConversionError:
    unscaled = int.from_bytes(digits, "big", signed=True)
    if not -kind["limit"] < unscaled < kind["limit"]:
        return ConversionError("has more digits than its type", str(unscaled))
    return _EXACT.scaleb(Decimal(unscaled), -kind["scale"])


def _read_map(pairs: list[dict[str, Any]], *_: Any) -> dict[str, Any] | ConversionError:
    values = {pair["key"]: pair["value"] for pair in pairs}
    if len(values) < len(pairs):
        return ConversionError("holds a map with a duplicate key", str(pairs[:100]))
    return values


_TIMES: dict[tuple[str, str], tuple[pa.DataType, LogicalReader]] = {
    ("int", "date"): (pa.date32(), _read_date),
    ("int", "time-millis"): (pa.time32("ms"), _time_reader(1000)),
    ("long", "time-micros"): (pa.time64("us"), _time_reader(1)),
}
for _name, _unit, _unit_ns in (("millis", "ms", 10**6), ("micros", "us", 1000), ("nanos", "ns", 1)):
    _TIMES["long", f"timestamp-{_name}"] = (
        pa.timestamp(_unit, "UTC"),
        _timestamp_reader(_unit_ns, _EPOCH),
    )
    _TIMES["long", f"local-timestamp-{_name}"] = (
        pa.timestamp(_unit),
        _timestamp_reader(_unit_ns, _LOCAL_EPOCH),
    )
# The names are our own, so that none of fastavro's readers is replaced.
fastavro.read.LOGICAL_READERS |= {
    "bytes-exact-decimal": _read_decimal,
    "fixed-exact-decimal": _read_decimal,
    "fixed-exact-uuid": lambda value, *_: str(UUID(bytes=value)),
    "array-exact-map": _read_map,
    **{f"{kind}-exact-{meaning}": reader for (kind, meaning), (_, reader) in _TIMES.items()},
}
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
_NESTED = {"record": ColumnType.OBJECT, "map": ColumnType.OBJECT, "array": ColumnType.ARRAY}
_ITEMS = {"array": "items", "map": "values"}
_MIN_BYTES = {"null": 0, "float": 4, "double": 8}  # of a value; 1 for other types


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroType:
    """A type of a schema; `arrow` is None for nested types and unions of several types.

    `decoded` is the schema used to decode values, with our readers for logical types. `min_bytes`
    is the minimum size of a value: a block that claims more records than fit is damaged. A union of
    null and one type is represented as that type, with another schema. `types` and `levels` count
    the types in it and their levels, including itself.
    """

    kind: str
    decoded: Any
    min_bytes: int
    arrow: pa.DataType | None = None
    types: int = 1
    levels: int = 1


_MAX_TYPES = 100_000
_MAX_LEVELS = 200


def _nested(kind: str, decoded: Any, children: Collection[AvroType], min_bytes: int) -> AvroType:
    """Return a type of nested types.

    A named type counts wherever it is used: with references alone, a schema of 2 KB could describe
    2^40 values of no bytes, or values so deep that decoding them overflows the C stack.
    """
    types = 1 + sum(child.types for child in children)
    levels = 1 + max((child.levels for child in children), default=0)
    if types > _MAX_TYPES or levels > _MAX_LEVELS:
        raise InvalidAvroError("has a schema of too many types")
    return AvroType(kind=kind, decoded=decoded, min_bytes=min_bytes, types=types, levels=levels)


def _record(fields: dict[str, AvroType], decoded: Callable[[AvroType], Any]) -> AvroType:
    """Return the type of records with these fields; each field is decoded by its own schema."""
    listed = [{"name": name, "type": decoded(field)} for name, field in fields.items()]
    min_bytes = sum(field.min_bytes for field in fields.values())
    return _nested("record", {"type": "record", "fields": listed}, fields.values(), min_bytes)


class _SchemaReader:
    """Converts the types of a schema; `named` are the named types that fastavro has parsed."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._types: dict[str, AvroType | None] = {}  # None while a record is being converted
        self._count = 0

    def fields_of_file(self, parsed: Any) -> dict[str, AvroType]:
        kind = parsed["type"] if isinstance(parsed, dict) else parsed
        if kind != "record":
            shown = "union" if isinstance(kind, list) else kind
            raise InvalidAvroError(f"holds values of a type other than record: {shown}")
        return self._fields(parsed)

    def _fields(self, record: dict[str, Any]) -> dict[str, AvroType]:
        name = record["name"]
        self._types[name] = None
        fields = {_text(field["name"]): self._type_of(field["type"]) for field in record["fields"]}
        if len(fields) < len(record["fields"]):
            raise InvalidAvroError(f"has a schema with a duplicate field of {name}")
        return fields

    def _type_of(self, schema: Any) -> AvroType:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str) and schema not in _PRIMITIVES and schema in self._named:
            return self._reference(schema)
        definition = schema if isinstance(schema, dict) else {"type": schema}
        kind = definition["type"]
        if kind in _ITEMS:
            return self._items(kind, definition)
        if kind == "record":
            return self._define(
                definition, _record(self._fields(definition), attrgetter("decoded"))
            )
        converted = _leaf(kind, definition)
        return self._define(definition, converted) if kind in {"enum", "fixed"} else converted

    def _reference(self, name: str) -> AvroType:
        known = self._types[name]
        if known is None:
            reason = f"has a recursive schema ({name}), which is not supported"
            raise InvalidAvroError(reason)
        return replace(known, decoded=known.decoded["name"])

    def _define(self, definition: dict[str, Any], converted: AvroType) -> AvroType:
        """Register a named type without its namespace; later types refer to it by that name."""
        self._count += 1
        name = f"t{self._count}"
        named = replace(converted, decoded=converted.decoded | {"name": name})
        self._types[definition["name"]] = named
        return named

    def _items(self, kind: str, definition: dict[str, Any]) -> AvroType:
        items = self._type_of(definition[_ITEMS[kind]])
        if kind == "array" and not items.min_bytes:
            raise InvalidAvroError("has a schema of arrays of nothing, which is not supported")
        decoded: dict[str, Any] = {"type": "array", "items": items.decoded}
        if kind == "map":
            # Decoded as pairs, which have the same bytes: a dict would keep only one of the values
            # of a duplicate key.
            self._count += 1
            fields = [{"name": "key", "type": "string"}, {"name": "value", "type": items.decoded}]
            pair = {"type": "record", "name": f"t{self._count}", "fields": fields}
            decoded = {"type": "array", "items": pair, "logicalType": "exact-map"}
            items = replace(items, levels=items.levels + 1)
        return _nested(kind, decoded, [items], 1)

    def _union(self, schema: list[Any]) -> AvroType:
        if any(isinstance(branch, list) for branch in schema):
            raise InvalidAvroError("has no valid avro schema (a union in a union)")
        branches = [self._type_of(branch) for branch in schema]
        decoded = [branch.decoded for branch in branches]
        others = [branch for branch in branches if branch.kind != "null"]
        union = _nested("union", decoded, branches, 1)
        union = replace(union, levels=union.levels - 1)
        if len(others) == 1:
            return replace(union, kind=others[0].kind, arrow=others[0].arrow)
        return union


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidAvroError(f"has a schema with a field whose name is not text ({name!r:.80})")
    return name


def _leaf(kind: str, definition: dict[str, Any]) -> AvroType:
    arrow, min_bytes = _PRIMITIVES[kind], _MIN_BYTES.get(kind, 1)
    logical = definition.get("logicalType", "")
    more: dict[str, Any] = {}
    if kind == "enum":
        more["symbols"] = list(definition["symbols"])
    elif kind == "fixed":
        min_bytes = more["size"] = int(definition["size"])
        if min_bytes < 0:
            raise InvalidAvroError(f"has a schema with values of {min_bytes} bytes")
    if (kind, logical) in _TIMES:
        arrow, _ = _TIMES[kind, logical]
        more["logicalType"] = f"exact-{logical}"
    elif logical == "uuid" and kind == "fixed" and min_bytes == 16:
        arrow = pa.uuid()
        more["logicalType"] = "exact-uuid"
    elif logical == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = definition.get("precision"), definition.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision:
            if not 0 < precision <= _DECIMAL_DIGITS:
                raise InvalidAvroError(f"has a schema with decimals of {precision} digits")
            arrow = pa.decimal256(precision, scale)
            more |= {"logicalType": "exact-decimal", "scale": scale, "limit": 10**precision}
    decoded = {"type": kind, **more} if more else kind
    return AvroType(kind=kind, decoded=decoded, min_bytes=min_bytes, arrow=arrow)


def read_schema(schema: Any) -> tuple[dict[str, AvroType], AvroType]:
    """Convert the schema of a file into the fields of its records, and the type to decode them.

    Raises:
        InvalidAvroError: it is not a schema of records, or it has recursive types or arrays of
            null, which are not supported.
    """
    try:
        named: dict[str, Any] = {}
        parsed = fastavro.parse_schema(schema, named, _force=True)
        fields = _SchemaReader(named).fields_of_file(parsed)
        record = _record(fields, _as_counts)
    except InvalidAvroError:
        raise
    except (SchemaParseException, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise InvalidAvroError(f"has no valid avro schema ({error})") from error
    except RecursionError as error:
        raise InvalidAvroError("has a schema of too many types") from error
    return fields, replace(record, decoded=record.decoded | {"name": "t0"})


def _as_counts(field: AvroType) -> Any:
    """Return the schema used to decode a column; times become numbers, which Arrow converts."""
    if field.arrow is None or not at.is_temporal(field.arrow):
        return field.decoded
    if isinstance(field.decoded, list):
        return [kind if kind == "null" else kind["type"] for kind in field.decoded]
    return field.decoded["type"]


class _Field:
    """One field of the records, as a column."""

    def __init__(self, name: str, field: AvroType, on_nonfinite: OnNonfinite) -> None:
        arrow: Any = field.arrow
        if arrow is None:
            self.column = Column(name=name, type=_NESTED.get(field.kind, ColumnType.ANY))
        else:
            self.column = column_of(name, arrow)
        is_converted = arrow is not None and (at.is_decimal(arrow) or is_uuid(arrow))
        self._arrow = arrow_type_of(self.column) if is_converted else arrow
        self._on_nonfinite = on_nonfinite

    def convert(self, values: list[Any]) -> ConvertedArray:
        """Return decoded values as an array, null where they do not fit."""
        if self.column.type in JSON_TYPES:
            return to_json_array(values, self._on_nonfinite)
        if at.is_temporal(self._arrow):
            raw = pa.int32() if self._arrow.bit_width == 32 else pa.int64()
            try:
                counts = pa.array(values, raw)
            except pa.ArrowInvalid as error:
                raise InvalidAvroError("is damaged: an int has more than 32 bits") from error
            return convert_array(counts.view(self._arrow), self.column)
        try:
            return ConvertedArray(pa.array(values, self._arrow))
        except (pa.ArrowException, UnicodeEncodeError):
            errors = {row: fault for row, value in enumerate(values) if (fault := _error_of(value))}
        kept = [None if row in errors else value for row, value in enumerate(values)]
        return ConvertedArray(pa.array(kept, self._arrow), errors)


def _error_of(value: Any) -> ConversionError | None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return ConversionError("is not UTF-8", value.encode(errors="replace").decode())
    return value if isinstance(value, ConversionError) else None


_WRONG_COUNT = "is damaged: the record count of a block is wrong"
_CHUNK_BYTES = 2 * 2**20
_MAX_EMPTY = 10**6  # records of no bytes: a file of a few bytes could claim any number
Record = dict[str, Any]


def read_chunks(source: DecodedFile, stream: Stream) -> Iterator[Table]:
    """Yield the records in order, a few MiB at a time, or an empty table with the columns.

    Raises:
        BadFileError: the file is damaged, or has values that are not supported.
    """
    try:
        yield from _tables(source, stream)
    except (InvalidAvroError, ArrowTypeUnknownError) as error:
        raise source.bad_file(str(error)) from error


def _tables(source: DecodedFile, stream: Stream) -> Iterator[Table]:
    file = AvroFile(source, max_expansion=stream.read_limits.max_expansion)
    types, record = read_schema(file.schema)
    check_column_names(types, stream.read_limits)
    fields = [_Field(name, kind, stream.on_nonfinite) for name, kind in types.items()]
    decoder = _Decoder(record)
    records: list[Record] = []
    first, size = 1, 0
    for block_count, block in file.blocks():
        for decoded, size_bytes in decoder.decode(block_count, block):
            records += decoded
            size += size_bytes
            if size >= _CHUNK_BYTES:
                yield _table(records, fields, first)
                first += len(records)
                records, size = [], 0
    if records or first == 1:
        yield _table(records, fields, first)


def _table(records: list[Record], fields: list[_Field], first_number: int) -> Table:
    columns = [field.column for field in fields]
    arrays = [field.convert([record[field.column.name] for record in records]) for field in fields]

    def raw(row: int, _: RowError) -> bytes:
        return record_text(records[row])

    return build_table(columns, arrays, first_number, raw, {})


class _Decoder:
    """Decodes the records of a block.

    All records are decoded at once, as if they were one avro array, which is faster than a call for
    each record. A large block is decoded record by record, because values of one byte would fill
    the memory with objects.
    """

    def __init__(self, record: AvroType) -> None:
        self._item = fastavro.parse_schema(record.decoded)
        self._items = fastavro.parse_schema({"type": "array", "items": record.decoded})
        self._min_bytes = record.min_bytes
        self._empty = 0

    def decode(self, count: int, block: bytes) -> Iterator[tuple[list[Record], int]]:
        """Yield the records and their encoded size, a few MiB at a time."""
        size = len(block)
        if count * self._min_bytes > size:
            raise InvalidAvroError("is damaged: a block lacks some of its records")
        if size and not self._min_bytes:  # at the end of an array, they would be another count
            raise InvalidAvroError(_WRONG_COUNT)
        self._empty += 0 if self._min_bytes else count
        if self._empty > _MAX_EMPTY:
            raise InvalidAvroError(f"has more than {_MAX_EMPTY} records without a byte")
        if size <= 2 * _CHUNK_BYTES:
            yield self._decode_all(count, block), size
            return
        data, start = io.BytesIO(block), 0
        while count:
            records: list[Record] = []
            while count and data.tell() - start < _CHUNK_BYTES:
                records.append(_decode(data, self._item))
                count -= 1
            yield records, data.tell() - start
            start = data.tell()
        if start < size:
            raise InvalidAvroError(_WRONG_COUNT)

    def _decode_all(self, count: int, block: bytes) -> list[Record]:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, "long", count)
        data.write(block + (b"\0" if count else b""))
        data.seek(0)
        records = _decode(data, self._items)
        if len(records) != count or data.read(1):
            raise InvalidAvroError(_WRONG_COUNT)
        return list(records)


def _decode(data: io.BytesIO, schema: Any) -> Any:
    try:
        return fastavro.schemaless_reader(
            data, schema, None, handle_unicode_errors="surrogateescape"
        )
    except (ArithmeticError, EOFError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise InvalidAvroError("is damaged: a block has records that cannot be read") from error
