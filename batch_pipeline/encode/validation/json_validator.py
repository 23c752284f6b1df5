"""Validate chunks of JSON records by three methods, from the fastest to the most careful.

The most careful method alone would be correct for every record. The fast methods exist only for
speed, and each must prove for a whole block that it reads the same as the careful one; otherwise
the block goes to the next method:

1. `FlatReader` (columnar outputs only): NumPy over blocks of flat lines.
2. `JsonValidator._decode_all`: one msgspec call per record, and one proof for the block that no key
   is duplicated.
3. `JsonValidator._decode_each`: record by record. Absent keys are allowed, and `RecordValidator`
   examines each record that the decoder rejects: it reports why the record is bad, widens the
   schema, or rescues values.

Measured with blocks of 20,000 records (time of validation, relative to all methods enabled):

| keys, output       | without 1 | without 1 and 2 |
|--------------------|-----------|-----------------|
| 6 flat, to columns | 1.4       | 2.7             |
| 6 flat, to lines   | (unused)  | 3.1             |
| nested, to columns | 1.0       | 1.0             |
| nested, to lines   | (unused)  | 1.5             |
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from batch_pipeline.encode.arrow_types import JSON_TYPES, arrow_type_of, empty_batch
from batch_pipeline.encode.chunks import (
    Chunk,
    JsonRecords,
    Mask,
    Octets,
    Offsets,
    Table,
    TextLines,
    remaining,
)
from batch_pipeline.encode.validation.json_records import (
    OPTIONAL,
    SLICE_BYTES,
    BadRecordError,
    RecordValidator,
    cached_decoder,
    count_key_quotes,
    keeps_all_keys,
    reject,
    split_record,
)
from batch_pipeline.encode.validation.type_inference import (
    MAX_TEXT_BYTES,
    TYPED_TEXT_TYPES,
    SchemaProfile,
    has_wide_integer,
    parse_texts,
    slice_strings,
)
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline.model.stream import Stream

_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_SPARSE_RATIO = 8  # if more than one record in 8 lacks a key, decoding the block at once will fail
_BYTES_PER_COLUMN = 8  # of records to examine one by one before a decoder is compiled
_UNFIT = "has a value that its column cannot hold"


class _ChunkResult:
    """The outcome of validating a chunk; records are identified by their positions in it."""

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
            array = array.cast(arrow_type_of(column))  # no texts were decoded for undeclared binary
            if column.name not in OPTIONAL or array.null_count < len(array):
                arrays[column.name] = array
        if not arrays:  # records without a column still count as rows
            return empty_batch(len(self.good))
        return pa.RecordBatch.from_pydict(arrays)


@dataclass(slots=True)
class _Segment:
    """Consecutive records read by one decoder: the structs of the good ones by their positions.

    A struct is None if the known schema does not hold the record, or if no column is built from it.
    """

    records: dict[int, Struct | None]
    sparse: bool = False


class JsonValidator:
    """Validates chunks of JSON records against the schema of the profile.

    With `values`, the good records become a table of the schema's columns, in which objects, arrays
    and mixed values are JSON text. Otherwise, they remain lines.

    Records are read in segments, because a decoder is compiled for the columns of the profile: the
    first record that widens it ends the segment. The time to compile grows with the columns, so
    that the next records, if they cannot be written anyway, are first examined one by one for as
    long: otherwise, the time would grow with the square of the number of new columns.
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
        bad = {at: (reason, chunk.lines[at]) for at, reason in result.bad.items()}
        counts = remaining(chunk, result.good, bad, rescued=result.rescued)
        if not self._values or not self._profile.fits:
            return JsonRecords(lines=result.lines(), **counts)
        batch = result.record_batch(self._profile.columns.values())
        types = {name: column.type for name, column in self._profile.columns.items()}
        nested = frozenset(name for name in batch.schema.names if types[name] in JSON_TYPES)
        return Table(batch=batch, json=nested, **counts)

    def _read_segment(self, result: _ChunkResult, start: int) -> int:
        """Read from position `start`, and return where the next segment starts."""
        if self._is_outdated():
            if not self._profile.fits and (stop := self._examine_each(result, start)) > start:
                return stop
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
            # Records from which no column is built were not kept.
            positions = range(start, stop)
            segment = _Segment(dict(zip_longest(positions, records)))
        if self._decoder.built:
            self._build_columns(segment, result)
        result.good += segment.records
        return stop

    def _is_outdated(self) -> bool:
        profile = self._profile
        return self._columns != profile.columns or len(self._wide) < len(profile.wide)

    def _examine_each(self, result: _ChunkResult, start: int) -> int:
        """Examine the next records before a decoder is compiled; return where to continue."""
        segment, at, lines = _Segment({}), start, result.chunk.lines
        columns = self._profile.columns
        while at < len(lines) and self._examined_bytes < _BYTES_PER_COLUMN * len(columns):
            self._examined_bytes += len(lines[at])
            if self._is_held(lines[at]):
                segment.records[at] = None
            else:
                self._validate_record(result, segment, at)
            at += 1
        result.good += segment.records
        return at

    def _is_held(self, line: bytes) -> bool:
        """Return whether a decoder of the record's own columns accepts it."""
        if self._decoder.decode is reject:
            return False
        try:
            own = split_record(line).keys()
            columns, wide = self._decoded_columns(own), frozenset(self._profile.wide & own)
            decoder = cached_decoder(columns, values=self._values, wide=wide)
            _, invalid = decoder.build_columns([decoder.decode(line)], sparse=True)
        except (BadRecordError, KeyError, *_DECODE_ERRORS):
            return False
        return not invalid

    def _decoded_columns(self, names: Iterable[str]) -> tuple[Column, ...]:
        """Return the columns to decode, all of them known.

        Raises:
            KeyError: A column is not known.
        """
        columns = self._profile.columns
        return tuple(self._profile.text_column(name) or columns[name] for name in names)

    def _use_columns(self) -> None:
        self._examined_bytes = 0
        self._columns = dict(self._profile.columns)
        self._wide = frozenset(self._profile.wide)
        self._sparse = False
        columns = self._decoded_columns(self._columns)
        self._has_nested = any(column.type in JSON_TYPES for column in columns)
        self._decoder = cached_decoder(columns, values=self._values, wide=self._wide)
        self._flat_reader = FlatReader(columns, self._wide)

    def _decode_all(self, lines: Sequence[bytes]) -> list[Struct] | None:
        """Decode records that all have all columns, or return None if that is not proven."""
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
        segment = _Segment({}, sparse=True)
        decoded: dict[int, Struct] = {}
        stop = start
        for stop, line in enumerate(result.chunk.lines[start:], start=start + 1):
            try:
                decoded[stop - 1] = segment.records[stop - 1] = self._decoder.decode(line)
            except _DECODE_ERRORS:
                self._validate_record(result, segment, stop - 1)
                if self._is_outdated():
                    break
        self._reject_duplicate_keys(result, segment, decoded)
        return segment, stop

    def _reject_duplicate_keys(
        self, result: _ChunkResult, segment: _Segment, decoded: Mapping[int, Struct]
    ) -> None:
        """Reject decoded records with duplicate keys; `RecordValidator` checked the others."""
        absent = [astuple(record).count(UNSET) for record in decoded.values()]
        incomplete = sum(count > len(OPTIONAL) for count in absent)
        self._sparse = incomplete * _SPARSE_RATIO > len(decoded)
        lines = result.chunk.lines
        if keeps_all_keys(list(decoded.values()), b"\n".join([lines[at] for at in decoded])):
            return
        for at, record in decoded.items():
            if not keeps_all_keys(record, lines[at]):
                try:
                    split_record(lines[at])
                except BadRecordError as error:
                    result.bad[at] = str(error)
                    del segment.records[at]

    def _validate_record(self, result: _ChunkResult, segment: _Segment, at: int) -> None:
        """Examine a record, and add it to the segment if it is valid."""
        line, place = result.chunk.lines[at], result.chunk.line_numbers[at]
        try:
            text, record, is_rescued = self._validator.validate(line, self._decoder, place=place)
        except BadRecordError as error:
            result.bad[at] = str(error)
            segment.records.pop(at, None)
            return
        if text != line:
            result.changed_lines[at] = text
        result.rescued += is_rescued
        segment.records[at] = record

    def _build_columns(self, segment: _Segment, result: _ChunkResult) -> None:
        """Build the columns, and examine the records with values that the decoder did not check."""
        arrays, invalid = self._columns_of(segment)
        if invalid:
            segment.sparse = True
            for at in invalid:
                self._validate_record(result, segment, at)
            if self._profile.fits:
                arrays, invalid = self._columns_of(segment)
                if invalid:
                    # `RecordValidator` accepted these, the columns do not: null would lose a value.
                    for at in invalid:
                        result.bad[at] = _UNFIT
                        del segment.records[at]
                    arrays, _ = self._columns_of(segment)
        if self._values and self._profile.fits and segment.records:
            result.arrays.append(arrays)

    def _columns_of(self, segment: _Segment) -> tuple[list[pa.Array], list[int]]:
        """Build the columns of the records that the known schema holds; find the invalid ones."""
        held = {at: record for at, record in segment.records.items() if record is not None}
        if not held:
            return [], []
        arrays, rows = self._decoder.build_columns(list(held.values()), sparse=segment.sparse)
        positions = list(held)
        return arrays, [positions[row] for row in sorted(rows)]


_QUOTE, _COLON, _COMMA, _OPEN, _CLOSE, _BLANK = b'":,{} '
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """The byte ranges of the values of a block, as arrays of shape (lines, keys).

    `keys` are the keys in order, as they are written. Where `is_string`, the value is a JSON string
    without escapes, and `starts` and `stops` exclude its quotes. Every other value is any text
    without quotes, whether it is valid JSON or not.
    """

    keys: Sequence[bytes]
    starts: Offsets
    stops: Offsets
    is_string: Mask


def find_layout(lines: TextLines) -> FlatLayout | None:
    """Find the values of all lines, or return None if the lines might be ambiguous.

    The layout is unique only without escapes, strings in nested values, keys that differ, blanks
    other than one after each colon or each comma, and bytes that a JSON string must not contain.
    UTF-8 is not checked.
    """
    size_bytes, count = lines.size_bytes, len(lines)
    if lines.text.find(b"\\", 0, size_bytes) >= 0:
        return None
    data = np.frombuffer(lines.text, np.uint8, size_bytes)
    quotes, controls = _find_quotes(data)
    if controls != count or len(quotes) % 2:
        return None
    # Without escapes, every second quote opens a string and the next one closes it.
    opening, closing = quotes[0::2], quotes[1::2]
    keys_at = np.flatnonzero(data[closing + 1] == _COLON)
    if not len(keys_at) or len(keys_at) % count:
        return None
    # Strings from each key up to the next one: the key itself, and its value if that is a string.
    strings = np.diff(keys_at, append=len(closing))
    first, last = opening[keys_at].reshape(count, -1), closing[keys_at].reshape(count, -1)
    blank_after_colon = _count_uniform_blanks(data, last + 2)
    blank_after_comma = _count_uniform_blanks(data, first[:, 1:] - 1)
    if blank_after_colon is None or blank_after_comma is None:
        return None
    starts = last + 2 + blank_after_colon
    stops = np.column_stack([first[:, 1:] - 1 - blank_after_comma, lines.ends - 2])
    is_string = (strings == 2).reshape(count, -1)
    if not (
        int(strings.max()) <= 2
        and _have_separators(data, lines, first, stops)
        and _have_matching_quotes(data, starts, stops, is_string)
        and _have_equal_keys(lines.text, first, last)
    ):
        return None
    bounds = zip(first[0].tolist(), last[0].tolist(), strict=True)
    keys = [lines.text[start + 1 : stop] for start, stop in bounds]
    return FlatLayout(keys, starts + is_string, stops - is_string, is_string)


def _find_quotes(data: Octets) -> tuple[Offsets, int]:
    """Return the offsets of all quotes, and the number of control characters."""
    quotes = []
    controls = 0
    for start in range(0, len(data), SLICE_BYTES):
        part = data[start : start + SLICE_BYTES]
        quotes.append(np.flatnonzero(part == _QUOTE) + start)
        controls += int(np.count_nonzero(part < _BLANK))
    return np.concatenate(quotes), controls


def _count_uniform_blanks(data: Octets, offsets: Offsets) -> int | None:
    """Return 1 if there is a blank at every offset, 0 if at none, and None otherwise."""
    count = int(np.count_nonzero(data[offsets] == _BLANK))
    return int(count > 0) if count in (0, offsets.size) else None


def _have_separators(data: Octets, lines: TextLines, first: Offsets, stops: Offsets) -> bool:
    """Return whether each key follows the opening brace of its line or a comma."""
    begins = np.append(0, lines.ends[:-1])
    return bool(
        (first[:, 0] == begins + 1).all()
        and (data[begins] == _OPEN).all()
        and (data[stops[:, -1]] == _CLOSE).all()
        and (data[stops[:, :-1]] == _COMMA).all()
    )


def _have_matching_quotes(data: Octets, starts: Offsets, stops: Offsets, is_string: Mask) -> bool:
    """Return whether no value is empty, and exactly the strings start and end with a quote."""
    return bool(
        (stops > starts + is_string).all()
        and ((data[starts] == _QUOTE) == is_string).all()
        and ((data[stops - 1] == _QUOTE) == is_string).all()
    )


def _have_equal_keys(text: bytes, first: Offsets, last: Offsets) -> bool:
    """Return whether all lines have the keys of the first one, comparing 8 bytes at a time."""
    lengths = last - first
    if not (lengths == lengths[0]).all():
        return False
    if int(last[-1, -1]) + _WORD_BYTES > len(text):
        text += bytes(_WORD_BYTES)
    # words[i] is the 64-bit integer at byte i. A shift drops the bytes after the end of a key.
    words = np.ndarray(len(text) - _WORD_BYTES + 1, "<u8", text, strides=(1,))
    remaining = lengths[0]
    while len(remaining):
        surplus = np.maximum(_WORD_BYTES - remaining, 0).astype(np.uint64)
        parts = words[first] << surplus * np.uint64(8)
        if not (parts == parts[0]).all():
            return False
        longer = remaining > _WORD_BYTES
        first, remaining = first[:, longer] + _WORD_BYTES, remaining[longer] - _WORD_BYTES
    return True


_STRING_TYPES = TYPED_TEXT_TYPES | {ColumnType.STRING}


class FlatReader:
    """Reads blocks of flat lines as Arrow arrays, one per column.

    `OPTIONAL` columns may be absent, but then must be absent from every line. Only `wide` integer
    columns may hold values beyond 2^53.
    """

    def __init__(self, columns: Sequence[Column], wide: frozenset[str]) -> None:
        self._columns = columns
        self._columns_by_type: dict[tuple[Column, bool], list[str]] = defaultdict(list)
        for column in columns:
            self._columns_by_type[replace(column, name=""), column.name in wide].append(column.name)
        self._is_supported = JSON_TYPES.isdisjoint(column.type for column in columns)

    def read(self, lines: TextLines) -> list[pa.Array] | None:
        """Return an array per column, or None unless it is proven that every line fits.

        A single line with a missing or an additional key, or with a value that its column may not
        hold, leaves the whole block to the decoder.
        """
        if not self._is_supported or lines.size_bytes > MAX_TEXT_BYTES:
            return None
        layout = find_layout(lines)
        if layout is None:
            return None
        try:
            if not lines.text.isascii():
                str(memoryview(lines.text)[: lines.size_bytes], "utf-8")
        except UnicodeDecodeError:
            return None
        positions = {str(key, "utf-8"): at for at, key in enumerate(layout.keys)}
        names = {column.name for column in self._columns}
        has_duplicates = len(positions) < len(layout.keys)
        if has_duplicates or not names - OPTIONAL <= positions.keys() <= names:
            return None
        arrays: dict[str, pa.Array] = {}
        # Columns of one type are parsed in one call, because each call has a fixed cost.
        for (column, is_wide), group in self._columns_by_type.items():
            present = sorted(positions.keys() & group, key=positions.__getitem__)
            if not present:
                continue
            values = _parse_columns(lines, layout, [positions[name] for name in present], column)
            is_integer = column.type is ColumnType.INTEGER
            if values is None or (is_integer and not is_wide and has_wide_integer(values)):
                return None
            for i, name in enumerate(present):
                arrays[name] = values.slice(i * len(lines), len(lines))
        for column in self._columns:
            if column.name not in positions:
                arrays[column.name] = pa.nulls(len(lines), arrow_type_of(column))
        return [arrays[column.name] for column in self._columns]


def _parse_columns(
    lines: TextLines, layout: FlatLayout, positions: list[int], column: Column
) -> pa.Array | None:
    """Return the values of several columns of one type, one column after the other."""
    texts = _slice_texts(lines, layout, positions, want_strings=column.type in _STRING_TYPES)
    if texts is None or column.type is ColumnType.STRING:
        return texts
    values, invalid = parse_texts(texts, column)
    return None if invalid else values


def _slice_texts(
    lines: TextLines, layout: FlatLayout, positions: list[int], *, want_strings: bool
) -> pa.StringArray | None:
    """Return the texts of several columns, or None unless all are strings or none is.

    `positions` are ascending: Arrow requires the end of the last text to be after the first one.
    """
    is_string = layout.is_string[:, positions].T.ravel()
    starts, stops = (at[:, positions].T.ravel() for at in (layout.starts, layout.stops))
    texts = slice_strings(lines.text, starts, stops, numbers=not want_strings)
    if want_strings:
        is_null = ~is_string
    elif is_string.any():
        return None
    else:
        is_null = np.frombuffer(lines.text, np.uint8)[starts] == ord("n")
    if not is_null.any():
        return texts
    mask = pa.array(is_null)
    if not pc.all(pc.equal(texts.filter(mask), "null")).as_py():
        return None
    return pc.if_else(mask, None, texts)
