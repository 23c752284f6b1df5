"""Turns the values of one avro field into a column: typed, or JSON text when they are nested."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.types as at

from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.spark.arrow_types import JSON_TYPES, column_of, is_uuid
from batch_pipeline.spark.json_values import NonfiniteError, json_text
from batch_pipeline.spark.read.arrow_values import Fitted, MisfitError, fitted
from batch_pipeline.spark.read.avro_file import AvroDamageError
from batch_pipeline.spark.read.avro_schema import AvroType

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
_FINER = "is not in whole microseconds or not in the years 1 to 9999"
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

    def fitted(self, values: list[Any]) -> Fitted:
        """Give the values as an array, null where they do not fit."""
        if self.column.type in JSON_TYPES:
            return self._texts(values)
        if self._is_decimal or is_uuid(self._arrow) or at.is_string(self._arrow):
            return self._each(values)
        if at.is_temporal(self._arrow):
            raw = pa.int32() if self._arrow.bit_width == 32 else pa.int64()
            try:
                counts = pa.array(values, raw)
            except pa.ArrowInvalid as error:
                raise AvroDamageError("is damaged: an int has more than 32 bits") from error
            return fitted(counts.view(self._arrow), self.column)
        return Fitted(pa.array(values, self._arrow))

    def _each(self, values: list[Any]) -> Fitted:
        convert = self.to_json
        target = pa.string() if self.column.type is ColumnType.STRING else None
        if target is None:
            target = pa.decimal128(self.column.precision, self.column.scale)
        misfits: dict[int, MisfitError] = {}
        try:
            return Fitted(pa.array(values if convert is None else map(convert, values), target))
        except (MisfitError, UnicodeEncodeError):
            kept = list(values)
        for index, value in enumerate(values):
            try:
                kept[index] = value if convert is None else convert(value)
                if isinstance(kept[index], str):
                    kept[index].encode()
            except MisfitError as misfit:
                misfits[index], kept[index] = misfit, None
            except UnicodeEncodeError:
                misfits[index] = MisfitError(
                    "is not UTF-8", value.encode(errors="replace").decode()
                )
                kept[index] = None
        return Fitted(pa.array(kept, target), misfits)

    def _texts(self, values: list[Any]) -> Fitted:
        convert = self.to_json
        texts: list[bytes | None] = []
        misfits: dict[int, MisfitError] = {}
        for index, value in enumerate(values):
            text = None
            try:
                if value is not None:
                    found = value if convert is None else convert(value)
                    text = json_text(found, self._on_nonfinite)
            except MisfitError as misfit:
                misfits[index] = misfit
            except NonfiniteError as error:
                misfits[index] = MisfitError(str(error), str(value))
            except UnicodeEncodeError:
                misfits[index] = MisfitError("holds text that is not UTF-8", ascii(value))
            texts.append(text)
        return Fitted(pa.array(texts, pa.binary()).cast(pa.string()), misfits)


def _without_null(kind: AvroType) -> AvroType:
    """Give what is left of a union with null, if that is one type."""
    if kind.kind != "union":
        return kind
    others = [child for _, child in kind.children if child.kind != "null"]
    return others[0] if len(others) == 1 else kind


def _column(name: str, kind: AvroType) -> Column:
    if kind.arrow is None:
        return Column(name=name, type=_NESTED.get(kind.kind, ColumnType.ANY))
    return column_of(name, kind.arrow)


def _converter(name: str, kind: AvroType) -> Convert | None:
    """Make what gives the value that JSON text is written of; None: the value as it is."""
    if kind.arrow is not None:
        return _leaf_converter(kind)
    children = [(child, _converter(name, found)) for child, found in kind.children]
    if all(convert is None for _, convert in children):
        return None
    if kind.kind == "union":
        return _union_converter(name, kind)
    if kind.kind == "record":
        changed = [(child, convert) for child, convert in children if convert is not None]

        def record(value: Any) -> Any:
            return value | {child: _of(convert, value[child]) for child, convert in changed}

        return record
    convert = children[0][1]
    if kind.kind == "array":
        return lambda value: [_of(convert, item) for item in value]
    return lambda value: {key: _of(convert, item) for key, item in value.items()}


def _of(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _union_converter(name: str, kind: AvroType) -> Convert:
    by_type: dict[type, Convert | None] = {}
    for _, child in kind.children:
        if child.kind == "null":
            continue
        found = _PYTHON[child.kind]
        convert = _converter(name, child)
        if found in by_type and (convert is not None or by_type[found] is not None):
            raise AvroDamageError(
                f"column {name!r} may hold several types that cannot be told apart, "
                "which is not supported"
            )
        by_type[found] = convert
    return lambda value: _of(by_type[type(value)], value)


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
    return _moments(arrow) if at.is_timestamp(arrow) else None


def _decimals(precision: int, scale: int) -> Convert:
    limit = 10**precision

    def decimal(value: bytes | None) -> Decimal | None:
        if value is None:
            return None
        unscaled = int.from_bytes(value, "big", signed=True)
        if not -limit < unscaled < limit:
            raise MisfitError("has more digits than its type", str(unscaled))
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -scale))

    return decimal


def _date(value: int) -> date:
    try:
        return date.fromordinal(719_163 + value)
    except (ValueError, OverflowError) as error:
        raise MisfitError(_FINER, f"{value} days since 1970") from error


def _time(value: int) -> time:
    if not 0 <= value < _DAY_US:
        raise MisfitError("is not a time of day", f"{value} us since midnight")
    seconds, microseconds = divmod(value, 10**6)
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60, microseconds)


def _moments(arrow: pa.DataType) -> Convert:
    epoch = datetime(1970, 1, 1, tzinfo=UTC if arrow.tz else None)
    if arrow.unit == "ns":
        return lambda value: _moment(_whole(value), 1, epoch)
    step = _MICROSECONDS[arrow.unit]
    return lambda value: _moment(value, step, epoch)


def _moment(value: int, step: int, epoch: datetime) -> datetime:
    try:
        return epoch + timedelta(microseconds=value * step)
    except OverflowError as error:
        raise MisfitError(_FINER, f"{value * step} us since {epoch.year}") from error


def _whole(value: int) -> int:
    whole, rest = divmod(value, 1000)
    if rest:
        raise MisfitError(_FINER, f"{value} ns since 1970")
    return whole
