"""Part files of parquet."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batch_pipeline.model.encoding import FASTEST_LEVEL, Compression, Encoding
from batch_pipeline.storage.part_formats import TableCodec

_SAMPLE_ROWS = 1024
_REPEATS_IN_SAMPLE = 1 / 50  # some 26,000 distinct values: more would not fit a dictionary page


class _Writer:
    def __init__(self, file: Any, first: pa.Table, encoding: Encoding) -> None:
        level = encoding.level
        if level is None and encoding.compression in (Compression.ZSTD, Compression.GZIP):
            level = FASTEST_LEVEL
        self._writer = pq.ParquetWriter(
            file,
            first.schema,
            compression=encoding.compression.value,
            compression_level=level,
            use_dictionary=[name for name in first.schema.names if _repeats(first.column(name))],
            write_page_checksum=True,
        )

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, table.num_rows)

    def close(self) -> None:
        self._writer.close()


def _repeats(column: pa.ChunkedArray) -> bool:
    """Return whether values repeat so often that a dictionary saves space and time."""
    sample = column.slice(0, _SAMPLE_ROWS)
    present = len(sample) - sample.null_count
    distinct = len(sample.unique()) - (sample.null_count > 0)
    return bool(present - distinct >= present * _REPEATS_IN_SAMPLE)


def _read_batches(
    path: Path, columns: Collection[str] | None, max_rows: int
) -> Iterator[pa.RecordBatch]:
    # With read-ahead the C++ library can abort a process that is already exiting.
    with (
        path.open("rb") as file,
        pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=False) as parquet,
    ):
        names = parquet.schema_arrow.names
        selected = [name for name in names if columns is None or name in columns]
        yield from parquet.iter_batches(max_rows, columns=selected, use_threads=False)


CODEC = TableCodec(open_writer=_Writer, read_batches=_read_batches)
