"""Open the landed file of an item, and ensure that it is the version that was registered.

The version is pinned: in an object store, the ETag is part of each request; on a disk, size and
time are compared before and after the file is read. The bytes are not interpreted here.
"""

import errno
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from io import BufferedReader
from typing import Any

from batch_pipeline.encode.errors import format_reason
from batch_pipeline.model.errors import (
    BadFileError,
    InvalidValueError,
    SourceRefusedError,
    SourceUnavailableError,
)
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import Roots
from batch_pipeline.model.record_rules import BadFileKind
from batch_pipeline.model.stream import Stream
from batch_pipeline.storage.filesystem import (
    FileFacts,
    PinnedFile,
    filesystem_of,
    is_about_file,
    is_missing_bucket,
    is_outage,
    reason_of,
)
from batch_pipeline.storage.local import OutsideError
from batch_pipeline.storage.s3 import WHOLE_BYTES

# Returns a prefetched file, or None if the file was not prefetched.
TakePrefetched = Callable[[LandedFile], PinnedFile | None]
_CHANGED = "changed while it was read"


class SourceFile:
    """The open file of an item, whose version is `pinned`; the caller closes `raw`.

    A location outside of the stream's roots is never accessed.

    Raises:
        BadFileError: the file does not exist, is not the registered version, lies outside of the
            roots, or cannot be read.
        SourceUnavailableError: the store cannot be reached.
    """

    def __init__(
        self, file: LandedFile, stream: Stream, prefetched: TakePrefetched | None = None
    ) -> None:
        self._file = file
        self._stream = stream
        if stream.source.within.refuse(file.location):
            raise _outside(stream, file.location)
        try:
            self.pinned = (prefetched and prefetched(file)) or self._pin()
        except InvalidValueError as error:
            raise bad_file_error(stream, file.location, f"is not {error.expected}") from error
        except FileExistsError as error:
            raise self._other_version() from error
        except OSError as error:
            raise unreadable_error(stream, file.location, error) from error
        try:
            self._check_registered(self.facts)
            self.raw: BufferedReader[Any] = self.reopened()
        except OSError as error:
            raise unreadable_error(stream, file.location, error) from error
        except BadFileError:
            self.pinned.close()
            raise

    @property
    def facts(self) -> FileFacts:
        """Return size, time and version of the open file."""
        return self.pinned.facts

    def reopened(self) -> "BufferedReader[Any]":
        """Open the same version again, at its start.

        Raises:
            BadFileError: a link now leads outside of the roots.
            OSError: the file cannot be opened.
        """
        try:
            return self.pinned.open()
        except OutsideError as error:
            raise _outside(self._stream, self._file.location) from error

    def check(self) -> None:
        """Check, after reading, that all bytes belonged to the registered version.

        Raises:
            BadFileError: the file has changed.
            SourceUnavailableError: the store could not be reached.
        """
        stream, location = self._stream, self._file.location
        try:
            self.pinned.check_unchanged()
        except FileExistsError as error:
            if self.facts.etag is None:  # report the difference, if there still is any
                self._check_registered(self._head())
            raise bad_file_error(stream, location, _CHANGED, kind=BadFileKind.CHANGED) from error
        except OSError as error:
            raise unreadable_error(stream, location, error) from error

    def _pin(self) -> PinnedFile:
        file = self._file
        files = filesystem_of(file.location)
        return files.pin(file.uri, etag=file.etag, roots=self._stream.source.within)

    def _head(self) -> FileFacts:
        try:
            return filesystem_of(self._file.uri).head(self._file.uri)
        except OSError as error:
            raise unreadable_error(self._stream, self._file.location, error) from error

    def _check_registered(self, facts: FileFacts) -> None:
        stream, file = self._stream, self._file
        if not facts.is_regular:
            raise bad_file_error(stream, file.location, "is not a regular file")
        change = _size_change(file, facts.size_bytes)
        if change is None and facts.etag is None:
            change = _time_change(file, facts.modified_at)
        if change is not None:
            raise _changed(stream, file.location, change)

    def _other_version(self) -> BadFileError:
        """Return the error for an object whose version is not the registered one."""
        file = self._file
        if file.etag is None:  # replaced between the listing and the request
            return bad_file_error(self._stream, file.location, _CHANGED, kind=BadFileKind.CHANGED)
        now = self._head()
        size, etag = _size_change(file, now.size_bytes), f"etag {file.etag} -> {now.etag}"
        return _changed(self._stream, file.location, f"{size}, {etag}" if size else etag)


def _size_change(file: LandedFile, size_bytes: int) -> str | None:
    known, part = file.size_bytes, file.range
    if known is None and part is not None:
        known = part.file_bytes
    return None if known in {None, size_bytes} else f"size {known} -> {size_bytes} B"


def _time_change(file: LandedFile, now: datetime) -> str | None:
    if file.modified_at is None:
        return None
    before = file.modified_at.astimezone(UTC)
    return f"modified {before.isoformat()} -> {now.isoformat()}" if before != now else None


def _outside(stream: Stream, location: str) -> BadFileError:
    return bad_file_error(stream, location, stream.source.within.advice)


def _changed(stream: Stream, location: str, change: str) -> BadFileError:
    reason = f"changed since it was registered: {change}"
    return bad_file_error(stream, location, reason, kind=BadFileKind.CHANGED)


def unreadable_error(
    stream: Stream, location: str, error: OSError
) -> BadFileError | SourceUnavailableError:
    """Return the error for a file that cannot be read.

    A store that is unreachable, has no such bucket or denies access says nothing about the file:
    that is a retryable error, not a bad file. So is an I/O error of a local file: that may be a bad
    sector, but network file systems report outages so, and then no record may be skipped.
    """
    if is_outage(error):
        return SourceUnavailableError(location, reason_of(error))
    is_io_error = error.errno == errno.EIO and filesystem_of(location).is_local
    if is_io_error or is_missing_bucket(error) or not is_about_file(location, error):
        return SourceRefusedError(location, reason_of(error))
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return bad_file_error(stream, location, "does not exist", kind=BadFileKind.MISSING)
    return bad_file_error(stream, location, f"cannot be read ({reason_of(error)})")


def bad_file_error(
    stream: Stream,
    location: str,
    reason: str,
    *,
    line: int | None = None,
    kind: BadFileKind = BadFileKind.CORRUPT,
) -> BadFileError:
    """Return the error that reports a whole file as bad, with the reason on one line.

    Libraries put bytes of a file into their messages; `format_reason` escapes them.
    """
    return BadFileError(stream.name, location, line, format_reason(reason), kind=kind)


_MAX_REQUESTS = 8
_MAX_PREFETCHED_BYTES = 16 * 2**20


class Prefetcher:
    """A prefetcher of small files in object stores, which fetches a few files ahead, in order.

    For a small file, the latency of a request exceeds the transfer time, so the next requests are
    sent while a file is read.
    """

    def __init__(self, files: Iterable[LandedFile], within: Roots | None = None) -> None:
        """Prefetch files, in order, except those outside of the roots."""
        small = (file for file in files if _is_small(file))
        self._waiting = deque(
            file for file in small if within is None or not within.refuse(file.location)
        )
        self._requests: dict[str, tuple[int, Future[PinnedFile]]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def take(self, file: LandedFile) -> PinnedFile | None:
        """Return a prefetched file, or None if the file was not prefetched.

        Raises:
            InvalidValueError: the location names no file.
            OSError: the file cannot be opened, or has another version.
        """
        self._start_more()
        _, request = self._requests.pop(file.location, (0, None))
        self._start_more()
        return None if request is None else request.result()

    def close(self) -> None:
        """Discard the files that were not taken."""
        self._waiting.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
        for _, request in self._requests.values():
            if not request.cancelled():
                with suppress(Exception):  # a failed request has nothing to close
                    request.result().close()
        self._requests.clear()

    def _start_more(self) -> None:
        while self._waiting and len(self._requests) < _MAX_REQUESTS:
            size_bytes = self._waiting[0].size_bytes or 0
            requested_bytes = sum(size for size, _ in self._requests.values())
            if requested_bytes + size_bytes > _MAX_PREFETCHED_BYTES:
                return
            file = self._waiting.popleft()
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_MAX_REQUESTS, thread_name_prefix="fetch")
            self._requests[file.location] = (size_bytes, self._threads.submit(_pin, file))


def _is_small(file: LandedFile) -> bool:
    size_bytes = file.size_bytes
    if size_bytes is None or size_bytes > WHOLE_BYTES:
        return False
    return not filesystem_of(file.location).is_local and file.range is None


def _pin(file: LandedFile) -> PinnedFile:
    return filesystem_of(file.location).pin(file.uri, etag=file.etag)
