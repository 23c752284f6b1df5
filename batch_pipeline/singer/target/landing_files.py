"""Files that the records of a stream are written to before they land.

`JsonLinesFile` and `ParquetFile` are `RollingFile`s, which accept records up to their bounds;
`LandingFile` makes a finished file visible, as a whole or not at all.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from datetime import time as day_time
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import IO, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from singer_sdk.singerlib.json import serialize_json

from batch_pipeline.encode.arrow_types import arrow_type_of
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    PipelineError,
    RetryableError,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import shown
from batch_pipeline.model.schema import Column, ColumnType, schema_of
from batch_pipeline.singer.target.config import Bounds
from batch_pipeline.storage.filesystem import UnreachableError, filesystem_of, reason_of
from batch_pipeline.storage.part_formats.jsonl import new_compressor

LANDING_FILE_NAME = re.compile(r".*-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}-[0-9]{6,}\.[a-z.]+")
_LEFTOVER = "{} may be complete and would be read twice: delete it before the tap runs again"


class RowMismatchError(ValueError):
    """A record that does not fit the columns of a table; the text has property and reason."""


class LandingFile:
    """A file being written to a landing, which it reaches completely or not at all.

    Raises:
        PipelineError: the file cannot be created.
    """

    def __init__(self, root: str, name: str) -> None:
        files = filesystem_of(root)
        self._root, self._uri = root, files.join(root, name)
        try:
            self._staged = files.stage(self._uri)
        except OSError as error:
            raise self._error(error) from error

    @property
    def file(self) -> IO[bytes]:
        """The opened file."""
        return self._staged.file

    def land(self) -> LandedFile:
        """Complete the file, make it visible under its final name and return the landed file.

        Raises:
            ConfigurationError: the disk cannot be written, or the store rejects the file.
            RetryableError: the store is currently unreachable.
        """
        with self.writing():
            failpoint("target.before_rename")
            facts = self._staged.commit()
        failpoint("target.after_rename")
        return facts.landed_as(self._uri)

    def abandon(self) -> None:
        """Discard the file unless it has landed."""
        self._staged.abort()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Discard the file if the block fails; the error names it if it may still exist.

        Raises:
            PipelineError: the disk cannot be written, or the store rejects the file.
        """
        try:
            yield
        except OSError as error:
            # If an unregistered file remains, its records would be ingested twice.
            left = "" if self._staged.abort() else f"; {_LEFTOVER.format(self._uri)}"
            raise self._error(error, left) from error

    def _error(self, error: OSError, left: str = "") -> PipelineError:
        reason = f"{reason_of(error)}{left}"
        if isinstance(error, UnreachableError):
            return RetryableError(
                f"The landing {self._root} cannot be written now ({reason}). No partial file is "
                f"left, and no STATE was printed for what is lost. When the store works again, run "
                f"the tap again from the last STATE that was printed."
            )
        return landing_failed(shown(self._root), reason)


def land_all(files: Iterable[LandingFile]) -> list[LandedFile]:
    """Land all files or none; the error names those that could not be removed.

    Raises:
        PipelineError: a file cannot be made visible.
    """
    landed: list[LandedFile] = []
    try:
        for file in files:
            landed.append(file.land())  # noqa: PERF401 - known when a later one fails
    except PipelineError as error:
        uris = [file.location for file in landed]
        try:
            for uri in uris:
                filesystem_of(uri).delete(uri)
        except OSError:
            left = _LEFTOVER.format(", ".join(map(shown, uris)))
            raise type(error)(f"{error} {left}.") from error
        raise
    return landed


def landing_failed(folder: str, reason: str) -> ConfigurationError:
    """Build the error for a landing that cannot be written."""
    return ConfigurationError(
        f"The landing folder {folder} cannot be written ({reason}). No partial file is "
        f"left, and no STATE was printed for what is lost. Free space or correct the folder, "
        f"then run the tap again from the last STATE that was printed."
    )


class RollingFile:
    """A file of records with size and age bounds; `due_at` uses the monotonic clock.

    Subclasses buffer records and write them in pieces of `_buffer_bytes` of JSON text.
    """

    _buffer_bytes: ClassVar[int]

    def __init__(self, file: LandingFile, bounds: Bounds) -> None:
        self.records = self.size_bytes = 0  # before compression
        self.due_at = time.monotonic() + bounds.max_age_seconds
        self._file, self._bounds = file, bounds
        self._rows: list[Any] = []
        self._flush_at = self._buffer_bytes

    @property
    def is_full(self) -> bool:
        """Whether the next record belongs in another file."""
        bounds = self._bounds
        return self.records >= bounds.max_records or self.size_bytes >= bounds.max_bytes

    def write(self, text: bytes, record: dict[str, Any]) -> None:
        """Write a record; `text` is its JSON text, `record` its value.

        Raises:
            PipelineError: the disk cannot be written.
            RowMismatchError: the record does not fit the columns of a parquet table.
        """
        self._append(text, record)
        self.records += 1
        if self.size_bytes >= self._flush_at:
            with self._file.writing():
                self._flush()
            self._flush_at = self.size_bytes + self._buffer_bytes

    def land(self) -> LandedFile:
        """Complete the file and make it visible under its final name.

        Raises:
            PipelineError: the file cannot be written or made visible.
        """
        with self._file.writing():
            self._flush()
            self._close()
        return self._file.land()

    def abandon(self) -> None:
        """Remove the file unless it has landed."""
        self._rows = []
        self._file.abandon()

    def _append(self, text: bytes, record: dict[str, Any]) -> None:
        raise NotImplementedError

    def _flush(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


def rolling_file(
    file: LandingFile, encoding: Encoding, bounds: Bounds, schema: Mapping[str, Any]
) -> RollingFile:
    """Return a file of records with this encoding."""
    if encoding.format is Format.PARQUET:
        return ParquetFile(file, bounds, encoding.compression, schema)
    return JsonLinesFile(file, bounds, encoding.compression)


class JsonLinesFile(RollingFile):
    """Records as written, one per line."""

    _buffer_bytes = 512 * 1024

    def __init__(self, file: LandingFile, bounds: Bounds, compression: Compression) -> None:
        super().__init__(file, bounds)
        self._compressor = new_compressor(compression, 1)

    def _append(self, text: bytes, record: dict[str, Any]) -> None:
        # A carriage return between tokens, which JSON allows, does not end a line.
        self._rows.append(text)
        self.size_bytes += len(text) + 1

    def _flush(self) -> None:
        if self._rows:
            data = b"\n".join([*self._rows, b""])
            self._rows = []
            compressor = self._compressor
            self._file.file.write(data if compressor is None else compressor.compress(data))

    def _close(self) -> None:
        if self._compressor is not None:
            self._file.file.write(self._compressor.flush())


class ParquetFile(RollingFile):
    """A parquet table, written in row groups of at most 16 MiB of JSON text."""

    _buffer_bytes = 16 * 2**20

    def __init__(
        self,
        file: LandingFile,
        bounds: Bounds,
        compression: Compression,
        schema: Mapping[str, Any],
    ) -> None:
        super().__init__(file, bounds)
        self._columns = {column.name: column for column in _columns(schema)}
        self._converters = {name: _converter(column) for name, column in self._columns.items()}
        types = [(column.name, _arrow_type(column)) for column in self._columns.values()]
        self._schema = pa.schema(types)
        self._writer = pq.ParquetWriter(file.file, self._schema, compression=compression.value)

    def abandon(self) -> None:
        """Remove the file unless it has landed."""
        with suppress(OSError):
            self._writer.close()
        super().abandon()

    def _append(self, text: bytes, record: dict[str, Any]) -> None:
        row = {}
        for name, value in record.items():
            convert = self._converters.get(name)
            if convert is None:
                raise RowMismatchError(f"property {name} is not in the SCHEMA, so it has no column")
            try:
                row[name] = None if value is None else convert(value)
            except (ValueError, TypeError, ArithmeticError) as error:
                kind = self._columns[name].type_text
                problem = f"property {name} is not of type {kind} ({error})"
                raise RowMismatchError(problem) from error
        self._rows.append(row)
        self.size_bytes += len(text)

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows = []

    def _close(self) -> None:
        self._writer.close()


def _columns(schema: Mapping[str, Any]) -> list[Column]:
    """Return the columns of a SCHEMA; a property that is not a valid column has type ANY."""
    columns = []
    for name, shape in schema["properties"].items():
        try:
            (column,) = schema_of({"properties": {name: shape}}).columns
        except InvalidValueError:
            column = Column(name=name, type=ColumnType.ANY)
        columns.append(column)
    return columns


def _arrow_type(column: Column) -> pa.DataType:
    # Binary values stay base64 text, as the tap wrote them.
    return pa.string() if column.type is ColumnType.BINARY else arrow_type_of(column)


def _converter(column: Column) -> Callable[[Any], Any]:
    """Return the conversion of JSON values to those of a column.

    For a value that does not fit, it raises a `ValueError`, `TypeError` or `ArithmeticError`.
    """
    if column.type is ColumnType.DECIMAL:
        exact = Context(prec=column.precision, traps=[Inexact, InvalidOperation])
        return partial(_decimal, exact=exact, unit=Decimal((0, (1,), -column.scale)))
    return _CONVERSIONS.get(column.type, serialize_json)


def _plain(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80}")
    return value


_NOT_NUMBERS = (bool, str, list, dict)


def _number(value: Any) -> Any:
    if isinstance(value, _NOT_NUMBERS):
        raise TypeError(f"{value!r:.80}")
    return value


def _integer(value: Any) -> int:
    number = _number(value)
    if not -(2**63) <= number < 2**63 or number % 1:
        raise ValueError(f"{value!s:.80} is no integer of 64 bits")
    return int(number)


def _double(value: Any) -> float:
    number = float(_number(value))
    if not math.isfinite(number):
        raise ValueError(f"{value!s:.80} is out of range")
    return number


def _decimal(value: Any, exact: Context, unit: Decimal) -> Decimal:
    with suppress(ArithmeticError):
        number = exact.quantize(Decimal(_number(value)), unit)
        if number.is_finite():
            return number
    raise ValueError(f"{value!s:.80} does not fit")


_BELOW_MICROSECONDS = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")  # Python would cut these digits
_KEEP_TEXT = "; without `format` in the SCHEMA it would be landed as text"


def _iso(value: str) -> str:
    if _BELOW_MICROSECONDS.search(value):
        raise ValueError(f"{value!r:.80} has digits below microseconds{_KEEP_TEXT}")
    return value


def _instant(value: str) -> datetime:
    at = datetime.fromisoformat(_iso(value))
    # Arrow would write an instant outside of the years 1 to 9999, which nothing can read.
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _local(value: str) -> datetime:
    at = datetime.fromisoformat(_iso(value))
    if at.tzinfo is not None:
        raise ValueError(f"{value!r:.80} has a time zone{_KEEP_TEXT}")
    return at


def _time(value: str) -> day_time:
    at = day_time.fromisoformat(_iso(value))
    if at.utcoffset():
        raise ValueError(f"{value!r:.80} has an offset from UTC{_KEEP_TEXT}")
    return at.replace(tzinfo=None)


def _day(value: str) -> date:
    at = datetime.fromisoformat(_iso(value))
    if at.time() != day_time.min:
        raise ValueError(f"{value!r:.80} has a time of day")
    return at.date()


_CONVERSIONS: dict[ColumnType, Callable[[Any], Any]] = {
    ColumnType.BOOLEAN: partial(_plain, kind=bool),
    ColumnType.INTEGER: _integer,
    ColumnType.NUMBER: _double,
    ColumnType.STRING: partial(_plain, kind=str),
    ColumnType.BINARY: partial(_plain, kind=str),
    ColumnType.DATE: _day,
    ColumnType.TIME: _time,
    ColumnType.TIMESTAMP: _instant,
    ColumnType.LOCAL_TIMESTAMP: _local,
}
