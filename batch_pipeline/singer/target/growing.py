"""The file that the records of one stream are written to, until it is full or old enough."""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from batch_pipeline.domain.encoding import Encoding, Format
from batch_pipeline.domain.item import FoundFile
from batch_pipeline.singer.target.config import Bounds
from batch_pipeline.singer.target.places import NewFile
from batch_pipeline.singer.target.writers import JsonLines, RecordWriter


class GrowingFile:
    """A hidden file of records with its bounds; `due_at` is of the monotonic clock."""

    def __init__(
        self, file: NewFile, encoding: Encoding, bounds: Bounds, schema: Mapping[str, Any]
    ) -> None:
        self._file, self._bounds = file, bounds
        self._writer = _writer(file, encoding, schema)
        self.due_at = time.monotonic() + bounds.max_age_seconds

    @property
    def records(self) -> int:
        """Records written so far."""
        return self._writer.records

    @property
    def is_full(self) -> bool:
        """Tell that the next record belongs into another file."""
        writer, bounds = self._writer, self._bounds
        return writer.records >= bounds.max_records or writer.size_bytes >= bounds.max_bytes

    def write(self, text: bytes, record: dict[str, Any]) -> None:
        """Add a record.

        Raises:
            LandingFailedError: the disk refuses.
            RowMisfitError: a parquet table has no room for it.
        """
        try:
            self._writer.write(text, record)
        except OSError as error:
            raise self._file.failed(error) from error

    def land(self) -> FoundFile:
        """Complete the file and give it its name.

        Raises:
            LandingFailedError: the disk refuses.
            RowMisfitError: a parquet table has no room for what it was given.
        """
        try:
            self._writer.finish()
        except OSError as error:
            raise self._file.failed(error) from error
        return self._file.land()

    def abandon(self) -> None:
        """Remove the file unless it has landed."""
        with suppress(OSError):
            self._writer.abandon()
        self._file.abandon()


def _writer(file: NewFile, encoding: Encoding, schema: Mapping[str, Any]) -> RecordWriter:
    if encoding.format is Format.PARQUET:
        from batch_pipeline.singer.target.parquet_rows import ParquetRows  # loads Arrow

        return ParquetRows(file.file, encoding.compression, schema)
    return JsonLines(file.file, encoding.compression)
