"""What other libraries read from the same bytes: the standard library, fastavro, Arrow read whole.

None means that an oracle cannot read the bytes either. Of the product only the types of columns are
used, to compare its values with what an oracle reads.
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
_BLANKS = " \t\r\n"
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_DEEP = 100  # levels, from which on readers may refuse what is valid
csv.field_size_limit(2**30)


class Unclear(Exception):  # noqa: N818 - no error: an answer
    """Whether this is a record is for the reader to say."""


class NoRecordError(Exception):
    """A text is not a record of JSON."""


def unpacked(data: bytes) -> bytes | None:
    """Decompress bytes by what they begin with; those of nothing known are what they are."""
    try:
        if data.startswith(b"\x1f\x8b"):
            return gzip.decompress(data)
        if data[:3] == b"BZh" and data[4:10] in {b"1AY&SY", b"\x17rE8P\x90"}:
            return bz2.decompress(data)
        if data.startswith(b"\xfd7zXZ\0"):
            return lzma.decompress(data.rstrip(b"\0"))  # which may pad it
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            return b"".join(_frames(data))
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError):
        return None
    return data


def _frames(data: bytes) -> Iterator[bytes]:
    """Return what is in each frame of zstd; one that breaks off is an error."""
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(data)
        if not frame.eof:
            raise EOFError
        data = frame.unused_data


def in_utf8(data: bytes) -> bytes | None:
    """Take the byte order mark off, and give text of UTF-16 and UTF-32 as UTF-8."""
    for mark, charset in _MARKS.items():
        if data.startswith(mark):
            rest = data.removeprefix(mark)
            try:
                return rest if charset == "utf-8" else rest.decode(charset).encode()
            except UnicodeError:
                return None
    return data


def shown(text: str) -> Any:
    """Read JSON strictly, so that equal means equally written.

    Raises:
        NoRecordError: it is not JSON, has a key twice or half of a surrogate pair.
        Unclear: it is nested deeply.
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
        raise NoRecordError from error
    except RecursionError as error:
        raise Unclear from error
    if _depth(value) > _DEEP:
        raise Unclear
    return value


def record(text: bytes) -> Any:
    """Read one JSON object of a line as `shown` does.

    Raises:
        NoRecordError: it is none.
        Unclear: it is nested deeply.
    """
    try:
        value = shown(text.decode())
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise NoRecordError from error
    if not isinstance(value, tuple) or value[0] != "object":
        raise NoRecordError
    return value


def record_of_columns(text: bytes) -> Any:
    """Read one JSON object of a line, all keys of which can be names of columns.

    Raises:
        NoRecordError: it is none, or a key holds a NUL.
        Unclear: it is nested deeply.
    """
    value = record(text)
    if any("\0" in name for name, _ in value[1]):
        raise NoRecordError
    return value


def has_nonfinite(text: bytes) -> bool:
    """Return whether a text may hold a token for what JSON has no number for."""
    return b"NaN" in text or b"Infinity" in text


def json_lines(text: bytes) -> list[tuple[int, bytes]]:
    """Return the lines that are not blank with their numbers from 1."""
    lines = [line.strip(_BLANKS.encode()) for line in text.split(b"\n")]
    return [(number, line) for number, line in enumerate(lines, start=1) if line]


def json_values(text: str) -> list[str] | None:
    """Return the texts of the elements of an array, or of documents one behind the other."""
    decoder = json.JSONDecoder(parse_int=str)
    found: list[str] = []
    at = _next(text, 0)
    is_array = text.startswith("[", at)
    if is_array:
        at = _next(text, at + 1)
        if text.startswith("]", at):
            return found if _next(text, at + 1) == len(text) else None
    while at < len(text):
        try:
            _, stop = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        found.append(text[at:stop])
        at = _next(text, stop)
        if is_array:
            if text.startswith("]", at):
                return found if _next(text, at + 1) == len(text) else None
            if not text.startswith(",", at):
                return None
            at = _next(text, at + 1)
    return None if is_array else found


def csv_rows(text: bytes) -> list[list[str]] | None:
    """Return the rows of csv that are not blank, the header first."""
    try:
        file = io.StringIO(text.decode(), newline="")
        return [row for row in csv.reader(file, strict=True) if row]
    except (csv.Error, UnicodeError):
        return None


def physical_lines(text: bytes) -> list[bytes]:
    """Cut a text into lines with their ends, whichever these are."""
    return [line for line in _LINE.findall(text) if line]


def avro_records(data: bytes) -> list[Any] | None:
    """Return the records of an avro file."""
    try:
        found: list[Any] = list(fastavro.reader(io.BytesIO(data)))
        return [{str(name): value for name, value in one.items()} for one in found]
    except Exception:  # noqa: BLE001 - whatever it raises, it cannot say what is right
        return None


def parquet_rows(data: bytes) -> list[dict[str, Any]] | None:
    """Return the rows of a parquet file."""
    try:
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
        rows: list[dict[str, Any]] = table.to_pylist()
    except Exception:  # noqa: BLE001 - as above
        return None
    return rows


def _next(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


def _pairs(pairs: list[tuple[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a key is there twice")
    return "object", pairs


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= _DEEP + 1:
        depth += 1
        level = [inner for outer in level for inner in _inside(outer)]
    return depth


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, tuple) and value[0] == "object":
        yield from (inner for _, inner in value[1])


def is_same_json(found: Any, was: Any, column: Column) -> bool:
    """Compare a cell of columns with a value as `shown` reads it."""
    if was is None:
        return found is None
    if column.type in _JSON_TYPES:
        return isinstance(found, str) and bool(shown(found) == was)
    if isinstance(was, tuple) and was[0] == "number":
        return column.type in values.NUMERIC and values.is_same_number(found, was[1], column)
    return type(found) is type(was) and bool(found == was)


def is_same_cell(found: Any, cell: str, column: Column, *, is_text: bool) -> bool:
    """Compare a value, a JSON one if `is_text`, with a cell of csv."""
    if not cell:
        return found is None or found == ""
    return values.is_same_cell(found, cell, column, is_text=is_text)


def is_same_typed(found: Any, was: Any, column: Column) -> bool:
    """Compare a cell of columns with the value that another library reads."""
    if was is None or isinstance(was, timedelta):  # durations are text of their own form
        return was is not None or found is None
    if column.type in _JSON_TYPES:
        return is_json_text(found, was)
    if isinstance(was, UUID):
        return bool(found == str(was))
    if isinstance(was, float):
        return isinstance(found, float) and _are_same_doubles(found, was)
    if column.type is ColumnType.DECIMAL:
        return bool(found == was)
    return bool(found == was) and isinstance(found, bool) is isinstance(was, bool)


def _are_same_doubles(found: float, was: float) -> bool:
    if math.isnan(was):
        return math.isnan(found)
    return found == was and math.copysign(1, found) == math.copysign(1, was)
