"""Kinds of typed values of parquet and avro files, with the expected value in each output.

Expectations follow from the Python value alone.
"""

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from batch_pipeline_tests.encode.task_fixture import parse_json_exactly

Same = Callable[[Any, Any], bool]  # compares the value that was read with the one written


def _is(found: Any, value: Any) -> bool:
    return type(found) is type(value) and bool(found == value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Values of an Arrow type and of the corresponding avro type, if any.

    `is_same` compares a cell of parquet or Arrow with the value; `is_json` compares a JSON value.
    """

    arrow: pa.DataType
    values: st.SearchStrategy[Any]
    is_same: Same = _is
    avro: Any = None


def _is_double(found: Any, value: float) -> bool:
    if not isinstance(found, float) or not isinstance(value, float):
        return False
    if math.isnan(value):
        return math.isnan(found)
    return found == value and math.copysign(1, found) == math.copysign(1, value)


def _is_decimal(found: Any, value: Decimal) -> bool:
    return isinstance(found, Decimal) and found == value


def _is_instant(found: Any, value: datetime) -> bool:
    return isinstance(found, datetime) and found.tzinfo is not None and found == value


def _json(value: Any) -> Any:
    """Return a nested value in the form that `_read` returns."""
    if isinstance(value, dict):
        return ("object", [(name, _json(item)) for name, item in value.items()])
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value
    if isinstance(value, date | time):
        return f"{value:%H:%M:%S.%f}" if isinstance(value, time) else value.isoformat()
    if value is None or isinstance(value, bool | str | bytes):
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value
    return ("number", str(value)) if isinstance(value, int) else _number(str(value))


def _number(text: str) -> Any:
    """Return a number with its sign, because -0.0 equals 0.0."""
    return ("number", text.startswith("-"), Decimal(text))


def _read(found: Any, pattern: Any) -> Any:
    """Convert a value to the form of the pattern: decimals, doubles and times."""
    if isinstance(pattern, datetime):
        return datetime.fromisoformat(found)
    if isinstance(pattern, tuple) and isinstance(found, tuple) and found[0] == pattern[0]:
        if pattern[0] == "number":
            return found if len(pattern) == 2 else _number(found[1])
        fields = zip(found[1], pattern[1], strict=False)
        return ("object", [(one[0], _read(one[1], other[1])) for one, other in fields])
    if isinstance(pattern, list) and isinstance(found, list) and len(pattern) == len(found):
        return [_read(one, other) for one, other in zip(found, pattern, strict=True)]
    return found


def is_json(found: Any, value: Any) -> bool:
    """Return whether what `fields_of` reads from a JSON line is this value."""
    expected = _json(value)
    return bool(_read(found, expected) == expected)


def is_json_text(found: Any, value: Any) -> bool:
    """Return whether a cell holds the JSON text of a nested value."""
    return isinstance(found, str) and is_json(parse_json_exactly(found), value)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    units = st.one_of(st.integers(-most, most), st.sampled_from([0, 1, -1, most, -most]))
    return units.map(lambda unit: Decimal((int(unit < 0), tuple(map(int, str(abs(unit)))), -scale)))


def _integers(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0]))


_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
_FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e22, 1e-5, 123456789.0]),
)
_SHORT_FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
_BYTES = st.binary(max_size=8)
_EXTREMES = ["0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "1969-12-31T23:59:59.999999"]
_MOMENTS = st.one_of(st.datetimes(), st.sampled_from(_EXTREMES).map(datetime.fromisoformat))
_INSTANTS = _MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))
_WHOLE_SECONDS = _INSTANTS.map(lambda moment: moment.replace(microsecond=0))
_WHOLE_MS = _MOMENTS.map(
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
)
_TIMES = st.one_of(st.times(), st.sampled_from([time(0), time.max]))


def _decimal(precision: int, scale: int) -> Kind:
    kind = pa.decimal128 if precision <= 38 else pa.decimal256
    return Kind(
        arrow=kind(precision, scale),
        values=_decimals(precision, scale),
        is_same=_is_decimal if precision <= 38 else is_json_text,
        avro={"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale},
    )


def _moment(arrow: pa.DataType, values: st.SearchStrategy[datetime], avro: str = "") -> Kind:
    return Kind(
        arrow=arrow,
        values=values,
        is_same=_is if arrow.tz is None else _is_instant,
        avro={"type": "long", "logicalType": avro} if avro else None,
    )


def _nested(arrow: pa.DataType, values: st.SearchStrategy[Any], avro: Any = None) -> Kind:
    return Kind(arrow=arrow, values=values, is_same=is_json_text, avro=avro)


_STRUCT = pa.struct([("i", pa.int64()), ("t", pa.string()), ("at", pa.timestamp("us", "UTC"))])
_STRUCT_VALUES = st.fixed_dictionaries(
    {
        "i": st.one_of(_integers(64), st.none()),
        "t": st.one_of(_TEXT, st.none()),
        "at": st.one_of(_INSTANTS, st.none()),
    }
).map(lambda found: {name: found[name] for name in ("i", "t", "at")})
_AVRO_RECORD = {
    "type": "record",
    "name": "inner",
    "fields": [
        {"name": "i", "type": ["null", "long"]},
        {"name": "t", "type": ["null", "string"]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}
KINDS = {
    "boolean": Kind(arrow=pa.bool_(), values=st.booleans(), avro="boolean"),
    "int32": Kind(arrow=pa.int32(), values=_integers(32), avro="int"),
    "int64": Kind(arrow=pa.int64(), values=_integers(64), avro="long"),
    "uint64": Kind(
        arrow=pa.uint64(),
        values=st.integers(0, 2**64 - 1),
        is_same=lambda found, value: _is_decimal(found, Decimal(value)),
    ),
    "double": Kind(arrow=pa.float64(), values=_FLOATS, is_same=_is_double, avro="double"),
    "float": Kind(arrow=pa.float32(), values=_SHORT_FLOATS, is_same=_is_double, avro="float"),
    "text": Kind(arrow=pa.string(), values=_TEXT, avro="string"),
    "words": Kind(
        arrow=pa.dictionary(pa.int8(), pa.string()), values=st.sampled_from(["x", "y", ""])
    ),
    "bytes": Kind(arrow=pa.binary(), values=_BYTES, avro="bytes"),
    "money": _decimal(12, 2),
    "many digits": _decimal(38, 20),
    "all fraction": _decimal(38, 38),
    "too many digits": _decimal(60, 9),
    "date": Kind(
        arrow=pa.date32(),
        values=st.one_of(st.dates(), st.sampled_from([date.min, date.max])),
        avro={"type": "int", "logicalType": "date"},
    ),
    "time": Kind(
        arrow=pa.time64("us"), values=_TIMES, avro={"type": "long", "logicalType": "time-micros"}
    ),
    "instant": _moment(pa.timestamp("us", "UTC"), _INSTANTS, "timestamp-micros"),
    "instant of a zone": _moment(pa.timestamp("us", "Europe/Zurich"), _INSTANTS),
    "instant in seconds": _moment(pa.timestamp("s", "UTC"), _WHOLE_SECONDS),
    "local": _moment(pa.timestamp("us"), _MOMENTS, "local-timestamp-micros"),
    "local in milliseconds": _moment(pa.timestamp("ms"), _WHOLE_MS, "local-timestamp-millis"),
    "list": _nested(
        pa.list_(pa.int64()),
        st.lists(_integers(64), max_size=3),
        {"type": "array", "items": "long"},
    ),
    "list of doubles": _nested(pa.list_(pa.float64()), st.lists(_FLOATS, max_size=2)),
    "list of bytes": _nested(
        pa.large_list(pa.binary()),
        st.lists(_BYTES, max_size=2),
        {"type": "array", "items": "bytes"},
    ),
    "struct": _nested(_STRUCT, _STRUCT_VALUES, _AVRO_RECORD),
    "structs": _nested(
        pa.list_(_STRUCT), st.lists(st.one_of(_STRUCT_VALUES, st.none()), max_size=2)
    ),
}
