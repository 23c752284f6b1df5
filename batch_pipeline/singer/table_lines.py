"""The rows of a parquet or Arrow file as lines of JSON, exactly, in blocks of rows.

Values are written as part files of JSON lines have them: decimals with all their digits, times as
ISO 8601 text with microseconds, instants in UTC with `Z`, bytes as base64. Only files that this
product wrote are read: their columns have the types of the manifest's schema.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batch_pipeline.domain.encoding import Format
from batch_pipeline.domain.schema import Column, ColumnType

_ROWS = 2_000
_encode_lines = msgspec.json.Encoder(decimal_format="number").encode_lines
_JSON_TYPES = frozenset({ColumnType.OBJECT, ColumnType.ARRAY, ColumnType.ANY})
_INSTANTS = frozenset({ColumnType.TIMESTAMP, ColumnType.LOCAL_TIMESTAMP})
_CLOCKS = frozenset({ColumnType.DATE, ColumnType.TIME})


class NoTableError(Exception):
    """A file cannot be read as a table; the text says why."""


def table_lines(path: Path, file_format: Format, columns: Sequence[Column]) -> Iterator[bytes]:
    """Read rows as JSON objects with these columns, in their order; a column not there is null.

    Raises:
        NoTableError: the file is damaged or of another format.
        OSError: it cannot be read.
    """
    try:
        with ExitStack() as opened:
            for batch in _batches(path, file_format, columns, opened):
                yield _lines(batch, columns)
    except pa.ArrowException as error:
        raise NoTableError(str(error).strip()) from error


def _batches(
    path: Path, file_format: Format, columns: Sequence[Column], opened: ExitStack
) -> Iterator[pa.RecordBatch]:
    file = opened.enter_context(path.open("rb"))
    if file_format is Format.PARQUET:
        # Read ahead, a process may be ended by the C++ library while it is ending already.
        parquet = pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=False)
        present = set(parquet.schema_arrow.names)
        names = [column.name for column in columns if column.name in present]
        yield from parquet.iter_batches(batch_size=_ROWS, columns=names, use_threads=False)
        return
    arrow = pa.ipc.open_file(file)
    for index in range(arrow.num_record_batches):
        batch = arrow.get_batch(index)
        for start in range(0, batch.num_rows, _ROWS):
            yield batch.slice(start, _ROWS)


def _lines(batch: pa.RecordBatch, columns: Sequence[Column]) -> bytes:
    names = [column.name for column in columns]
    if not names:
        return b"{}\n" * int(batch.num_rows)
    present = set(batch.schema.names)
    values = [
        _values(batch.column(column.name), column)
        if column.name in present
        else [None] * batch.num_rows
        for column in columns
    ]
    rows = zip(*values, strict=True)
    written: bytes = _encode_lines([dict(zip(names, row, strict=True)) for row in rows])
    return written


def _values(array: pa.Array, column: Column) -> list[Any]:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if column.type in _JSON_TYPES:
        return [None if text is None else _raw(text) for text in array.to_pylist()]
    if column.type in _INSTANTS:
        mark = "Z" if column.type is ColumnType.TIMESTAMP else ""
        return _times(array, mark)
    if column.type in _CLOCKS:
        array = array.cast(pa.string())
    found: list[Any] = array.to_pylist()
    return found


def _raw(text: str) -> msgspec.Raw:
    """Take JSON as it stands, in one line: breaks can only be between its tokens."""
    return msgspec.Raw(text.replace("\n", " ").replace("\r", " ").encode())


def _times(array: pa.Array, mark: str) -> list[Any]:
    text = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.timestamp("us")).cast(pa.string())
    text = pc.replace_substring(text, " ", "T", max_replacements=1)
    found: list[Any] = pc.binary_join_element_wise(text, mark, "").to_pylist()
    return found
