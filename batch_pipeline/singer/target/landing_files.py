"""Files that the records of a stream are written to before they land.

`RollingFile` writes records up to its bounds; `LandingFile` makes the finished file visible, as a
whole or not at all.
"""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from batch_pipeline.model.encoding import Encoding, Format
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import shown
from batch_pipeline.singer.target.config import Bounds
from batch_pipeline.singer.target.errors import landing_failed, landing_unreachable
from batch_pipeline.singer.target.writers import JsonLines, ParquetRows, RecordWriter
from batch_pipeline.storage.filesystem import UnreachableError, filesystem_of, reason_of

LANDING_FILE_NAME = re.compile(r".*-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}-[0-9]{6,}\.[a-z.]+")
_LEFTOVER = "{} may be there as a whole, and would come twice: delete it before the tap runs again"


class RollingFile:
    """A file of records with size and age bounds; `due_at` uses the monotonic clock."""

    def __init__(
        self, file: "LandingFile", encoding: Encoding, bounds: Bounds, schema: Mapping[str, Any]
    ) -> None:
        self._file, self._bounds = file, bounds
        self._writer: RecordWriter
        if encoding.format is Format.PARQUET:
            self._writer = ParquetRows(file.file, encoding.compression, schema)
        else:
            self._writer = JsonLines(file.file, encoding.compression)
        self.due_at = time.monotonic() + bounds.max_age_seconds

    @property
    def records(self) -> int:
        """The number of records written."""
        return self._writer.records

    @property
    def is_full(self) -> bool:
        """Whether the next record belongs in another file."""
        writer, bounds = self._writer, self._bounds
        return writer.records >= bounds.max_records or writer.size_bytes >= bounds.max_bytes

    def write(self, text: bytes, record: dict[str, Any]) -> None:
        """Write a record.

        Raises:
            PipelineError: the disk cannot be written.
            RowMismatchError: the record does not fit the columns of a parquet table.
        """
        try:
            self._writer.write(text, record)
        except OSError as error:
            raise self._file.failed(error) from error

    def land(self) -> LandedFile:
        """Complete the file and make it visible under its final name.

        Raises:
            PipelineError: the file cannot be written or made visible.
            RowMismatchError: a record does not fit the columns of a parquet table.
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
        try:
            failpoint("target.before_rename")
            facts = self._staged.commit()
        except OSError as error:
            raise self.failed(error) from error
        failpoint("target.after_rename")
        return LandedFile(
            location=self._uri,
            size_bytes=facts.size_bytes,
            modified_at=facts.modified_at,
            etag=facts.etag,
        )

    def abandon(self) -> None:
        """Discard the file unless it has landed."""
        self._staged.abort()

    def failed(self, error: OSError) -> PipelineError:
        """Discard the file and return the error, including what the store may still contain."""
        # Unregistered, its records would be ingested twice.
        left = "" if self._staged.abort() else f"; {_LEFTOVER.format(self._uri)}"
        return self._error(error, left)

    def _error(self, error: OSError, left: str = "") -> PipelineError:
        reason = f"{reason_of(error)}{left}"
        if isinstance(error, UnreachableError):
            return landing_unreachable(self._root, reason)
        return landing_failed(shown(self._root), reason)
