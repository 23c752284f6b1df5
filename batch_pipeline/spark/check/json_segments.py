"""Reads the JSON records of a chunk in runs for which one decoder serves, the fast way if it can.

Proves on the way that no key is there twice; what does not fit goes to the close look.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from batch_pipeline.domain.schema import ColumnType
from batch_pipeline.domain.stream import Stream
from batch_pipeline.spark.arrow_types import JSON_TYPES
from batch_pipeline.spark.check.examined import Examiner
from batch_pipeline.spark.check.flat_columns import FlatColumns
from batch_pipeline.spark.check.json_columns import LOOKED_AT, Columns, check_columns, columns_of
from batch_pipeline.spark.check.json_faults import BadRecordError, fields_of, key_marks
from batch_pipeline.spark.check.json_numbers import holds_only_exact
from batch_pipeline.spark.check.profile import Profile
from batch_pipeline.spark.check.record_decoder import RecordDecoder, decoder_of
from batch_pipeline.spark.chunks import JsonRecords
from batch_pipeline.spark.text_lines import TextLines

Text = bytes | memoryview
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_OFTEN = 8  # one record of so many without some key: the fast way is not worth a try


class Found:
    """What has been found out about the records of a chunk, by their positions."""

    def __init__(self, chunk: JsonRecords) -> None:
        self.chunk = chunk
        self.good: list[int] = []
        self.bad: dict[int, str] = {}
        self.changed: dict[int, bytes] = {}
        self.arrays: list[list[pa.Array]] = []
        self.rescued = 0

    def lines(self) -> Sequence[bytes]:
        """Give the text of the good records, each on one line for every reader."""
        lines = self.chunk.lines
        if self.bad or self.changed:
            lines = [self.changed.get(at) or lines[at] for at in self.good]
        if isinstance(lines, TextLines):
            has_returns = lines.text.find(b"\r", 0, lines.size_bytes) >= 0
        else:
            has_returns = any(b"\r" in line for line in lines)
        # Between two values some readers would end the line at a return.
        return [line.replace(b"\r", b" ") for line in lines] if has_returns else lines


@dataclass(slots=True)
class _Segment:
    """Some records in a row, read by one decoder: positions of the good ones, what they hold."""

    at: list[int]
    records: list[Struct | None]
    nonfinite: dict[int, dict[str, float]] = field(default_factory=dict)
    sparse: bool = False

    def drop(self, rows: Collection[int]) -> None:
        """Take some records out."""
        if rows:
            self.at = [at for row, at in enumerate(self.at) if row not in rows]
            self.records = [one for row, one in enumerate(self.records) if row not in rows]


class Segments:
    """Reads the records of a chunk up to the first one that changes the profile."""

    def __init__(
        self, profile: Profile, stream: Stream, added: frozenset[str], *, values: bool
    ) -> None:
        self._profile = profile
        self._examiner = Examiner(profile, stream, values=values)
        self._values = values
        self._added = added
        self._decoders: dict[bool, RecordDecoder] = {}
        self._set_columns()

    def read(self, found: Found, start: int) -> int:
        """Read on, tell what was found, and give where to go on."""
        if self._is_outdated():
            self._set_columns()
        lines = found.chunk.lines[start:] if start else found.chunk.lines
        if self._values and not self._sparse and isinstance(lines, TextLines):
            arrays = self._flat.read(lines)
            if arrays is not None:
                found.arrays.append(arrays)
                found.good += range(len(lines))
                return len(lines)
        is_exact = self._values and self._has_numbers
        text = None if self._sparse and not is_exact else _text_of(lines)
        decoder = self._decoder(exact=is_exact and not (text and holds_only_exact(text)))
        records = None if self._sparse or text is None else self._quick(lines, text, decoder)
        stop = len(found.chunk.lines)
        if records is None:
            segment, stop = self._slow(found, start, decoder)
        else:
            segment = _Segment(list(range(start, stop)), [*records])
        if self._values or self._looked_at:
            self._look(segment, found, decoder)
        found.good += segment.at
        return stop

    def _is_outdated(self) -> bool:
        profile = self._profile
        return self._columns != profile.columns or len(self._wide) < len(profile.wide)

    def _set_columns(self) -> None:
        self._columns = dict(self._profile.columns)
        self._wide = frozenset(self._profile.wide)
        self._decoders = {}
        self._sparse = False
        kinds = {column.type for column in self._columns.values()}
        self._has_numbers = ColumnType.NUMBER in kinds
        self._looked_at = bool(kinds & LOOKED_AT)
        self._nested = bool(kinds & JSON_TYPES)
        self._flat = FlatColumns(tuple(self._columns.values()), self._added, self._wide)

    def _decoder(self, *, exact: bool) -> RecordDecoder:
        if exact not in self._decoders:
            self._decoders[exact] = decoder_of(
                tuple(self._columns.values()),
                values=self._values,
                exact=exact,
                optional=self._added,
                wide=self._wide,
            )
        return self._decoders[exact]

    def _quick(
        self, lines: Sequence[bytes], text: Text, decoder: RecordDecoder
    ) -> list[Struct] | None:
        """Read records that all have all columns and fit; None where one may not."""
        views: Iterable[Text] = lines.views() if isinstance(lines, TextLines) else lines
        try:
            if self._values or self._looked_at or self._nested:
                records = list(map(decoder.full, views))
            else:
                records = []
                deque(map(decoder.full, views), maxlen=0)
        except _DECODE_ERRORS:
            return None
        if self._nested and not self._values and b"\\u0022" in bytes(text):
            return None  # a quote that is written otherwise when it is counted
        keys = decoder.required * len(lines) + self._nested_marks(records, decoder)
        return records if key_marks(text) == keys else None

    def _nested_marks(self, records: Sequence[Struct], decoder: RecordDecoder) -> int:
        nested = decoder.getter(JSON_TYPES) if self._nested else None
        if nested is None:
            return 0
        values = list(map(nested, records))
        if not self._values:
            return key_marks(msgspec.json.encode(values))
        if isinstance(values[0], tuple):
            values = [value for several in values for value in several]
        return key_marks(b",".join(values))

    def _slow(self, found: Found, start: int, decoder: RecordDecoder) -> tuple[_Segment, int]:
        """Read record by record, up to the end or behind one that changes the profile."""
        segment = _Segment([], [], sparse=True)
        fitting: list[int] = []
        stop = start
        for stop, line in enumerate(found.chunk.lines[start:], start=start + 1):
            try:
                segment.records.append(decoder.lenient(line))
            except _DECODE_ERRORS:
                self._examine(found, segment, stop - 1, decoder)
                if self._is_outdated():
                    break
            else:
                segment.at.append(stop - 1)
                fitting.append(len(segment.at) - 1)
        self._refuse_twins(found, segment, fitting)
        return segment, stop

    def _refuse_twins(self, found: Found, segment: _Segment, fitting: list[int]) -> None:
        """Set aside the records, of those that fit, that have a key twice."""
        rows = [segment.records[index] for index in fitting]
        lines = [found.chunk.lines[segment.at[index]] for index in fitting]
        absent = [astuple(row).count(UNSET) for row in rows if row is not None]
        missing = sum(count > len(self._added) for count in absent)
        self._sparse = missing * _OFTEN > len(rows)
        if not self._nested:
            keys = len(self._columns) * len(rows) - sum(absent)
            if key_marks(b"\n".join(lines)) == keys:
                return
        twins: set[int] = set()
        for index, row, line in zip(fitting, rows, lines, strict=True):
            if b"\\u0022" not in line and key_marks(msgspec.json.encode(row)) == key_marks(line):
                continue
            try:
                fields_of(line)
            except BadRecordError as error:
                found.bad[segment.at[index]] = str(error)
                twins.add(index)
        segment.drop(twins)

    def _examine(self, found: Found, segment: _Segment, at: int, decoder: RecordDecoder) -> None:
        """Look closely at a record and put it, if it is one, at the end of the segment."""
        line = found.chunk.lines[at]
        try:
            examined = self._examiner.examined(line, decoder, place=found.chunk.places[at])
        except BadRecordError as error:
            found.bad[at] = str(error)
            return
        if examined.line != line:
            found.changed[at] = examined.line
        found.rescued += examined.rescued
        segment.at.append(at)
        segment.records.append(examined.record)
        if examined.nonfinite:
            segment.nonfinite[at] = examined.nonfinite

    def _look(self, segment: _Segment, found: Found, decoder: RecordDecoder) -> None:
        """Find values that the decoder let through, and keep the columns of those that fit."""
        columns = self._columns_of(segment, decoder)
        if columns.unfit:
            unfit = columns.unfit
            again = _Segment([], [], sparse=True, nonfinite=segment.nonfinite)
            for row, (at, record) in enumerate(zip(segment.at, segment.records, strict=True)):
                if row in unfit:
                    self._examine(found, again, at, decoder)
                else:
                    again.at.append(at)
                    again.records.append(record)
            segment.at, segment.records, segment.sparse = again.at, again.records, True
            if self._profile.fits:
                columns = self._columns_of(segment, decoder)
                self._refuse(segment, found, columns.unfit)
                if columns.unfit:
                    columns = self._columns_of(segment, decoder)
        if self._profile.fits and segment.at and columns.arrays:
            found.arrays.append(_with_nonfinite(columns.arrays, segment, decoder))

    def _columns_of(self, segment: _Segment, decoder: RecordDecoder) -> Columns:
        """Make columns of the records; positions are those in the segment."""
        rows = [row for row, record in enumerate(segment.records) if record is not None]
        records = [record for record in segment.records if record is not None]
        if not records:
            return Columns()
        if self._values:
            columns = columns_of(records, decoder, sparse=segment.sparse)
        else:
            columns = check_columns(records, decoder)
        columns.unfit = {rows[position] for position in columns.unfit}
        return columns

    def _refuse(self, segment: _Segment, found: Found, unfit: set[int]) -> None:
        # The close look took them: they must not be written as something else.
        for row in unfit:
            found.bad[segment.at[row]] = "has a value that its column cannot hold"
        segment.drop(unfit)


def _text_of(lines: Sequence[bytes]) -> Text:
    if isinstance(lines, TextLines):
        return memoryview(lines.text)[: lines.size_bytes]
    return b"\n".join(lines)


def _with_nonfinite(
    arrays: list[pa.Array], segment: _Segment, decoder: RecordDecoder
) -> list[pa.Array]:
    rows = {at: row for row, at in enumerate(segment.at)} if segment.nonfinite else {}
    told = {rows[at]: values for at, values in segment.nonfinite.items() if at in rows}
    for index, column in enumerate(decoder.columns):
        found = {row: values[column.name] for row, values in told.items() if column.name in values}
        if found:
            cells = arrays[index].to_pylist()
            for row, value in found.items():
                cells[row] = value
            arrays[index] = pa.array(cells, arrays[index].type)
    return arrays
