"""Reads avro files block by block; several small blocks become one table."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import fastavro
import pyarrow as pa

from batch_pipeline.domain.record_rules import OnNonfinite, ReadLimits
from batch_pipeline.spark.arrow_types import JSON_TYPES
from batch_pipeline.spark.chunks import BadText, Table
from batch_pipeline.spark.json_values import json_text
from batch_pipeline.spark.read.arrow_values import MisfitError
from batch_pipeline.spark.read.avro_file import AvroBlock, AvroDamageError, AvroFile, ReadsBytes
from batch_pipeline.spark.read.avro_schema import AvroType, read_schema
from batch_pipeline.spark.read.avro_values import AvroField
from batch_pipeline.spark.read.refusals import MakesBadFile

_OTHERS = "is damaged: a block has other records than it says"
_CHUNK_BYTES = 2 * 2**20
_MAX_EMPTY = 10**6  # records without a byte: a file of a few bytes could say any number of them
Record = dict[str, Any]


class AvroReader:
    """The records of one avro file, read from the position of `file`."""

    def __init__(
        self,
        file: ReadsBytes,
        limits: ReadLimits,
        on_nonfinite: OnNonfinite,
        bad_file: MakesBadFile,
    ) -> None:
        self._file = file
        self._limits = limits
        self._on_nonfinite = on_nonfinite
        self._bad_file = bad_file
        self._number = 1

    def chunks(self) -> Iterator[Table]:
        """Give the records in order, a few MiB at a time; a file without any gives its columns.

        Raises:
            BadFileError: the file is damaged, or has values that are not supported.
        """
        try:
            yield from self._tables()
        except AvroDamageError as error:
            raise self._bad_file(str(error)) from error
        except OSError as error:
            reason = (error.strerror or "unknown reason").lower()
            raise self._bad_file(f"cannot be read ({reason})") from error

    def _tables(self) -> Iterator[Table]:
        file = AvroFile(self._file, max_expansion=self._limits.max_expansion)
        kind = read_schema(file.schema)
        fields = self._fields(kind)
        decode = _Decoder(kind)
        records: list[Record] = []
        size = 0
        for block in file.blocks():
            for found, size_bytes in decode.slices(block):
                records += found
                size += size_bytes
                if size >= _CHUNK_BYTES:
                    yield self._table(records, fields)
                    records, size = [], 0
        if records or self._number == 1:
            yield self._table(records, fields)

    def _fields(self, kind: AvroType) -> list[AvroField]:
        count = len(kind.children)
        if count > self._limits.max_columns:
            limit = f"`read_limits.max_columns` allows ({self._limits.max_columns})"
            raise AvroDamageError(f"has {count} columns, more than {limit}")
        if not count:
            raise AvroDamageError("has no columns")
        return [AvroField(name, child, self._on_nonfinite) for name, child in kind.children]

    def _table(self, records: list[Record], fields: Sequence[AvroField]) -> Table:
        first = self._number
        self._number += len(records)
        arrays: list[pa.Array] = []
        misfits: dict[int, tuple[str, MisfitError]] = {}
        for field in fields:
            name = field.column.name
            done = field.fitted([record[name] for record in records])
            arrays.append(done.array)
            for row, misfit in done.misfits.items():
                misfits.setdefault(row, (name, misfit))
        batch = pa.RecordBatch.from_arrays(arrays, [field.column.name for field in fields])
        numbers: Sequence[int] = range(first, self._number)
        bad: list[BadText] = []
        if misfits:
            for row in sorted(misfits):
                name, misfit = misfits[row]
                raw = _raw(records[row])
                bad.append(BadText(line=first + row, reason=f"column {name!r} {misfit}", raw=raw))
            good = [row for row in range(len(records)) if row not in misfits]
            batch = batch.take(pa.array(good, pa.int64()))
            numbers = [first + row for row in good]
        return Table(
            batch=batch,
            places=numbers,
            numbers=numbers,
            json=frozenset(f.column.name for f in fields if f.column.type in JSON_TYPES),
            bad=tuple(bad),
        )


class _Decoder:
    """Decodes the records of a block: in one go, as if they were one avro array, or one by one
    where the memory could not hold them, for a value may be one byte.
    """

    def __init__(self, kind: AvroType) -> None:
        self._item = fastavro.parse_schema(kind.plain)
        self._items = fastavro.parse_schema({"type": "array", "items": kind.plain})
        self._smallest = kind.smallest
        self._empty = 0

    def slices(self, block: AvroBlock) -> Iterator[tuple[list[Record], int]]:
        """Give the records, and the bytes that they had, a few MiB at a time."""
        size = len(block.records)
        if block.count * self._smallest > size:
            raise AvroDamageError("is damaged: a block has not all of its records")
        if size and not self._smallest:  # which would be read as the number of further ones
            raise AvroDamageError(_OTHERS)
        self._empty += 0 if self._smallest else block.count
        if self._empty > _MAX_EMPTY:
            raise AvroDamageError(f"has more than {_MAX_EMPTY} records without a byte")
        if size <= 2 * _CHUNK_BYTES:
            yield self._all_of(block), size
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
            raise AvroDamageError(_OTHERS)

    def _all_of(self, block: AvroBlock) -> list[Record]:
        data = io.BytesIO(_zigzag(block.count) + block.records + (b"\0" if block.count else b""))
        found = self._read(data, self._items)
        if len(found) != block.count or data.read(1):
            raise AvroDamageError(_OTHERS)
        return list(found)

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
            raise AvroDamageError("is damaged: a block has records that cannot be read") from error


def _zigzag(count: int) -> bytes:
    value = count << 1
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def _raw(record: Record) -> bytes:
    """Write a record that was set aside as JSON, its dates and decimals as avro holds them."""
    try:
        return json_text(record, OnNonfinite.STRING)
    except UnicodeEncodeError:
        return ascii(record).encode()
