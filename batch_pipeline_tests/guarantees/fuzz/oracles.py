"""Oracles, which read the same bytes: the standard library, fastavro and Arrow.

A reader returns None if it cannot read the bytes. Only the column types of the product are used, to
compare its values with those of an oracle.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import math
import re
import zlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline_tests.encode import test_value_round_trips as values
from batch_pipeline_tests.encode.typed_values import is_json_text

_JSON_TYPES = values.JSON_TYPES
_MARKS = {
    b"\xef\xbb\xbf": "utf-8",
    b"\xff\xfe\0\0": "utf-32-le",
    b"\0\0\xfe\xff": "utf-32-be",
    b"\xff\xfe": "utf-16-le",
    b"\xfe\xff": "utf-16-be",
}
_WHITESPACE = " \t\r\n"
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_MAX_DEPTH = 100  # levels; readers may refuse valid values that are deeper
csv.field_size_limit(2**30)


class Undecided(Exception):  # noqa: N818 - a result, not an error
    """The reader may accept or refuse the text."""


class NotARecordError(Exception):
    """A text is not a JSON record."""


def decompress(data: bytes) -> bytes | None:
    """Decompress bytes in the format of their first bytes. Return unknown formats unchanged."""
    try:
        if data.startswith(b"\x1f\x8b"):
            return gzip.decompress(data)
        if data[:3] == b"BZh" and data[4:10] in {b"1AY&SY", b"\x17rE8P\x90"}:
            return bz2.decompress(data)
        if data.startswith(b"\xfd7zXZ\0"):
            return lzma.decompress(data.rstrip(b"\0"))  # padding is allowed
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            return b"".join(_frames(data))
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError):
        return None
    return data


def _frames(data: bytes) -> Iterator[bytes]:
    """Yield the content of each zstd frame. A truncated one is an error."""
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(data)
        if not frame.eof:
            raise EOFError
        data = frame.unused_data


def as_utf8(data: bytes) -> bytes | None:
    """Remove a byte order mark, and convert UTF-16 and UTF-32 to UTF-8."""
    for mark, charset in _MARKS.items():
        if data.startswith(mark):
            rest = data.removeprefix(mark)
            try:
                return rest if charset == "utf-8" else rest.decode(charset).encode()
            except UnicodeError:
                return None
    return data


def parse_strictly(text: str) -> Any:
    """Parse JSON strictly, with numbers as text.

    Raises:
        NotARecordError: it is not JSON, or has a duplicate key or an unpaired surrogate.
        Undecided: it is nested deeply.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_pairs,
            parse_int=lambda number: ("number", number),
            parse_float=lambda number: ("number", number),
            parse_constant=_no_constant,
        )
    except ValueError as error:
        raise NotARecordError from error
    except RecursionError as error:
        raise Undecided from error
    if _depth(value) > _MAX_DEPTH:
        raise Undecided
    return value


def parse_record(text: bytes) -> Any:
    """Parse one JSON object of a line as `parse_strictly` does.

    Raises:
        NotARecordError: it is not an object.
        Undecided: it is nested deeply.
    """
    try:
        value = parse_strictly(text.decode())
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise NotARecordError from error
    if not isinstance(value, tuple) or value[0] != "object":
        raise NotARecordError
    return value


def parse_columns(text: bytes) -> Any:
    """Parse one JSON object of a line whose keys can all be column names.

    Raises:
        NotARecordError: it is not an object, or a key contains NUL.
        Undecided: it is nested deeply.
    """
    value = parse_record(text)
    if any("\0" in name for name, _ in value[1]):
        raise NotARecordError
    return value


def has_nonfinite(text: bytes) -> bool:
    """Return whether a text may contain NaN or an infinity."""
    return b"NaN" in text or b"Infinity" in text


def json_lines(text: bytes) -> list[tuple[int, bytes]]:
    """Return the lines that are not blank, numbered from 1."""
    lines = [line.strip(_WHITESPACE.encode()) for line in text.split(b"\n")]
    return [(number, line) for number, line in enumerate(lines, start=1) if line]


def json_values(text: str) -> list[str] | None:
    """Return the texts of the elements of an array, or of consecutive documents."""
    decoder = json.JSONDecoder(parse_int=str)
    found: list[str] = []
    position = _next(text, 0)
    is_array = text.startswith("[", position)
    if is_array:
        position = _next(text, position + 1)
        if text.startswith("]", position):
            return found if _next(text, position + 1) == len(text) else None
    while position < len(text):
        try:
            _, stop = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        found.append(text[position:stop])
        position = _next(text, stop)
        if is_array:
            if text.startswith("]", position):
                return found if _next(text, position + 1) == len(text) else None
            if not text.startswith(",", position):
                return None
            position = _next(text, position + 1)
    return None if is_array else found


def csv_rows(text: bytes) -> list[list[str]] | None:
    """Return the rows of csv that are not blank, the header first."""
    try:
        file = io.StringIO(text.decode(), newline="")
        return [row for row in csv.reader(file, strict=True) if row]
    except (csv.Error, UnicodeError):
        return None


def physical_lines(text: bytes) -> list[bytes]:
    """Split a text into lines, and keep line ends of any kind."""
    return [line for line in _LINE.findall(text) if line]


def avro_records(data: bytes) -> list[Any] | None:
    try:
        found: list[Any] = list(fastavro.reader(io.BytesIO(data)))
        return [{str(name): value for name, value in record.items()} for record in found]
    except Exception:  # noqa: BLE001 - any error means that it cannot read the file
        return None


def parquet_rows(data: bytes) -> list[dict[str, Any]] | None:
    try:
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
        rows: list[dict[str, Any]] = table.to_pylist()
    except Exception:  # noqa: BLE001 - as above
        return None
    return rows


def _next(text: str, position: int) -> int:
    while position < len(text) and text[position] in _WHITESPACE:
        position += 1
    return position


def _pairs(pairs: list[tuple[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("duplicate key")
    return "object", pairs


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= _MAX_DEPTH + 1:
        depth += 1
        level = [inner for outer in level for inner in _inside(outer)]
    return depth


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, tuple) and value[0] == "object":
        yield from (inner for _, inner in value[1])


def is_same_json(found: Any, expected: Any, column: Column) -> bool:
    """Compare a value of a column with one of `parse_strictly`."""
    if expected is None:
        return found is None
    if column.type in _JSON_TYPES:
        return isinstance(found, str) and bool(parse_strictly(found) == expected)
    if isinstance(expected, tuple) and expected[0] == "number":
        return column.type in values.NUMERIC and values.is_same_number(found, expected[1], column)
    return type(found) is type(expected) and bool(found == expected)


def is_same_cell(found: Any, cell: str, column: Column, *, is_text: bool) -> bool:
    """Compare a value, from JSON if `is_text`, with a csv cell."""
    if not cell:
        return found is None or found == ""
    return values.is_same_cell(found, cell, column, is_text=is_text)


def is_same_typed(found: Any, expected: Any, column: Column) -> bool:
    """Compare a value of a column with the value of another library."""
    if expected is None or isinstance(expected, timedelta):  # durations become text in another form
        return expected is not None or found is None
    if column.type in _JSON_TYPES:
        return is_json_text(found, expected)
    if isinstance(expected, UUID):
        return bool(found == str(expected))
    if isinstance(expected, float):
        return isinstance(found, float) and _are_same_doubles(found, expected)
    if column.type is ColumnType.DECIMAL:
        return bool(found == expected)
    return bool(found == expected) and isinstance(found, bool) is isinstance(expected, bool)


def _are_same_doubles(found: float, expected: float) -> bool:
    if math.isnan(expected):
        return math.isnan(found)
    return found == expected and math.copysign(1, found) == math.copysign(1, expected)
