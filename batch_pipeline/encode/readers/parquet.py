"""Read parquet files: row groups in order, in batches of a few MiB.

The claims of the metadata are checked before memory is allocated for them, so that a damaged or
hostile file becomes a bad file and does not crash the process.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as at

from batch_pipeline.encode.arrow_types import ArrowTypeUnknownError
from batch_pipeline.encode.chunks import ByteRange, Table
from batch_pipeline.encode.errors import os_error_reason
from batch_pipeline.encode.readers.arrow_values import (
    ConversionError,
    RowError,
    RowErrors,
    columns_from_schema,
    convert_batch,
    decoded_bytes,
)
from batch_pipeline.encode.readers.compression import EXPANSION_CHECKED_FROM_BYTES
from batch_pipeline.encode.readers.decoded_file import DecodedFile
from batch_pipeline.model.stream import Stream


class _UnreadableFile(io.RawIOBase):
    """A file that cannot be read at all; `was_read` states that a read was attempted."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.was_read = False
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}
        self._position = start[whence] + offset
        return self._position

    def read(self, _size: int = -1) -> bytes:
        self.was_read = True
        raise OSError("no page is to be read")


def _check_column_metadata(file: pq.ParquetFile, size_bytes: int) -> None:
    """Check the metadata of all columns of all row groups; reads no page.

    pyarrow crashes the process if the position or size of a column with damaged or encrypted
    metadata is accessed. A reader of that column raises an error instead, so create one first.

    Raises:
        ArrowException: the metadata of a column is damaged or encrypted.
        OSError: the same.
    """
    pages = _UnreadableFile(size_bytes)
    probe = pq.ParquetFile(pages, metadata=file.metadata, buffer_size=2**16, pre_buffer=False)
    for group in range(file.num_row_groups):
        pages.was_read = False
        try:
            next(probe.iter_batches(1, row_groups=[group], use_threads=False), None)
        except Exception:  # for the page that could not be read, or for damaged metadata
            if not pages.was_read:
                raise


_READ_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
_PHRASES = {
    "magic bytes not found": "is not a parquet file, or its end is missing",
    "minimum file footer": "is not a parquet file: it is too short",
    "file size is 0 bytes": "is empty",
    "encrypted": "is encrypted",
    "decrypt": "is encrypted",
    "crc checksum": "is damaged: a page does not match its checksum",
}
_MAX_MESSAGE = 120


def _damage_reason(error: BaseException) -> str:
    """Return why a file is bad, without its path."""
    if isinstance(error, OSError) and error.errno is not None:
        return os_error_reason(error)
    if isinstance(error, MemoryError):
        return "needs more memory to read than is available"
    text = str(error)
    for mark, phrase in _PHRASES.items():
        if mark in text.lower():
            return phrase
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    shown = first if len(first) <= _MAX_MESSAGE else f"{first[:_MAX_MESSAGE]}…"
    if isinstance(error, pa.ArrowNotImplementedError):
        return f"uses a Parquet feature that is not supported ({shown})"
    return f"is damaged ({shown})"


_CHUNK_BYTES = 4 * 2**20
_CELL_BYTES = 16  # of most values in memory
_MAX_ROWS = 2**15
_MAX_REPEATED_BYTES = 32 * 2**20  # of a row group, if each value were the longest
_LONG_VALUE_BYTES = 2**13  # up to this size, a batch has a thousand rows
_FIXED = "FIXED_LEN_BYTE_ARRAY"
_READ_BYTES = 2**16  # read ahead of each column
_UNBUFFERED_BYTES = 32 * 2**20
_MAX_METADATA_BYTES = 256 * 2**20


class ParquetTable:
    """An open parquet file, whose records are read a few MiB at a time.

    `schema` has the columns, in which enumerations are text. Nothing else may move the position of
    the file. `check_growth` is called with the size of all records in bytes, as far as it is known,
    and raises if the file may not expand that much. `options` are those of `pq.ParquetFile`.
    """

    def __init__(self, file: BinaryIO, check_growth: Callable[[int], None], **options: Any) -> None:
        self._file = file
        self._check_growth = check_growth
        self._file_bytes = file.seek(0, io.SEEK_END)
        self._value_bytes = 0
        self.file = _open(file, self._file_bytes, **options)
        columns = self.file.schema
        self._leaves = [columns.column(leaf) for leaf in range(len(columns))]
        self.schema = self.file.schema_arrow
        is_enum = [leaf.logical_type.type == "ENUM" for leaf in self._leaves]
        self._has_enum = any(is_enum)
        if self._has_enum:  # Arrow returns bytes
            leaves = iter(is_enum)
            self.schema = pa.schema([_with_text(column, leaves) for column in self.schema])
        self._lists = [
            number for number, leaf in enumerate(self._leaves) if leaf.max_repetition_level
        ]
        self._texts = [leaf.path for leaf in self._leaves if leaf.physical_type == "BYTE_ARRAY"]

    def check_expansion(self, *, positions: bool = False) -> None:
        """Check the sizes in the metadata before memory is allocated for them.

        With `positions`, the metadata of columns is checked even if no size is taken from it.

        Raises:
            ArrowException: the metadata is damaged.
        """
        metadata = self.file.metadata
        groups = [metadata.row_group(group) for group in range(self.file.num_row_groups)]
        if any(group.num_rows < 0 for group in groups):
            raise pa.ArrowInvalid("a row group has a negative number of rows")
        self._check_growth(sum(group.total_byte_size for group in groups))
        if self._lists or positions:
            _check_column_metadata(self.file, self._file_bytes)
        for leaf in self._lists:  # a record may have any number of values of no bytes
            width = self._leaves[leaf].length  # of values of a fixed size, else 0
            values = sum(group.column(leaf).num_values for group in groups)
            self._check_growth(values * max(width, 1))

    def batches(
        self, group: int, int96: Sequence[str] = ()
    ) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
        """Yield the records of a row group, and its columns `int96` in nanoseconds."""
        size = self._rows_at_once(group)
        exact: Iterator[pa.RecordBatch] = iter(())
        if int96:
            nanoseconds = _open(self._file, self._file_bytes)
            exact = nanoseconds.iter_batches(
                size, row_groups=[group], columns=[*int96], use_threads=False
            )
        for batch in self.file.iter_batches(size, row_groups=[group], use_threads=False):
            self._value_bytes += decoded_bytes(batch)
            self._check_growth(self._value_bytes)
            if self._has_enum:  # `convert_array` finds text that is not UTF-8, record by record
                batch = batch.cast(self.schema, safe=False)  # noqa: PLW2901
            yield batch, next(exact, None)

    def _rows_at_once(self, group: int) -> int:
        """Return how many rows of a group take a few MiB.

        The file states only encoded sizes, in which a repeated value counts once: 300 bytes can
        hold a thousand texts of 1 MiB. A row group has one dictionary for each column, which is
        read with its first row.
        """
        metadata = self.file.metadata.row_group(group)
        fixed = sum(leaf.length for leaf in self._leaves if leaf.physical_type == _FIXED)
        row_bytes = metadata.total_byte_size // max(metadata.num_rows, 1)
        row_bytes = max(row_bytes, metadata.num_columns * _CELL_BYTES + fixed, 1)
        size: int = min(max(_CHUNK_BYTES // row_bytes, 1), _MAX_ROWS, metadata.num_rows or 1)
        items = [metadata.column(leaf).num_values for leaf in self._lists]
        values = max(metadata.num_rows, *items, 1)
        if not self._texts or metadata.total_byte_size * values <= _MAX_REPEATED_BYTES:
            return size
        first = next(self._undecoded(group, 1), None)
        longest = 0 if first is None else sum(map(_longest_value, first.columns))
        if longest * values <= _MAX_REPEATED_BYTES:
            return size
        if longest <= _LONG_VALUE_BYTES and not self._lists:
            return min(size, 2 * _CHUNK_BYTES // longest)
        return self._measure_rows(group, size)

    def _measure_rows(self, group: int, size: int) -> int:
        """Return `size` or fewer rows; reads the group without decoding its dictionaries."""
        total = largest = 0
        for batch in self._undecoded(group, size):
            size_bytes = decoded_bytes(batch)
            total, largest = total + size_bytes, max(largest, size_bytes)
            self._check_growth(self._value_bytes + total)
        return size if largest <= 2 * _CHUNK_BYTES else max(size * _CHUNK_BYTES // largest, 1)

    def _undecoded(self, group: int, size: int) -> Iterator[pa.RecordBatch]:
        """Read columns of text and binary values as indexes into their dictionaries."""
        batches: Iterator[pa.RecordBatch] = self._undecoded_file.iter_batches(
            size, row_groups=[group], columns=self._texts, use_threads=False
        )
        return batches

    @cached_property
    def _undecoded_file(self) -> pq.ParquetFile:
        options = {"metadata": self.file.metadata, "read_dictionary": self._texts}
        return _open(self._file, self._file_bytes, **options)


def read_chunks(source: DecodedFile, stream: Stream) -> Iterator[Table]:
    """Yield the records of a file, or of the row groups whose middle lies in the source's part.

    They are yielded in order, a few MiB at a time; without a record, an empty table has the
    columns.

    Raises:
        BadFileError: the file is damaged, or has columns that are not supported.
    """
    file = source.file
    try:
        yield from _tables(file, source, stream)
    except ArrowTypeUnknownError as error:
        raise source.bad_file(str(error)) from error
    except _READ_ERRORS as error:
        raise source.bad_file(_damage_reason(error)) from error


def _tables(file: BinaryIO, source: DecodedFile, stream: Stream) -> Iterator[Table]:
    file_bytes, most = file.seek(0, io.SEEK_END), stream.read_limits.max_expansion

    def check_growth(size_bytes: int) -> None:
        if size_bytes >= EXPANSION_CHECKED_FROM_BYTES and size_bytes > most * file_bytes:
            raise source.bad_file(
                f"its {file_bytes} bytes expand more than {most}-fold when they are "
                f"decompressed, which `read_limits.max_expansion` does not allow"
            )

    table = ParquetTable(file, check_growth, coerce_int96_timestamp_unit="us")
    schema, metadata = table.schema, table.file.metadata
    columns = columns_from_schema(schema, stream.read_limits)
    int96 = _int96_columns(table.file)
    table.check_expansion(positions=source.part is not None)
    if not metadata.num_rows:
        arrays = [pa.array([], arrow_type) for arrow_type in schema.types]
        batch = pa.RecordBatch.from_arrays(arrays, schema.names)
        yield convert_batch(batch, columns, stream.on_nonfinite, 1, {})
    number = 1
    for group in range(metadata.num_row_groups):
        left = metadata.row_group(group).num_rows
        if source.part is not None and not _is_in_part(metadata.row_group(group), source.part):
            number += left
            continue
        for batch, exact in table.batches(group, int96):
            left -= batch.num_rows
            errors = _find_int96_errors(batch, exact, int96)
            yield convert_batch(batch, columns, stream.on_nonfinite, number, errors)
            number += batch.num_rows
        if left:
            raise source.bad_file(f"is damaged: row group {group + 1} lacks some of its records")


def _is_in_part(group: pq.RowGroupMetaData, part: ByteRange) -> bool:
    chunks = [group.column(index) for index in range(group.num_columns)]
    # As Arrow, which ignores the offset of a dictionary behind the data.
    starts = [
        min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
        for chunk in chunks
    ]
    ends = [
        start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)
    ]
    middle: int = (min(starts) + max(ends)) // 2
    return part.start <= middle < part.stop


def _find_int96_errors(
    batch: pa.RecordBatch, exact: pa.RecordBatch | None, names: list[str]
) -> RowErrors:
    """Find INT96 timestamps that are finer than microseconds.

    Arrow returns them in nanoseconds (`exact`), which overflow outside of the years 1677 to 2262,
    or truncated to microseconds. Their difference, modulo 2^64, is the truncated part.
    """
    errors: dict[int, RowError] = {}
    for name in names:
        if exact is None or exact.num_rows != batch.num_rows:
            raise pa.ArrowInvalid("columns do not have the same size")
        cut = _counts(batch.column(name)) * 1000
        rest = _counts(exact.column(name)) - cut
        for row in np.flatnonzero(rest).tolist():
            shown = f"{cut[row] + rest[row]} ns since 1970, modulo 2^64"
            errors[row] = (name, ConversionError("is not in whole microseconds", shown))
    return errors


def _open(file: BinaryIO, file_bytes: int, **options: Any) -> pq.ParquetFile:
    """Open a file so that memory use is bounded by a few pages, or by the size of a small file.

    A buffered stream allocates the size that a page header claims, up to 2 GiB, before it reads the
    page. Small files are therefore read without a buffer, one column chunk at a time. In larger
    files, such a claim is at most 64 times the file size, which `max_expansion` allows by default.
    """
    return pq.ParquetFile(
        file,
        buffer_size=0 if file_bytes <= _UNBUFFERED_BYTES else _READ_BYTES,
        pre_buffer=False,
        page_checksum_verification=True,
        thrift_string_size_limit=_MAX_METADATA_BYTES,
        **options,
    )


def _with_text(field: pa.Field, is_enum: Iterator[bool]) -> pa.Field:
    """Return a field whose enumerations are text; `is_enum` yields a value for each leaf."""
    kind = field.type
    if not at.is_nested(kind):
        return field.with_type(pa.string()) if next(is_enum) else field
    children = [_with_text(kind.field(index), is_enum) for index in range(kind.num_fields)]
    if at.is_struct(kind):
        return field.with_type(pa.struct(children))
    if at.is_map(kind):
        return field.with_type(pa.map_(*children[0].type))
    return field.with_type(pa.list_(*children))


def _longest_value(array: pa.Array) -> int:
    """Return the size of the longest value in the dictionaries of an array, also nested ones."""
    kind = array.type
    if at.is_dictionary(kind):
        return int(pc.max(pc.binary_length(array.dictionary)).as_py() or 0)
    if at.is_struct(kind):
        return sum(map(_longest_value, array.flatten()))
    if at.is_map(kind):
        return _longest_value(array.keys) + _longest_value(array.items)
    return _longest_value(array.flatten()) if at.is_nested(kind) else 0


def _int96_columns(file: pq.ParquetFile) -> list[str]:
    """Return the names of the INT96 columns; nested ones are not supported."""
    names: list[str] = []
    for index in range(len(file.schema)):
        leaf = file.schema.column(index)
        if leaf.physical_type != "INT96":
            continue
        if leaf.path != leaf.name or at.is_nested(file.schema_arrow.field(leaf.name).type):
            raise ArrowTypeUnknownError(
                f"column {leaf.path!r} holds INT96 times inside other values, "
                "which is not supported"
            )
        names.append(leaf.name)
    return names


def _counts(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return timestamps as counts of their unit, 0 for null."""
    counts: np.ndarray[tuple[int], np.dtype[np.int64]] = (
        array.cast(pa.timestamp(array.type.unit)).view(pa.int64()).fill_null(0).to_numpy()
    )
    return counts
