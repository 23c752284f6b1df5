"""Reads JSON lines and checks each against the columns at the speed of C; the lines stay as is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from batch_pipeline.domain.schema import ColumnType
from batch_pipeline.spark.check.profile import Profile
from batch_pipeline.spark.read.csv_strict import BadText
from batch_pipeline.spark.read.sources import BLOCK_BYTES, MAX_RECORD_BYTES, TextSource

_BLANKS = b" \t\r\n"
_DOUBLE_EXACT = 2**53  # a double holds every integer up to here
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_DoubleExact = Annotated[int, msgspec.Meta(ge=-_DOUBLE_EXACT, le=_DOUBLE_EXACT)]
_JSON_TYPES: dict[type, ColumnType] = {
    type(None): ColumnType.UNKNOWN,
    bool: ColumnType.BOOLEAN,
    int: ColumnType.INTEGER,
    float: ColumnType.NUMBER,
    str: ColumnType.STRING,
    dict: ColumnType.OBJECT,
    list: ColumnType.ARRAY,
}
_CHECKED: dict[ColumnType, Any] = {
    ColumnType.UNKNOWN: None,
    ColumnType.BOOLEAN: bool | None,
    ColumnType.INTEGER: int | None,
    ColumnType.NUMBER: float | None,
    ColumnType.STRING: str | None,
    ColumnType.OBJECT: dict[str, Any] | None,
    ColumnType.ARRAY: list[Any] | None,
    ColumnType.ANY: Any,
}
_TEXT_TYPES = {ColumnType.OBJECT: b"{", ColumnType.ARRAY: b"[", ColumnType.ANY: b""}
_NULL = msgspec.Raw(b"null")

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonChunk:
    """Some consecutive records: their lines, without a line end, and what they hold.

    `rows` is filled when values were asked for: one value per column of the schema, objects, arrays
    and mixtures as JSON text. It is not valid once the profile no longer fits.
    """

    lines: list[bytes]
    rows: list[Row]
    bad: tuple[BadText, ...] = ()


class _BadRecordError(Exception):
    """A line is no record; the text says why."""


class JsonlReader:
    """The records of one jsonl file; what the columns cannot hold goes to the profile."""

    def __init__(self, source: TextSource, profile: Profile, *, values: bool) -> None:
        self._source = source
        self._check = RecordCheck(profile, values=values)
        self._values = values

    def chunks(self) -> Iterator[JsonChunk]:
        """Give the records in order, a few MiB at a time; blank lines are skipped.

        Raises:
            BadFileError: the file cannot be read, or a line has no end in sight.
        """
        carry, eof, number = b"", False, 1
        while not eof:
            wanted = max(BLOCK_BYTES, len(carry))
            block = self._source.read(wanted)
            eof = len(block) < wanted
            carry += block
            end = len(carry) if eof else carry.rfind(b"\n") + 1
            if end:
                lines = carry[:end].split(b"\n")
                chunk = self._chunk(lines, number)
                number += len(lines) - 1
                carry = carry[end:]
                if chunk.lines or chunk.bad:
                    yield chunk
            if len(carry) > MAX_RECORD_BYTES:
                reason = f"a line is longer than {MAX_RECORD_BYTES >> 20} MiB"
                raise self._source.bad_file(reason, line=number)

    def _chunk(self, lines: list[bytes], first_number: int) -> JsonChunk:
        good: list[bytes] = []
        rows: list[Row] = []
        bad: list[BadText] = []
        check, values = self._check, self._values
        for number, line in enumerate(lines, start=first_number):
            raw = line.strip(_BLANKS)
            if not raw:
                continue
            if b"\r" in raw:  # between two values; some readers would end the line there
                raw = raw.replace(b"\r", b" ")
            try:
                row = check.read(raw)
            except _BadRecordError as error:
                bad.append(BadText(line=number, reason=str(error), raw=line.strip(_BLANKS)))
                continue
            good.append(raw)
            if values:
                rows.append(row)
        return JsonChunk(lines=good, rows=rows, bad=tuple(bad))


class RecordCheck:
    """Reads single records with a decoder made for the columns known so far.

    Only a record that this decoder refuses is looked at in Python.
    """

    def __init__(self, profile: Profile, *, values: bool) -> None:
        self._profile = profile
        self._values = values
        self._decode: Callable[[bytes], Any]
        self._renew()

    def read(self, raw: bytes) -> Row:
        """Check one record and give its values, nothing when they were not asked for.

        Raises:
            _BadRecordError: it is not a JSON object.
        """
        try:
            record = self._decode(raw)
            return self._row(record) if self._values else ()
        except msgspec.ValidationError:
            return self._examined(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _bad(error) from error

    def _renew(self) -> None:
        self._columns = tuple(self._profile.types.items())
        self._texts = [
            (index, _TEXT_TYPES[kind])
            for index, (_, kind) in enumerate(self._columns)
            if self._values and kind in _TEXT_TYPES
        ]
        fields = [
            (f"c{index}", self._field_type(name, kind), _NULL if self._is_text(kind) else None)
            for index, (name, kind) in enumerate(self._columns)
        ]
        names = {f"c{index}": name for index, (name, _) in enumerate(self._columns)}
        try:
            record = msgspec.defstruct(
                "Record", fields, rename=names, forbid_unknown_fields=True, gc=False
            )
        except ValueError:  # a name that JSON writes with an escape
            self._decode = _refuse
        else:
            self._decode = msgspec.json.Decoder(record).decode

    def _is_text(self, kind: ColumnType) -> bool:
        return self._values and kind in _TEXT_TYPES

    def _field_type(self, name: str, kind: ColumnType) -> Any:
        if self._is_text(kind):
            return msgspec.Raw
        if self._values and kind is ColumnType.INTEGER:
            return (_Int64 if name in self._profile.wide else _DoubleExact) | None
        if self._values and kind is ColumnType.NUMBER:
            return _DoubleExact | float | None
        return _CHECKED[kind]

    def _row(self, record: Any) -> Row:
        row = msgspec.structs.astuple(record)
        if not self._texts:
            return row
        values = list(row)
        for index, opening in self._texts:
            text = bytes(values[index]).strip(_BLANKS)
            if text != b"null" and not text.startswith(opening):
                raise msgspec.ValidationError
            values[index] = None if text == b"null" else str(text, "utf-8")
        return tuple(values)

    def _examined(self, raw: bytes) -> Row:
        """Read a record that does not fit, widen the profile by it, and fit the decoder anew."""
        try:
            record = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _bad(error) from error
        if not isinstance(record, dict):
            raise _BadRecordError(f"is not a JSON object but {_JSON_TYPES[type(record)]}")
        before = (dict(self._profile.types), len(self._profile.wide))
        for name, value in record.items():
            kind, wide = self._json_type(value)
            self._profile.see(name, kind, text=False, wide=wide)
        if before != (self._profile.types, len(self._profile.wide)):
            self._renew()
        return self._row_of(record) if self._values else ()

    def _json_type(self, value: Any) -> tuple[ColumnType, bool]:
        kind = _JSON_TYPES[type(value)]
        if self._values and kind is ColumnType.INTEGER:
            if not -(2**63) <= value < 2**63:
                return ColumnType.ANY, False  # kept as JSON text, digit by digit
            return kind, not -_DOUBLE_EXACT <= value <= _DOUBLE_EXACT
        return kind, False

    def _row_of(self, record: dict[str, Any]) -> Row:
        row: list[Any] = []
        for name, kind in self._columns:
            value = record.get(name)
            if value is not None and self._is_text(kind):
                value = str(msgspec.json.encode(value), "utf-8")
            row.append(value)
        return tuple(row)


def _refuse(_raw: bytes) -> Any:
    raise msgspec.ValidationError


def _bad(error: Exception) -> _BadRecordError:
    if isinstance(error, UnicodeDecodeError):
        return _BadRecordError("is not UTF-8")
    if isinstance(error, RecursionError):
        return _BadRecordError("is nested too deeply")
    return _BadRecordError(f"is not valid JSON ({error})")
