"""The close look at a JSON record that the decoder of the columns refused, or that may not fit."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw, Struct

from batch_pipeline.domain.record_rules import RESCUED, Evolution, OnNonfinite
from batch_pipeline.domain.schema import Column, ColumnType, name_fault
from batch_pipeline.domain.stream import Stream
from batch_pipeline.spark.check.json_faults import (
    BadRecordError,
    count_nonfinite,
    fields_of,
    finite,
    key_text,
    nonfinite_fields,
)
from batch_pipeline.spark.check.profile import Profile
from batch_pipeline.spark.check.record_decoder import RecordDecoder
from batch_pipeline.spark.check.sights import sight_of

# Columns whose outputs hold NaN, themselves or once they are widened; where JSON is written not.
_HOLD_NAN = (ColumnType.NUMBER, ColumnType.UNKNOWN, ColumnType.INTEGER)


@dataclass(slots=True)
class Examined:
    """A record after the close look: its text, what the decoder would have read, what was kept.

    There is no `record` when the schema does not hold it. `nonfinite` are values of number columns
    that JSON cannot say.
    """

    line: bytes
    record: Struct | None = None
    rescued: bool = False
    nonfinite: dict[str, float] = field(default_factory=dict)


class Examiner:
    """Finds out what is wrong with a record, widens the profile by it or rescues from it."""

    def __init__(self, profile: Profile, stream: Stream, *, values: bool) -> None:
        self._profile = profile
        self._values = values
        self._on_nonfinite = stream.on_nonfinite
        self._rescues = stream.schema.evolution is Evolution.RESCUE
        self._max_columns = stream.read_limits.max_columns

    def examined(self, line: bytes, decoder: RecordDecoder, *, place: int) -> Examined:
        """Look at a record.

        Raises:
            BadRecordError: it is none.
        """
        line, nonfinite = self._finite(line)
        fields = fields_of(line)
        self._check_names(fields)
        rescued = {
            name: text
            for name, text in fields.items()
            if not self._takes(name, text, is_nan=name in nonfinite, place=place)
        }
        result = Examined(line, nonfinite=nonfinite)
        if rescued:
            fields = self._without(fields, rescued)
            result.line, result.rescued = _joined(fields), True
            result.nonfinite = {n: v for n, v in nonfinite.items() if n not in rescued}
        if self._profile.fits:
            result.record = self._record(fields, decoder)
        return result

    def _finite(self, line: bytes) -> tuple[bytes, dict[str, float]]:
        if b"NaN" not in line and b"Infinity" not in line:
            return line, {}
        if self._values:
            found = nonfinite_fields(line)
            if found and len(found) == count_nonfinite(line) and all(map(self._holds_nan, found)):
                return finite(line, OnNonfinite.NULL), found
        return finite(line, self._on_nonfinite), {}

    def _holds_nan(self, name: str) -> bool:
        column = self._profile.columns.get(name)
        return column is None or column.type in _HOLD_NAN

    def _check_names(self, fields: dict[str, bytes]) -> None:
        known = self._profile.columns
        new = [name for name in fields if name not in known]
        for name in () if self._rescues else new:  # rescued keys are text in a column
            if fault := name_fault(name):
                raise BadRecordError(f"has the key {key_text(name)}: {fault}")
        most = self._max_columns
        if len(fields) > most:
            raise BadRecordError(
                f"has {len(fields)} columns, more than `read_limits.max_columns` allows ({most})"
            )
        if new and len(known) + len(new) > most and not self._rescues:
            raise BadRecordError(
                f"has columns that would make more than `read_limits.max_columns` allows ({most})"
            )

    def _takes(self, name: str, text: bytes, *, is_nan: bool, place: int) -> bool:
        known = self._profile.columns.get(name)
        if is_nan:
            sight = Column(name=name, type=ColumnType.NUMBER), False
        else:
            found = sight_of(name, text, known, exact=self._values)
            sight = found.column, found.wide
        if self._rescues and not self._profile.takes(sight[0], text=False, wide=sight[1]):
            return False
        self._profile.see(sight[0], text=False, wide=sight[1], line=place)
        return True

    def _without(self, fields: dict[str, bytes], rescued: dict[str, bytes]) -> dict[str, bytes]:
        if RESCUED in fields:
            rescued = {**rescued, RESCUED: fields[RESCUED]}
        kept = {
            name: b"null" if name in rescued else text
            for name, text in fields.items()
            if name in self._profile.columns
        }
        return kept | {RESCUED: msgspec.json.encode(str(_joined(rescued), "utf-8"))}

    def _record(self, fields: dict[str, bytes], decoder: RecordDecoder) -> Struct:
        values: dict[str, Any] = {}
        for at, column in enumerate(decoder.columns):
            text = fields.get(column.name)
            if text is not None:
                values[column.name] = Raw(text) if at in decoder.raw else _decoded(text)
        return decoder.record(values)


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.ValidationError:  # a number that is no double, somewhere in it: never looked at
        return None


def _joined(fields: dict[str, bytes]) -> bytes:
    pairs = (msgspec.json.encode(name) + b":" + text for name, text in fields.items())
    return b"{" + b",".join(pairs) + b"}"
