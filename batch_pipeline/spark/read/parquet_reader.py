"""Reads parquet files a few MiB of rows at a time, whatever the size of their row groups.

Values keep their type or become JSON text; what no column can hold is set aside, never cut.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as at

from batch_pipeline.domain.record_rules import OnNonfinite, ReadLimits
from batch_pipeline.domain.schema import Column
from batch_pipeline.spark.arrow_types import ArrowTypeUnknownError
from batch_pipeline.spark.chunks import Table
from batch_pipeline.spark.read.arrow_tables import columns_of, table_of
from batch_pipeline.spark.read.arrow_values import MisfitError
from batch_pipeline.spark.read.compression import RATIO_FROM
from batch_pipeline.spark.read.decoded_bytes import decoded_bytes
from batch_pipeline.spark.read.parquet_damage import DAMAGE, damage_reason
from batch_pipeline.spark.read.parquet_probe import check_columns
from batch_pipeline.spark.read.refusals import MakesBadFile
from batch_pipeline.spark.read.slices import ByteRange

_CHUNK_BYTES = 4 * 2**20
_CELL_BYTES = 16  # of most values, once they are read
_MAX_ROWS = 2**15
_READ_BYTES = 2**16  # read ahead of each column
_MAX_METADATA = 256 * 2**20


class ParquetReader:
    """The records of a parquet file, or of the row groups whose middle lies in `part`.

    `file` can be sought; its position is this reader's alone.
    """

    def __init__(
        self,
        file: BinaryIO,
        limits: ReadLimits,
        on_nonfinite: OnNonfinite,
        bad_file: MakesBadFile,
        part: ByteRange | None = None,
    ) -> None:
        self._file = file
        self._limits = limits
        self._on_nonfinite = on_nonfinite
        self._bad_file = bad_file
        self._part = part
        self._packed_bytes = file.seek(0, io.SEEK_END)
        self._value_bytes = 0

    def chunks(self) -> Iterator[Table]:
        """Give the records in order, a few MiB at a time; a file without any gives its columns.

        Raises:
            BadFileError: the file is damaged, or has columns that are not supported.
        """
        with self._damage_told():
            file = _opened(self._file)
            columns = columns_of(file.schema_arrow, self._limits)
            int96 = _int96_columns(file)
            self._check_expansion(file)
            if not file.metadata.num_rows:
                yield self._empty(file.schema_arrow, columns)
        number = 1
        for group in range(file.num_row_groups):
            with self._damage_told():
                rows = file.metadata.row_group(group).num_rows
                if self._is_ours(file.metadata.row_group(group)):
                    yield from self._group(file, group, columns, number, int96)
            number += rows

    def _group(
        self,
        file: pq.ParquetFile,
        group: int,
        columns: tuple[Column, ...],
        number: int,
        int96: list[str],
    ) -> Iterator[Table]:
        left = file.metadata.row_group(group).num_rows
        size = _rows_at_once(file, group)
        finer = _FinerTimes(self._file, int96, group, size)
        for batch in file.iter_batches(size, row_groups=[group], use_threads=False):
            left -= batch.num_rows
            self._value_bytes += decoded_bytes(batch)
            self._check_growth(self._value_bytes)
            misfits = finer.found_in(batch)
            yield table_of(batch, columns, self._on_nonfinite, number, misfits)
            number += batch.num_rows
        if left:
            raise self._bad_file(f"is damaged: row group {group + 1} has not all of its records")

    def _check_expansion(self, file: pq.ParquetFile) -> None:
        """Check what the file says of itself, before the memory for it is taken."""
        groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
        self._check_growth(sum(group.total_byte_size for group in groups))
        leaves = range(len(file.schema))
        lists = [leaf for leaf in leaves if file.schema.column(leaf).max_repetition_level]
        if lists or self._part is not None:  # columns will be asked for their sizes or places
            check_columns(file, self._packed_bytes)
        for leaf in lists:  # one record may have any number of them, in no bytes
            self._check_growth(sum(group.column(leaf).num_values for group in groups))

    def _check_growth(self, size_bytes: int) -> None:
        packed, most = self._packed_bytes, self._limits.max_expansion
        if size_bytes >= RATIO_FROM and size_bytes > most * packed:
            raise self._bad_file(
                f"its {packed} bytes become more than {most} times as many when they are "
                f"decompressed, which `read_limits.max_expansion` does not allow"
            )

    def _is_ours(self, group: pq.RowGroupMetaData) -> bool:
        if self._part is None:
            return True
        chunks = [group.column(index) for index in range(group.num_columns)]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        ends = [
            start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)
        ]
        middle: int = (min(starts) + max(ends)) // 2
        return self._part.start <= middle < self._part.stop

    def _empty(self, schema: pa.Schema, columns: tuple[Column, ...]) -> Table:
        arrays = [pa.array([], arrow_type) for arrow_type in schema.types]
        batch = pa.RecordBatch.from_arrays(arrays, schema.names)
        return table_of(batch, columns, self._on_nonfinite, 1, {})

    @contextmanager
    def _damage_told(self) -> Iterator[None]:
        try:
            yield
        except ArrowTypeUnknownError as error:
            raise self._bad_file(str(error)) from error
        except DAMAGE as error:
            raise self._bad_file(damage_reason(error)) from error


class _FinerTimes:
    """Finds the times of the old type INT96 that are finer than microseconds.

    Arrow gives them in nanoseconds, which do not reach far, or cut to microseconds: both are read,
    and the difference, modulo 2^64, is what was cut.
    """

    def __init__(self, file: BinaryIO, names: list[str], group: int, size: int) -> None:
        self._names = names
        if names:
            exact = pq.ParquetFile(file, **_OPTIONS)
            self._batches = exact.iter_batches(
                size, row_groups=[group], columns=names, use_threads=False
            )

    def found_in(self, batch: pa.RecordBatch) -> dict[int, tuple[str, MisfitError]]:
        if not self._names:
            return {}
        exact = next(self._batches, None)
        if exact is None or exact.num_rows != batch.num_rows:
            raise pa.ArrowInvalid("columns do not have the same size")
        misfits: dict[int, tuple[str, MisfitError]] = {}
        for name in self._names:
            cut = _counts(batch.column(name)) * 1000
            rest = _counts(exact.column(name)) - cut
            for row in np.flatnonzero(rest).tolist():
                shown = f"{cut[row] + rest[row]} ns since 1970, modulo 2^64"
                misfits[row] = (name, MisfitError("is not in whole microseconds", shown))
        return misfits


_OPTIONS = {
    "buffer_size": _READ_BYTES,
    "pre_buffer": False,
    "page_checksum_verification": True,
    "thrift_string_size_limit": _MAX_METADATA,
}


def _opened(file: BinaryIO) -> pq.ParquetFile:
    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us", **_OPTIONS)


def _rows_at_once(file: pq.ParquetFile, group: int) -> int:
    """Give how many rows of a group make a few MiB.

    The file tells its encoded bytes only: where values repeat, they grow a lot when they are read.
    """
    facts = file.metadata.row_group(group)
    encoded = facts.total_byte_size // max(facts.num_rows, 1)
    row_bytes = max(encoded, facts.num_columns * _CELL_BYTES, 1)
    size: int = min(max(_CHUNK_BYTES // row_bytes, 1), _MAX_ROWS)
    if encoded >= facts.num_columns * _CELL_BYTES:
        return size
    first = next(file.iter_batches(size, row_groups=[group], use_threads=False), None)
    size_bytes = 0 if first is None else decoded_bytes(first)
    return size if size_bytes <= 2 * _CHUNK_BYTES else max(size * _CHUNK_BYTES // size_bytes, 1)


def _int96_columns(file: pq.ParquetFile) -> list[str]:
    """Name the columns of the type INT96, which may not stand inside of others."""
    names: list[str] = []
    for index in range(len(file.schema)):
        leaf = file.schema.column(index)
        if leaf.physical_type != "INT96":
            continue
        if leaf.path != leaf.name or at.is_nested(file.schema_arrow.field(leaf.name).type):
            raise ArrowTypeUnknownError(
                f"column {leaf.path!r} holds INT96 times inside of other values, "
                "which is not supported"
            )
        names.append(leaf.name)
    return names


def _counts(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Give times as counts of their unit, 0 for null."""
    counts: np.ndarray[tuple[int], np.dtype[np.int64]] = (
        array.cast(pa.timestamp(array.type.unit)).view(pa.int64()).fill_null(0).to_numpy()
    )
    return counts
