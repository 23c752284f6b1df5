"""Validate chunks of JSON records: three ways to read them, from the fastest to the most careful.

The careful way alone would be correct for every record. The fast ways exist for speed only, and
each must prove for a whole block that it reads what the careful way would read; else the block goes
to the next one:

1. `json_vectorized.FlatReader` (columnar outputs only): NumPy over blocks of flat lines.
2. `JsonValidator._decode_all`: one msgspec call per record, and one proof for the block that no key
   is there twice.
3. `JsonValidator._decode_each`: record by record. Absent keys are fine, and `RecordValidator`
   examines each record that the decoder rejects: it reports why the record is bad, widens the
   schema, or rescues values.

Measured with blocks of 20,000 records (time of validation, relative to all ways on):

| keys, output       | without 1 | without 1 and 2 |
|--------------------|-----------|-----------------|
| 6 flat, to columns | 1.4       | 2.7             |
| 6 flat, to lines   | (unused)  | 3.1             |
| nested, to columns | 1.0       | 1.0             |
| nested, to lines   | (unused)  | 1.5             |
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from batch_pipeline.encode.arrow_types import JSON_TYPES
from batch_pipeline.encode.chunks import Chunk, JsonRecords, MalformedRecord, Table, TextLines
from batch_pipeline.encode.validation.json_decoder import (
    RecordDecoder,
    cached_decoder,
)
from batch_pipeline.encode.validation.json_syntax import (
    BadRecordError,
    count_key_quotes,
    count_nonfinite,
    keeps_all_keys,
    nonfinite_fields,
    quote_key,
    replace_nonfinite,
    split_record,
)
from batch_pipeline.encode.validation.json_vectorized import FlatReader
from batch_pipeline.encode.validation.type_inference import (
    InferredType,
    SchemaProfile,
    infer_json_type,
)
from batch_pipeline.model.record_rules import RESCUED, Evolution, OnNonfinite
from batch_pipeline.model.schema import Column, ColumnType, name_fault
from batch_pipeline.model.stream import Stream

# Types whose Arrow columns hold NaN, or may do so once they are widened.
_NAN_TYPES = (ColumnType.NUMBER, ColumnType.UNKNOWN, ColumnType.INTEGER)
_OPTIONAL = frozenset({RESCUED})  # no record of a source needs to have it
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_SPARSE_RATIO = 8  # if more than one record in 8 lacks a key, decoding the block at once will fail
_UNFIT = "has a value that its column cannot hold"


@dataclass(slots=True)
class ValidatedRecord:
    """A single valid record: its text, with rescued values moved, and its decoded struct.

    `record` is None if the known schema does not hold it. `nonfinite` has the NaN and infinite
    values of columns of doubles, which the text has as null.
    """

    line: bytes
    record: Struct | None = None
    rescued: bool = False
    nonfinite: dict[str, float] = field(default_factory=dict)


class RecordValidator:
    """Validates single records, and widens the profile by their values or rescues these."""

    def __init__(self, profile: SchemaProfile, stream: Stream, *, values: bool) -> None:
        self._profile = profile
        self._values = values
        self._on_nonfinite = stream.on_nonfinite
        self._rescues = stream.schema.evolution is Evolution.RESCUE
        self._max_columns = stream.read_limits.max_columns

    def validate(self, line: bytes, decoder: RecordDecoder, *, place: int) -> ValidatedRecord:
        """Validate a record that starts at line `place` of its file.

        Raises:
            BadRecordError: The line is not a valid record.
        """
        line, nonfinite = self._replace_nonfinite(line)
        fields = split_record(line)
        self._check_names(fields)
        rescued = {
            name: text
            for name, text in fields.items()
            if not self._accept(name, text, is_nan=name in nonfinite, place=place)
        }
        result = ValidatedRecord(line, nonfinite=nonfinite)
        if rescued:
            fields = self._move_rescued(fields, rescued)
            result.line, result.rescued = _join_fields(fields), True
            result.nonfinite = {n: v for n, v in nonfinite.items() if n not in rescued}
        if self._profile.fits:
            result.record = decoder.record(fields)
        return result

    def _replace_nonfinite(self, line: bytes) -> tuple[bytes, dict[str, float]]:
        if b"NaN" not in line and b"Infinity" not in line:
            return line, {}
        if self._values:
            fields = nonfinite_fields(line)
            # A column of doubles holds NaN itself; one inside of a nested value obeys the rule.
            if (
                fields
                and len(fields) == count_nonfinite(line)
                and all(map(self._holds_nan, fields))
            ):
                return replace_nonfinite(line, OnNonfinite.NULL), fields
        return replace_nonfinite(line, self._on_nonfinite), {}

    def _holds_nan(self, name: str) -> bool:
        column = self._profile.columns.get(name)
        return column is None or column.type in _NAN_TYPES

    def _check_names(self, fields: dict[str, bytes]) -> None:
        known = self._profile.columns
        new = [name for name in fields if name not in known]
        for name in () if self._rescues else new:  # a rescued key is part of a text, not a column
            if fault := name_fault(name):
                raise BadRecordError(f"has the key {quote_key(name)}: {fault}")
        limit = self._max_columns
        if len(fields) > limit:
            raise BadRecordError(
                f"has {len(fields)} columns, more than `read_limits.max_columns` allows ({limit})"
            )
        if new and len(known) + len(new) > limit and not self._rescues:
            raise BadRecordError(
                f"has columns that would make more than `read_limits.max_columns` allows ({limit})"
            )

    def _accept(self, name: str, text: bytes, *, is_nan: bool, place: int) -> bool:
        """Add a value to the profile, or return False if it is to be rescued."""
        known = self._profile.columns.get(name)
        if is_nan:
            inferred = InferredType(Column(name=name, type=ColumnType.NUMBER))
        else:
            inferred = infer_json_type(name, text, known, exact=self._values)
        column, wide = inferred.column, inferred.wide
        if self._rescues and not self._profile.accepts(column, text=False, wide=wide):
            return False
        self._profile.add(column, text=False, wide=wide, line=place)
        return True

    def _move_rescued(
        self, fields: dict[str, bytes], rescued: dict[str, bytes]
    ) -> dict[str, bytes]:
        if RESCUED in fields:
            rescued = {**rescued, RESCUED: fields[RESCUED]}
        remaining = {
            name: b"null" if name in rescued else text
            for name, text in fields.items()
            if name in self._profile.columns
        }
        return remaining | {RESCUED: msgspec.json.encode(str(_join_fields(rescued), "utf-8"))}


def _join_fields(fields: dict[str, bytes]) -> bytes:
    pairs = (msgspec.json.encode(name) + b":" + text for name, text in fields.items())
    return b"{" + b",".join(pairs) + b"}"


class _ChunkResult:
    """The outcome of validating a chunk; records are named by their positions in it."""

    def __init__(self, chunk: JsonRecords) -> None:
        self.chunk = chunk
        self.good: list[int] = []
        self.bad: dict[int, str] = {}
        self.changed_lines: dict[int, bytes] = {}
        self.arrays: list[list[pa.Array]] = []
        self.rescued = 0

    def lines(self) -> Sequence[bytes]:
        """Return the text of the good records, without carriage returns."""
        lines = self.chunk.lines
        if self.bad or self.changed_lines:
            lines = [self.changed_lines.get(at) or lines[at] for at in self.good]
        if isinstance(lines, TextLines):
            has_returns = lines.text.find(b"\r", 0, lines.size_bytes) >= 0
        else:
            has_returns = any(b"\r" in line for line in lines)
        # A return between two values is valid JSON, but some readers would end the line there.
        return [line.replace(b"\r", b" ") for line in lines] if has_returns else lines

    def record_batch(self, columns: Iterable[Column]) -> pa.RecordBatch:
        """Return the good records as a batch of these columns."""
        arrays = {}
        for index, column in enumerate(columns if self.good and self.arrays else ()):
            pieces = [piece[index] for piece in self.arrays]
            array = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
            if column.name not in _OPTIONAL or array.null_count < len(array):
                arrays[column.name] = array
        if not arrays:  # records without a column still count as rows
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(self.good), pa.struct([])))
        return pa.RecordBatch.from_pydict(arrays)

    def of_good(self, numbers: Sequence[int]) -> Sequence[int]:
        """Select the numbers of the good records."""
        return [numbers[at] for at in self.good] if self.bad else numbers


@dataclass(slots=True)
class _Segment:
    """Consecutive records read by one decoder: positions of the good ones, and their structs."""

    positions: list[int]
    records: list[Struct | None]
    nonfinite: dict[int, dict[str, float]] = field(default_factory=dict)
    sparse: bool = False

    def drop(self, rows: Collection[int]) -> None:
        """Remove some records."""
        if rows:
            self.positions = [at for row, at in enumerate(self.positions) if row not in rows]
            self.records = [one for row, one in enumerate(self.records) if row not in rows]


class JsonValidator:
    """Validates chunks of JSON records against the schema of the profile.

    With `values`, the good records become a table of the schema's columns, in which objects, arrays
    and mixed values are JSON text. Without, they remain the lines that they were.

    Records are read in segments, because a decoder is compiled for the columns of the profile: the
    first record that widens it ends the segment.
    """

    def __init__(self, profile: SchemaProfile, stream: Stream, *, values: bool) -> None:
        self._profile = profile
        self._validator = RecordValidator(profile, stream, values=values)
        self._values = values
        self._use_columns()

    def validate(self, chunk: JsonRecords) -> Chunk:
        """Move bad records to `bad`, and widen the profile by the values of the others."""
        result = _ChunkResult(chunk)
        start = 0
        while start < len(chunk.lines):
            start = self._read_segment(result, start)
        bad = (
            MalformedRecord(line=chunk.line_numbers[at], reason=reason, raw=chunk.lines[at])
            for at, reason in sorted(result.bad.items())
        )
        counts: dict[str, Any] = {
            "line_numbers": result.of_good(chunk.line_numbers),
            "record_numbers": result.of_good(chunk.record_numbers),
            "bad": (*chunk.bad, *bad),
            "filtered": chunk.filtered,
            "rescued": chunk.rescued + result.rescued,
        }
        if not self._values or not self._profile.fits:
            return JsonRecords(lines=result.lines(), **counts)
        batch = result.record_batch(self._profile.columns.values())
        types = {name: column.type for name, column in self._profile.columns.items()}
        nested = frozenset(name for name in batch.schema.names if types[name] in JSON_TYPES)
        return Table(batch=batch, json=nested, **counts)

    def _read_segment(self, result: _ChunkResult, start: int) -> int:
        """Read from position `start`, and return where the next segment starts."""
        if self._is_outdated():
            self._use_columns()
        lines = result.chunk.lines[start:] if start else result.chunk.lines
        if self._values and not self._sparse and isinstance(lines, TextLines):
            arrays = self._flat_reader.read(lines)
            if arrays is not None:
                result.arrays.append(arrays)
                result.good += range(len(lines))
                return len(lines)
        stop = len(result.chunk.lines)
        records = None if self._sparse else self._decode_all(lines)
        if records is None:
            segment, stop = self._decode_each(result, start)
        else:
            segment = _Segment(list(range(start, stop)), [*records])
        if self._decoder.built:
            self._build_columns(segment, result)
        result.good += segment.positions
        return stop

    def _is_outdated(self) -> bool:
        profile = self._profile
        return self._columns != profile.columns or len(self._wide) < len(profile.wide)

    def _use_columns(self) -> None:
        self._columns = dict(self._profile.columns)
        self._wide = frozenset(self._profile.wide)
        self._sparse = False
        columns = tuple(self._columns.values())
        self._has_nested = any(column.type in JSON_TYPES for column in columns)
        self._decoder = cached_decoder(
            columns, values=self._values, optional=_OPTIONAL, wide=self._wide
        )
        self._flat_reader = FlatReader(columns, _OPTIONAL, self._wide)

    def _decode_all(self, lines: Sequence[bytes]) -> list[Struct] | None:
        """Decode records that all have all columns, or return None if it is not proven."""
        decode, required = self._decoder.decode_complete, len(self._columns)
        views: Iterable[bytes | memoryview] = lines
        if isinstance(lines, TextLines):
            text, views = lines.text[: lines.size_bytes], lines.views()
        else:
            text = b"\n".join(lines)
        try:
            if self._has_nested:
                records = list(map(decode, views))
                return records if keeps_all_keys(records, text) else None
            # Without columns to build, the records need not be kept.
            records = list(deque(map(decode, views), None if self._decoder.built else 0))
        except _DECODE_ERRORS:
            return None
        required -= len(self._decoder.optional)
        return records if count_key_quotes(text) == required * len(lines) else None

    def _decode_each(self, result: _ChunkResult, start: int) -> tuple[_Segment, int]:
        """Decode record by record, up to the first one that widens the profile, inclusive."""
        segment = _Segment([], [], sparse=True)
        decoded_rows: list[int] = []
        stop = start
        for stop, line in enumerate(result.chunk.lines[start:], start=start + 1):
            try:
                segment.records.append(self._decoder.decode(line))
            except _DECODE_ERRORS:
                self._validate_record(result, segment, stop - 1)
                if self._is_outdated():
                    break
            else:
                segment.positions.append(stop - 1)
                decoded_rows.append(len(segment.positions) - 1)
        self._reject_duplicate_keys(result, segment, decoded_rows)
        return segment, stop

    def _reject_duplicate_keys(
        self, result: _ChunkResult, segment: _Segment, rows: list[int]
    ) -> None:
        """Reject the decoded records that have a key twice; `RecordValidator` did the others."""
        records = [segment.records[row] for row in rows]
        lines = [result.chunk.lines[segment.positions[row]] for row in rows]
        absent = [astuple(record).count(UNSET) for record in records if record is not None]
        incomplete = sum(count > len(_OPTIONAL) for count in absent)
        self._sparse = incomplete * _SPARSE_RATIO > len(records)
        if keeps_all_keys(records, b"\n".join(lines)):
            return
        duplicates: set[int] = set()
        for row, record, line in zip(rows, records, lines, strict=True):
            if not keeps_all_keys(record, line):
                try:
                    split_record(line)
                except BadRecordError as error:
                    result.bad[segment.positions[row]] = str(error)
                    duplicates.add(row)
        segment.drop(duplicates)

    def _validate_record(self, result: _ChunkResult, segment: _Segment, at: int) -> None:
        """Examine a record, and append it to the segment if it is valid."""
        line, place = result.chunk.lines[at], result.chunk.line_numbers[at]
        try:
            valid = self._validator.validate(line, self._decoder, place=place)
        except BadRecordError as error:
            result.bad[at] = str(error)
            return
        if valid.line != line:
            result.changed_lines[at] = valid.line
        result.rescued += valid.rescued
        segment.positions.append(at)
        segment.records.append(valid.record)
        if valid.nonfinite:
            segment.nonfinite[at] = valid.nonfinite

    def _build_columns(self, segment: _Segment, result: _ChunkResult) -> None:
        """Build the columns, and examine the records with values that the decoder did not check."""
        arrays, invalid = self._columns_of(segment)
        if invalid:
            self._validate_rows(invalid, segment, result)
            if self._profile.fits:
                arrays, invalid = self._columns_of(segment)
                if invalid:
                    # `RecordValidator` accepted these, the columns do not: null would lose a value.
                    for row in invalid:
                        result.bad[segment.positions[row]] = _UNFIT
                    segment.drop(invalid)
                    arrays, _ = self._columns_of(segment)
        if self._values and self._profile.fits and segment.positions:
            result.arrays.append(_restore_nonfinite(arrays, segment, self._decoder))

    def _validate_rows(self, rows: set[int], segment: _Segment, result: _ChunkResult) -> None:
        before = list(enumerate(zip(segment.positions, segment.records, strict=True)))
        segment.positions, segment.records, segment.sparse = [], [], True
        for row, (at, record) in before:
            if row in rows:
                self._validate_record(result, segment, at)
            else:
                segment.positions.append(at)
                segment.records.append(record)

    def _columns_of(self, segment: _Segment) -> tuple[list[pa.Array], set[int]]:
        """Build the columns of the records that the known schema holds, and find invalid rows."""
        rows = [row for row, record in enumerate(segment.records) if record is not None]
        records = [record for record in segment.records if record is not None]
        if not records:
            return [], set()
        arrays, invalid = self._decoder.build_columns(records, sparse=segment.sparse)
        return arrays, {rows[position] for position in invalid}


def _restore_nonfinite(
    arrays: list[pa.Array], segment: _Segment, decoder: RecordDecoder
) -> list[pa.Array]:
    """Set NaN and infinities, which the JSON text has as null."""
    rows = {at: row for row, at in enumerate(segment.positions)} if segment.nonfinite else {}
    by_row = {rows[at]: values for at, values in segment.nonfinite.items() if at in rows}
    for index, column in enumerate(decoder.columns):
        numbers = {row: vals[column.name] for row, vals in by_row.items() if column.name in vals}
        if numbers:
            cells = arrays[index].to_pylist()
            for row, number in numbers.items():
                cells[row] = number
            arrays[index] = pa.array(cells, arrays[index].type)
    return arrays
